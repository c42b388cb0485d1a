"""The recorder of Algorithm 2's steps and the distance from stationarity, on problems with known answers."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from equipoise.bounds.trajectory import follow, slack, stationarity_distance
from equipoise.data.dataset import Dataset
from equipoise.errors import ConfigError
from equipoise.mechanism import distortion
from equipoise.mechanism.distortion import learn_distortion, on_inner_sphere
from equipoise.models.batched import Batched
from equipoise.models.bundled import LeNetZhu
from tests.bounds.problems import (
    PROBLEMS,
    check_distortion,
    flipped,
    numbers,
    radial_l1,
    to_the_wrong_radius,
    true_clip,
    without_lower,
    without_upper,
)

# --- the recorder -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_recorder_takes_the_learners_own_steps(few: Dataset, dtype: torch.dtype) -> None:
    batched = Batched(LeNetZhu().to(dtype))
    images, labels = few.train.inputs[:16].view(4, 4, 1, 28, 28).to(dtype), few.train.labels[:16].view(4, 4)
    objective, exact = batched.at(images, labels), Batched(LeNetZhu().double()).at(images.double(), labels)
    base = (numbers(4, batched.layout.size, seed=11) / 10).to(dtype)
    init, lower, upper = on_inner_sphere(
        numbers(4, batched.layout.size, seed=12).to(dtype), torch.full((4,), 8.0).to(dtype)
    )
    given = (base, init, lower, upper)
    whole = learn_distortion(objective.gradient, *given, norm="l2", steps=7, gamma=0.1, negative_norm=1e-5)
    seen = follow(objective.gradient, exact.loss, *given, steps=7, gamma=0.1, negative_norm=1e-5, exact=exact.gradient)
    assert torch.equal(seen.last, whole)
    column = follow(
        objective.gradient,
        exact.loss,
        *given,
        steps=7,
        gamma=torch.full((4, 1), 0.1, dtype=dtype),
        negative_norm=1e-5,
        exact=exact.gradient,
    )
    assert torch.equal(column.last, whole)
    assert seen.phi.shape == (8, 4)
    assert seen.residual.shape == seen.stationarity.shape == (7, 4)
    assert float(seen.projection.max()) < slack(dtype)
    error = float(seen.error.max()) ** 0.5
    assert error < (1e-4 if dtype == torch.float32 else 1e-12)
    assert dtype == torch.float64 or error > 0


def test_the_recorder_reports_what_the_definitions_say() -> None:
    problem, gamma = PROBLEMS["quadratic with a negative norm"], 0.1
    alpha, points = problem.init, [problem.init]
    for _ in range(5):
        alpha = learn_distortion(
            problem.gradient,
            torch.zeros_like(alpha),
            alpha,
            problem.lower,
            problem.upper,
            norm="l2",
            steps=1,
            gamma=gamma,
            negative_norm=0.3,
        )
        points.append(alpha)
    seen = problem.run(gamma, steps=5)
    for m, (one, other) in enumerate(pairwise(points)):
        assert torch.allclose(seen.phi[m], problem.loss(one) - 0.3 * one.norm(dim=1))  # loss(0) = 0
        assert torch.allclose(seen.residual[m], ((one - other) / gamma).square().sum(1))
        slope = problem.gradient(other) - 0.3 * torch.nn.functional.normalize(other, dim=1)
        distance = stationarity_distance(slope, other, problem.lower, problem.upper)
        assert torch.allclose(seen.stationarity[m], distance.square())


def test_a_step_too_short_says_nothing_about_smoothness() -> None:
    problem = PROBLEMS["quadratic, pulled outwards"]
    assert float(problem.run(1e-7, steps=2).residual.min()) > 0
    for gamma, seen in ((1e-7, False), (1e-2, True)):
        learned = problem.run(gamma, steps=2)
        assert bool((learned.lipschitz > 0).all()) == seen
        assert bool((learned.descent != 0).all()) == seen
        assert seen or not (learned.lipschitz.any() or learned.descent.any())


def test_the_recorder_keeps_no_iterates() -> None:
    problem, seen = PROBLEMS["quadratic"], []

    def visit(step: int, alpha: Tensor) -> None:
        seen.append(weakref.ref(alpha))
        gc.collect()
        assert sum(one() is not None for one in seen) <= 2

    zero = torch.zeros_like(problem.init)
    gc.freeze()  # what was there before need not be searched
    try:
        annulus = problem.lower, problem.upper
        follow(problem.gradient, problem.loss, zero, problem.init, *annulus, steps=12, gamma=0.1, visit=visit)
    finally:
        gc.unfreeze()
    assert len(seen) == 12


def test_a_trajectory_needs_a_step() -> None:
    with pytest.raises(ConfigError, match="steps=0"):
        PROBLEMS["quadratic"].run(0.1, steps=0)


# --- bugs that the checker of the theorem must find --------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "broken"),
    [
        ("quadratic", to_the_wrong_radius),
        ("logistic", flipped),
        ("quadratic, pulled outwards", without_upper),
        ("quadratic", without_lower),
        ("quadratic, pulled outwards", radial_l1),
    ],
)
def test_a_broken_projection_is_found(
    monkeypatch: pytest.MonkeyPatch, name: str, broken: Callable[..., Tensor]
) -> None:
    problem = PROBLEMS[name]
    if broken in (without_lower, to_the_wrong_radius):  # a bowl, so that the inner sphere is where it ends
        problem = replace(
            problem, gradient=lambda w: 3 * w, loss=lambda w: 1.5 * w.square().sum(1), smoothness=3.0,
            infimum=1.5 * problem.lower.square(), init=true_clip(problem.init, problem.upper, problem.upper),
        )  # fmt: skip
    gamma = 0.5 / problem.smoothness
    check_distortion(problem, problem.run(gamma, steps=200), gamma)
    monkeypatch.setattr(distortion, "scale_clip", broken)
    seen = problem.run(gamma, steps=300)
    assert float(seen.projection.max()) > 1e-3
    with pytest.raises(AssertionError):
        check_distortion(problem, seen, gamma)


def test_a_sign_error_in_the_step_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = PROBLEMS["quadratic, pulled outwards"]
    gamma = 0.5 / problem.smoothness
    seen = problem.run(gamma, steps=300, gradient=lambda w: -problem.gradient(w))
    with pytest.raises(AssertionError):
        check_distortion(problem, seen, gamma)


# --- the normal cone --------------------------------------------------------------------------------------------


def by_search(gradient: Tensor, alpha: Tensor, low: float, high: float) -> Tensor:
    """min over t of |gradient + t*alpha| by a fine grid, which holds 0."""
    line = torch.linspace(low, high, 200001, dtype=torch.float64).unsqueeze(1)
    return (gradient + line * alpha).norm(dim=1).min()


@pytest.mark.parametrize("inward", [True, False])
@pytest.mark.parametrize("where", ["inner", "inside", "outer", "sphere"])
def test_the_distance_to_the_normal_cone(where: str, inward: bool) -> None:
    size = {"inner": 1.0, "inside": 1.5, "outer": 2.0, "sphere": 2.0}[where]
    lower, upper = (2.0, 2.0) if where == "sphere" else (1.0, 2.0)
    directions = {"inner": (-10.0, 0.0), "inside": (0.0, 0.0), "outer": (0.0, 10.0), "sphere": (-10.0, 10.0)}
    alpha = torch.nn.functional.normalize(numbers(1, 4, seed=13), dim=1) * size
    gradient = numbers(1, 4, seed=14)
    radial = float((gradient * alpha).sum())
    gradient = gradient if (radial > 0) == inward else -gradient
    ends = [torch.tensor([end]).double() for end in (lower, upper)]
    result = stationarity_distance(gradient, alpha, *ends)
    assert result.shape == (1,)
    assert float(result) == pytest.approx(float(by_search(gradient, alpha, *directions[where])), abs=1e-6)


def test_tolerance_decides_what_is_on_a_sphere() -> None:
    one, gradient = torch.ones(1).double(), torch.tensor([[1.0, 2.0]]).double()
    near = torch.tensor([[0.0, 1.0 + 1e-4]]).double()
    assert float(stationarity_distance(gradient, near, one, 2 * one)) == pytest.approx(5**0.5)
    assert float(stationarity_distance(gradient, near, one, 2 * one, tolerance=1e-3)) == pytest.approx(1.0)
    single, unit = near.float() / near.float().norm() * (1 + 3e-6), one.float()
    assert float(stationarity_distance(gradient.float(), single, unit, 2 * unit)) == 1
    outside = torch.tensor([[0.0, 1.0 - 1e-4], [0.0, 2.0 + 1e-3], [0.0, math.nan]]).double()
    result = stationarity_distance(gradient.expand(3, -1), outside, one.expand(3), 2 * one.expand(3))
    assert result[:2].tolist() == [math.inf, math.inf]
    assert math.isnan(result[2])


def test_without_a_lower_bound_the_annulus_is_a_ball() -> None:
    zero, gradient = torch.zeros(1), torch.tensor([[3.0, 4.0]])
    assert float(stationarity_distance(gradient, torch.tensor([[0.0, 0.0]]), zero, zero + 1)) == 5
    assert float(stationarity_distance(gradient, torch.tensor([[0.0, -1.0]]), zero, zero + 1)) == 3
