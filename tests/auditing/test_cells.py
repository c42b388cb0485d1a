"""Attacks on releases whose truth is known: targets, controls, the paper's leakage, numbers with intervals."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from equipoise.attack import DLG, MAP, descent, labels, simulate
from equipoise.attack import inversion as invert
from equipoise.attack.membership import SCORES
from equipoise.attack.registry import ATTACKS
from equipoise.attack.results import Inversion
from equipoise.attack.simulate import respond
from equipoise.attack.view import Server, View
from equipoise.auditing import cells as trial
from equipoise.auditing.cells import Cell, static_twins
from equipoise.auditing.examine import attack_cell, released
from equipoise.auditing.options import Options
from equipoise.auditing.results import Outcome, differences, rows_of, summary
from equipoise.auditing.scoring import Trace, baselines
from equipoise.auditing.targets import Materials, Targets, build_targets
from equipoise.errors import ConfigError
from equipoise.mechanism.intensity import intensity
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import mechanism
from equipoise.mechanism.release import observed_release
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP
from equipoise.randomness import uniform

SHAPE, CLASSES = (1, 6, 6), 4
MEAN, SCALE = 0.3, 0.5
"""Normalisation of the images: pixels in [0, 1] have become (pixel - 0.3) / 0.5."""
QUICK = Options(
    attacks=["lti", "matched", "membership", "labels"], releases=24, label_sets=2, candidates=20, others=6, samples=200,
    around=16, iterations=4, pictures=2,
)  # fmt: skip


def images_of(labels: Tensor, seed: int) -> Tensor:
    """Images with something of their class and much of their own, normalised."""
    patterns = torch.rand(CLASSES, *SHAPE, generator=torch.Generator().manual_seed(77))
    own = torch.rand(*labels.shape, *SHAPE, generator=torch.Generator().manual_seed(seed))
    return (0.3 * patterns[labels] + 0.7 * own - MEAN) / SCALE


def part(count: int, seed: int, classes: int = CLASSES) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % classes
    return images_of(labels, seed), labels


@cache
def materials(classes: int = CLASSES) -> Materials:
    return Materials(part(800, 1, classes), part(240, 2, classes), part(160, 3, classes), lambda x: x * SCALE + MEAN)


def server_of(name: str = "none", scale: float = 0.0, batch: int = 4, **protection: Any) -> tuple[Server, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = MLP(SHAPE, CLASSES, hidden=8)
    guarded = Protection(mechanism(name), scale, **{"steps": 3, **protection})
    server = Server(
        Batched(model), SHAPE, CLASSES, batch, low=(0 - MEAN) / SCALE, high=(1 - MEAN) / SCALE, protection=guarded
    )
    return server, server.batched.layout.flatten(model.state_dict())


# --- targets -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_targets_have_labels_impostors_decoys_and_others(batch: int) -> None:
    options = replace(QUICK, releases=30, label_sets=3)
    server, _ = server_of(batch=batch)
    found, offset = build_targets(materials(), server, options), len(materials().candidates[0])
    assert torch.equal(found.pool_labels[found.truth], found.labels)
    assert torch.equal(found.pool_labels[found.impostor], found.labels)
    assert bool((found.truth >= offset).all())
    assert bool((found.impostor >= offset).all())
    assert not (found.impostor == found.truth).any()
    assert found.decoys.shape == (30, batch, 19)
    assert torch.equal(found.pool_labels[found.decoys], found.labels.unsqueeze(2).expand(-1, -1, 19))
    assert bool((found.decoys < offset).all()), "decoys come from the candidates, truths from the targets"
    assert all(len(set(row)) == 19 for row in found.decoys.flatten(0, 1).tolist())
    assert found.others.shape == (30, 6)
    for row in range(30):
        assert not set(found.others[row].tolist()) & set(found.truth[row].tolist())
        assert set(found.pool_labels[found.others[row]].tolist()) <= set(found.labels[row].tolist())
        assert len(set(found.truth[row].tolist())) == batch
    assert torch.equal(found.images, found.pool[found.truth])
    assert len({tuple(row) for row in found.labels.tolist()}) == found.label_sets


def test_label_sets_are_distinct_labels_where_there_are_enough() -> None:
    server, _ = server_of(batch=3)
    found = build_targets(materials(), server, replace(QUICK, label_sets=5))
    assert all(len(set(row)) == 3 for row in found.labels.tolist())
    assert torch.equal(found.labels, found.labels.sort(1).values)
    assert found.label_sets > 1


def test_impostors_are_outside_the_batch_even_where_labels_repeat() -> None:
    """Four examples of two labels: an impostor may be neither the example in its place nor another of the batch."""
    server, _ = server_of(batch=4)
    given = replace(materials(2), targets=part(40, 3, 2))  # 20 images of each label
    found = build_targets(given, server, replace(QUICK, releases=60))
    for truth, impostor in zip(found.truth.tolist(), found.impostor.tolist(), strict=True):
        assert not set(truth) & set(impostor)


@pytest.mark.parametrize("batch", [1, 4])
def test_every_target_image_is_used_before_any_is_used_again(batch: int) -> None:
    """40 images of each label: releases * examples of a label, dealt like cards."""
    server, _ = server_of(batch=batch)
    for releases in (10, 40, 100):
        found = build_targets(materials(), server, replace(QUICK, releases=releases, label_sets=3))
        images, uses = found.truth.unique(return_counts=True)
        labels = found.pool_labels[images]
        for label in found.labels.unique().tolist():
            asked, mine = int((found.labels == label).sum()), uses[labels == label]
            assert len(mine) == min(asked, 40), "as many different images as there can be"
            assert int(mine.max()) - int(mine.min()) <= 1
            assert int(mine.max()) == -(-asked // 40)


def test_no_image_is_twice_in_a_batch_of_equal_labels() -> None:
    """Labels repeat within a batch where there are few; the images need not."""
    server, _ = server_of(batch=4)
    given = replace(materials(2), targets=part(14, 3, 2))  # 7 images of each label
    found = build_targets(given, server, replace(QUICK, releases=50, label_sets=4))
    for row in found.truth.tolist():
        assert len(set(row)) == 4


def test_fewer_candidates_than_asked_for_are_all_decoys() -> None:
    server, _ = server_of()
    found = build_targets(materials(), server, replace(QUICK, candidates=1000))
    assert found.decoys.shape[2] == 60


@pytest.mark.parametrize("missing", [1, 3])
def test_a_label_without_candidates_is_refused(missing: int) -> None:
    images, labels = materials().candidates
    given = replace(materials(), candidates=(images[labels != missing], labels[labels != missing]))
    server, _ = server_of()
    with pytest.raises(ConfigError, match="no candidate images"):
        build_targets(given, server, QUICK)


def test_targets_follow_from_the_seed() -> None:
    server, _ = server_of()
    one, two = (build_targets(materials(), server, replace(QUICK, seed=5)) for _ in range(2))
    other = build_targets(materials(), server, replace(QUICK, seed=6))
    for name in ("truth", "labels", "impostor", "decoys", "others"):
        assert torch.equal(getattr(one, name), getattr(two, name))
    assert not torch.equal(one.truth, other.truth)


# --- the paper's leakage -------------------------------------------------------------------------------------


def test_leakage_is_one_minus_the_mean_distance_over_iterations() -> None:
    truth = torch.zeros(2, 2, 1, 1, 2)  # two releases of two images of two pixels
    trace = Trace(truth, diameter=10.0)
    first = torch.tensor([[[3.0, 4.0], [0.0, 1.0]], [[0.0, 0.0], [6.0, 8.0]]]).view(2, 2, 1, 1, 2)
    second = torch.tensor([[[0.0, 0.0], [0.0, 3.0]], [[0.0, 2.0], [0.0, 0.0]]]).view(2, 2, 1, 1, 2)
    trace.watch(torch.arange(2), 1, first)
    trace.watch(torch.arange(2), 2, second)
    found, beyond = trace.leakage(torch.tensor([[0, 1], [0, 1]]))
    means = [((5 + 0) / 2 + (1 + 3) / 2) / 2, ((0 + 2) / 2 + (10 + 0) / 2) / 2]
    assert found.tolist() == pytest.approx([1 - mean / 10 for mean in means])
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
    found, beyond = trace.leakage(torch.zeros(3, 2, dtype=torch.int64))
    assert found.tolist() == beyond.tolist() == [0.0] * 3


def test_a_distance_beyond_the_diameter_is_negative_leakage_and_counted() -> None:
    trace = Trace(torch.zeros(1, 2, 1, 1, 1), diameter=10.0)
    trace.watch(torch.tensor([0]), 1, torch.tensor([[50.0, 1.0]]).view(1, 2, 1, 1, 1))
    trace.watch(torch.tensor([0]), 2, torch.tensor([[50.0, 11.0]]).view(1, 2, 1, 1, 1))
    found, beyond = trace.leakage(torch.tensor([[0, 1]]))
    assert found.tolist() == pytest.approx([1 - (50 + 6) / 2 / 10])
    assert found.item() < 0
    assert beyond.tolist() == pytest.approx([0.75])


def test_an_inversion_is_traced_through_all_its_iterations(monkeypatch: pytest.MonkeyPatch) -> None:
    """An attack that stands still at 0.2 beside the truth, for three iterations."""
    server, weights = server_of()
    targets = build_targets(materials(), server, QUICK)

    def still(server: Server, view: Any, search: Any, watch: Any, step: Any) -> Inversion:
        for iteration in (1, 2, 3):
            watch(torch.arange(len(view)), iteration, targets.images + 0.2)
        return Inversion(targets.images + 0.2, torch.zeros(len(view)))

    monkeypatch.setitem(trial.INVERSIONS, "invgrad", still)
    options = replace(QUICK, attacks=["invgrad"])
    (found,) = attack_cell(Cell(weights, server, {}), targets, materials(), options, diameter=12.0)
    assert found.values["leakage"] == pytest.approx(1 - 0.2 * 6 / 12, rel=1e-5)
    assert found.values["beyond_D"].max() == 0
    assert found.values["mse"] == pytest.approx(0.04, rel=1e-4)
    assert found.values["identification"].min() == 1
    assert found.pictures is not None
    assert found.pictures.shape == (2, 4, *SHAPE)
    assert found.pictures.dtype == np.uint8


# --- attacks and controls ------------------------------------------------------------------------------------


@cache
def attacked(name: str, scale: float) -> tuple[list[Outcome], Targets]:
    server, weights = server_of(name, scale)
    targets = build_targets(materials(), server, QUICK)
    return attack_cell(Cell(weights, server, {"mechanism": name}), targets, materials(), QUICK), targets


def rows(name: str, scale: float) -> dict[tuple[str, str | None], dict[str, Any]]:
    outcomes, targets = attacked(name, scale)
    return {(row["attack"], row["control"]): row for one in outcomes for row in rows_of(one, targets)}


def test_attacks_win_without_protection() -> None:
    found = rows("none", 0.0)
    guess = baselines(attacked("none", 0.0)[1], materials(), server_of()[0])["class_mean"]["mse"].mean()
    assert found["lti", None]["mse"] < 0.7 * guess
    assert found["lti", None]["identification"] > 0.7
    assert found["matched", None]["identification"] > 0.95
    assert found["labels", None]["labels"] > 0.95
    assert found["membership", None]["membership_auc"] > 0.7


@pytest.mark.parametrize("given", ["nothing", "best"])
def test_no_attack_draws_the_noise_of_the_client(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """Whoever shares the client's key could subtract its noise: every attack would look far stronger than it is."""
    drawn: list[Any] = []

    def recorded(keys: Any, *rest: Any) -> Tensor:
        drawn.extend(keys)
        return uniform(keys, *rest)

    multi_round = import_module("equipoise.attack.multi_round")  # the package's own name for it is the function
    for module in (simulate, descent, invert, labels, multi_round):
        monkeypatch.setattr(module, "uniform", recorded)
    server, weights = server_of("gs-learn", 0.01)
    options = replace(QUICK, attacks=list(ATTACKS), releases=4, iterations=1, given=given)  # type: ignore[arg-type]
    targets = build_targets(materials(), server, options)
    cell = Cell(weights, server, {})
    drawn.clear()
    view = View(weights.expand(4, -1), released(cell, targets, options), targets.labels)
    clients = set(drawn)
    drawn.clear()
    attack_cell(cell, targets, materials(), options, view=view)
    public = materials().attack
    multi_round.multi_round(
        server, [multi_round.Observation(1, weights, view.released[0])], public, *public, torch.zeros(1, 2).long(), 0.1
    )
    assert len(clients) == 1
    assert len(set(drawn)) > 10
    assert not clients & set(drawn)


@pytest.mark.parametrize(("name", "scale"), [("none", 0.0), ("gs-static", 1000.0)])
def test_negative_controls_are_near_chance(name: str, scale: float) -> None:
    """Images of another release: 96 of them among 20 candidates each, and 4 labels of 4 at random."""
    found = rows(name, scale)
    bound = 0.05 + 4 * np.sqrt(0.05 * 0.95 / 96)
    assert found["lti", "negative"]["identification"] < bound
    assert found["matched", "negative"]["identification"] < bound
    assert abs(found["membership", "negative"]["membership_auc"] - 0.5) < 0.12
    assert found["labels", "negative"]["labels"] < 0.8
    assert found["labels", "negative"]["labels_exact"] < 0.35


def test_large_noise_leaves_what_the_negative_control_shows() -> None:
    found = rows("gs-static", 1000.0)
    bound = 0.05 + 4 * np.sqrt(0.05 * 0.95 / 96)
    assert found["lti", None]["identification"] < bound
    assert found["matched", None]["identification"] < bound
    assert abs(found["membership", None]["auc_first"] - 0.5) < 0.12


def test_everything_follows_from_the_options() -> None:
    server, weights = server_of("pl-learn", 0.2)
    attacks = ["invgrad", "idlg", "lti", "matched", "membership", "labels"]
    options = replace(QUICK, attacks=attacks, releases=4, samples=20)

    def once(options: Options) -> list[dict[str, Any]]:
        targets = build_targets(materials(), server, options)
        outcomes = attack_cell(Cell(weights, server, {}), targets, materials(), options)
        return [row for one in outcomes for row in rows_of(one, targets, options.seed)]

    first = once(options)
    assert once(options) == first
    assert once(replace(options, seed=1)) != first


def test_releases_of_two_defences_share_their_noise() -> None:
    targets = build_targets(materials(), server_of()[0], QUICK)
    plain, weak, strong = (
        released(Cell(weights, server, {}), targets, QUICK)
        for server, weights in (server_of(), server_of("gs-static", 0.1), server_of("gs-static", 0.3))
    )
    torch.testing.assert_close((strong - plain) / 3, weak - plain, rtol=0, atol=1e-5)


def test_progress_is_told_of_every_attack() -> None:
    server, weights = server_of()
    told: list[tuple[str, float]] = []
    options = replace(QUICK, releases=2, samples=10, attacks=[*QUICK.attacks, "invgrad"])
    targets = build_targets(materials(), server, options)
    attack_cell(Cell(weights, server, {}), targets, materials(), options, progress=lambda *a: told.append(a))
    assert {name for name, _ in told} == set(options.attacks)
    assert all(amount > 0 for _, amount in told)


def test_differences_are_taken_release_by_release() -> None:
    one, other = attacked("none", 0.0)[0], attacked("gs-static", 1000.0)[0]
    gap = differences(one[0], other[0])
    expected = (one[0].values["mse"] - other[0].values["mse"]).mean()
    assert gap["mse"] == pytest.approx(expected)
    assert gap["mse_low"] < gap["mse"] < gap["mse_high"] < 0
    nothing = differences(one[0], one[0])
    assert nothing["mse"] == nothing["mse_low"] == nothing["mse_high"] == 0


# --- guesses that use no update ------------------------------------------------------------------------------


def test_black_images_score_what_they_must() -> None:
    server, _ = server_of()
    targets = build_targets(materials(), server, QUICK)
    found = baselines(targets, materials(), server, diameter=10.0)
    low = server.low
    assert low < materials().attack[0].min(), "black is the server's, not the darkest pixel there is"
    expected = (targets.images - low).square().flatten(2).mean(2)
    assert set(found) == {"black", "class_mean", "noise", "another_image"}
    np.testing.assert_allclose(found["black"]["mse"], expected, rtol=1e-5)
    distance = (targets.images - low).flatten(2).norm(dim=2).mean(1)
    np.testing.assert_allclose(found["black"]["leakage"], 1 - distance / 10, rtol=1e-5)
    assert found["class_mean"]["mse"].mean() < found["another_image"]["mse"].mean()
    assert found["class_mean"]["mse"].mean() < found["noise"]["mse"].mean()


def test_the_class_mean_is_that_of_the_attackers_images() -> None:
    server, _ = server_of()
    targets = build_targets(materials(), server, QUICK)
    images, labels = materials().attack
    means = torch.stack([images[labels == label].mean(0) for label in range(CLASSES)])
    expected = (means[targets.labels] - targets.images).square().flatten(2).mean(2)
    np.testing.assert_allclose(baselines(targets, materials(), server)["class_mean"]["mse"], expected, rtol=1e-5)


def test_without_public_images_there_are_two_guesses() -> None:
    server, _ = server_of()
    targets = build_targets(materials(), server, QUICK)
    every, some = (baselines(targets, materials(), server, public=public) for public in (True, False))
    assert set(some) == {"black", "noise"}
    for name, values in some.items():
        for metric, value in values.items():
            np.testing.assert_array_equal(value, every[name][metric])


@pytest.mark.parametrize("level", ["low", "grey", "high"])
def test_a_constant_guess_identifies_nothing(level: str) -> None:
    """A black image resembles no candidate more than another: it ties with all, and names the truth once in K."""
    server, _ = server_of()
    targets = build_targets(materials(), server, QUICK)
    value = {"low": server.low, "grey": 0.123456, "high": server.high}[level]
    found = trial.image_values(torch.full_like(targets.images, float(value)), targets, targets.truth, materials())
    candidates = targets.decoys.shape[2] + 1
    assert candidates == QUICK.candidates
    np.testing.assert_array_equal(found["identification"], np.full(targets.truth.shape, 1 / candidates))
    np.testing.assert_allclose(found["log_rank"], np.log1p((candidates - 1) / 2), rtol=1e-12)


def test_a_black_guess_among_the_baselines_identifies_nothing() -> None:
    server, _ = server_of()
    targets = build_targets(materials(), server, QUICK)
    found = baselines(targets, materials(), server)["black"]["identification"]
    np.testing.assert_array_equal(found, np.full(targets.truth.shape, 1 / QUICK.candidates))


def test_a_perfect_guess_has_a_psnr_of_a_hundred_decibels() -> None:
    server, _ = server_of()
    targets = build_targets(materials(), server, QUICK)
    guess = targets.images.clone()
    guess[0, 0] += 0.1
    found = trial.image_values(guess, targets, targets.truth, materials())
    assert found["psnr"][0, 0] < 40
    assert found["psnr"].max() == trial.MOST_DECIBELS == 100
    assert (found["psnr"] == 100).sum() == targets.truth.numel() - 1
    assert summary(found)["psnr"] == pytest.approx(found["psnr"].mean()), "none is left out of the mean"
    assert "not_finite" not in summary(found)


# --- numbers with intervals ----------------------------------------------------------------------------------


def test_a_summary_has_means_with_intervals() -> None:
    values = {"mse": np.arange(40.0).reshape(20, 2), "psnr": np.array([[100.0], [3.0], [5.0]]), "other": np.ones(3)}
    found = summary(values)
    assert found["mse"] == pytest.approx(19.5)
    assert 10 < found["mse_low"] < 19.5 < found["mse_high"] < 29
    assert found["psnr"] == pytest.approx(36.0)
    assert not any(name.startswith("other") for name in found)
    assert "not_finite" not in found


def test_values_that_are_not_finite_are_counted() -> None:
    found = summary({"cost": np.array([[np.inf], [3.0], [np.nan], [5.0]])})
    assert (found["not_finite"], found["cost"]) == (2, pytest.approx(4.0))
    assert summary({"psnr": np.array([[np.inf]])}) == {
        "psnr": None, "psnr_low": None, "psnr_high": None, "not_finite": 1,
    }  # fmt: skip


def test_a_summary_of_membership_has_areas_and_rates() -> None:
    members, others = np.arange(40.0).reshape(20, 2) + 100, np.arange(60.0).reshape(20, 3)
    found = summary({"first_members": members, "first_others": others})
    assert found["auc_first"] == found["auc_first_low"] == found["auc_first_high"] == 1
    assert found["tpr_first"] == found["tpr_first_low"] == found["tpr_first_high"] == 1
    one = summary({"first_members": members[:1], "first_others": others[:1]})
    assert one["auc_first"] == 1
    assert one["auc_first_low"] is None


@pytest.mark.parametrize(("releases", "evidence"), [(19, "insufficient evidence"), (20, "ok")])
def test_rows_say_whether_the_evidence_suffices(releases: int, evidence: str) -> None:
    server, weights = server_of("gs-static", 0.01)
    options = replace(QUICK, releases=releases, attacks=["lti", "membership"], samples=20)
    targets = build_targets(materials(), server, options)
    outcomes = attack_cell(Cell(weights, server, {"mechanism": "gs-static"}), targets, materials(), options)
    found = [row for one in outcomes for row in rows_of(one, targets)]
    assert [(row["attack"], row["control"]) for row in found] == [
        ("lti", None), ("lti", "negative"), ("membership", None), ("membership", "negative"),
    ]  # fmt: skip
    for row in found:
        assert row["evidence"] == evidence
        assert row["targets"] == releases
        assert row["mechanism"] == "gs-static"
        assert row["label_sets"] == targets.label_sets
    assert found[0]["mse_low"] < found[0]["mse"] < found[0]["mse_high"]
    best = found[2]["membership_score"]
    assert found[2]["membership_auc"] == found[2][f"auc_{best}"] == max(found[2][f"auc_{name}"] for name in SCORES)


# --- options -------------------------------------------------------------------------------------------------


def test_an_unknown_attack_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"Unknown attack 'machted'\. Did you mean 'matched'\?"):
        Options(attacks=["lti", "machted"]).check()
    Options(attacks=list(ATTACKS)).check()


def test_all_that_is_too_small_is_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"releases=1 \(at least 2\), samples=9 \(at least 10\)"):
        Options(releases=1, samples=9).check()


def test_an_impossible_condition_is_refused() -> None:
    wrong: Any = "everything"
    with pytest.raises(ConfigError, match="nothing, release or best"):
        Options(given=wrong).check()


def test_options_reach_the_attacks() -> None:
    options = Options(pairs=3, nulls=5, companions=7, iterations=11, tv=0.5, restarts=2, seed=9)
    assert (options.effort().pairs, options.effort().nulls, options.effort().given) == (3, 5, 7)
    search = options.search("invgrad")
    assert (search.iterations, search.tv, search.restarts, search.seed) == (11, 0.5, 2, 9)
    assert options.search("dlg") == replace(DLG, restarts=2, seed=9)
    assert options.search("unrolled") == replace(MAP, restarts=2, seed=9)


# --- static twins --------------------------------------------------------------------------------------------


def mean_intensity(server: Server, weights: Tensor, count: int = 400) -> float:
    """Of the distortion itself, on target images with noise of their own."""
    labels = (torch.arange(4) % CLASSES).expand(count, -1)
    images = images_of(labels, 21)
    kind = server.protection.mechanism
    numbers = torch.rand(count, len(weights), generator=torch.Generator().manual_seed(3))
    objectives = [server.batched.at(images, labels)]
    noise = standard_noise(numbers, kind.noise)
    alpha = observed_release(objectives, weights.repeat(count, 1), noise, server.eta, server.protection)[1]
    return float(intensity(alpha, kind.norm).mean())


@pytest.mark.parametrize("clip", [None, 0.2], ids=["unclipped", "clipped"])
@pytest.mark.parametrize(("name", "scale"), [("pl-learn", 0.5), ("ls-learn", 0.01), ("gs-learn", 0.02)])
def test_twins_have_the_noise_without_the_learner(name: str, scale: float, clip: float | None) -> None:
    server, weights = server_of(name, scale, lr=1.0, steps=5, clip=clip)
    twins = static_twins(server, weights, materials(), QUICK)
    assert set(twins) == {"static, equal lower bound", "static, equal final norm"}
    lower, final = twins["static, equal lower bound"], twins["static, equal final norm"]
    assert lower.scale == scale
    assert float(final.scale) > 1.02 * scale, "the learner made the distortion larger"
    for twin in (lower, final):
        kind = twin.mechanism
        assert not kind.learns
        assert replace(kind, name=name, learns=True) == server.protection.mechanism
        assert twin.clip == clip
    learned = mean_intensity(server, weights)
    assert mean_intensity(replace(server, protection=final), weights) == pytest.approx(learned, rel=0.02)
    assert mean_intensity(replace(server, protection=lower), weights) <= learned


def test_a_learner_that_stands_still_is_its_own_twin() -> None:
    server, weights = server_of("pl-learn", 0.5, steps=0)
    final = static_twins(server, weights, materials(), QUICK)["static, equal final norm"]
    assert float(final.scale) == pytest.approx(0.5, rel=1e-5)
    labels = (torch.arange(4) % CLASSES).expand(3, -1)
    images, noise = images_of(labels, 5), torch.randn(3, len(weights), generator=torch.Generator().manual_seed(1))
    one = respond(server, weights, images, labels, noise)
    two = respond(replace(server, protection=final), weights, images, labels, noise)
    torch.testing.assert_close(one, two, rtol=0, atol=1e-5)
