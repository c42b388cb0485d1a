"""Rows of an audit side by side, and what is said beside them."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.auditing.comparison import Defence, notes, readings, side_by_side, strictness

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
        "own": 0.9, "negative": 0.01, "static, equal lower bound": 0.3, "undistorted": 1.0,
        "none, own trajectory": 0.4,
    }  # fmt: skip
    plain = result[0][Defence("mnist", "none", 1)]["matched"]
    assert plain["undistorted"] is plain["own"]


def test_rounds_ascend_and_defences_go_from_none_and_strict_to_loose() -> None:
    names = [("pl-learn", 0.995), ("pl-identical", 0.995), ("pl-learn", 0.96), ("none", None), ("ls-identical", 80)]
    rows = [
        row("own", None, 0.5, mechanism=name, budget=budget, round=number)
        for number in (2000, 0, 200) for name, budget in names
    ]  # fmt: skip
    result = side_by_side([*rows, *rows])
    assert list(result) == [0, 200, 2000]
    assert [defence.label for defence in result[0]] == [
        "none", "ls-identical @ 80", "pl-learn @ 0.96", "pl-identical @ 0.995", "pl-learn @ 0.995",
    ]  # fmt: skip


def test_other_federations_of_the_run_stand_beside_a_defence() -> None:
    rows = [
        row("own", None, 0.9), row("own", None, 0.4, mechanism="none", budget=None),
        row("own", None, 0.3, mechanism="pl-identical"), row("own", None, 0.2, mechanism="pl-identical", budget=0.96),
    ]  # fmt: skip
    sides = side_by_side(rows)[0][Defence("mnist", "pl-learn @ 0.98", 1)]["matched"]
    assert {role: one["identification"] for role, one in sides.items()} == {
        "own": 0.9, "none, own trajectory": 0.4, "static, own trajectory": 0.3
    }  # fmt: skip


def test_budgets_of_all_forms_are_ordered_by_what_the_loosest_client_starts_with() -> None:
    schedule = {"rounds": [1, 5], "values": [[0.97, 0.9], 0.99]}
    order = sorted([0.98, [0.96, 0.99], schedule], key=lambda budget: strictness("pl-learn", budget))
    assert order == [schedule, 0.98, [0.96, 0.99]]


@pytest.mark.parametrize(
    ("own", "other", "gap", "result"),
    [
        ((0.5, 0.6), (0.3, 0.4), None, "more"), ((0.1, 0.2), (0.3, 0.4), None, "less"),
        ((0.3, 0.5), (0.4, 0.6), None, "no clear difference"), ((0.3, 0.5), (0.4, 0.6), (0.01, 0.2), "more"),
        ((0.5, 0.6), (0.3, 0.4), (-0.1, 0.2), "no clear difference"), (None, (0.3, 0.4), None, "no clear difference"),
    ],
)  # fmt: skip
def test_a_difference_is_one_by_its_own_interval_else_by_two_that_do_not_overlap(
    own: Any, other: Any, gap: Any, result: str
) -> None:
    def sure(ends: Any) -> dict[str, Any]:
        return {} if ends is None else {"identification_low": ends[0], "identification_high": ends[1]}

    twin = "static, equal lower bound"
    gaps = [] if gap is None else [{**CELL, "against": twin, "identification": 0.1, **sure(gap)}]
    rows = [row("own", None, 0.55, **sure(own)), row(twin, None, 0.35, **sure(other))]
    (one,) = readings({"attacks": rows, "differences": gaps})
    assert one.against(twin) == result
    assert one.against("undistorted") is None


@pytest.mark.parametrize("which", ["own", "static, equal lower bound"])
def test_a_failed_control_voids_no_clear_difference_and_scores_that_are_not_finite_any(which: str) -> None:
    def compared(other: float, **doubt: Any) -> str | None:
        twin = "static, equal lower bound"
        rows = [
            row(role, None, value, identification_low=value - 0.1, identification_high=value + 0.1)
            | (doubt if role == which else {})
            for role, value in (("own", 0.55), (twin, other))
        ]
        return next(readings({"attacks": rows})).against(twin)

    assert compared(0.5) == "no clear difference"
    assert compared(0.5, control_failed=True) is None
    assert (compared(0.2, control_failed=True), compared(0.9, control_failed=True)) == ("more", "less")
    assert compared(0.2, not_finite=3) is None


def test_chance_is_one_candidate_an_even_auc_or_the_negative_control() -> None:
    rows = [
        row("own", None, 0.9, chance="1 in 50"), row("own", None, 0.0, attack="membership", membership_auc=0.6),
        row("own", None, 0.0, attack="labels", labels=0.5), row("own", "negative", 0.0, attack="labels", labels=0.1),
    ]  # fmt: skip
    found = {one.metric.name: one.chance for one in readings({"attacks": rows}) if one.value}
    assert found == {"identification": 0.02, "membership_auc": 0.5, "labels": 0.1}


def test_notes() -> None:
    few = {"targets": 8, "evidence": "insufficient evidence"}
    said = notes({
        "attacks": [row("own", None, 0.9, leakage=0.4, promised_leakage=0.98, **few)],
        "options": {"condition_on": "nothing", "pairs": 2},
        "baselines": {"mnist": {"class_mean": {"mse": 1.18, "leakage": 0.46}}}, "complete": False,
        "cap": [{"mechanism": "none", "attack": "lti", "round": 5, "cap": 0.03}],
    })  # fmt: skip
    assert said[0] == "guesses that use no update (mnist): class mean: MSE 1.18, score 0.46"
    assert "score promised by the budgets: at most 0.98" in said
    assert "CAP of none against lti, round 5: 0.030" in said
    assert any(line.startswith("effort of matched: pairs=2, condition_on=nothing; ") for line in said)
