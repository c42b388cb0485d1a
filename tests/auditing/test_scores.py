"""Scores agree with scikit-image and scipy, estimators with mechanisms whose answer is known, intervals cover."""

from __future__ import annotations

import math
import subprocess
import sys
from itertools import permutations
from statistics import NormalDist

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from equipoise.auditing import scores
from equipoise.auditing.results import verdict
from equipoise.auditing.scores import ENOUGH, cap, match, mse, psnr, ssim
from equipoise.data.dataset import Dataset
from equipoise.errors import ConfigError, DataError
from equipoise.statistics import auc, bootstrap, bootstrap_auc, identification, ranks, tpr_at

Phi = NormalDist().cdf
NAN, INF = math.nan, math.inf


def library_ssim(guess: Tensor, truth: Tensor) -> list[float]:
    options = {"gaussian_weights": True, "sigma": 1.5, "data_range": 1, "channel_axis": 0}
    return [structural_similarity(x.numpy(), y.numpy(), **options) for x, y in zip(guess, truth, strict=True)]


def library_psnr(guess: Tensor, truth: Tensor) -> list[float]:
    return [peak_signal_noise_ratio(y.numpy(), x.numpy(), data_range=1) for x, y in zip(guess, truth, strict=True)]


def pairs(shape: tuple[int, ...], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Unrelated, close and nearly equal pairs in turn."""
    truth, other = torch.rand(2, 6, *shape, generator=generator, dtype=torch.float64)
    share = torch.tensor([1.0, 0.3, 0.01] * 2, dtype=torch.float64).view(-1, 1, 1, 1)
    return torch.lerp(truth, other, share), truth


# --- images ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 11, 11), (1, 28, 28), (3, 32, 32), (3, 12, 40), (2, 11, 13)])
def test_ssim_and_psnr_are_those_of_scikit_image(shape: tuple[int, ...], generator: torch.Generator) -> None:
    guess, truth = pairs(shape, generator)
    assert ssim(guess, truth).tolist() == pytest.approx(library_ssim(guess, truth), abs=1e-6)
    assert psnr(guess, truth).tolist() == pytest.approx(library_psnr(guess, truth), abs=1e-6)


def test_so_they_are_on_real_images(mnist: Dataset, generator: torch.Generator) -> None:
    truth = mnist.pixels(mnist.public_targets.images[:60]).clamp(0, 1).double()
    guess = (truth + 0.3 * torch.randn(truth.shape, generator=generator)).clamp(0, 1)
    guess[20:40], guess[40:] = truth[:20], 0
    assert ssim(guess, truth).tolist() == pytest.approx(library_ssim(guess, truth), abs=1e-6)
    assert psnr(guess, truth).tolist() == pytest.approx(library_psnr(guess, truth), abs=1e-6)


def test_float32_is_close_to_float64(mnist: Dataset) -> None:
    truth = mnist.pixels(mnist.public_targets.images).clamp(0, 1)
    guess = truth.roll(1, 0)
    assert ssim(guess, truth).dtype == torch.float32
    torch.testing.assert_close(ssim(guess, truth).double(), ssim(guess.double(), truth.double()), rtol=0, atol=1e-4)


def test_a_black_guess_scores_little_but_not_nothing(mnist: Dataset) -> None:
    """The level that every SSIM on these images is to be read against."""
    truth = mnist.pixels(mnist.public_targets.images).clamp(0, 1).double()
    assert float(ssim(torch.zeros_like(truth), truth).mean()) == pytest.approx(0.0972, abs=5e-4)


def test_mse_is_the_mean_over_one_image(generator: torch.Generator) -> None:
    guess, truth = torch.randn(2, 5, 4, 3, 6, 7, generator=generator)
    expected = ((guess - truth).numpy() ** 2).reshape(5, 4, -1).mean(-1)
    assert mse(guess, truth).numpy() == pytest.approx(expected, rel=1e-5)


def test_equal_images() -> None:
    image = torch.rand(3, 1, 11, 11, generator=torch.Generator().manual_seed(0))
    assert mse(image, image).tolist() == [0, 0, 0]
    assert psnr(image, image).tolist() == [INF, INF, INF]
    assert ssim(image, image).tolist() == pytest.approx([1, 1, 1], abs=1e-6)


@pytest.mark.parametrize("score", [mse, psnr, ssim])
def test_leading_axes_broadcast(score: object, generator: torch.Generator) -> None:
    guess, truth = torch.rand(2, 2, 3, 1, 12, 11, generator=generator, dtype=torch.float64)
    every = score(guess[:, :, None], truth[:, None])  # type: ignore[operator]
    assert every.shape == (2, 3, 3)
    for n in range(2):
        for i in range(3):
            for j in range(3):
                one = score(guess[n, i], truth[n, j])  # type: ignore[operator]
                assert one.shape == ()
                assert float(every[n, i, j]) == pytest.approx(float(one), rel=1e-12)
    assert score(guess[:0], truth[:0]).shape == (0, 3)  # type: ignore[operator]


@pytest.mark.parametrize("score", [mse, psnr, ssim])
def test_a_broken_image_spoils_its_own_score_only(score: object) -> None:
    guess = torch.full((3, 1, 11, 11), 0.5)
    guess[1, 0, 0, 0] = NAN
    assert score(guess, torch.zeros(1, 11, 11)).isnan().tolist() == [False, True, False]  # type: ignore[operator]


@pytest.mark.parametrize("shape", [(1, 10, 28), (1, 28, 10)])
def test_ssim_needs_eleven_pixels(shape: tuple[int, ...]) -> None:
    with pytest.raises(DataError, match="11 x 11"):
        ssim(torch.zeros(shape), torch.zeros(shape))


def test_images_that_cannot_be_compared_are_refused() -> None:
    image = torch.zeros(1, 12, 12)
    with pytest.raises(DataError, match="one shape"):
        mse(image, torch.zeros(1, 12, 11))
    with pytest.raises(DataError, match="one shape"):
        mse(image[0], image[0])
    with pytest.raises(DataError, match="float"):
        mse(image, image.to(torch.uint8))
    for score in (psnr, ssim):
        for value in (-0.4, 2.8, INF):
            with pytest.raises(DataError, match=r"\[0, 1\]"):
                score(image + value, image)
        score(image - 1e-7, image)  # what rounding leaves


# --- matching ----------------------------------------------------------------------------------------------


def brute_force(cost: Tensor, labels: Tensor) -> float:
    """The least total, by trying every order that keeps the labels."""
    size, (c, y) = len(labels), (cost.tolist(), labels.tolist())
    allowed = (p for p in permutations(range(size)) if all(y[p[j]] == y[j] for j in range(size)))
    return min(sum(c[p[j]][j] for j in range(size)) for p in allowed)


def total(cost: Tensor, assigned: Tensor) -> list[float]:
    return cost.gather(1, assigned[:, None, :]).sum((1, 2)).tolist()


@pytest.mark.parametrize(("size", "classes"), [(1, 1), (2, 1), (3, 2), (4, 1), (4, 3), (5, 2), (6, 2), (6, 1), (7, 2)])
def test_matching_is_optimal_among_orders_that_keep_labels(size: int, classes: int, generator: torch.Generator) -> None:
    rows = 20 if size < 6 else 4
    cost = torch.rand(rows, size, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (rows, size), generator=generator)
    assigned = match(cost, labels)
    assert assigned.dtype == torch.int64
    assert assigned.sort(1).values.tolist() == [list(range(size))] * rows
    assert torch.equal(labels.gather(1, assigned), labels)
    assert total(cost, assigned) == pytest.approx([brute_force(*row) for row in zip(cost, labels, strict=True)])


@pytest.mark.parametrize("size", [4, 6, 7, 12])
def test_matching_agrees_with_scipy(size: int, generator: torch.Generator) -> None:
    cost = torch.rand(30, size, size, generator=generator, dtype=torch.float64)
    labels = torch.randint(3, (30, size), generator=generator)
    barred = cost + 1e3 * (labels[:, :, None] != labels[:, None, :])
    expected = [linear_sum_assignment(row.T.numpy())[1].tolist() for row in barred]
    assert match(cost, labels).tolist() == expected
    assert any(row != list(range(size)) for row in expected), "some images do change places"


def test_distinct_labels_never_change_places_and_rows_are_independent() -> None:
    swap = torch.tensor([[9.0, 1.0, 1.0], [1.0, 9.0, 1.0], [1.0, 1.0, 9.0]])
    labels = torch.tensor([[2, 0, 1], [5, 7, 5], [4, 4, 4]])
    assigned = match(swap.expand(3, 3, 3), labels).tolist()
    assert assigned[:2] == [[0, 1, 2], [2, 1, 0]]
    assert assigned[2] in ([1, 2, 0], [2, 0, 1])


def test_the_direction_is_from_truth_to_guess() -> None:
    """Guess 0 is of truth 1, guess 1 of truth 2, guess 2 of truth 0."""
    cost = torch.ones(1, 3, 3)
    cost[0, 0, 1] = cost[0, 1, 2] = cost[0, 2, 0] = 0
    assert match(cost, torch.zeros(1, 3)).tolist() == [[2, 0, 1]]
    eight = torch.ones(1, 8, 8)
    for guess in range(8):
        eight[0, guess, (guess + 3) % 8] = 0
    assert match(eight, torch.zeros(1, 8)).tolist() == [[(truth - 3) % 8 for truth in range(8)]]


def test_equal_costs_change_nothing() -> None:
    assert match(torch.ones(1, 4, 4), torch.zeros(1, 4)).tolist() == [[0, 1, 2, 3]]


def test_costs_that_cannot_be_matched_are_refused() -> None:
    cost = torch.zeros(2, 2, 2)
    for value in (NAN, INF):
        cost[1, 0, 0] = value
        with pytest.raises(DataError, match="row 1"):
            match(cost, torch.zeros(2, 2))
    with pytest.raises(DataError, match="labels"):
        match(torch.zeros(2, 2, 2), torch.zeros(2, 3))


# --- ranks -------------------------------------------------------------------------------------------------


@given(st.integers(1, 7), st.integers(0, 6), st.integers(0, 2**31))
def test_ranks_by_counting(size: int, truth: int, seed: int) -> None:
    truth %= size
    table = torch.randint(3, (5, size), generator=torch.Generator().manual_seed(seed)).float()
    ranking = ranks(table, truth)
    for row, rank, first in zip(table.tolist(), ranking.rank.tolist(), ranking.first.tolist(), strict=True):
        decoys = row[:truth] + row[truth + 1 :]
        places = [0.5 if decoy == row[truth] else float(decoy > row[truth]) for decoy in decoys]
        assert rank == sum(places)
        assert first == pytest.approx(0 if 1.0 in places else 1 / (1 + len([p for p in places if p == 0.5])))
    assert ranking.log.tolist() == pytest.approx(np.log(1 + ranking.rank.numpy()))


@pytest.mark.parametrize("size", [2, 5, 1000])
def test_a_constant_score_is_exactly_chance(size: int) -> None:
    ranking = ranks(torch.full((3, 4, size), 0.7))
    assert ranking.rank.tolist() == [[(size - 1) / 2] * 4] * 3
    assert identification(ranking) == pytest.approx(1 / size, rel=1e-12)


@pytest.mark.parametrize("levels", [2, 4, 10**6])
def test_an_uninformative_score_is_chance_whatever_its_ties(levels: int, generator: torch.Generator) -> None:
    first = ranks(torch.randint(levels, (40_000, 5), generator=generator), truth=2).first
    error = float(first.std()) / 200
    assert error < 0.0025
    assert float(first.mean()) == pytest.approx(1 / 5, abs=3 * error)


@pytest.mark.parametrize("distance", [0.5, 1.0, 2.0])
def test_identification_through_a_gaussian_channel(distance: float, generator: torch.Generator) -> None:
    """Two candidates at distance d in unit noise: the best attacker is right with probability Phi(d / 2)."""
    count, size = 40_000, 6
    candidates = torch.randn(2, size, generator=generator, dtype=torch.float64)
    candidates[1] = candidates[0] + distance * torch.nn.functional.normalize(candidates[1], dim=0)
    release = candidates[0] + torch.randn(count, size, generator=generator, dtype=torch.float64)
    share = identification(ranks(-torch.cdist(release, candidates)))
    expected = Phi(distance / 2)
    assert share == pytest.approx(expected, abs=3 * math.sqrt(expected * (1 - expected) / count))


def test_nan_never_helps() -> None:
    table = torch.tensor([[NAN, 1.0, NAN], [NAN, NAN, NAN], [-INF, NAN, NAN], [0.0, NAN, 1.0], [INF, INF, NAN]])
    ranking = ranks(table)
    assert ranking.rank.tolist() == [2, 2, 0, 1, 0.5]
    assert ranking.first.tolist() == [0, 0, 1, 0, 0.5]


# --- membership --------------------------------------------------------------------------------------------

small = st.lists(st.integers(-3, 3).map(float), min_size=1, max_size=12)


@given(small, small)
def test_auc_by_comparing_every_pair(members: list[float], others: list[float]) -> None:
    wins = [0.5 if x == y else float(x > y) for x in members for y in others]
    assert auc(members, others) == pytest.approx(sum(wins) / len(wins))
    assert auc(members, others) + auc(others, members) == pytest.approx(1)


@given(small, small, st.sampled_from([0.0, 0.1, 0.25, 1 / 3, 0.5, 0.9, 1.0]))
def test_tpr_by_trying_every_threshold(members: list[float], others: list[float], fpr: float) -> None:
    thresholds = [-INF, *others]
    fine = [t for t in thresholds if sum(y > t for y in others) <= fpr * len(others) + 1e-9]
    expected = max(sum(x > t for x in members) / len(members) for t in fine)
    assert tpr_at(members, others, fpr) == pytest.approx(expected)


def test_known_areas() -> None:
    assert auc([3, 4], [1, 2]) == 1
    assert auc([1, 2], [3, 4]) == 0
    assert auc([1, 1], [1]) == 0.5
    assert auc(torch.tensor([1.0, 3.0]), np.array([2.0])) == 0.5


@pytest.mark.parametrize("shift", [0.0, 0.3, 1.0, 2.0])
def test_auc_of_two_gaussians(shift: float) -> None:
    random = np.random.default_rng(7)
    members, others = random.normal(shift, 1, 6000), random.normal(0, 1, 9000)
    above = np.searchsorted(np.sort(others), members) / 9000
    below = 1 - np.searchsorted(np.sort(members), others) / 6000
    error = math.sqrt(above.var() / 6000 + below.var() / 9000)  # DeLong
    assert error < 0.006
    assert auc(members, others) == pytest.approx(Phi(shift / math.sqrt(2)), abs=3 * error)


@pytest.mark.parametrize(("shift", "fpr"), [(0.0, 0.01), (1.0, 0.01), (2.0, 0.01), (2.0, 0.1)])
def test_tpr_of_two_gaussians(shift: float, fpr: float) -> None:
    count, cut, normal = 200_000, NormalDist().inv_cdf(1 - fpr), NormalDist()
    random = np.random.default_rng(11)
    found = tpr_at(random.normal(shift, 1, count), random.normal(0, 1, count), fpr)
    expected = Phi(shift - cut)
    slope = normal.pdf(cut - shift) / normal.pdf(cut)  # how an error in the threshold moves the rate
    error = math.sqrt((expected * (1 - expected) + slope**2 * fpr * (1 - fpr)) / count)
    assert found == pytest.approx(expected, abs=3 * error)


def test_the_rate_counts_exactly_as_many_others_as_allowed() -> None:
    others, members = np.arange(100.0), np.arange(100.0) + 0.5
    for allowed in range(101):  # 0.29 * 100 is below 29 in floating point
        assert tpr_at(members, others, allowed / 100) == pytest.approx(min(1, (allowed + 1) / 100))
    assert tpr_at([5.0, 7.0], np.full(10, 5.0), 0.01) == 0.5, "ties with the threshold are no hits"


def test_scores_that_mean_nothing_are_refused() -> None:
    for score in (auc, tpr_at):
        for value in (NAN, INF, -INF):
            with pytest.raises(DataError, match="members"):
                score([1.0, value], [1.0])
            with pytest.raises(DataError, match="others"):
                score([1.0], torch.tensor([value]))
        with pytest.raises(DataError, match="at least one"):
            score([], [1.0])
    for fpr in (-0.1, 1.1, NAN):
        with pytest.raises(ConfigError):
            tpr_at([1.0], [0.0], fpr)


# --- intervals ---------------------------------------------------------------------------------------------


def test_intervals_over_releases_cover_and_intervals_over_images_do_not() -> None:
    """Four images of one release share most of what they vary by: to count them as four promises too much."""
    random = np.random.default_rng(3)
    covered, wrongly, widths = 0, 0, []
    for repetition in range(300):
        images = 5 + random.normal(size=(60, 1)) + 0.5 * random.normal(size=(60, 4))
        low, high = bootstrap(images, draws=400, seed=repetition) or (NAN, NAN)
        narrow_low, narrow_high = bootstrap(images.ravel(), draws=400, seed=repetition) or (NAN, NAN)
        covered += low <= 5 <= high
        wrongly += narrow_low <= 5 <= narrow_high
        widths.append((narrow_high - narrow_low) / (high - low))
    assert 0.90 <= covered / 300 <= 0.99
    assert wrongly / 300 < 0.80
    # the standard errors are sqrt((1 + 0.25) / 240) and sqrt((1 + 0.25 / 4) / 60)
    assert np.mean(widths) == pytest.approx(math.sqrt(1.25 / 240 / (1.0625 / 60)), rel=0.05)


def test_the_mean_by_weights_is_the_mean_of_resamples() -> None:
    values = np.random.default_rng(0).gamma(1.0, size=(30, 2, 3))
    fast, slow = bootstrap(values, draws=300, seed=4), bootstrap(values, lambda x: x.mean(), draws=300, seed=4)
    assert fast == pytest.approx(slow, rel=1e-12)
    assert bootstrap(values, draws=300, seed=5) != fast
    assert bootstrap(torch.from_numpy(values), draws=300, seed=4) == fast


def test_a_statistic_sees_whole_releases() -> None:
    values = np.arange(10.0)[:, None] + np.array([0.0, 100.0])
    shapes = set()

    def spread(x: np.ndarray) -> float:
        shapes.add(x.shape)
        return float((x[:, 1] - x[:, 0]).mean())

    assert bootstrap(values, spread, draws=50) == (100, 100)
    assert shapes == {(10, 2)}


def test_a_higher_level_is_wider_and_more_releases_narrower() -> None:
    random = np.random.default_rng(1)
    values = random.normal(size=400)
    widths = {(n, level): np.diff(bootstrap(values[:n], level=level)) for n in (100, 400) for level in (0.5, 0.95)}
    assert widths[100, 0.95] / widths[100, 0.5] == pytest.approx(1.96 / 0.674, rel=0.15)
    assert widths[400, 0.95] / widths[100, 0.95] == pytest.approx(0.5, rel=0.2)


def test_one_release_has_no_interval() -> None:
    assert bootstrap([3.0]) is None
    assert bootstrap(np.zeros((1, 50))) is None
    assert bootstrap_auc(np.zeros((1, 4)), np.zeros((1, 20))) is None
    assert bootstrap([3.0, 3.0]) == (3.0, 3.0)


@pytest.mark.parametrize("fpr", [0.0, 0.01, 0.1, 1.0])
@pytest.mark.parametrize("rounded", [False, True])
def test_weighted_auc_and_tpr_are_those_of_resamples(fpr: float, rounded: bool) -> None:
    random = np.random.default_rng(5)
    both = random.normal(size=(25, 8)) + random.normal(size=(25, 1))
    both[:, :3] += 0.8
    both[:15, 0] = -9  # members below all others, whom only fpr=1 lets in
    if rounded:  # many ties
        both = both.round()
    found = bootstrap_auc(both[:, :3], both[:, 3:], draws=200, seed=9, fpr=fpr)
    expected = (
        bootstrap(both, lambda x: auc(x[:, :3], x[:, 3:]), draws=200, seed=9),
        bootstrap(both, lambda x: tpr_at(x[:, :3], x[:, 3:], fpr), draws=200, seed=9),
    )
    assert found is not None
    for interval, slow in zip(found, expected, strict=True):
        assert interval == pytest.approx(slow, abs=1e-12)


def test_the_interval_of_auc_covers() -> None:
    random = np.random.default_rng(13)
    covered = 0
    for repetition in range(300):
        # members and others of a release share an offset, which changes no single release's order
        offset = random.normal(size=(60, 1))
        members, others = 1 + offset + random.normal(size=(60, 2)), offset + random.normal(size=(60, 5))
        intervals = bootstrap_auc(members, others, draws=300, seed=repetition)
        assert intervals is not None
        covered += intervals[0][0] <= Phi(1 / 2) <= intervals[0][1]  # a difference of variance 4 between releases
    assert 0.90 <= covered / 300 <= 0.99


def test_values_without_an_interval_are_refused() -> None:
    with pytest.raises(DataError, match="inf"):
        bootstrap([1.0, INF])
    with pytest.raises(DataError, match="nan"):
        bootstrap_auc([[1.0], [NAN]], [[1.0], [0.0]])
    with pytest.raises(DataError, match="others"):
        bootstrap_auc([[1.0], [1.0]], [[1.0], [-INF]])
    with pytest.raises(DataError, match="same N"):
        bootstrap_auc(np.zeros((3, 2)), np.zeros((4, 2)))
    with pytest.raises(DataError, match="same N"):
        bootstrap_auc(np.zeros(3), np.zeros(3))


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    guess, truth = torch.rand(2, 7, 1, 12, 12, generator=generator, dtype=torch.float64)
    cost, labels = torch.rand(7, 4, 4, generator=generator), torch.zeros(7, 4)
    values = np.random.default_rng(2).normal(size=(12, 5))

    def everything() -> list[object]:
        intervals = bootstrap(values, draws=50), bootstrap_auc(values[:, :2], values[:, 2:], draws=50, fpr=0.1)
        return [ssim(guess, truth).tolist(), match(cost, labels).tolist(), *intervals]

    whole = everything()
    for room in (1, 30, 3000):
        monkeypatch.setattr(scores, "ROOM", room)
        assert everything() == whole


# --- one number --------------------------------------------------------------------------------------------


def test_cap_by_hand() -> None:
    # (0.2 * 3 + 0.5 * 2 + 0.9 * 1) / 3; the product of the means would be 1.0667
    assert cap([0.2, 0.5, 0.9], [3.0, 2.0, 1.0]) == pytest.approx(2.5 / 3)
    assert cap(torch.tensor([0.5]), np.array([2.0])) == 1.0


PAPER = {  # accuracy in percent and MSE at five budgets, and the CAP that the paper prints
    "LS mnist identical": ([8.92, 67.98, 83.28, 87.26, 92.04], [3.48, 2.61, 2.44, 2.22, 2.23], 1.62),
    "LS mnist learn": ([51.04, 76.46, 86.2, 91.94, 93.4], [3.3, 2.48, 2.43, 2.51, 2.28], 2.02),
    "PL mnist identical": ([10.92, 10.38, 64.68, 85.26, 92.0], [3.45, 3.31, 2.84, 2.67, 1.91], 1.30),
    "PL mnist learn": ([62.68, 64.72, 73.26, 86.62, 92.94], [3.37, 3.1, 2.74, 2.24, 2.35], 2.09),
    "LS fmnist identical": ([10.68, 52.82, 67.38, 74.04, 76.76], [2.09, 1.96, 2.01, 1.91, 1.88], 1.08),
    "LS fmnist learn": ([54.48, 59.56, 70.92, 77.52, 78.78], [2.05, 1.95, 1.92, 1.86, 1.84], 1.31),
    "PL fmnist identical": ([9.64, 35.58, 49.1, 69.74, 78.0], [2.1, 2.04, 1.99, 1.89, 1.68], 0.91),
    "PL fmnist learn": ([56.94, 57.96, 63.54, 72.94, 79.26], [2.09, 2.07, 1.91, 1.87, 1.84], 1.27),
}


@pytest.mark.parametrize("name", PAPER)
def test_cap_of_the_papers_tables_is_the_one_it_prints(name: str) -> None:
    """Up to 0.04, by which the paper's CAP table differs from its own other tables."""
    percent, errors, printed = PAPER[name]
    assert cap(np.array(percent) / 100, errors) == pytest.approx(printed, abs=0.05)


def test_cap_refuses_what_it_cannot_average() -> None:
    for accuracies, errors in (([51.0], [2.0]), ([-0.1], [2.0]), ([0.5], [NAN]), ([NAN], [1.0]), ([0.5], [1.0, 2.0])):
        with pytest.raises(DataError):
            cap(accuracies, errors)
    with pytest.raises(DataError):
        cap([], [])


def test_twenty_releases_are_enough() -> None:
    assert ENOUGH == 20
    assert [verdict(n) for n in (0, 19, 20, 500)] == ["insufficient evidence"] * 2 + ["ok"] * 2


def test_importing_it_needs_torch_and_numpy_alone() -> None:
    check = "import equipoise.auditing.scores, sys; assert not {'scipy', 'skimage'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", check], check=True)
