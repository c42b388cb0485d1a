"""The committed table of the canary audit: what it says of honest code and of planted bugs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.helpers import load_script

HERE = Path(__file__).parents[2] / "studies" / "gaussian_dp"


@pytest.fixture(scope="module")
def table() -> dict[str, Any]:
    result: dict[str, Any] = json.loads((HERE / "canary.json").read_text())
    return result


def test_honest_code_fails_no_more_often_than_stated(table: dict[str, Any]) -> None:
    audits = sum(row["audits"] for row in table["honest"])
    assert audits >= 200
    assert sum(row["failed"] for row in table["honest"]) <= table["most_false_alarms"] * audits


def test_every_bug_is_in_it_and_those_that_are_meant_to_be_are_caught(table: dict[str, Any]) -> None:
    bugs = load_script(HERE / "canary.py").BUGS
    rows = {(row["bug"], row["setting"]): row for row in table["planted"]}
    assert set(rows) == {(bug.name, bug.setting) for bug in bugs}
    for bug in bugs:
        row = rows[bug.name, bug.setting]
        assert row["meant_to_be_caught"] == bug.meant
        if bug.meant:
            assert row["failed"] >= 0.9 * row["audits"], bug.name


def test_a_bug_that_is_not_meant_to_be_caught_somewhere_is_caught_elsewhere_or_said(table: dict[str, Any]) -> None:
    caught = {row["bug"] for row in table["planted"] if row["meant_to_be_caught"]}
    weak = {row["bug"] for row in table["planted"]} - caught
    assert weak == {"accountant given one round less", "a removed record changes the others' bits"}
