"""What the tests of verdicts share: the content of an audit, made of figures such as the leakage study measured."""

from __future__ import annotations

from typing import Any

from equipoise.auditing.audit import claims

TWIN, NORM, BARE = "static, equal lower bound", "static, equal final norm", "undistorted"
Figures = dict[str, float]


def row(attack: str, value: float | None = None, role: str = "own", half: float = 0.02, **more: Any) -> dict[str, Any]:
    """A row of ``audit.json``: ``value`` by the attack's own metric, with an interval of ``half`` on both sides."""
    about = {"dataset": "mnist", "mechanism": "pl-learn", "budget": 0.98, "seed": 1, "round": 0}
    about |= {"role": role, "control": "positive" if role == BARE else None, "attack": attack}
    result = {**about, "targets": 32, "evidence": "ok", **more}
    name = {"membership": "membership_auc", "labels": "labels"}.get(attack, "identification")
    if value is not None:
        result |= {name: value, f"{name}_low": max(value - half, 0.0), f"{name}_high": min(value + half, 1.0)}
    if name == "identification":
        result["chance"] = "1 in 200"
    return {**result, **more}


def cell(attack: str, own: float, bare: float, twin: float | None = None, **more: Any) -> list[dict[str, Any]]:
    """A defence with its control and, where it learns, its static twin."""
    roles = {"own": own, BARE: bare, **({} if twin is None else {TWIN: twin})}
    failed = {"control_failed": True} if more.pop("failed", False) else {}
    return [
        row(attack, value, role, **more, **({} if role == BARE else failed)) for role, value in roles.items()
    ]  # fmt: skip


def gap(attack: str, value: float, half: float, against: str = TWIN, **more: Any) -> dict[str, Any]:
    about = {"dataset": "mnist", "mechanism": "pl-learn", "budget": 0.98, "seed": 1, "round": 0, "attack": attack}
    name = "labels" if attack == "labels" else "identification"
    return {**about, "against": against, name: value, f"{name}_low": value - half, f"{name}_high": value + half, **more}


def content(*rows: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "attacked": "32 releases of public images at 3 snapshots of 8 federations", "targets": "public",
        "complete": True, "notes": [], "claims": claims(list(rows), "public"), "left_out": {}, "attacks": list(rows),
        "differences": [], "options": {"releases": 32, "condition_on": "nothing", "pairs": 2},
        "baselines": {"mnist": {"black": {"mse": 1.18}, "class_mean": {"mse": 0.66}}}, **more,
    }  # fmt: skip


FIGURES = {  # matched at rounds 0, 200 and 2000: static, learned, static at the weights of learned
    0.995: ((0.91, 0.63, 0.29), (0.999, 0.58, 0.30), (0.91, 0.36, 0.20)),
    0.98: ((0.33, 0.39, 0.41), (0.90, 0.47, 0.41), (0.33, 0.38, 0.37)),
    0.96: ((0.09, 0.10, 0.03), (0.36, 0.58, 0.38), (0.09, 0.50, 0.29)),
}


def study() -> dict[str, Any]:
    """Seven federations at three snapshots, by three attacks."""
    rows = []
    for place, number in enumerate((0, 200, 2000)):
        bare = (1.0, 0.93, 0.58)[place]
        about: dict[str, Any] = {"round": number, "mechanism": "none", "budget": None}
        rows += [row("matched", bare, **about), row("membership", 0.99, membership_tpr=0.95, **about)]
        for budget, (static, learned, twin) in FIGURES.items():
            here = {"round": number, "budget": budget}
            rows += cell("matched", static[place], bare, mechanism="pl-identical", **here)
            rows += cell("matched", learned[place], bare, twin[place], **here)
            rows += cell("membership", 0.75, 0.99, mechanism="pl-identical", membership_tpr=0.1, **here)
            rows += cell("membership", 0.84, 0.99, 0.75, membership_tpr=0.2, **here)
            rows += cell("lti", 0.01, 0.02, 0.01, mse=0.7, failed=number > 0, **here)
    return content(*rows)


def combined(known: float, *, unknown: float | None = None, low: float | None = None, **more: Any) -> dict[str, Any]:
    """A row of ``multi_round`` with 1 in 25 by chance."""
    failed = more.pop("failed", False)
    rates = {"one_release": 0.1, "schedule_known": known, "schedule_unknown": known if unknown is None else unknown}
    row = {
        "attack": "multi-round", "mechanism": "pl-learn", "budget": 0.98, "rounds": 5000, "targets": 100,
        "candidates": 25, "chance": "1 in 25", "evidence": "ok", "releases_per_example": 20.0,
        "releases_per_example_least": 8, "releases_per_example_most": 34, "note": None, "interval_over": "other images",
        "control_failed": failed, "control_failed_schedule_known": failed, "control_failed_schedule_unknown": failed,
    }  # fmt: skip
    for name, rate in rates.items():
        for what, got in (("", rate), ("_undistorted", rate), ("_decoy", 0.04)):
            row |= {f"identification_{name}{what}": got, f"identification_{name}{what}_high": min(got + 0.05, 1.0)}
            row[f"identification_{name}{what}_low"] = max(got - 0.05, 0.0) if low is None else low
    return {**row, **more}
