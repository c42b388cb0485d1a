"""Intervals of audits cover: the committed simulation keeps its rule, and a small one can be made at any time."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.helpers import load_script

HERE = Path(__file__).parents[2] / "studies" / "coverage"


def script() -> ModuleType:
    return load_script(HERE / "run.py")


@cache
def rows() -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads((HERE / "coverage.json").read_text())["rows"]
    return result


def test_every_scenario_was_simulated() -> None:
    assert len(rows()) == len(script().SCENARIOS) * len(script().MEASURES)
    assert {row["repetitions"] for row in rows()} == {1000}


def edge(row: dict[str, Any]) -> bool:
    """Whether nearly all images are found: an area near 1, a log-rank near 0."""
    if row["measure"] == "log_rank":
        return bool(row["true_value"] < 0.2)
    return bool(row["measure"] == "membership_auc" and row["true_value"] > 0.99)


def test_intervals_cover_as_often_as_they_say() -> None:
    """93 to 97 % where ten hits or more are expected, else at least 93 %, up to two errors of the simulation."""
    for row in rows():
        if row["twice"] or edge(row):
            continue
        slack = 2 * row["standard_error"]
        assert row["covered"] >= 0.93 - slack, row
        if row["expected_hits"] is None or row["expected_hits"] >= 10:
            assert row["covered"] <= 0.97 + slack, row


def test_at_the_edge_intervals_are_too_wide_if_anything() -> None:
    """What the page says of them."""
    near = [row for row in rows() if edge(row) and not row["twice"]]
    assert len(near) == 6
    assert all(row["covered"] >= 0.93 - 2 * row["standard_error"] for row in near)


def test_batches_dealt_twice_would_show() -> None:
    twice = [row["covered"] for row in rows() if row["twice"] and row["measure"] in ("identification", "log_rank")]
    assert max(twice) < 0.93


@pytest.mark.parametrize("strength", [1.5, 4.0])
def test_a_small_simulation_covers_too(strength: float) -> None:
    scenario = script().Scenario(32, 4, 8, strength, 0.5)
    for row in script().covered(scenario, 60, 7):
        assert row["covered"] > 0.85, row
