"""The grid of a formal release: its step, what one record may add to it, and mutants that would add more."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.errors import ConfigError
from equipoise.mechanism.grid import FINENESS, Grid, added

POSITIVE = st.floats(1e-6, 1e6)
PUBLIC = given(POSITIVE, POSITIVE, st.integers(1, 10_000), st.integers(1, 10**9))


@PUBLIC
def test_the_step_is_the_largest_power_of_two_that_is_fine_enough(
    eta: float, clip: float, batch: int, size: int
) -> None:
    grid = Grid.of(eta, clip, batch, size)
    reach, step = Fraction(eta) * Fraction(clip) / batch, Fraction(2) ** grid.exponent
    assert size * step <= reach / FINENESS < 2 * size * step
    assert grid.bound == math.floor(reach / step)
    assert Fraction(grid.step) == step
    assert FINENESS * size <= grid.bound < 2**50, "what the exactness of float64 sums rests on"


@PUBLIC
def test_the_noise_is_never_smaller_than_the_budget_asks_for(eta: float, clip: float, batch: int, size: int) -> None:
    """Whatever float type the scale went through."""
    grid, epsilon = Grid.of(eta, clip, batch, size), 0.37
    scale = 2 * eta * clip / batch / epsilon
    for kept in (scale, float(torch.tensor(scale, dtype=torch.float32))):
        steps = grid.noise_scale(kept)
        assert Fraction(2 * grid.bound, steps) <= Fraction(epsilon)
        assert steps <= 1 + scale / grid.step * (1 + 1e-5)


def test_a_grid_that_no_float_can_hold_is_refused() -> None:
    for eta in (1e-300, 1e300):
        with pytest.raises(ConfigError, match="No grid of floats suits updates"):
            Grid.of(eta, eta**0.1, 1, 10)


# --- one record ----------------------------------------------------------------------------------------------

ETA, CLIP, BATCH, SIZE = 0.3, 2.0, 4, 50
GRID = Grid.of(ETA, CLIP, BATCH, SIZE)
VALUES = st.one_of(st.floats(-1e3, 1e3), st.sampled_from([0.0, -0.0, 5e-324, 1e-300]))
LARGE = st.lists(st.sampled_from([1e30, -1e38, 1e300, 1.7e308, math.inf, -math.inf, math.nan]), max_size=2)
GRADIENTS = given(
    st.lists(VALUES, min_size=SIZE - 2, max_size=SIZE - 2), LARGE, st.sampled_from([torch.float32, torch.float64])
)


@GRADIENTS
def test_no_record_exceeds_its_bound(values: list[float], large: list[float], dtype: torch.dtype) -> None:
    gradient = torch.tensor([[*values, *large]], dtype=torch.float64).to(dtype)
    whole, clipped = GRID.steps(gradient, ETA, CLIP, BATCH)
    assert whole.dtype == torch.int64
    assert sum(map(abs, whole[0].tolist())) <= GRID.bound
    size = float(gradient.double().abs().sum())
    if math.isfinite(size):
        ratio = min(1.0, CLIP / size) if size else 1.0
        expected = -gradient.double() * (ratio * ETA / BATCH / GRID.step)
        assert float((whole - expected).abs().max()) < 1 + 1e-6, "one step, and towards zero"
        assert bool((whole.abs() <= expected.abs() * (1 + 1e-9)).all())
    else:
        assert not whole.any()
        assert clipped.tolist() == [True]


def test_a_record_that_is_not_clipped_is_only_rounded() -> None:
    gradient = torch.linspace(-0.01, 0.01, SIZE, dtype=torch.float64).unsqueeze(0)
    whole, clipped = GRID.steps(gradient, ETA, CLIP, BATCH)
    assert clipped.tolist() == [False]
    assert float((whole * GRID.step + gradient * ETA / BATCH).abs().max()) < GRID.step


def test_a_record_above_its_bound_by_rounding_is_shrunk() -> None:
    """Should the clip ever be off, the comparison of integers notices: here the grid's own bound is made smaller."""
    tight = Grid(GRID.exponent, GRID.bound - GRID.bound // 10)
    gradient = torch.randn(3, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    norms = tight.steps(gradient, ETA, CLIP, BATCH)[0].abs().sum(1)
    assert (norms <= tight.bound).all()
    assert (norms > 0.99 * tight.bound).all(), "shrunk, not dropped"


def test_rows_and_types() -> None:
    gradients = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(1)) * 0.1
    whole, clipped = GRID.steps(gradients, ETA, CLIP, BATCH)
    for row in range(5):
        alone = GRID.steps(gradients[row : row + 1], ETA, CLIP, BATCH)
        assert torch.equal(alone[0][0], whole[row])
        assert bool(alone[1]) == bool(clipped[row])


# --- what a wrong grid would do ------------------------------------------------------------------------------

Steps = Callable[[Tensor], Tensor]


def without_a_clip(gradient: Tensor) -> Tensor:
    return (-gradient.double() * ETA / BATCH / GRID.step).trunc().long()


def to_the_nearest(gradient: Tensor) -> Tensor:
    size = gradient.double().abs().sum(-1, keepdim=True)
    return (-gradient.double() * (CLIP / size.clamp_min(CLIP)) * ETA / BATCH / GRID.step).round().long()


def in_the_wrong_norm(gradient: Tensor) -> Tensor:
    size = gradient.double().norm(dim=-1, keepdim=True)
    return (-gradient.double() * (CLIP / size.clamp_min(CLIP)) * ETA / BATCH / GRID.step).trunc().long()


def ours(gradient: Tensor) -> Tensor:
    return GRID.steps(gradient, ETA, CLIP, BATCH)[0]


def longest(steps: Steps) -> int:
    """The largest norm over gradients that lie just beside the grid, and over large ones."""
    local = torch.Generator().manual_seed(1)
    unit = GRID.step * BATCH / ETA
    beside = torch.full((1, SIZE), unit * (math.floor(GRID.bound / SIZE) + 0.51), dtype=torch.float64)
    large = 100 * torch.randn(20, SIZE, dtype=torch.float64, generator=local)
    return max(int(steps(rows).abs().sum(-1).max()) for rows in (beside, large))


@pytest.mark.parametrize("mutant", [without_a_clip, to_the_nearest, in_the_wrong_norm])
def test_a_wrong_rounding_or_clip_would_be_noticed(mutant: Steps) -> None:
    assert longest(mutant) > GRID.bound >= longest(ours)


# --- what may be seen ----------------------------------------------------------------------------------------

HOSTILE = [2.0**24, -(2.0**24), 1e30, -1e30, 1e-45, -0.0, 0.0, 3.4028234663852886e38, -3.4028234663852886e38]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_a_release_is_finite_whatever_was_received_and_drawn(dtype: torch.dtype) -> None:
    most = torch.finfo(dtype).max
    start = torch.tensor([HOSTILE], dtype=torch.float64).clamp(-most, most).to(dtype)
    for whole in (0, 2**61, -(2**61), 12345):
        for exponent in (-60, 0, 900):
            result = added(start, torch.full(start.shape, whole), Grid(exponent, 1))
            assert result.dtype == dtype
            assert torch.isfinite(result).all()
    assert torch.equal(added(start, torch.zeros(start.shape, dtype=torch.int64), Grid(-60, 1)), start)


def test_the_received_weights_are_added_to_the_total() -> None:
    start, whole = torch.tensor([[1.5, -2.0]], dtype=torch.float64), torch.tensor([[3, -8]])
    assert added(start, whole, Grid(-2, 1)).tolist() == [[2.25, -4.0]]
    made = partial(added, grid=Grid(-2, 1))
    assert torch.equal(made(start, whole) - start, made(torch.zeros_like(start), whole))
