"""What one unit adds: integers whose norm is held against the clip in Python's own arithmetic, whatever the floats."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.errors import ConfigError
from equipoise.mechanism import l2_grid
from equipoise.mechanism.l2_grid import FINENESS, SPARE, L2Grid, largest_power, squared

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
CLIPS = [1.0, 0.3, 1 / 3, 7.7, 1e-6, 1e12, 2.0**-60, 1e-45, 1e60]
SHAPES = [1, 2, 7, 600]


def python_square(row: Tensor) -> int:
    """The squared norm of whole numbers, by Python's integers."""
    values = row.tolist()
    assert all(value == int(value) for value in values)
    return sum(int(value) ** 2 for value in values)


def allowed(grid: L2Grid, clip: float) -> Fraction:
    return (Fraction(clip) / Fraction(2) ** grid.exponent) ** 2


def hostile(size: int, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Gradients ``[N, size]`` of every length that a type of floats has, and those that are no numbers."""
    info = torch.finfo(dtype)
    plain = torch.randn(16, size, generator=generator, dtype=torch.float64)
    unit = plain / plain.norm(dim=1, keepdim=True)
    lengths = [0.0, info.smallest_normal / 4, info.tiny, 1e-4, 0.999999, 1.0, 1.000001, 3.0, 1e4, info.max / 4]
    rows = [
        *(unit[i] * length for i, length in enumerate(lengths)),
        *unit[10:],
        torch.full((size,), info.max, dtype=torch.float64),
    ]
    result = torch.stack(
        [*rows, *(torch.full((size,), info.max, dtype=torch.float64) * sign for sign in (-1, 0.5))]
    ).to(dtype)
    special = result[:4].clone()
    for row, value in zip(special, (math.nan, math.inf, -math.inf, info.max), strict=True):
        row[-1] = value
    return torch.cat([result, special, torch.full((1, size), math.inf, dtype=dtype)])


# -- the norm ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", SHAPES)
def test_no_gradient_exceeds_the_clip_in_whole_numbers(
    size: int, dtype: torch.dtype, generator: torch.Generator
) -> None:
    given = hostile(size, dtype, generator)
    for clip in CLIPS:
        grid = L2Grid.of(clip, size)
        for scale in (1.0, clip):
            gradients = given * scale if scale != 1 else given
            whole, _ = grid.whole(gradients.to(dtype, copy=True), clip)
            assert whole.dtype == torch.float64
            assert max(map(python_square, whole)) <= grid.most <= allowed(grid, clip)


NEARLY = {torch.float32: Fraction(1, 16), torch.float64: Fraction(1, 2**29)}
"""What a clip, in steps, lacks of a whole number that floats round it up to: so a row may become too long."""


def at_the_edge(dtype: torch.dtype) -> tuple[L2Grid, float, Tensor]:
    clip = float((2**23 - 1 - NEARLY[dtype]) / 2**23)
    rows = torch.zeros(200, 3, dtype=torch.float64)
    rows[:, 1] = torch.linspace(2.0, 9.0, 200, dtype=torch.float64)
    return L2Grid.at(-23, clip), clip, rows.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_floats_make_too_long_are_shortened_and_not_dropped(dtype: torch.dtype) -> None:
    grid, clip, rows = at_the_edge(dtype)
    whole, clipped = grid.whole(rows.clone(), clip)
    assert clipped.all()
    lengths = [Fraction(python_square(row)) / allowed(grid, clip) for row in whole]
    assert max(lengths) <= 1
    assert min(lengths) > 1 - Fraction(1, 10**4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_such_rows_do_occur(dtype: torch.dtype) -> None:
    """The test above would be empty otherwise: without a margin or a second look some rows are too long."""
    grid, clip, rows = at_the_edge(dtype)
    factor = (clip / rows.double().norm(dim=1, keepdim=True) / grid.step).to(dtype)
    assert max(map(python_square, (rows * factor).trunc().double())) > grid.most


def test_a_length_that_came_out_too_short_makes_no_row_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """The integers themselves are looked at: whatever is wrong before, they are within the clip."""
    true, rows, grid = l2_grid.length, torch.full((3, 40), 2.0), L2Grid.of(1.0, 40)
    expected, clipped = grid.whole(rows.clone(), 1.0)[0], iter((0.5, 1.0))
    monkeypatch.setattr(l2_grid, "length", lambda values: true(values) * next(clipped))
    whole, acted = grid.whole(rows.clone(), 1.0)
    assert max(map(python_square, whole)) <= grid.most
    assert acted.all()
    assert float((whole - expected).abs().max()) <= 1


@pytest.mark.parametrize("size", [1, 127, 128, 129, 13_426])
def test_lengths_are_within_their_stated_error(size: int, generator: torch.Generator) -> None:
    rows = torch.randn(2, 3, size, generator=generator) * torch.tensor([1e-15, 1.0, 1e15]).unsqueeze(1)
    found, exact = l2_grid.length(rows), rows.double().square().sum(-1, keepdim=True).sqrt()
    assert found.shape == (2, 3, 1)
    assert float((found / exact - 1).abs().max()) < l2_grid._LENGTH_ERROR


def test_numbers_whose_squares_are_no_floats_are_zero_on_every_grid_that_counts_in_float32() -> None:
    tiny, clip = torch.full((1, 7), 2.0**-62), 2.0**-45
    grid = L2Grid.of(clip, 7)
    assert (grid.exponent, float(l2_grid.length(tiny * 2.0**-20))) == (-57, 0.0)
    assert not grid.whole(tiny.clone(), clip)[0].any()
    finer = L2Grid.of(2.0**-60, 7)
    assert finer.exponent < l2_grid._SMALLEST
    assert max(map(python_square, finer.whole(tiny * 4, 2.0**-60)[0])) > 0.99 * finer.most


@given(
    st.lists(st.floats(width=64, allow_nan=True, allow_infinity=True), min_size=1, max_size=6),
    st.floats(1e-30, 1e30),
    st.sampled_from(DTYPES),
)
def test_any_floats_at_any_clip(values: list[float], clip: float, dtype: torch.dtype) -> None:
    grid = L2Grid.of(clip, len(values))
    whole, _ = grid.whole(torch.tensor([values], dtype=torch.float64).to(dtype), clip)
    assert python_square(whole[0]) <= grid.most <= allowed(grid, clip)


# -- what it comes to ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("clip", [0.3, 1.0, 1e5])
def test_short_gradients_are_cut_by_less_than_a_step_in_every_coordinate(
    clip: float, dtype: torch.dtype, generator: torch.Generator
) -> None:
    rows = torch.randn(40, 30, generator=generator, dtype=torch.float64)
    rows = (rows / rows.norm(dim=1, keepdim=True) * clip * torch.rand(40, 1, generator=generator)).to(dtype)
    grid = L2Grid.of(clip, 30)
    whole, clipped = grid.whole(rows.clone(), clip)
    assert torch.equal(whole, (rows.double() / grid.step).trunc())
    assert not clipped.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_long_gradients_keep_their_direction_and_are_a_thousandth_shorter_at_most(
    dtype: torch.dtype, generator: torch.Generator
) -> None:
    rows = torch.randn(40, 30, generator=generator, dtype=torch.float64).to(dtype) * 50
    grid = L2Grid.of(0.7, 30)
    whole, clipped = grid.whole(rows.clone(), 0.7)
    ideal = rows.double() * 0.7 / rows.double().norm(dim=1, keepdim=True)
    assert clipped.all()
    assert float((whole * grid.step - ideal).norm(dim=1).max()) <= 0.7 / FINENESS * (1 + 1e-4)


def test_gradients_whose_squares_are_too_large_for_float32_are_clipped_and_not_dropped() -> None:
    whole, clipped = L2Grid.of(1.0, 2).whole(torch.tensor([[1e30, -1e30], [0.1, 0.0]]), 1.0)
    assert whole[0].tolist() == [1448.0, -1448.0]
    assert clipped.tolist() == [True, False]


def test_whatever_is_not_finite_counts_as_zero_and_as_clipped() -> None:
    rows = torch.tensor([[1.0, math.nan], [math.inf, 0.0], [-math.inf, math.inf], [0.25, 0.5]])
    whole, clipped = L2Grid.of(1.0, 2).whole(rows.clone(), 1.0)
    assert whole[:3].tolist() == [[0.0, 0.0]] * 3
    assert whole[3].tolist() != [0.0, 0.0]
    assert clipped.tolist() == [True, True, True, False]


def test_a_unit_has_the_same_integers_beside_any_others(generator: torch.Generator) -> None:
    rows = torch.randn(12, 33, generator=generator) * torch.logspace(-3, 3, 12).unsqueeze(1)
    grid = L2Grid.of(1.0, 33)
    alone = torch.cat([grid.whole(row.unsqueeze(0).clone(), 1.0)[0] for row in rows])
    rows[::3] = math.nan
    rows[1::3] = 1e30
    assert torch.equal(grid.whole(rows.clone(), 1.0)[0][2::3], alone[2::3])


# -- the grid ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("size", [*SHAPES, 39_700, 10**8])
def test_the_grid_is_the_coarsest_that_is_fine_enough(clip: float, size: int) -> None:
    grid = L2Grid.of(clip, size)
    finest = Fraction(clip) ** 2 / (FINENESS**2 * size)
    assert Fraction(4) ** grid.exponent <= finest < Fraction(4) ** (grid.exponent + 1)
    assert grid.most <= allowed(grid, clip) < grid.most + 1
    assert grid.most < 2**53, "beyond, float64 could not compare it"
    assert grid.stretch == 1


@given(st.fractions(min_value=Fraction(1, 10**60), max_value=10**60))
def test_largest_power(square: Fraction) -> None:
    exponent = largest_power(square)
    assert Fraction(4) ** exponent <= square < Fraction(4) ** (exponent + 1)


@pytest.mark.parametrize("clip", [1e-200, 1e200])
def test_a_clip_that_no_grid_suits_is_refused(clip: float) -> None:
    with pytest.raises(ConfigError, match=r"Choose gaussian\.clip nearer to 1"):
        L2Grid.of(clip, 10)


def test_squared_norms_are_exact_up_to_2_53_and_stay_large_beyond() -> None:
    row = torch.tensor([[2.0**26, 2.0**26, 1.0]], dtype=torch.float64)
    assert int(squared(row)) >= 2**53  # 2^53 + 1 itself has no float64
    assert int(squared(torch.tensor([[94906265.0, 3.0]], dtype=torch.float64))) == 94906265**2 + 9
    assert float(squared(torch.tensor([[1e200, 1.0]], dtype=torch.float64))) == math.inf


# -- a sum that is rounded once more ---------------------------------------------------------------------------------


def sums(fine: L2Grid, clip: float, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """A sum of units, and the same without the last one."""
    rows = torch.randn(9, size, generator=generator, dtype=torch.float64) * clip
    whole = fine.whole(rows.clone(), clip)[0]
    return whole.sum(0, keepdim=True), whole[:-1].sum(0, keepdim=True)


@pytest.mark.parametrize("clip", [0.3, 1.0, 1e6])
@pytest.mark.parametrize("size", [1, 8, 500])
def test_a_unit_moves_a_coarser_sum_by_its_clip_and_the_stated_stretch(
    clip: float, size: int, generator: torch.Generator
) -> None:
    fine = L2Grid.of(clip, size, fineness=SPARE * 50)
    worst = Fraction(0)
    for _ in range(20):
        with_it, without = (fine.coarser(clip, size, total) for total in sums(fine, clip, size, generator))
        grid = with_it[0]
        assert with_it[1] is not None
        assert without[1] is not None
        moved = Fraction(python_square((with_it[1] - without[1])[0])) * Fraction(4) ** grid.exponent
        worst = max(worst, moved / Fraction(clip) ** 2)
    assert worst <= (1 + Fraction(1, SPARE)) ** 2
    assert worst > Fraction(9, 10) ** 2
    assert Fraction(grid.stretch) >= 1 + Fraction(1, SPARE) - Fraction(1, 2**52)


def test_the_worst_case_of_a_coarser_sum_is_within_the_stretch() -> None:
    """One fine step across the border of a coarse cell, in every coordinate: as far apart as rounding can push."""
    size, clip = 64, 1.0
    fine = L2Grid.at(-40, clip)
    coarse, below = fine.coarser(clip, size, torch.full((1, size), -1.0, dtype=torch.float64))
    above = fine.coarser(clip, size, torch.zeros(1, size, dtype=torch.float64))[1]
    assert below is not None
    assert above is not None
    moved = math.sqrt(python_square((above - below)[0])) * coarse.step
    one_fine_step = math.sqrt(size) * fine.step
    assert moved == math.sqrt(size) * coarse.step
    assert one_fine_step < moved <= clip / SPARE


def test_a_coarser_sum_is_rounded_down_by_less_than_one_step(generator: torch.Generator) -> None:
    fine = L2Grid.at(-40, 1.0)
    total = (torch.randn(1, 50, generator=generator, dtype=torch.float64) * 2**44).round()
    grid, rounded = fine.coarser(1.0, 50, total)
    assert rounded is not None
    cell = 2 ** (grid.exponent + 40)
    lost = [int(a) - int(b) * cell for a, b in zip(total[0].tolist(), rounded[0].tolist(), strict=True)]
    assert all(0 <= part < cell for part in lost)
    assert any(part > 0 for part in lost)


def test_a_sum_that_is_coarse_already_is_left_alone() -> None:
    grid, total = L2Grid.of(1.0, 10), torch.ones(1, 10, dtype=torch.float64)
    assert grid.coarser(1.0, 10, total) == (grid, total)
    assert grid.coarser(1.0, 10) == (grid, None)


@pytest.mark.parametrize("deviation", [0.1, 3.0, 1e5])
def test_noise_is_never_less_than_was_asked_for(deviation: float) -> None:
    """Even if the deviation came as a float32, which may be less by a part in 2^24; and not a part in 10^5 more."""
    fine = L2Grid.at(-40, 1.0)
    for grid in (fine, fine.coarser(1.0, 30)[0]):
        given = float(torch.tensor(deviation, dtype=torch.float32)) * (1 - 2.0**-24)
        asked = Fraction(deviation) * Fraction(grid.stretch) / Fraction(2) ** grid.exponent
        assert asked < Fraction(grid.noise_scale(given)) < asked * (1 + Fraction(1, 10**5))
