"""Planted parts of the frontier, as ``equipoise.compute`` would have written them: numbers that are easy to follow."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from equipoise.auditing.results import Outcome
from equipoise.auditing.store import Values, packed
from equipoise.choosing import frontier_plan as plan
from equipoise.choosing.frontier_plan import CANDIDATES, RECOMMENDED, stages_by_round
from equipoise.choosing.frontier_store import PARTS, SCHEMA
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, to_dict
from equipoise.files import DONE

STATIC = ("pl-identical", 0.98)
ROUNDS = (0, 200, 2000, 5000)


def spec(*kinds: tuple[str, float | None], dataset: str = "mnist", **change: Any) -> dict[str, Any]:
    """A SPEC of the paper's settings, changed; two seeds of every mechanism and budget."""
    federations = [Federation(dataset, name, budget, seed) for name, budget in kinds or [STATIC] for seed in (1, 2)]
    return to_dict(Settings.flat(**{"rounds": 5000, **change}), federations)


def formal_spec(*epsilons: float) -> dict[str, Any]:
    settings = CANDIDATES[RECOMMENDED].settings()
    return to_dict(settings, [Federation("mnist", "gaussian-dp", epsilon, 1) for epsilon in epsilons])


def part(of: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "commit": "abc",
        "seconds": 2.0,
        "spec": of,
        "environment": {"device": "a machine"},
        "candidates": 200,
        **more,
    }


def accuracy(of: dict[str, Any], value: float = 0.8, rounds: Sequence[int] = ROUNDS) -> list[dict[str, Any]]:
    """Of every federation at every round: chance before the last, and there ``value`` plus a hundredth of the seed."""
    return [
        {**one, "round": number, "accuracy": value + one["seed"] / 100 if number == rounds[-1] else 0.1}
        for number in rounds for one in of["federations"]
    ]  # fmt: skip


def outcome(attack: str, number: int, values: dict[str, Any], impostor: Any = ((0.0,),), **about: Any) -> Outcome:
    """What one attack found after one round; ``values`` are rows, one for each release."""
    usual = {"dataset": "mnist", "mechanism": "pl-identical", "budget": 0.98, "seed": 1, "role": "own", "part": "one"}
    negative = {} if attack == "membership" else {"identification": np.array(impostor, dtype=float)}
    arrays = {name: np.array(rows, dtype=float) for name, rows in values.items()}
    return Outcome({**usual, "round": number, **about}, attack, arrays, negative)


def found(share: float, releases: int = 100, rank: float = 3.0) -> dict[str, Any]:
    """Releases of four examples of which a share is identified, and all others have one rank."""
    hits = np.zeros(releases * 4)
    hits[: round(share * releases * 4)] = 1
    hits = np.random.default_rng(0).permutation(hits).reshape(releases, 4)
    return {"identification": hits, "rank": np.where(hits == 1, 0.0, rank)}


def values(outcomes: Sequence[Outcome] = (), **parts: dict[str, Any]) -> Values:
    return Values(list(outcomes), {}, {"schema": SCHEMA, PARTS: parts})


def game(number: int | None, measured: float = 0.02, **change: Any) -> list[dict[str, Any]]:
    """The two rows that the attacker of the proof leaves, after a round or (None) over the run."""
    rounds = 50 if number is None else 1
    terms = {
        "sigma": 20.0,
        "rounds": rounds,
        "sampling_rate": 1.0,
        "scope": "run" if number is None else "release_known",
    }
    row = {
        "dataset": "mnist", "mechanism": "gaussian-dp", "budget": 1, "seed": 1, "round": number, "terms": terms,
        "low": measured / 2, "high": measured * 2, "kappa": 1 / 200, "candidates": 200, "games": 500, "limit": 0.03,
        "undistorted": 1.0, "impostor": 0.004, "control_failed": False, "above": False,
    }  # fmt: skip
    which = {**row, "measure": "identification", "measured": measured, "found": 500 * measured, "log_rank": 4.0}
    alarms = {"measure": "membership_tpr", "measured": 0.05, "low": 0.04, "high": 0.06, "kappa": 0.01}
    other = {**row, **alarms, "fpr": 0.1, "measured": 0.5}
    return [{**which, **change}, {**other, **change}, {**row, **alarms, "fpr": 0.01, **change}]


def run_row(identification: float = 0.5, **about: Any) -> dict[str, Any]:
    """What multi-round left of one mechanism at one budget."""
    ends = {"_low": -0.1, "_high": 0.1}
    row: dict[str, Any] = {"dataset": "mnist", "mechanism": "pl-identical", "budget": 0.98, "seed": 2, **about}
    for name, value in (("identification_schedule_known", identification), ("membership_tpr_schedule_known", 0.25)):
        row |= {name: value, **{f"{name}{end}": value + shift for end, shift in ends.items()}}
    return {
        **row, "log_rank_schedule_known": 1.5, "targets": 40, "candidates": 200, "control_failed": False,
        "identification_schedule_known_undistorted": 0.9, "identification_schedule_known_decoy": 0.025,
        "identification_one_release": 0.01,
    }  # fmt: skip


def everywhere(share: float = 0.4, **about: Any) -> list[Outcome]:
    """``matched``, its control and ``membership`` at the four stages."""
    members = {"members": np.arange(400.0).reshape(100, 4), "others": np.arange(400.0).reshape(100, 4) - 50}
    return [
        one for number in stages_by_round(5000, False) for one in (
            outcome("matched", number, found(share), **about),
            outcome("matched", number, found(0.9), role="undistorted", **about),
            outcome("membership", number, members, **about),
        )
    ]  # fmt: skip


def folder(path: Path, of: dict[str, Any], outcomes: Sequence[Outcome] = (), **results: Any) -> Path:
    """A finished part as ``compute`` writes it; log-ranks in place of ranks."""
    path.mkdir(parents=True)
    done = {"schema": 1, "commit": "abc", "spec": of, "seconds": 3.0}
    (path / DONE).write_text(json.dumps(done))
    for name, content in results.items():
        (path / f"{name}.json").write_text(json.dumps({"environment": {"device": "a machine"}, **content}))
    if outcomes:
        written = []
        for one in outcomes:
            arrays = {name: value for name, value in one.values.items() if name != "rank"}
            if "rank" in one.values:
                arrays["log_rank"] = np.log1p(one.values["rank"]).astype(np.float32).astype(np.float64)
            about = {name: value for name, value in one.about.items() if name != "part"}
            written.append(Outcome({**about, "learns": False}, one.attack, arrays, one.negative))
        (path / "audit.npz").write_bytes(packed(Values(written, {}, {"candidates": 200})))
    return path


def as_planned(patch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Let the plan have the finished parts below these folders, too, as they are."""
    genuine = plan.parts
    found = {
        path.parent.name: json.loads(path.read_text())["spec"] for one in folders for path in one.glob(f"*/{DONE}")
    }
    patch.setattr(plan, "parts", lambda device="cuda": {**genuine(device), **found})


def cell(**change: Any) -> dict[str, Any]:
    """A cell of the record, of the paper's learner unless changed."""
    formal = change.get("mechanism") == "gaussian-dp"
    usual: dict[str, Any] = {
        "dataset": "mnist", "mechanism": "pl-learn", "model": "lenet-zhu", "server": "plain", "budget": 0.98,
        "batch": 4, "local_steps": 1, "clients": 4, "partition": "identical", "rounds": 5000, "public": None,
        "epsilon": None, "delta": None, "relation": None, "seeds": 5, "accuracy": 0.7,
        "accuracy_low": 0.69, "accuracy_high": 0.71, "accuracy_round": 5000, "gradients": 44, "bytes": 53704,
        "scope": "run", "attack": "multi-round", "identification": 0.5,
        "identification_low": 0.4, "identification_high": 0.6, "log_rank": 1.0, "membership_tpr_at_1pct": 0.3,
        "membership_low": 0.2, "membership_high": 0.4, "candidates": 200, "undistorted": 0.9, "control_failed": False,
        "proved_identification": None,
    }  # fmt: skip
    if formal:
        usual |= {
            "model": "scatter-linear", "server": "momentum", "batch": None, "rounds": 50, "delta": 1e-5,
            "epsilon": change["budget"], "relation": "add/remove", "proved_identification": 0.03,
            "identification": 0.02, "identification_low": 0.01, "identification_high": 0.04, "gradients": 1000,
            "bytes": 158840, "accuracy_round": 49, "undistorted": 1.0, "membership_tpr_at_1pct": 0.05,
        }  # fmt: skip
    return {**usual, **change}


def scopes(**change: Any) -> list[dict[str, Any]]:
    return [cell(**{**change, "scope": scope}) for scope in (0, 4, 40, 100, "run")]
