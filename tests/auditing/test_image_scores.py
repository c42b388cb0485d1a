"""Scores of reconstructions agree with scikit-image, their matching with scipy, and CAP with the paper's tables."""

from __future__ import annotations

import math
from itertools import permutations

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from skimage.metrics import peak_signal_noise_ratio, structural_similarity
from torch import Tensor

from equipoise.auditing import image_scores as scores
from equipoise.auditing.image_scores import arranged, cap, match, mse, psnr, ssim
from equipoise.data.dataset import Dataset
from equipoise.errors import DataError

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
    truth = mnist.pixels(mnist.public_pool.inputs[:60]).clamp(0, 1).double()
    guess = (truth + 0.3 * torch.randn(truth.shape, generator=generator)).clamp(0, 1)
    guess[20:40], guess[40:] = truth[:20], 0
    assert ssim(guess, truth).tolist() == pytest.approx(library_ssim(guess, truth), abs=1e-6)
    assert psnr(guess, truth).tolist() == pytest.approx(library_psnr(guess, truth), abs=1e-6)


def test_float32_is_close_to_float64(mnist: Dataset) -> None:
    truth = mnist.pixels(mnist.public_pool.inputs).clamp(0, 1)
    guess = truth.roll(1, 0)
    assert ssim(guess, truth).dtype == torch.float32
    torch.testing.assert_close(ssim(guess, truth).double(), ssim(guess.double(), truth.double()), rtol=0, atol=1e-4)


def test_a_black_guess_scores_little_but_not_nothing(mnist: Dataset) -> None:
    """The level that every SSIM on these images is to be read against."""
    truth = mnist.pixels(mnist.public_pool.inputs).clamp(0, 1).double()
    assert float(ssim(torch.zeros_like(truth), truth).mean()) == pytest.approx(0.0955, abs=5e-4)


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


@pytest.mark.slow
def test_guesses_are_arranged_by_the_truths_that_they_match(generator: torch.Generator) -> None:
    """The first two guesses have changed places, and they alone may: the third has a label of its own."""
    truth = torch.rand(2, 3, 1, 4, 5, generator=generator)
    guess = truth[:, [1, 0, 2]] + 0.01
    result, assigned = arranged(guess, truth, torch.tensor([[7, 7, 1], [7, 8, 1]]))
    assert assigned.tolist() == [[1, 0, 2], [0, 1, 2]]
    torch.testing.assert_close(result[0], truth[0] + 0.01)
    assert torch.equal(result[1], guess[1])


def test_vectors_are_arranged_like_images(generator: torch.Generator) -> None:
    truth = torch.rand(2, 3, 6, generator=generator)
    result, assigned = arranged(truth.flip(1), truth, torch.zeros(2, 3))
    assert assigned.tolist() == [[2, 1, 0]] * 2
    assert torch.equal(result, truth)


def test_pieces_change_nothing(monkeypatch: pytest.MonkeyPatch, generator: torch.Generator) -> None:
    guess, truth = torch.rand(2, 7, 1, 12, 12, generator=generator, dtype=torch.float64)
    cost, labels = torch.rand(7, 4, 4, generator=generator), torch.zeros(7, 4)
    whole = ssim(guess, truth).tolist(), match(cost, labels).tolist()
    for room in (1, 30, 3000):
        monkeypatch.setattr(scores, "ROOM", room)
        assert (ssim(guess, truth).tolist(), match(cost, labels).tolist()) == whole


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
