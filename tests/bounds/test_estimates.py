"""Estimates of constants that are known in closed form."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from equipoise.bounds.estimates import (
    bias_ratio,
    curvature,
    descent_ratio,
    deviations,
    envelope,
    in_annulus,
    mean_of,
    ratios,
    stretches,
)
from equipoise.errors import DataError


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def matrices(*tops: float, size: int = 12) -> tuple[Tensor, Tensor]:
    """Symmetric matrices whose largest eigenvalue in size is the given one, sign included."""
    basis = torch.linalg.qr(numbers(len(tops), size, size, seed=1))[0]
    eigen = torch.linspace(-1.0, 1.0, size, dtype=torch.float64).repeat(len(tops), 1)
    eigen[:, 0] = torch.tensor(tops).double()
    return basis @ torch.diag_embed(eigen) @ basis.transpose(1, 2), eigen


# --- smoothness -------------------------------------------------------------------------------------------------


def test_curvature_recovers_the_largest_eigenvalue_whatever_its_sign() -> None:
    tops = (3.0, -5.0, 40.0)
    matrix, _ = matrices(*tops)

    def gradient(w: Tensor) -> Tensor:
        return torch.bmm(matrix, w.unsqueeze(2)).squeeze(2) + 1

    result, direction = curvature(gradient, numbers(3, 12, seed=2), iterations=40)
    assert result.tolist() == pytest.approx([abs(top) for top in tops], rel=1e-3)
    assert torch.allclose(direction.norm(dim=1), torch.ones(3).double())
    again, _ = curvature(gradient, numbers(3, 12, seed=2), iterations=1, start=direction)
    assert torch.allclose(again, result, rtol=1e-3)


def test_curvature_errs_from_below() -> None:
    matrix, eigen = matrices(1.01)
    for seed in range(5):
        result, _ = curvature(lambda w: (matrix @ w.unsqueeze(2)).squeeze(2), torch.zeros(1, 12).double(), 3, seed=seed)
        assert 0.3 < float(result) <= float(eigen.abs().max()) * (1 + 1e-9)


def test_curvature_of_a_function_that_is_not_quadratic() -> None:
    """Logistic loss of one example x at margin 0: the Hessian is x x' / 4."""
    x = numbers(1, 6, seed=3)
    result, _ = curvature(lambda w: -torch.sigmoid(-(w * x).sum(1, keepdim=True)) * x, torch.zeros(1, 6).double(), 5)
    assert float(result) == pytest.approx(float(x.square().sum()) / 4, rel=1e-6)
    single, _ = curvature(
        lambda w: -torch.sigmoid(-(w * x.float()).sum(1, keepdim=True)) * x.float(), torch.zeros(1, 6), 5, epsilon=2e-3
    )
    assert float(single) == pytest.approx(float(x.square().sum()) / 4, rel=1e-3)


def test_a_flat_function_has_no_curvature() -> None:
    assert curvature(torch.ones_like, numbers(2, 3))[0].tolist() == [0, 0]


def test_ratios_never_exceed_the_constant_and_reach_it_along_the_top_direction() -> None:
    matrix, _ = matrices(-7.0)
    top = torch.linalg.eigh(matrix[0])[1][:, :1].t()  # that of the least eigenvalue, -7
    points, others = numbers(50, 12, seed=4), numbers(50, 12, seed=5)
    result = ratios(lambda w: w @ matrix[0], points, others)
    assert 1 < float(result.max()) <= 7 * (1 + 1e-9)
    assert ratios(lambda w: w @ matrix[0], top, -top).item() == pytest.approx(7)
    assert ratios(lambda w: w @ matrix[0], top, top).tolist() == [0]


def test_a_gradient_that_reuses_its_buffer_is_measured_all_the_same() -> None:
    buffer = torch.empty(1, 2).double()

    def gradient(w: Tensor) -> Tensor:
        return torch.mul(w, 4.0, out=buffer)

    assert ratios(gradient, torch.ones(1, 2).double(), -torch.ones(1, 2).double()).item() == pytest.approx(4)
    assert curvature(gradient, torch.ones(1, 2).double(), 3)[0].item() == pytest.approx(4)


def test_the_descent_ratio_of_a_quadratic_is_its_curvature_along_the_step() -> None:
    eigen = torch.tensor([2.0, -6.0]).double()
    x = numbers(2, 2, seed=6)
    move = torch.eye(2).double()

    def value(w: Tensor) -> Tensor:
        return (eigen * w.square()).sum(1) / 2

    assert descent_ratio(value(x), value(x + move), eigen * x, move).tolist() == pytest.approx([2.0, -6.0])
    assert descent_ratio(value(x), value(x), eigen * x, 0 * move).tolist() == [0, 0]


def test_random_points_lie_in_the_annulus() -> None:
    lower, upper = torch.tensor([1.0, 2.0]).double(), torch.tensor([1.5, 2.0]).double()
    many = torch.stack([in_annulus(torch.empty(2, 5).double(), lower, upper, seed) for seed in range(200)])
    size = many.norm(dim=2)
    assert bool(((size >= lower - 1e-9) & (size <= upper + 1e-9)).all())
    assert 1.1 < float(size[:, 0].mean()) < 1.4
    assert float(many.mean(0).abs().max()) < 0.3
    assert torch.equal(many[0], in_annulus(torch.empty(2, 5).double(), lower, upper, 0))


# --- stochastic gradients ---------------------------------------------------------------------------------------


def test_the_variance_is_recovered_within_its_standard_error() -> None:
    spread = torch.tensor([0.5, 1.0, 2.0]).double()
    full = torch.tensor([1.0, -1.0, 3.0]).double()
    within, wrong = 0, 0
    for seed in range(200):
        samples = full + spread * numbers(64, 3, seed=seed)
        result = mean_of(deviations(samples, full))
        assert result.error is not None
        within += abs(result.value - 5.25) < 1.96 * result.error
        wrong += abs(result.value - 1.3 * 5.25) < 1.96 * result.error
    assert 175 <= within <= 200  # 95 % of 200, with the skew of a sum of squares
    assert wrong < 140


def test_a_bias_shows_in_its_ratio() -> None:
    full, count = numbers(20, seed=7), 400
    samples = full + numbers(count, 20, seed=8)
    fair = bias_ratio(samples.mean(0), full, 20.0, count)
    assert 0.4 < fair < 2
    assert bias_ratio((samples + 0.3).mean(0), full, 20.0, count) > 20
    assert bias_ratio(full, full, 0.0, 5) == 0
    assert bias_ratio(full + 1, full, 0.0, 5) == math.inf


def test_means_know_their_count_and_error() -> None:
    one = mean_of(torch.tensor([3.0]))
    assert (one.value, one.count, one.error) == (3.0, 1, None)
    several = mean_of(torch.tensor([[1.0, 3.0], [5.0, 7.0]]))
    assert (several.value, several.count) == (4.0, 4)
    assert several.error == pytest.approx(torch.tensor([1.0, 3.0, 5.0, 7.0]).std().item() / 2)
    with pytest.raises(DataError, match="nothing to average"):
        mean_of(torch.empty(0))


# --- leakage ----------------------------------------------------------------------------------------------------


def test_a_linear_map_has_its_singular_values_as_constants() -> None:
    left, right = (torch.linalg.qr(numbers(8, 8, seed=seed))[0] for seed in (9, 10))
    scale = torch.linspace(0.5, 4.0, 8).double()
    matrix = left @ torch.diag(scale) @ right
    one, other = numbers(5000, 8, seed=11), numbers(5000, 8, seed=12)
    result = stretches(one, one @ matrix.t(), other, other @ matrix.t())
    assert 0.25 <= float(result.min()) < 0.35  # 1/4 from above
    assert 0.8 < float(result.max()) <= 2.0  # 1/0.5 from below
    ends = right[[0, 7]]
    exact = stretches(ends, ends @ matrix.t(), 0 * ends, 0 * ends)
    assert exact.tolist() == pytest.approx([2.0, 0.25])
    turn = stretches(one, one @ left, other, other @ left)
    assert torch.allclose(turn, torch.ones_like(turn))


def test_pairs_without_a_ratio() -> None:
    result = stretches(torch.ones(2, 1), torch.tensor([[1.0], [1.0]]), torch.tensor([[1.0], [3.0]]), torch.ones(2, 1))
    assert math.isnan(result[0])
    assert result[1] == math.inf


@pytest.mark.parametrize("p", [0.2, 0.5, 0.9])
def test_a_planted_power_law_is_recovered(p: float) -> None:
    round_number = torch.arange(1, 1601, dtype=torch.float64).unsqueeze(1)
    c_2 = torch.tensor([0.3, 20.0]).double()
    residuals = c_2 * (round_number**p - (round_number - 1) ** p)
    result = envelope(residuals, p)
    assert result.slope.tolist() == pytest.approx([p, p], abs=1e-6)
    assert result.smallest.tolist() == pytest.approx(c_2.tolist())
    assert result.uniform.tolist() == pytest.approx(c_2.tolist())
    assert result.total.tolist() == pytest.approx((c_2 * 1600**p).tolist())


def test_only_the_second_half_decides_the_slope() -> None:
    residuals = torch.cat([torch.full((200, 1), 9.0), torch.zeros(200, 1)])
    result = envelope(residuals, 0.5)
    assert result.slope.item() == pytest.approx(0, abs=1e-9)
    assert result.smallest.item() == pytest.approx(1800 / 20)
    assert result.uniform.item() == pytest.approx(1800 / 200**0.5)  # the worst horizon was half-way


def test_residuals_that_do_not_shrink_have_slope_one() -> None:
    result = envelope(torch.full((1600, 3), 16.0), 0.5)
    assert result.slope.tolist() == pytest.approx([1.0] * 3)
    assert result.smallest.tolist() == pytest.approx([640.0] * 3)
    with pytest.raises(DataError, match="at least 2"):
        envelope(torch.ones(1, 1), 0.5)
    assert envelope(torch.ones(2, 1), 0.5).slope.item() == pytest.approx(1.0)
    assert envelope(torch.ones(3, 1), 0.5).slope.item() == pytest.approx(1.0, abs=1e-6)
