"""Means and standard deviations: what is measured, applied, undone and refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data.normalisation import (
    as_moment,
    check_moments,
    column_moments,
    guessed_range,
    measured_moments,
    normalise_,
    rescaled,
    undone,
)
from equipoise.errors import DataError


def images(channels: int) -> torch.Tensor:
    return torch.rand(20, channels, 4, 5, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("channels", [1, 3])
def test_measured_moments_are_those_of_numpy(channels: int) -> None:
    made = images(channels).numpy().astype(np.float64)
    mean, std = measured_moments(images(channels))
    assert isinstance(mean, float) == (channels == 1)
    np.testing.assert_allclose(mean, made.mean((0, 2, 3)), rtol=1e-6)
    np.testing.assert_allclose(std, made.std((0, 2, 3)), rtol=1e-6)


@pytest.mark.parametrize(("mean", "std"), [(0.3, 0.5), ((0.1, 0.2, 0.3), 2.0), (0.0, (0.5, 1.0, 2.0))])
def test_normalising_is_undone(mean: Any, std: Any) -> None:
    made = images(3)
    normalise_(made, mean, std)
    per_channel = [np.broadcast_to(np.reshape(moment, (-1, 1, 1)), (3, 1, 1)) for moment in (mean, std)]
    expected = (images(3).numpy() - per_channel[0]) / per_channel[1]
    np.testing.assert_allclose(made.numpy(), expected, atol=1e-6)
    torch.testing.assert_close(undone(made, mean, std), images(3))


def test_measured_moments_normalise() -> None:
    made = images(2)
    normalise_(made, *measured_moments(images(2)))
    torch.testing.assert_close(made.mean((0, 2, 3)), torch.zeros(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(made.std((0, 2, 3), correction=0), torch.ones(2))


def test_lists_become_tuples() -> None:
    assert as_moment([0.1, 0.2]) == (0.1, 0.2)
    assert as_moment(0.5) == 0.5


@pytest.mark.parametrize(
    ("mean", "std", "words"),
    [
        ((0.1, 0.2), 1.0, r"mean to be a finite number or 3 of them, got \(0.1, 0.2\)"),
        (0.0, (1.0, 1.0, 1.0, 1.0), "std to be a finite number or 3 of them"),
        (float("inf"), 1.0, "mean to be a finite number"),
        (0.0, (1.0, float("nan"), 1.0), "std to be a finite number"),
        ("0.1", 1.0, "mean to be a finite number"),
        (0.0, 0.0, "std=0.0 to be > 0"),
        (0.0, (1.0, -1.0, 1.0), r"std=\(1.0, -1.0, 1.0\) to be > 0"),
    ],
)
def test_impossible_moments_are_refused(mean: Any, std: Any, words: str) -> None:
    check_moments(0, (1, 2.0, 3), 3)
    with pytest.raises(DataError, match=words):
        check_moments(mean, std, 3)


def test_columns_of_a_table_have_moments_of_their_own() -> None:
    rows = torch.rand(50, 4, generator=torch.Generator().manual_seed(1)) * torch.tensor([1.0, 100.0, 0.0, 3.0]) + 1e6
    rows[:, 3] = 0.1  # rounding alone must not count as a spread
    mean, std = column_moments(rows)
    assert isinstance(std, tuple)
    assert std[2:] == (1.0, 1.0)
    np.testing.assert_allclose(std[:2], rows.double().std(0, correction=0)[:2])
    made = rows.clone()
    normalise_(made, mean, std)
    assert torch.isfinite(made).all()
    torch.testing.assert_close(undone(made, mean, std, after=0), rows)
    assert column_moments(torch.tensor([[2.0], [4.0]])) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("low", "high", "whole", "expected"),
    [
        (0.0, 1.0, False, (0.0, 1.0)),
        (0.2, 0.3, False, (0.0, 1.0)),
        (0.0, 255.0, True, (0.0, 255.0)),
        (0.0, 200.0, False, (0.0, 200.0)),
        (-1.0, 1.0, True, (-1.0, 1.0)),
        (0.0, 4095.0, True, (0.0, 4095.0)),
    ],
)
def test_what_stands_for_black_and_white(low: float, high: float, whole: bool, expected: tuple[float, float]) -> None:
    assert guessed_range(low, high, whole) == expected


def test_moments_of_values_become_those_of_pixels() -> None:
    values = images(2) * 10 - 3
    mean, std = rescaled((1.0, 2.0), 4.0, -3.0, 7.0)
    normalised = values.clone()
    normalise_(normalised, (1.0, 2.0), 4.0)
    torch.testing.assert_close(undone(normalised, mean, std), (values + 3) / 10)
