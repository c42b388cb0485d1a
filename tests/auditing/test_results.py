"""What attacks found as numbers with intervals: means, areas, evidence, and differences release by release."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise.auditing.results import (
    ENOUGH,
    Outcome,
    able,
    differences,
    evidence,
    mark_controls,
    renamed,
    rows_of,
    shortages,
    summary,
)
from equipoise.auditing.targets import Targets, build_targets
from equipoise.statistics import rate_interval
from tests.auditing.small import QUICK, materials, server_of, targets_of

# --- numbers with intervals ----------------------------------------------------------------------------------


def test_a_summary_has_means_with_intervals() -> None:
    values = {"mse": np.arange(40.0).reshape(20, 2), "psnr": np.array([[100.0], [3.0], [5.0]]), "other": np.ones(3)}
    result = summary(values)
    assert result["mse"] == pytest.approx(19.5)
    assert 10 < result["mse_low"] < 19.5 < result["mse_high"] < 29
    assert result["psnr"] == pytest.approx(36.0)
    assert not any(name.startswith("other") for name in result)
    assert "not_finite" not in result


def test_values_that_are_not_finite_are_counted() -> None:
    result = summary({"cost": np.array([[np.inf], [3.0], [np.nan], [5.0]])})
    assert (result["not_finite"], result["cost"]) == (2, pytest.approx(4.0))
    assert summary({"psnr": np.array([[np.inf]])}) == {
        "psnr": None, "psnr_low": None, "psnr_high": None, "not_finite": 1,
    }  # fmt: skip


def test_a_summary_of_membership_has_areas_and_rates() -> None:
    members, others = np.arange(40.0).reshape(20, 2) + 100, np.arange(60.0).reshape(20, 3)
    result = summary({"members": members, "others": others})
    for name in ("membership_auc", "membership_tpr"):
        assert result[name] == result[f"{name}_high"] == 1
        assert 0.8 < result[f"{name}_low"] < 1, "forty of forty are no proof of all"
    chance = summary({"members": others, "others": others[::-1]})
    assert (chance["membership_auc"], chance["membership_tpr"]) == (0.5, 0)
    assert chance["membership_auc_low"] < 0.5 < chance["membership_auc_high"]
    one = summary({"members": members[:1], "others": others[:1]})
    assert one["membership_auc"] == 1
    assert one["membership_auc_low"] is one["membership_tpr_high"] is None


def test_rates_have_an_interval_even_where_nothing_was_found() -> None:
    found = np.zeros((30, 4))
    result = summary({"identification": found, "labels_exact": found[:, 0], "labels": found[:, 0]})
    for name, table in (("identification", found), ("labels_exact", found[:, :1])):
        assert (result[f"{name}_low"], result[f"{name}_high"]) == rate_interval(table)
        assert result[f"{name}_high"] > 0.02
    assert 0.02 < result["labels_high"] < result["labels_exact_high"] + 1e-9, "nor is it empty for shares of labels"
    assert summary({"labels": 1 - found[:, 0]})["labels_low"] < 0.98


def test_one_candidate_has_one_rank() -> None:
    """So it is with the control of two candidates, which leaves the truth out."""
    result = summary({"log_rank": np.zeros((5, 4)), "identification": np.ones((5, 4))}, candidates=1)
    assert (result["log_rank_low"], result["log_rank_high"]) == (0.0, 0.0)
    assert summary({"log_rank": np.zeros((5, 4))}, candidates=2)["log_rank_high"] > 0.1


def test_releases_that_are_not_independent_have_no_intervals() -> None:
    values = {"mse": np.arange(40.0).reshape(20, 2), "identification": np.eye(20), "members": np.eye(20)}
    with_them = summary({**values, "others": np.eye(20)})
    without = summary({**values, "others": np.eye(20)}, intervals=False)
    assert with_them.keys() == without.keys()
    for name, value in without.items():
        assert value is None if name.endswith(("_low", "_high")) else value == with_them[name]
        assert with_them[name] is not None


def test_twenty_releases_are_enough() -> None:
    assert ENOUGH == 20
    assert [evidence(n) for n in (0, 19, 20, 500)] == ["insufficient evidence"] * 2 + ["ok"] * 2


# --- rows ----------------------------------------------------------------------------------------------------


def outcome(attack: str = "lti", control: str | None = None, **change: Any) -> Outcome:
    given: dict[str, Any] = {
        "values": {"mse": np.array([[1.0, 3.0], [5.0, 7.0]])},
        "negative": {"mse": np.array([[10.0, 10.0], [20.0, 20.0]])},
        "notes": {"stopped": 1},
    }
    return Outcome({"mechanism": "gs-static", "role": "own", "control": control}, attack, **{**given, **change})


@pytest.mark.parametrize("control", [None, "positive"])
def test_a_result_and_its_negative_control_are_two_rows(control: str | None) -> None:
    targets = targets_of(replace(QUICK, attacks=[]))
    result, chance = rows_of(outcome(control=control), targets)
    assert (result["control"], result["mse"], result["stopped"]) == (control, 4.0, 1)
    assert (chance["control"], chance["mse"]) == ("negative", 15.0)
    assert "stopped" not in chance, "what befell the attack is no news of chance"
    for row in (result, chance):
        assert (row["attack"], row["mechanism"], row["role"]) == ("lti", "gs-static", "own")
        assert (row["targets"], row["label_sets"]) == (24, targets.label_sets)
        assert row["distinct_images"] == len(set(targets.truth.flatten().tolist()))
        assert row["evidence"] == "ok"


def test_what_befell_an_attack_changes_no_number_of_its_row() -> None:
    notes = {"stopped": 1, "mse": 0.0, "mse_low": 0.0, "targets": 10**6, "evidence": "ok", "role": "undistorted"}
    targets = targets_of()
    assert rows_of(outcome(notes=notes), targets) == rows_of(outcome(), targets)


def test_identification_comes_with_its_chance() -> None:
    targets, values = targets_of(), {"identification": np.array([[1.0, 0.0]])}
    rows = rows_of(outcome(values=values, negative=values), targets)
    assert [row["chance"] for row in rows] == ["1 in 20", "1 in 19"], "the control leaves the truth out"
    assert "chance" not in rows_of(outcome(), targets)[0]


def test_rows_without_a_dataset_stay_as_they_are() -> None:
    assert renamed([{"dataset": "/a/b", "mse": 1}, {"mse": 2}], {"/a/b": "b"}) == [
        {"dataset": "b", "mse": 1},
        {"mse": 2},
    ]


def test_membership_and_its_control_are_two_rows_of_areas() -> None:
    up = np.arange(8.0).reshape(2, 4)
    values, negative = {"members": up + 9, "others": up}, {"members": up, "others": up}
    row, chance = rows_of(outcome("membership", values=values, negative=negative), targets_of())
    assert (row["membership_auc"], row["membership_tpr"], chance["membership_auc"]) == (1.0, 1.0, 0.5)
    (alone,) = rows_of(outcome("membership", values=values, negative={}), targets_of())
    assert alone["membership_auc"] == 1.0


def recurring(part: str) -> Targets:
    """Targets of which two releases share an image in one part."""
    known = targets_of()
    if part == "others":
        asked = known.asked.clone()
        asked[1][~known.member[1]] = asked[0][~known.member[0]]
        return replace(known, asked=asked)
    choices, place = known.choices.clone(), known.place.clone()
    choices[1], place[1] = choices[0], place[0]
    return replace(known, choices=choices, place=place)


@pytest.mark.parametrize(("part", "kept"), [("nothing", 2), ("others", 1), ("truth", 0)])
def test_where_images_recur_there_are_no_intervals(part: str, kept: int) -> None:
    """Non-members matter to membership alone."""
    targets = targets_of() if part == "nothing" else recurring(part)
    members = {"members": np.arange(8.0).reshape(4, 2), "others": np.arange(8.0).reshape(4, 2)}
    image, member = (rows_of(outcome(values=values), targets)[0] for values in (outcome().values, members))
    assert (image["mse"], member["membership_auc"]) == (4.0, 0.5)
    assert (image["mse_low"] is not None) == (kept > 0)
    assert (member["membership_auc_low"] is not None) == (kept > 1)
    assert (member["membership_tpr_high"] is not None) == (kept > 1)


# --- what there was too little for ---------------------------------------------------------------------------


def test_a_pool_that_gives_what_was_asked_for_needs_no_note() -> None:
    assert shortages(targets_of(), QUICK) == []


def test_whatever_was_reduced_is_said() -> None:
    asked = replace(QUICK, releases=90, candidates=300, others=50)
    targets = build_targets(materials(), server_of()[0], asked)
    assert (len(targets), targets.candidates, targets.others) == (50, 100, 4)
    words = [
        "50 releases are attacked, not 90: no example plays a part twice, and there are no more of these labels.",
        "Each example is sought among 100 candidates, not 300: there are no more of its label.",
        "Members are told from 4 others, not 50: there are no more of their labels.",
    ]
    assert shortages(targets, asked) == words
    assert shortages(targets, asked, given=True) == words[1:], "updates are as many as were given"
    assert shortages(targets, replace(asked, attacks=["lti"])) == words[:2], "nobody asks who is a member"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("truth", "There are no intervals: an example is in several releases, so these are not independent."),
        ("others", "Membership has no intervals: there are too few others for each release to have its own."),
    ],
)
def test_why_there_are_no_intervals_is_said(part: str, words: str) -> None:
    assert shortages(recurring(part), QUICK) == [words]
    alone = shortages(recurring(part), replace(QUICK, attacks=["lti"]))
    assert alone == ([words] if part == "truth" else [])


# --- attacks that fail their positive control ----------------------------------------------------------------


def row_of(role: str = "own", control: str | None = None, **values: Any) -> dict[str, Any]:
    about = {"dataset": "mnist", "mechanism": "pl-learn", "budget": 0.98, "seed": 1, "round": 5, "attack": "some"}
    return {**about, "role": role, "control": control, **values}


ABLE = {
    "identification": ({"chance": "1 in 200"}, 0.05, {}),
    "of few": ({"chance": "1 in 5"}, 0.5, {}),
    "verified": ({"chance": "1 in 200"}, 0.05, {}),
    "membership_auc": ({}, 0.75, {}),
    "labels": ({}, 0.7, {"labels": 0.4}),
    "labels without a guess": ({}, 0.5, None),
}
METRIC = {"of few": "identification", "labels without a guess": "labels"}


@pytest.mark.parametrize("rule", ABLE)
@pytest.mark.parametrize("interval", [True, False])
def test_an_attack_is_able_if_the_lower_end_on_undistorted_releases_exceeds_its_rule(rule: str, interval: bool) -> None:
    """Ten times chance or one half; an area of 0.75; half of the way from guessing to certainty."""
    more, least, guess = ABLE[rule]
    name, negative = METRIC.get(rule, rule), None if guess is None else row_of(control="negative", **guess)
    for step, expected in ((0.001, True), (0.0, False), (-0.001, False)):
        got = {name: 1.0, f"{name}_low": least + step} if interval else {name: least + step, f"{name}_low": None}
        assert able(row_of("undistorted", "positive", **got, **more), negative) == expected


def test_what_says_nothing_of_success_is_believed() -> None:
    assert able(row_of("undistorted", "positive", mse=0.3, mse_low=0.2), None)


def marked(*rows: dict[str, Any]) -> list[bool]:
    mark_controls(list(rows))
    assert all(row.get("control_failed", True) is True for row in rows)
    return [row.get("control_failed", False) for row in rows]


STATIC = "static, equal lower bound"


@pytest.mark.parametrize(("area", "failed"), [(0.6, True), (0.9, False)])
def test_rows_of_an_attack_that_fails_its_control_are_marked(area: float, failed: bool) -> None:
    """Of every role, but neither the control itself nor any negative control."""
    rows = [
        row_of(membership_auc_low=0.99), row_of(STATIC, membership_auc_low=0.5),
        row_of("undistorted", "positive", membership_auc_low=area),
        row_of(control="negative", membership_auc_low=0.5),
        row_of("undistorted", "negative", membership_auc_low=0.5),
    ]  # fmt: skip
    assert marked(*rows) == [failed, failed, False, False, False]


def test_nothing_fails_without_a_control() -> None:
    """The control of another attack, round, seed, budget, mechanism or dataset is no control of this one."""
    assert marked(row_of(membership_auc_low=0.5)) == [False]
    other = {"attack": "x", "round": 6, "seed": 2, "budget": 0.99, "mechanism": "gs-learn", "dataset": "fmnist"}
    for name, value in other.items():
        control = row_of("undistorted", "positive", membership_auc_low=0.5) | {name: value}
        assert marked(row_of(membership_auc_low=0.5), control) == [False, False], name
    twin = row_of(STATIC, "negative", membership_auc_low=0.5)
    assert marked(row_of(membership_auc_low=0.5), twin) == [False, False]


@pytest.mark.parametrize(("share", "failed"), [(0.69, True), (0.71, False)])
def test_labels_are_held_against_guesses_at_the_undistorted_weights(share: float, failed: bool) -> None:
    rows = [
        row_of(labels_low=0.5),
        row_of("undistorted", "positive", labels_low=share),
        row_of("undistorted", "negative", labels=0.4),
        row_of(control="negative", labels=0.0),
    ]
    assert marked(*rows) == [failed, False, False, False]


@pytest.mark.parametrize(("share", "failed"), [(0.04, True), (0.06, False)])
def test_a_run_without_protection_is_its_own_control(share: float, failed: bool) -> None:
    free = {"mechanism": "none", "chance": "1 in 200"}
    assert marked(row_of(identification_low=share) | free) == [failed]


def test_schedules_of_budgets_have_controls_too() -> None:
    """A budget may be a table, which is no key."""
    schedule = {"budget": {"rounds": [0, 9], "values": [0.9, 0.99]}}
    rows = [row_of(membership_auc_low=0.5), row_of("undistorted", "positive", membership_auc_low=0.5)]
    assert marked(*(row | schedule for row in rows)) == [True, False]


def test_rows_of_given_updates_have_neither_dataset_nor_round_nor_seed() -> None:
    rows = [row_of(labels_low=0.5), row_of("undistorted", "positive", labels_low=0.3)]
    for row in rows:
        del row["dataset"], row["seed"]
        row |= {"round": None, "labels_granted": False}
    assert marked(*rows) == [True, False]


# --- differences ---------------------------------------------------------------------------------------------


def test_differences_are_taken_release_by_release() -> None:
    """Each release differs by 1 or 3, whatever the images of a release are worth in themselves."""
    base = np.array([[0.0, 10.0], [100.0, 300.0], [7.0, 5.0]])
    step = np.array([[1.0], [3.0], [1.0]])
    one, other = (outcome(values={"mse": values, "cost": values}) for values in (base + step, base))
    gap = differences(one, other, 0)
    assert gap["mse"] == pytest.approx(5 / 3)
    assert 1 <= gap["mse_low"] < 5 / 3 < gap["mse_high"] <= 3
    assert "cost" not in gap, "costs of two defences are not of one scale"
    assert differences(other, one, 0)["mse"] == pytest.approx(-5 / 3)
    assert set(differences(one, one, 0).values()) == {0.0}


def test_a_difference_of_rates_may_be_negative() -> None:
    """It is no rate: an interval between 0 and 1 would not hold it."""
    local = np.random.default_rng(1)
    few, many = ((local.random((40, 4)) < share).astype(float) for share in (0.2, 0.8))
    gap = differences(outcome(values={"identification": few}), outcome(values={"identification": many}), 0)
    assert -0.75 < gap["identification_low"] < gap["identification"] < gap["identification_high"] < -0.4


def test_what_one_side_lacks_has_no_difference() -> None:
    assert differences(outcome(), outcome(values={"labels": np.ones(2)}), 0) == {}
