"""ScaleClip: feasible, the Euclidean projection for L2, only a radial map for L1, and its edge cases."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

from equipoise.mechanism.intensity import STABILISER, Norm, intensity, scale_clip

norms = st.sampled_from(["l1", "l2"])
sizes = st.floats(1e-3, 1e3)
factors = st.floats(1.0, 10.0)


@st.composite
def rows(draw: Any, least: float = 0.0) -> Tensor:
    """``[R, P]`` float64: directions of any kind with norms from tiny to huge."""
    shape = (draw(st.integers(1, 5)), draw(st.integers(1, 8)))
    values = draw(arrays.arrays(np.float64, shape, elements=st.floats(-1, 1, width=32)))
    scale = draw(arrays.arrays(np.float64, (shape[0], 1), elements=st.sampled_from([1e-6, 1e-2, 1.0, 30.0, 1e5])))
    values = torch.from_numpy(values * scale)
    if least:
        values[intensity(values) <= least] = least * 10
    return values


def like(x: Tensor, value: float) -> Tensor:
    return x.new_full((len(x),), value)


# --- h -----------------------------------------------------------------------------------------------------


@given(rows())
def test_intensity_is_the_norm_of_every_row(x: Tensor) -> None:
    for norm, order in (("l1", 1), ("l2", 2)):
        expected = [np.linalg.norm(row, order) for row in x.numpy()]
        assert intensity(x, norm).tolist() == pytest.approx(expected, rel=1e-12)


# --- guarantees --------------------------------------------------------------------------------------------


@given(rows(), sizes, factors, norms)
def test_the_result_is_feasible(x: Tensor, lower: float, factor: float, norm: Norm) -> None:
    size = intensity(scale_clip(x, like(x, lower), like(x, lower * factor), norm), norm)
    assert (size >= lower * (1 - 1e-12)).all()
    assert (size <= lower * factor * (1 + 1e-12)).all()


@given(rows(), sizes, factors, norms)
def test_doing_it_twice_changes_nothing(x: Tensor, lower: float, factor: float, norm: Norm) -> None:
    bounds = like(x, lower), like(x, lower * factor)
    once = scale_clip(x, *bounds, norm)
    torch.testing.assert_close(scale_clip(once, *bounds, norm), once, rtol=1e-12, atol=0)


@given(rows(least=1e-7), factors, norms)
def test_a_row_between_its_bounds_comes_back_bit_by_bit(x: Tensor, factor: float, norm: Norm) -> None:
    size = intensity(x, norm)
    for lower, upper in ((size / factor, size * factor), (size, size * factor), (size / factor, size), (size, size)):
        assert torch.equal(scale_clip(x, lower, upper, norm), x)


@given(rows(least=1e-7), sizes, factors, norms)
def test_the_direction_never_changes(x: Tensor, lower: float, factor: float, norm: Norm) -> None:
    y = scale_clip(x, like(x, lower), like(x, lower * factor), norm)
    unit_x, unit_y = (z / intensity(z).unsqueeze(-1) for z in (x, y))
    torch.testing.assert_close(unit_x, unit_y, rtol=0, atol=1e-12)


@given(rows(), st.lists(sizes, min_size=5, max_size=5), factors, norms)
def test_rows_do_not_influence_each_other(x: Tensor, bounds: list[float], factor: float, norm: Norm) -> None:
    lower = torch.tensor(bounds, dtype=torch.float64)[: len(x)]
    together = scale_clip(x, lower, lower * factor, norm)
    for i in range(len(x)):
        alone = scale_clip(x[i : i + 1], lower[i : i + 1], lower[i : i + 1] * factor, norm)
        assert torch.equal(together[i : i + 1], alone)


# --- L2: the Euclidean projection --------------------------------------------------------------------------


@settings(max_examples=60)
@given(rows(), sizes, factors, st.integers(0, 2**31))
def test_l2_no_feasible_point_is_closer(x: Tensor, lower: float, factor: float, seed: int) -> None:
    upper = lower * factor
    reached = intensity(x - scale_clip(x, like(x, lower), like(x, upper), "l2"))
    local = torch.Generator().manual_seed(seed)
    for row, distance in zip(x, reached.tolist(), strict=True):
        anywhere = torch.randn(400, len(row), dtype=torch.float64, generator=local)
        # half of the candidates lie close to the row's own direction, where the closest points are
        size = float(intensity(row)) or 1.0
        anywhere[200:] = row / size + 0.1 * anywhere[200:]
        radius = lower + (upper - lower) * torch.rand(400, 1, dtype=torch.float64, generator=local)
        radius[::3], radius[1::3] = lower, upper
        feasible = anywhere / intensity(anywhere).clamp_min(1e-300).unsqueeze(-1) * radius
        closest = float(intensity(feasible - row).min())
        assert distance <= closest + 1e-9 * max(1.0, size, upper)


@given(rows(least=1e-7), sizes, factors)
def test_l2_nor_any_point_of_the_same_ray(x: Tensor, lower: float, factor: float) -> None:
    upper = lower * factor
    reached = intensity(x - scale_clip(x, like(x, lower), like(x, upper), "l2"))
    unit = x / intensity(x).unsqueeze(-1)
    for radius in np.linspace(lower, upper, 50).tolist():
        assert (reached <= intensity(x - radius * unit) + 1e-9 * max(1.0, upper)).all()


@given(rows(least=1e-7), sizes, factors)
def test_l2_the_distance_is_that_to_the_annulus(x: Tensor, lower: float, factor: float) -> None:
    """dist(x, {lower <= |y| <= upper}) = max(lower - |x|, |x| - upper, 0): the closed form."""
    upper, size = lower * factor, intensity(x)
    expected = torch.stack([lower - size, size - upper, torch.zeros_like(size)]).amax(0)
    reached = intensity(x - scale_clip(x, like(x, lower), like(x, upper), "l2"))
    torch.testing.assert_close(reached, expected, rtol=1e-9, atol=1e-9 * max(1.0, float(size.max())))


def test_l1_is_a_radial_map_and_not_the_euclidean_projection() -> None:
    """From (2, 1) the L1 ball of radius 1 is nearest at (1, 0); the radial map gives (2/3, 1/3)."""
    x, one = torch.tensor([[2.0, 1.0]], dtype=torch.float64), torch.ones(1, dtype=torch.float64)
    radial = scale_clip(x, 0.5 * one, one, "l1")
    torch.testing.assert_close(radial, x / 3)
    projected = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    assert intensity(projected, "l1").item() == 1.0, "the other point is feasible too"
    assert intensity(x - projected).item() < intensity(x - radial).item() - 0.05


# --- edge cases --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_zero_vector_goes_to_a_fixed_point_of_the_inner_sphere(norm: Norm, dtype: torch.dtype) -> None:
    x, lower = torch.zeros(2, 3, dtype=dtype), torch.tensor([2.0, 5.0], dtype=dtype)
    expected = torch.tensor([[2.0, 0.0, 0.0], [5.0, 0.0, 0.0]], dtype=dtype)
    assert torch.equal(scale_clip(x, lower, 2 * lower, norm), expected)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("times", [1e-6, 0.5, 1.0, 1.0001, 2.0, 1e3])
def test_norms_around_the_stabiliser_are_feasible(norm: Norm, times: float) -> None:
    x = torch.tensor([[0.0, -times * STABILISER]], dtype=torch.float64)
    one = torch.ones(1, dtype=torch.float64)
    y = scale_clip(x, one, 2 * one, norm)
    assert intensity(y, norm).item() == pytest.approx(1.0, rel=1e-12)
    assert torch.equal(y, torch.tensor([[1.0, 0.0]]).double()) == (times <= 1.0)
    if times > 1:
        torch.testing.assert_close(y, torch.tensor([[0.0, -1.0]]).double())


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_equal_bounds_rescale_to_exactly_that_intensity(norm: Norm) -> None:
    x = torch.tensor([[3.0, 4.0], [0.03, 0.04], [0.0, 0.0]], dtype=torch.float64)
    seven = like(x, 7.0)
    torch.testing.assert_close(intensity(scale_clip(x, seven, seven, norm), norm), seven)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_lower_bound_of_zero_is_a_plain_clip(norm: Norm) -> None:
    x = torch.tensor([[0.0, 0.0], [1e-12, 0.0], [0.1, 0.1], [30.0, 40.0]], dtype=torch.float64)
    y = scale_clip(x, like(x, 0.0), like(x, 1.0), norm)
    assert torch.equal(y[:3], x[:3])
    assert intensity(y, norm)[3].item() == pytest.approx(1.0)


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_the_input_stays_as_it_is(norm: Norm) -> None:
    x = torch.tensor([[0.0, 0.0], [0.3, 0.4], [3.0, -4.0], [30.0, 40.0]], dtype=torch.float64)
    kept = x.clone()
    scaled = scale_clip(x, like(x, 2.0), like(x, 4.0), norm)
    assert torch.equal(x, kept)
    assert not torch.equal(scaled, x)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_non_finite_row_stays_non_finite_and_alone(norm: Norm, bad: float) -> None:
    x = torch.tensor([[1.0, 2.0], [bad, 1.0], [0.0, 0.0], [1.0, bad]], dtype=torch.float64)
    y = scale_clip(x, like(x, 3.0), like(x, 6.0), norm)
    assert torch.isfinite(y).all(-1).tolist() == [True, False, True, False]


@pytest.mark.parametrize("norm", ["l1", "l2"])
@pytest.mark.parametrize(("dtype", "value"), [(torch.float32, 3e38), (torch.float32, 1e25), (torch.float64, 1e200)])
def test_a_finite_row_whose_norm_overflows_never_becomes_an_infeasible_one(
    norm: Norm, dtype: torch.dtype, value: float
) -> None:
    """It may come back feasible or be refused as non-finite later; it must not pass as a small distortion."""
    x, one = torch.full((1, 4), value, dtype=dtype), torch.ones(1, dtype=dtype)
    y = scale_clip(x, one, 2 * one, norm)
    size = intensity(y, norm).item()
    assert not torch.isfinite(y).all() or 1 - 1e-5 <= size <= 2 + 1e-5


def test_float32_bounds_hold_up_to_rounding(generator: torch.Generator) -> None:
    x = torch.randn(50, 13_426, generator=generator)
    for norm in ("l1", "l2"):
        lower = torch.linspace(1e-3, 1e5, 50)
        size = intensity(scale_clip(x, lower, 2 * lower, norm), norm)
        assert (size >= lower * (1 - 1e-4)).all()
        assert (size <= 2 * lower * (1 + 1e-4)).all()
