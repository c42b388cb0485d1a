"""What results are worth, kind by kind: known answers, the negative control, the paper's leakage, trivial guesses."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.attack.attack import Attack
from equipoise.attack.registry import ATTACKS
from equipoise.attack.results import CandidateScores, Inversion, LabelGuesses, MembershipScores, Verification
from equipoise.attack.view import View
from equipoise.auditing import table_scores as tables
from equipoise.auditing.cells import Cell
from equipoise.auditing.examine import attack_cell
from equipoise.auditing.results import Outcome, rows_of, summary
from equipoise.auditing.scoring import MOST_DECIBELS, Case, Trace, baselines, class_means, image_values, score
from equipoise.auditing.targets import build_targets, given_targets
from equipoise.statistics import auc
from tests.auditing.small import CLASSES, MEAN, QUICK, SCALE, SHAPE, materials, server_of, targets_of

# --- the paper's leakage -------------------------------------------------------------------------------------


def test_leakage_is_one_minus_the_mean_distance_over_iterations() -> None:
    truth = torch.zeros(2, 2, 1, 1, 2)  # two releases of two images of two pixels
    trace = Trace(truth, diameter=10.0)
    first = torch.tensor([[[3.0, 4.0], [0.0, 1.0]], [[0.0, 0.0], [6.0, 8.0]]]).view(2, 2, 1, 1, 2)
    second = torch.tensor([[[0.0, 0.0], [0.0, 3.0]], [[0.0, 2.0], [0.0, 0.0]]]).view(2, 2, 1, 1, 2)
    trace.watch(torch.arange(2), 1, first)
    trace.watch(torch.arange(2), 2, second)
    result, beyond = trace.leakage(torch.tensor([[0, 1], [0, 1]]))
    means = [((5 + 0) / 2 + (1 + 3) / 2) / 2, ((0 + 2) / 2 + (10 + 0) / 2) / 2]
    assert result.tolist() == pytest.approx([1 - mean / 10 for mean in means])
    assert beyond.tolist() == [0.0, 0.0]


def test_leakage_follows_the_assignment_of_guesses() -> None:
    truth = torch.tensor([[0.0, 7.0]]).view(1, 2, 1, 1, 1)
    trace = Trace(truth, diameter=10.0)
    trace.watch(torch.tensor([0]), 1, torch.tensor([[7.0, 1.0]]).view(1, 2, 1, 1, 1))
    assert trace.leakage(torch.tensor([[1, 0]]))[0].tolist() == pytest.approx([1 - 0.5 / 10])
    assert trace.leakage(torch.tensor([[0, 1]]))[0].tolist() == pytest.approx([1 - 6.5 / 10])


def test_rows_may_be_watched_in_any_chunks() -> None:
    local = torch.Generator().manual_seed(1)
    truth, guess = (torch.rand(5, 2, *SHAPE, generator=local) for _ in range(2))
    whole, chunks = Trace(truth, 10.0), Trace(truth, 10.0)
    same = torch.tensor([[0, 1]]).expand(5, -1)
    for iteration in (1, 2, 3):
        whole.watch(torch.arange(5), iteration, guess * iteration)
        for rows in (torch.tensor([3, 4]), torch.tensor([0, 1, 2])):
            chunks.watch(rows, iteration, guess[rows] * iteration)
    assert torch.allclose(whole.leakage(same)[0], chunks.leakage(same)[0])


def test_without_iterations_nothing_leaks() -> None:
    trace = Trace(torch.zeros(3, 2, *SHAPE), 56.0)
    result, beyond = trace.leakage(torch.zeros(3, 2, dtype=torch.int64))
    assert result.tolist() == beyond.tolist() == [0.0] * 3


def test_a_distance_beyond_the_diameter_is_negative_leakage_and_counted() -> None:
    trace = Trace(torch.zeros(1, 2, 1, 1, 1), diameter=10.0)
    trace.watch(torch.tensor([0]), 1, torch.tensor([[50.0, 1.0]]).view(1, 2, 1, 1, 1))
    trace.watch(torch.tensor([0]), 2, torch.tensor([[50.0, 11.0]]).view(1, 2, 1, 1, 1))
    result, beyond = trace.leakage(torch.tensor([[0, 1]]))
    assert result.tolist() == pytest.approx([1 - (50 + 6) / 2 / 10])
    assert result.item() < 0
    assert beyond.tolist() == pytest.approx([0.75])


# --- inversions ----------------------------------------------------------------------------------------------


def case_of(labels: Tensor | None = None) -> Case:
    """An attack on 24 releases of four images with the labels 0, 1, 2 and 3; ``labels`` are those it was granted."""
    (server, weights), targets = server_of(), targets_of()
    assert targets.labels.unique(dim=0).tolist() == [[0, 1, 2, 3]]
    many = weights.expand(len(targets.truth), -1)
    view = View(many, many, targets.labels if labels is None else labels)
    return Case(Cell(weights, server, {"role": "own"}), "some", view, targets, materials(), QUICK, trace_of(targets))


def trace_of(targets: Any) -> Trace:
    return Trace(targets.inputs, diameter=12.0)


def inversion(images: Tensor, **more: Any) -> Inversion:
    return Inversion(images, torch.arange(float(len(images))), **more)


def test_an_inversion_that_stands_still_beside_the_truth() -> None:
    """At 0.2 beside every pixel of 36, for three iterations: a distance of 1.2 from the truth in each."""
    case = case_of()
    images = case.targets.inputs
    for iteration in (1, 2, 3):
        case.trace.watch(torch.arange(24), iteration, images + 0.2)
    result = score(inversion(images + 0.2), case)
    assert (result.attack, result.about) == ("some", {"role": "own"})
    assert result.values["leakage"] == pytest.approx(1 - 0.2 * 6 / 12, rel=1e-5)
    assert result.values["beyond_D"].max() == 0
    assert result.values["mse"] == pytest.approx(0.04, rel=1e-4)
    assert result.values["identification"].min() == 1
    assert result.values["cost"].tolist() == list(range(24))
    assert result.images is not None
    assert torch.equal(result.images, images + 0.2)
    assert result.notes == {}
    assert "labels_exact" not in result.values


def test_an_attack_without_iterations_has_no_leakage() -> None:
    case = case_of()
    assert "leakage" not in score(inversion(case.targets.inputs), case).values


def test_granted_labels_bind_every_guess_to_its_place() -> None:
    case = case_of()
    truth = case.targets.inputs
    actual = score(inversion(truth.flip(1)), case)
    expected = (truth.flip(1) - truth).square().flatten(2).mean(2)
    np.testing.assert_allclose(actual.values["mse"], expected, rtol=1e-4)


def test_inferred_labels_bind_no_place() -> None:
    """Whoever inferred wrong labels for a release does not know which image has which; of the others it does."""
    wrong = targets_of().labels.clone()
    wrong[5] = torch.tensor([0, 0, 1, 2])
    case = case_of(wrong)
    result = score(inversion(case.targets.inputs.flip(1)), case).values["mse"]
    assert result[5].max() < 1e-9
    assert np.delete(result, 5, 0).min() > 0.1


def test_an_attack_that_found_the_labels_is_bound_to_no_place_either() -> None:
    case = case_of()
    truth, labels = case.targets.inputs, case.targets.labels.flip(1).clone()
    labels[3, 0] = 0  # 0, 2, 1, 0
    case.trace.watch(torch.arange(24), 1, truth.flip(1))
    result = score(inversion(truth.flip(1), labels=labels), case)
    assert result.values["mse"].max() < 1e-9
    assert result.values["leakage"].min() == pytest.approx(1), "and so are its iterations"
    assert result.values["labels_exact"].tolist() == [row != 3 for row in range(24)], "in whatever order"
    others = case.targets.pool[case.targets.false].flip(1)
    assert score(inversion(others, labels=labels), case).negative["mse"].max() < 1e-9, "nor in the negative control"


def test_the_negative_control_is_the_same_guess_held_against_an_image_that_was_not_in_it() -> None:
    case = case_of()
    impostors = case.targets.pool[case.targets.false]
    result = score(inversion(impostors), case)
    assert result.negative["mse"].max() == 0
    assert result.negative["identification"].min() == 1
    assert result.values["mse"].min() > 0.1
    assert result.values["identification"].mean() < 0.3
    assert "cost" not in result.negative


def test_a_few_reconstructions_are_kept_as_pixels() -> None:
    case = case_of()
    actual = score(inversion(case.targets.inputs), case).pictures
    assert actual is not None
    assert (actual.shape, actual.dtype) == ((2, 4, *SHAPE), np.uint8)
    expected = (case.targets.inputs[:2] * SCALE + MEAN).mul(255).round()
    np.testing.assert_array_equal(actual, expected)
    outside = score(inversion(case.targets.inputs + 99), case).pictures
    assert outside is not None
    assert outside.min() == 255


def test_targets_that_stopped_are_noted() -> None:
    case, stopped = case_of(), torch.zeros(24, dtype=torch.int64)
    assert score(inversion(case.targets.inputs, stopped=stopped), case).notes == {}
    stopped[[3, 7]] = torch.tensor([1, 900])
    assert score(inversion(case.targets.inputs, stopped=stopped), case).notes == {"stopped": 2}


def test_inputs_that_are_no_images_are_scored_and_not_drawn() -> None:
    images, labels = torch.rand(3, 2, 5, generator=torch.Generator().manual_seed(1)), torch.tensor([[0, 1]] * 3)
    targets, given = given_targets(images, labels, None, 0.0, 1.0, QUICK)
    weights = torch.zeros(3, 4)
    cell, spread = Cell(weights[0], replace(server_of()[0], shape=(5,)), {}), images.flatten(0, 1).std(0, correction=0)
    case = Case(cell, "some", View(weights, weights, labels), targets, given, QUICK, Trace(images, 1.0))
    result = score(inversion(images + 0.1 * spread), case)
    assert result.pictures is None
    assert result.values["error_sd"] == pytest.approx(0.1, rel=1e-4)
    assert result.notes["column_error_sd"] == pytest.approx([0.1] * 5, rel=1e-2)
    assert result.values.keys() == {"error_sd", "correlation", "cost"}, "no pixels, and there is no decoy"


# --- the other kinds -----------------------------------------------------------------------------------------


def test_candidates_are_ranked_wherever_the_truth_stands_and_the_control_leaves_it_out() -> None:
    """The impostor is a candidate like any other; the truth is none where the impostor is sought."""
    values = torch.tensor([
        [[3.0, 1.0, 2.0, 1.0], [2.0, 0.0, 2.0, 1.0]],
        [[0.0, 9.0, 2.0, 1.0], [1.0, 1.0, 1.0, 9.0]],
    ])  # fmt: skip
    case = case_of()
    place, impostor = torch.tensor([[0, 2], [1, 0]]), torch.tensor([[2, 0], [0, 3]])
    few = replace(case.targets, place=place, impostor=impostor, left_out=torch.zeros_like(values).bool())
    result = score(CandidateScores(values), replace(case, targets=few))
    assert result.values["identification"].tolist() == [[1, 0.5], [1, 0]]
    np.testing.assert_allclose(result.values["log_rank"], np.log1p([[0, 0.5], [0, 2]]))
    assert result.negative["identification"].tolist() == [[1, 1], [0, 1]]
    np.testing.assert_allclose(result.negative["log_rank"], np.log1p([[0, 0], [2, 0]]))


def test_what_does_not_count_is_no_candidate_however_it_scores() -> None:
    """Others of the batch, and repetitions: the first and the last column here."""
    values, case = torch.tensor([[[9.0, 3.0, 1.0, 2.0, 9.0]]]), case_of()
    place, left_out = torch.tensor([[1]]), torch.tensor([[[True, False, False, False, True]]])
    few = replace(case.targets, place=place, impostor=torch.tensor([[3]]), left_out=left_out)
    result = score(CandidateScores(values), replace(case, targets=few))
    assert few.candidates == 3
    assert result.values["identification"].tolist() == result.negative["identification"].tolist() == [[1]]
    norms = Verification(values.flip(2).double(), torch.tensor([1.5]))
    found = score(norms, replace(case, targets=replace(few, place=torch.tensor([[2]]))))
    assert (found.values["verified"].tolist(), found.values["accepted_wrongly"].shape) == ([[1]], (1, 2))


def test_membership_is_members_against_others_and_its_control_others_against_others() -> None:
    """Four members and six others stand anywhere in a row."""
    table, case = torch.arange(24 * 10.0).view(24, 10), case_of()
    member = case.targets.member
    result = score(MembershipScores(table), case)
    inside, outside = (
        np.array([row[which].tolist() for row, which in zip(table, mask, strict=True)]) for mask in (member, ~member)
    )
    assert (inside.shape, outside.shape) == ((24, 4), (24, 6))
    np.testing.assert_array_equal(result.values["members"], inside)
    np.testing.assert_array_equal(result.values["others"], outside)
    np.testing.assert_array_equal(result.negative["members"], outside[:, ::2])
    np.testing.assert_array_equal(result.negative["others"], outside[:, 1::2])
    assert result.notes == {}


def test_one_other_makes_no_negative_control() -> None:
    case = case_of()
    few = build_targets(materials(), case.cell.server, replace(QUICK, others=1))
    result = score(MembershipScores(torch.ones(24, 5)), replace(case, targets=few))
    assert result.values["others"].shape == (24, 1)
    assert result.negative == {}


def test_membership_scores_that_are_not_finite_keep_their_order_and_are_counted() -> None:
    table, case = torch.ones(24, 10), case_of()
    inside, outside = (mask.int().argmax(1) for mask in (case.targets.member, ~case.targets.member))
    table[0, inside[0]], table[1, outside[1]], table[2, outside[2]] = float("nan"), float("inf"), -float("inf")
    result = score(MembershipScores(table), case)
    assert result.notes == {"not_finite": 3}
    assert result.values["members"][0].tolist() == [-2, 1, 1, 1], "below all others"
    assert result.negative["members"][1:3].tolist() == [[4, 1, 1], [-2, 1, 1]]


def test_an_attack_that_is_sure_of_its_members_is_not_called_blind() -> None:
    case = case_of()
    result = score(MembershipScores(torch.where(case.targets.member, torch.inf, -torch.inf)), case)
    assert auc(result.values["members"], result.values["others"]) == 1.0


def test_scores_of_candidates_that_are_not_finite_are_counted() -> None:
    case = case_of()
    values = torch.zeros(case.targets.choices.shape)
    assert score(CandidateScores(values), case).notes == {}
    values[0, 0, :3], values[1, 1, 1] = float("nan"), float("inf")
    assert score(CandidateScores(values), case).notes == {"not_finite": 4}


def test_guessed_labels_are_right_as_often_as_both_multisets_have_them() -> None:
    guess = torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1], [3, 3, 3, 3]]).repeat(8, 1)  # the truth is 0, 1, 2, 3
    result = score(LabelGuesses(guess), case_of())
    assert result.values["labels"].tolist() == [1, 0.5, 0.25] * 8
    assert result.values["labels_exact"].tolist() == [1, 0, 0] * 8
    assert result.negative["labels"].tolist() == [1] * 24, "each of four labels once is what anybody would guess"


def test_labels_are_guessed_as_evenly_as_they_are_dealt() -> None:
    """Two of four: the guess has two different ones, and hits one on average."""
    targets = targets_of(replace(QUICK, releases=60, label_sets=6), batch=2)
    case = replace(case_of(), targets=targets)
    result = score(LabelGuesses(targets.labels), case)
    assert float(result.negative["labels"].mean()) == pytest.approx(0.5, abs=0.1)
    again = score(LabelGuesses(targets.labels.flip(0)), case)
    np.testing.assert_array_equal(again.negative["labels"], result.negative["labels"])
    other = score(LabelGuesses(targets.labels), replace(case, options=replace(QUICK, seed=1)))
    assert not np.array_equal(other.negative["labels"], result.negative["labels"])


# --- a kind of one's own -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Brightness:
    """How bright every image is, by an attack that finds nothing else."""

    values: Tensor  # [N, E]


def test_a_new_kind_of_result_needs_one_function_that_scores_it(monkeypatch: pytest.MonkeyPatch) -> None:
    (server, weights), targets = server_of(), targets_of()
    attack = Attack("brightness", lambda server, view, *rest: Brightness(torch.zeros(len(view), 4)))
    monkeypatch.setitem(ATTACKS, "brightness", attack)
    cell, options = Cell(weights, server, {"role": "own"}), replace(QUICK, attacks=["brightness"])
    with pytest.raises(TypeError, match="Nothing scores a Brightness"):
        attack_cell(cell, targets, materials(), options)

    @score.register
    def _brightness(result: Brightness, case: Case) -> Outcome:
        own, other = (case.targets.pool[rows].flatten(2).mean(2) for rows in (case.targets.truth, case.targets.false))
        return case.outcome({"mse": (result.values - own).square()}, {"mse": (result.values - other).square()})

    (outcome,) = attack_cell(cell, targets, materials(), options)
    row, chance = rows_of(outcome, targets)
    assert (row["attack"], row["control"], chance["control"]) == ("brightness", None, "negative")
    assert row["mse"] == pytest.approx(float(targets.inputs.flatten(2).mean(2).square().mean()), rel=1e-5)
    assert row["mse_low"] < row["mse"] < row["mse_high"]


# --- images --------------------------------------------------------------------------------------------------


def test_errors_are_those_of_normalised_images_and_of_pixels() -> None:
    targets = targets_of()
    guess = targets.inputs + torch.linspace(-1, 1, 36).view(SHAPE)
    result = image_values(guess, targets, materials())
    shown, real = ((part * SCALE + MEAN).clamp(0, 1) for part in (guess, targets.inputs))
    error = (shown - real).square().flatten(2).mean(2)
    assert error.max() < (torch.linspace(-1, 1, 36) * SCALE).square().mean(), "some of it lay outside of the range"
    np.testing.assert_allclose(result["mse"], np.full((24, 4), torch.linspace(-1, 1, 36).square().mean()), rtol=1e-4)
    np.testing.assert_allclose(result["mse_pixel"], error, rtol=1e-4)
    np.testing.assert_allclose(result["psnr"], -10 * error.log10(), rtol=1e-4)
    assert "ssim" not in result, "its window does not fit into 6 x 6 pixels"


def test_a_guess_is_ranked_by_its_correlation() -> None:
    """Neither brightness nor contrast matters; the negative of an image resembles every decoy more than itself."""
    targets = targets_of()
    decoys = targets.pool[targets.false]
    for guess, first in ((3 * targets.inputs + 2, 1), (-targets.inputs, 0), (decoys, 0)):
        result = image_values(guess, targets, materials())
        assert set(result["identification"].flatten().tolist()) == {first}
    worst = image_values(-targets.inputs, targets, materials())["log_rank"]
    np.testing.assert_allclose(worst, np.log(20))
    second = image_values(decoys, targets, materials())["log_rank"]
    assert second.min() >= np.log(2) - 1e-9
    control = image_values(decoys, targets, materials(), negative=True)
    assert control["identification"].min() == 1
    assert control["mse"].max() == 0
    assert image_values(targets.inputs, targets, materials(), negative=True)["mse"].min() > 0.1


# --- guesses that use no update ------------------------------------------------------------------------------


def test_black_images_score_what_they_must() -> None:
    (server, _), targets = server_of(), targets_of()
    actual = baselines(targets, materials(), server, diameter=10.0)
    low = server.low
    assert low < materials().attack[0].min(), "black is the server's, not the darkest pixel there is"
    expected = (targets.inputs - low).square().flatten(2).mean(2)
    assert set(actual) == {"black", "class_mean", "noise", "another_image"}
    np.testing.assert_allclose(actual["black"]["mse"], expected, rtol=1e-5)
    distance = (targets.inputs - low).flatten(2).norm(dim=2).mean(1)
    np.testing.assert_allclose(actual["black"]["leakage"], 1 - distance / 10, rtol=1e-5)
    assert actual["class_mean"]["mse"].mean() < actual["another_image"]["mse"].mean()
    assert actual["class_mean"]["mse"].mean() < actual["noise"]["mse"].mean()


def test_the_class_mean_is_that_of_the_attackers_images() -> None:
    (server, _), targets = server_of(), targets_of()
    images, labels = materials().attack
    means = torch.stack([images[labels == label].mean(0) for label in range(CLASSES)])
    expected = (means[targets.labels] - targets.inputs).square().flatten(2).mean(2)
    np.testing.assert_allclose(baselines(targets, materials(), server)["class_mean"]["mse"], expected, rtol=1e-5)


def test_noise_is_uniform_over_the_range_of_the_inputs() -> None:
    (server, _), targets = server_of(), targets_of()
    low, high = float(server.low), float(server.high)
    away = targets.inputs - (low + high) / 2
    expected = (high - low) ** 2 / 12 + float(away.square().mean())
    assert baselines(targets, materials(), server)["noise"]["mse"].mean() == pytest.approx(expected, rel=0.05)


def test_without_public_images_there_are_two_guesses() -> None:
    (server, _), targets = server_of(), targets_of()
    every, some = (baselines(targets, given, server) for given in (materials(), replace(materials(), attack=None)))
    assert set(some) == {"black", "noise"}
    for name, values in some.items():
        for metric, value in values.items():
            np.testing.assert_array_equal(value, every[name][metric])


@pytest.mark.parametrize("level", ["low", "grey", "high"])
def test_a_constant_guess_identifies_nothing(level: str) -> None:
    """A black image resembles no candidate more than another: it ties with all, and names the truth once in K."""
    (server, _), targets = server_of(), targets_of()
    value = {"low": server.low, "grey": 0.123456, "high": server.high}[level]
    result = image_values(torch.full_like(targets.inputs, float(value)), targets, materials())
    candidates = QUICK.candidates
    np.testing.assert_array_equal(result["identification"], np.full(targets.truth.shape, 1 / candidates))
    np.testing.assert_allclose(result["log_rank"], np.log1p((candidates - 1) / 2), rtol=1e-12)
    control = image_values(torch.zeros_like(targets.inputs), targets, materials(), negative=True)
    np.testing.assert_array_equal(control["identification"], np.full(targets.truth.shape, 1 / (candidates - 1)))


def test_a_black_guess_among_the_baselines_identifies_nothing() -> None:
    (server, _), targets = server_of(), targets_of()
    result = baselines(targets, materials(), server)["black"]["identification"]
    np.testing.assert_array_equal(result, np.full(targets.truth.shape, 1 / QUICK.candidates))


def test_a_perfect_guess_has_a_psnr_of_a_hundred_decibels() -> None:
    case = case_of()
    guess = case.targets.inputs.clone()
    guess[0, 0] += 0.1
    result = score(inversion(guess), case).values
    assert result["psnr"][0, 0] < 40
    assert result["psnr"].max() == MOST_DECIBELS == 100
    assert (result["psnr"] == 100).sum() == guess.shape[0] * guess.shape[1] - 1
    assert summary(result)["psnr"] == pytest.approx(result["psnr"].mean()), "none is left out of the mean"
    assert "not_finite" not in summary(result)


def test_a_label_without_images_has_a_blank_mean() -> None:
    images, labels = torch.ones(2, 1, 2, 2), torch.tensor([0, 0])
    assert class_means(images, labels, torch.tensor([[0, 3]])).flatten(2).mean(2).tolist() == [[1.0, 0.0]]


# --- guesses that are checked --------------------------------------------------------------------------------


def test_a_right_guess_is_picked_and_accepted_by_its_distance() -> None:
    """The truth is within the tolerance, a decoy in a hundred is too, and the impostor is no better than others."""
    case = case_of()
    targets = case.targets
    distance = torch.rand(targets.choices.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 0.1
    distance.scatter_(2, targets.place.unsqueeze(2), 0.01)
    distance[:, 0].scatter_(1, targets.impostor[:, :1], 0.02)
    result = score(Verification(distance, torch.full((24,), 0.05, dtype=torch.float64)), case)
    assert result.values["verified"].min() == result.values["accepted"].min() == 1
    wrong = result.values["accepted_wrongly"]
    assert wrong.shape == (24, 4 * (targets.candidates - 1))
    assert wrong.sum(1).tolist() == [1] * 24
    assert result.negative["verified"][:, 0].min() == 1, "where the truth is left out, it is the nearest"
    assert result.negative["accepted"].mean(0).tolist() == [1, 0, 0, 0]
    rows = rows_of(result, targets)
    assert [row["chance"] for row in rows] == [f"1 in {targets.candidates - left_out}" for left_out in (0, 1)]
    assert rows[0]["accepted_wrongly"] == pytest.approx(1 / (4 * (targets.candidates - 1)))
    assert "identification" not in rows[0], "who is granted the rest of a batch has not searched"


def test_guesses_at_one_distance_are_a_tie() -> None:
    case = case_of()
    same = torch.ones(case.targets.choices.shape, dtype=torch.float64)
    result = score(Verification(same, torch.zeros(24)), case)
    assert result.values["verified"] == pytest.approx(1 / case.targets.candidates)
    assert result.values["accepted"].max() == 0


def test_guesses_at_rows_are_told_apart_by_every_column_whatever_its_unit() -> None:
    """Guesses in the wrong order, each off in a column of large numbers: by these alone they would stay there."""
    local = torch.Generator().manual_seed(2)
    units = torch.tensor([1e4, *[1.0] * 15])
    known, rows = (torch.randn(*shape, 16, generator=local) * units for shape in ((400,), (3, 2)))
    labels = torch.zeros(3, 2, dtype=torch.int64)
    targets, given = given_targets(rows, labels, (known, torch.zeros(400, dtype=torch.int64)), 0.0, 1.0, QUICK)
    guess = rows.flip(1).clone()
    guess[..., 0] = rows[..., 0]
    weights = torch.zeros(3, 4)
    cell = Cell(weights[0], replace(server_of()[0], shape=(16,)), {})
    case = Case(cell, "some", View(weights, weights, labels), targets, given, QUICK, Trace(rows, 1.0))
    values = score(inversion(guess), case).values
    assert given.columns is given.columns, "all records are looked at once, however many guesses are scored"
    spread = tables.Columns.of(given.attack[0]).spread if given.attack else units
    expected = ((rows[..., 0] - rows.flip(1)[..., 0]) / spread[0]).abs() / 4  # of 16 columns, one is wrong
    assert values["error_sd"] == pytest.approx(expected.numpy(), rel=1e-3)
