"""The committed check of the leakage study: it stands by its own rule, and would not if its figures were others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import load_script

HERE = Path(__file__).parents[2] / "studies" / "leakage"


def table(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = load_script(HERE / "check.py").table(old, new)
    return result


def read(name: str) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((HERE / name).read_text())
    return result


def test_the_study_stands() -> None:
    check, study = read("check.json"), {_key(row): row for row in read("leakage.json")["rows"]}
    assert check["stands"]
    assert check["compared"] == len(check["figures"]) >= 100
    assert check["differ"] == sum(row["differ"] for row in check["figures"]) <= 0.1 * check["compared"]
    for row in check["figures"]:
        assert row["old"] == study[_key(row)][row["measure"]]


def _key(row: dict[str, Any]) -> tuple[Any, ...]:
    names = ("design", "dataset", "mechanism", "budget", "round", "role", "attack")
    return (*(row[name] for name in names), row.get("control") == "negative")


def made_up(shift: float = 0.0, turned: bool = False) -> dict[str, Any]:
    place = {
        "design": "batch-4",
        "dataset": "mnist",
        "mechanism": "pl-learn",
        "round": 0,
        "role": "own",
        "attack": "labels",
    }
    rows, verdicts = [], []
    for budget in range(10):
        value = 0.5 + shift * (budget < 2)
        ends = {"labels_exact": value, "labels_exact_low": value - 0.03, "labels_exact_high": value + 0.03}
        rows.append({**place, "budget": budget, "control": None, **ends})
        word = "static leaks more" if turned and budget == 0 else "learned leaks more"
        verdicts.append({**place, "budget": budget, "against": "static, equal lower bound", "verdict": word})
    return {"rows": rows, "verdicts": verdicts}


@pytest.mark.parametrize(
    ("new", "stands", "differ", "other"),
    [
        (made_up(), True, 0, 0),
        (made_up(0.04), True, 0, 0),
        (made_up(0.05), False, 2, 0),
        (made_up(turned=True), False, 0, 1),
    ],
)
def test_another_figure_or_an_opposite_verdict_is_told(
    new: dict[str, Any], stands: bool, differ: int, other: int
) -> None:
    result = table(made_up(), new)
    assert (result["stands"], result["differ"], len(result["other_verdicts"])) == (stands, differ, other)
