"""What attacks found as numbers with intervals: means, areas, evidence, and differences release by release."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from equipoise.auditing.results import (
    ENOUGH,
    Outcome,
    differences,
    evidence,
    membership_scores,
    renamed,
    rows_of,
    summary,
)
from tests.auditing.small import QUICK, targets_of

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
    result = summary({"first_members": members, "first_others": others})
    assert result["auc_first"] == result["auc_first_low"] == result["auc_first_high"] == 1
    assert result["tpr_first"] == result["tpr_first_low"] == result["tpr_first_high"] == 1
    one = summary({"first_members": members[:1], "first_others": others[:1]})
    assert one["auc_first"] == 1
    assert one["auc_first_low"] is None


def test_twenty_releases_are_enough() -> None:
    assert ENOUGH == 20
    assert [evidence(n) for n in (0, 19, 20, 500)] == ["insufficient evidence"] * 2 + ["ok"] * 2


def test_the_names_of_membership_scores_are_those_of_the_members() -> None:
    assert membership_scores({"first_members": np.ones(2), "first_others": np.ones(2), "mse": np.ones(2)}) == ["first"]


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


def test_identification_comes_with_its_chance() -> None:
    targets, values = targets_of(), {"identification": np.array([[1.0, 0.0]])}
    for row in rows_of(outcome(values=values, negative=values), targets):
        assert row["chance"] == f"1 in {targets.decoys.shape[2] + 1}"
    assert "chance" not in rows_of(outcome(), targets)[0]


def test_rows_without_a_dataset_stay_as_they_are() -> None:
    assert renamed([{"dataset": "/a/b", "mse": 1}, {"mse": 2}], {"/a/b": "b"}) == [
        {"dataset": "b", "mse": 1},
        {"mse": 2},
    ]


def test_the_best_membership_score_is_named() -> None:
    up, flat = np.arange(8.0).reshape(2, 4), np.zeros((2, 4))
    values = {"loss_members": flat, "loss_others": flat, "first_members": up + 9, "first_others": up}
    row, chance = rows_of(outcome("membership", values=values, negative={**values, "first_members": up}), targets_of())
    assert (row["membership_score"], row["membership_auc"], row["auc_loss"]) == ("first", 1.0, 0.5)
    assert chance["membership_auc"] == 0.5


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


def test_what_one_side_lacks_has_no_difference() -> None:
    assert differences(outcome(), outcome(values={"labels": np.ones(2)}), 0) == {}
