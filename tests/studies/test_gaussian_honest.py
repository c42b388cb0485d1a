"""The committed count of accusations: by its own rule, honest audits accuse no more often than they may."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import load_script

HERE = Path(__file__).parents[2] / "studies" / "gaussian_dp"


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((HERE / "honest.json").read_text())
    return result


def test_honest_audits_accuse_no_more_often_than_they_may(found: dict[str, Any]) -> None:
    assert found["audits"] >= 100
    assert found["accused"] == len(found["seeds_that_accused"])
    assert not found["too_often"]
    assert not any(row["above"] for row in found["rounds"])
    assert all(row["games"] == 100 * found["audits"] for row in found["rounds"])


def rows(hits: int, above: bool = False) -> list[dict[str, Any]]:
    one = {"measure": "identification", "found": hits, "games": 100, "limit": 0.006}
    return [{**one, "round": number, "above": above} for number in (0, 2, 50)]


@pytest.mark.parametrize(("accusing", "expected"), [(0, False), (5, False), (12, True)])
def test_too_many_accusations_are_told(accusing: int, expected: bool) -> None:
    table = load_script(HERE / "honest.py").table
    result = table([rows(1, above=number < accusing) for number in range(100)])
    assert (result["accused"], result["too_often"]) == (accusing, expected)


def test_a_rate_above_the_limit_is_told() -> None:
    table = load_script(HERE / "honest.py").table
    assert not any(row["above"] for row in table([rows(1) if n % 2 else rows(0) for n in range(100)])["rounds"])
    assert all(row["above"] for row in table([rows(1)] * 100)["rounds"])
