"""Clips: rows never longer than their bound, and a mean that one example moves by no more than it is proved to."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.mechanism.clipping import clip_gradient, clipped_mean
from equipoise.mechanism.intensity import Norm, intensity

norms = st.sampled_from(["l1", "l2"])
bounds = st.sampled_from([1e-6, 0.5, 1.0, 40.0, 1e6])


def gradients(seed: int, *shape: int, spread: float = 10.0) -> Tensor:
    """Rows of every size from far below to far above any bound."""
    local = torch.Generator().manual_seed(seed)
    values = torch.randn(*shape, dtype=torch.float64, generator=local)
    sizes = spread ** torch.empty(*shape[:-1], 1, dtype=torch.float64).uniform_(-6, 6, generator=local)
    return values * sizes


# --- the gradient of a mini-batch --------------------------------------------------------------------------


@given(st.integers(0, 10_000), bounds, norms)
def test_no_row_is_longer_than_its_bound_and_its_direction_stays(seed: int, bound: float, norm: Norm) -> None:
    rows = gradients(seed, 6, 5)
    size = intensity(rows, norm)
    clipped, acted = clip_gradient(rows, bound, norm)
    assert (intensity(clipped, norm) <= bound * (1 + 1e-12)).all()
    torch.testing.assert_close(clipped / intensity(clipped).unsqueeze(-1), rows / intensity(rows).unsqueeze(-1))
    assert torch.equal(acted, size > bound)
    assert torch.equal(clipped[~acted], rows[~acted]), "what is short enough is not touched"
    torch.testing.assert_close(intensity(clipped[acted], norm), torch.full_like(size[acted], bound))


def test_clip_edge_cases() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.0, 0.0], [0.6, 0.8], [math.nan, 1.0], [math.inf, 1.0]])
    clipped, acted = clip_gradient(rows, 1.0, "l2")
    torch.testing.assert_close(clipped[:3], torch.tensor([[0.6, 0.8], [0.0, 0.0], [0.6, 0.8]]))
    assert not torch.isfinite(clipped[3:]).all(-1).any(), "a broken gradient is not repaired"
    assert acted.tolist()[:3] == [True, False, False]


# --- the gradients of single examples ----------------------------------------------------------------------


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e308])
def test_a_gradient_that_is_not_finite_counts_as_zero(value: float) -> None:
    gradients = torch.tensor([[[3.0, 1.0], [value, 1e308], [0.25, 0.25], [0.0, 0.0]]], dtype=torch.float64)
    mean, clipped = clipped_mean(gradients, 2.0, "l1")
    torch.testing.assert_close(mean, torch.tensor([[(1.5 + 0.25) / 4, (0.5 + 0.25) / 4]], dtype=torch.float64))
    assert clipped.tolist() == [0.5]


def test_the_mean_is_that_of_the_clipped_examples_of_each_client() -> None:
    given_rows = torch.tensor([[[3.0, 4.0], [0.3, 0.4]], [[0.0, 0.0], [-6.0, 8.0]]], dtype=torch.float64)
    mean, share = clipped_mean(given_rows, 1.0, "l2")
    torch.testing.assert_close(mean, torch.tensor([[0.45, 0.6], [-0.3, 0.4]], dtype=torch.float64))
    assert share.tolist() == [0.5, 0.5]
    loose, share = clipped_mean(given_rows, 100.0, "l2")
    torch.testing.assert_close(loose, given_rows.mean(1))
    assert share.tolist() == [0.0, 0.0]


@given(st.integers(0, 10_000), st.integers(1, 6), bounds, norms, st.sampled_from([0.0, 1.0, math.nan, math.inf, 1e300]))
def test_one_example_moves_the_mean_by_at_most_twice_the_bound_over_their_number(
    seed: int, count: int, bound: float, norm: Norm, other: float
) -> None:
    rows = gradients(seed, 1, count, 4)
    replaced = rows.clone()
    replaced[0, seed % count] = other * gradients(seed + 1, 4)
    one, two = (clipped_mean(each, bound, norm)[0] for each in (rows, replaced))
    assert float(intensity(one - two, norm)) <= 2 * bound / count * (1 + 1e-9)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_that_bound_is_attained(norm: Norm) -> None:
    rows = torch.zeros(1, 4, 3, dtype=torch.float64)
    rows[0, 2] = torch.tensor([0.0, 50.0, 0.0])
    mirrored = -rows
    one, two = (clipped_mean(each, 3.0, norm)[0] for each in (rows, mirrored))
    assert float(intensity(one - two, norm)) == pytest.approx(2 * 3.0 / 4, rel=1e-12)
