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


def test_the_page_counts_what_lies_outside() -> None:
    """17 of 112, all too wide, eight of these with few hits."""
    once = [row for row in rows() if not row["twice"]]
    wide, narrow = [row for row in once if row["covered"] > 0.97], [row for row in once if row["covered"] < 0.93]
    few = [row for row in wide if (row["expected_hits"] or 10) < 10]
    assert [len(some) for some in (once, wide, few, narrow)] == [112, 17, 8, 0]


def test_with_two_non_members_a_release_the_intervals_of_membership_cover() -> None:
    few = json.loads((HERE / "few.json").read_text())["rows"]
    scenarios = load_script(HERE / "few.py").SCENARIOS
    assert {row["strength"] for row in few} == {scenario.strength for scenario in scenarios}
    assert {(row["releases"], row["batch"], row["others"], row["repetitions"]) for row in few} == {(200, 4, 2, 1000)}
    assert {row["measure"] for row in few} == {"membership_auc", "membership_tpr"}
    for row in few:
        assert row["covered"] >= 0.93 - 2 * row["standard_error"], row


def test_rows_name_the_non_members_that_there_were() -> None:
    """Fewer than were asked for with batches of 44, for which the pool has too few images."""
    for row in rows():
        assert row["dealt"] == row["others"] or (row["batch"] == 44 and 33 <= row["dealt"] <= 36)


@pytest.mark.parametrize("scenario", script().SCENARIOS[-2:], ids=["once", "twice"])
def test_batches_that_are_dealt_twice_can_be_simulated(scenario: Any) -> None:
    found = script().covered(scenario, 2, 1)
    assert {row["measure"] for row in found} == set(script().MEASURES)
    assert all(0 <= row["covered"] <= 1 for row in found)


# --- intervals that decide verdicts --------------------------------------------------------------------------


@cache
def pairs() -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = json.loads((HERE / "paired.json").read_text())["rows"]
    return result


def test_differences_and_means_of_three_trajectories_cover() -> None:
    """And nothing that is equal is called different more often than one time in twenty says."""
    assert {tuple(row[name] for name in ("strength", "other", "over")) for row in pairs()} == {
        (pair.audit.strength, pair.other, pair.over) for pair in load_script(HERE / "paired.py").PAIRS
    }
    assert len(pairs()) == 18
    for row in pairs():
        assert 0.93 <= row["covered"] <= 0.97, row
        if row["kind"] == "difference" and row["strength"] == row["other"]:
            assert row["excludes_zero"] == pytest.approx(0.05, abs=3 * row["standard_error"]), row


@pytest.mark.parametrize("over", ["releases", "trajectories"])
def test_a_small_simulation_of_pairs_covers_too(over: str) -> None:
    script = load_script(HERE / "paired.py")
    pair = script.Pair(script.Scenario(32, 4, 8, 2.5, 0.5), 1.5, 0.2, over)
    found = script.covered(pair, 60, 7)
    assert [(row["kind"], row["measure"]) for row in found] == [
        (kind, name) for name in ("identification", "membership_auc")
        for kind in ("difference", "figure")[: 2 if over == "releases" else 1]
    ]  # fmt: skip
    for row in found:
        assert row["covered"] > 0.85, row


@pytest.mark.parametrize("strength", [1.5, 4.0])
def test_a_small_simulation_covers_too(strength: float) -> None:
    scenario = script().Scenario(32, 4, 8, strength, 0.5)
    for row in script().covered(scenario, 60, 7):
        assert row["covered"] > 0.85, row
