"""Rows summed up for readers: what the tables of a terminal (``cli/bounds_tables.py``) and the page both show."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from ..mechanism.schedule import schedule_text
from .rows import CONFIGURED, Row

RESULTS = {
    "distortion_stationarity": "inner loop",
    "convex_suboptimality": "convex case",
    "one_step": "one round",
    "converge_rate": "whole run",
    "privacy_leakage": "leakage",
    "conditional_preservation": "budget kept",
}
"""What the results are about, in the order of the reports; docs/bounds.md explains each."""
CITATIONS = {
    "distortion_stationarity": "Theorem 5.1",
    "convex_suboptimality": "Corollary 5.1",
    "one_step": "Lemma C.1",
    "converge_rate": "Theorem 5.2",
    "privacy_leakage": "Lemma D.1",
    "conditional_preservation": "Remark 1",
}
"""Their numbers in Zhang et al. (arXiv:2305.15148)."""
SEVERITY = ("held", "not covered", "not checkable", "violated")


def defence_label(row: Row, with_dataset: bool = True) -> str:
    """
    >>> defence_label({"dataset": "data/mnist", "mechanism": "pl-learn", "budget": 0.98})
    'mnist pl-learn @ 0.98'
    """
    dataset = f"{Path(row['dataset']).name} " if with_dataset else ""
    return f"{dataset}{row['mechanism']}" + ("" if row["budget"] is None else f" @ {schedule_text(row['budget'])}")


def federation_label(row: Row) -> str:
    """
    >>> federation_label({"dataset": "data/mnist", "mechanism": "pl-learn", "budget": 0.98, "seed": 1})
    'mnist pl-learn @ 0.98 (seed 1)'
    """
    return f"{defence_label(row)} (seed {row['seed']})"


def grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[Row]]:
    """Rows by ``key``, in the order in which each is met first."""
    groups: dict[Any, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def short(value: float, digits: int = 3) -> str:
    """A few digits, and no more of the exponent than it takes.

    >>> short(78923.0), short(1060.6), short(0.0001234), short(15.99975), short(0.0)
    ('7.89e4', '1061', '1.23e-4', '16', '0')
    """
    if 100 <= abs(value) < 10000:
        return f"{value:.0f}"
    small = 0 < abs(value) < 0.01
    text = f"{value:.{digits - 1}e}" if small else f"{value:.{digits}g}"
    head, mark, exponent = text.partition("e")
    return f"{head}e{int(exponent)}" if mark else head


def checks_by_round(rows: Iterable[Row]) -> list[Row]:
    """Every assumption of the run as it was configured, once for every round: its worst status there, and who asks."""
    checks = [
        {**check, "result": row["result"], "round": row["round"]}
        for row in rows if row["setting"] == CONFIGURED for check in row["assumptions"]
    ]  # fmt: skip
    return worst_checks(checks, lambda check: (check["name"], check["round"]))


def worst_checks(checks: Iterable[Row], key: Callable[[Row], Any]) -> list[Row]:
    """Of the checks with one ``key``, the one that stood worst, with all the results that ask for it."""
    return [
        {**sorted(several, key=_badness)[-1], "results": list(dict.fromkeys(check["result"] for check in several))}
        for several in grouped(checks, key).values()
    ]


def _badness(check: Row) -> tuple[int, float]:
    """By status, then by how near a number came to its limit."""
    value, limit = (((check["figures"].get(name) or {}).get("value")) for name in ("value", "limit"))
    near = value / limit if value is not None and limit else 0.0
    return SEVERITY.index(check["status"]), near


def figures_text(check: Row) -> str:
    """``0.1 against 0.0057`` or the figures by name; and in how many subproblems an assumption was violated."""
    shown = {name: one["value"] for name, one in check["figures"].items() if one and one["value"] is not None}
    words = [f"{name} {short(value)}" for name, value in shown.items()]
    if set(shown) == {"value", "limit"}:
        words = [f"{short(shown['value'])} against {short(shown['limit'])}"]
    if check.get("violated"):
        words.append(f"violated in {check['violated']} of {check['subproblems']} subproblems")
    return ", ".join(words)


def asked_by(check: Row) -> str:
    """The results that need an assumption, by their numbers."""
    return ", ".join(CITATIONS[result] for result in check["results"])
