"""Rows of an audit side by side, and what is said beside them."""

from __future__ import annotations

from typing import Any

from equipoise.auditing.comparison import Defence, notes, side_by_side

CELL = {"dataset": "mnist", "mechanism": "pl-learn", "budget": 0.98, "seed": 1, "round": 0, "attack": "matched"}


def row(role: str, control: str | None, share: float, **more: Any) -> dict[str, Any]:
    return {**CELL, "role": role, "control": control, "identification": share, **more}


def test_rows_are_placed_by_round_defence_attack_and_role() -> None:
    rows = [
        row("own", None, 0.9), row("own", "negative", 0.01), row("static, equal lower bound", None, 0.3),
        row("static, equal lower bound", "negative", 0.7), row("undistorted", "positive", 1.0),
        row("own", None, 0.8, round=5), row("own", None, 0.4, mechanism="none", budget=None),
    ]  # fmt: skip
    result = side_by_side(rows)
    assert list(result) == [0, 5]
    sides = result[0][Defence("mnist", "pl-learn @ 0.98", 1)]["matched"]
    assert {role: one["identification"] for role, one in sides.items()} == {
        "own": 0.9, "negative": 0.01, "static, equal lower bound": 0.3, "undistorted": 1.0
    }  # fmt: skip
    plain = result[0][Defence("mnist", "none", 1)]["matched"]
    assert plain["undistorted"] is plain["own"]


def test_notes() -> None:
    few = {"targets": 8, "evidence": "insufficient evidence"}
    said = notes({
        "attacks": [row("own", None, 0.9, leakage=0.4, promised_leakage=0.98, **few)],
        "options": {"condition_on": "nothing"},
        "baselines": {"mnist": {"class_mean": {"mse": 1.18, "leakage": 0.46}}}, "complete": False,
        "cap": [{"mechanism": "none", "attack": "lti", "round": 5, "cap": 0.03}],
    })  # fmt: skip
    assert said[0] == "guesses that use no update (mnist): class mean: MSE 1.18, score 0.46"
    assert "score promised by the budgets: at most 0.98" in said
    assert "CAP of none against lti, round 5: 0.030" in said
    assert any(line.startswith("matched conditioned its responses on nothing") for line in said)
    assert "Interrupted: these are the parts that were finished." in said
    assert "Insufficient evidence: 8 releases, and a result takes 20." in said
