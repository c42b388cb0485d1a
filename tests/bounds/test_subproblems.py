"""The inner problems of a run's clients, and L_alpha on problems where it is known."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from equipoise.bounds.context import BoundsContext
from equipoise.bounds.estimates import in_annulus
from equipoise.bounds.options import BoundsOptions
from equipoise.bounds.subproblems import Subproblems, subproblems
from equipoise.bounds.trajectory import Trajectory
from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.mechanism.intensity import scale_clip
from equipoise.models.objective import Objective
from tests.bounds.problems import numbers
from tests.bounds.runs import CHEAP, untrained


def test_they_are_what_the_clients_learn_on(context: BoundsContext) -> None:
    """What is followed ends at the very releases that the sweep makes in the next round."""
    index = next(i for i, fed in enumerate(context.sweep.federations) if fed.mechanism == "pl-learn")
    sweep = context.sweep.at(2, context.weights[2])
    seen = [one.released for one in sweep.preview() if one.block.mechanism.name == "pl-learn"]
    problems = subproblems(context, index, 2)
    last = problems.learn(problems.gamma).last
    assert torch.allclose(problems.local + last, torch.cat(seen), atol=1e-6)


def test_they_come_from_as_many_rounds_as_it_takes(few: Dataset) -> None:
    federations = Federation("few", "pl-learn", 0.98, 1), Federation("few", "pl-learn", 0.96, 2)
    options = replace(CHEAP, subproblems=6)
    context = untrained(few, *federations, options=options, gamma=[0.1, 0.2, 0.3, 0.4], negative_norm=0.5, steps=3)
    problems = subproblems(context, 1, 0)
    assert problems.gamma.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.1, 0.2])
    assert problems.negative_norm.tolist() == [0.5] * 6
    assert problems.lower.tolist() == pytest.approx([15.99975] * 6)
    assert problems.upper.tolist() == pytest.approx([31.9995] * 6)
    assert problems.steps == 3
    later = subproblems(replace(context, weights={1: context.weights[0]}, snapshots=[1]), 1, 1)  # begins a round later
    assert torch.equal(problems.init[4:], later.init[:2])
    assert torch.equal(problems.local[4:], later.local[:2])
    assert not torch.equal(problems.init[:2], later.init[:2])
    other = subproblems(context, 0, 0)
    assert other.lower.tolist() == pytest.approx([7.99975] * 6)
    assert not torch.allclose(
        2 * other.init, problems.init, rtol=0.1
    )  # another seed: not the same noise at half the norm


def test_the_exact_objective_is_the_same_one_in_float64(context: BoundsContext) -> None:
    problems = subproblems(context, 0, 0)
    single, exact = problems.objective.gradient(problems.local), problems.exact.gradient(problems.local.double())
    assert (single.dtype, exact.dtype) == (torch.float32, torch.float64)
    assert torch.allclose(single.double(), exact, rtol=1e-3, atol=1e-5)


# --- a toy ------------------------------------------------------------------------------------------------------

LOWER, UPPER = torch.tensor([0.5, 2.0]).double(), torch.tensor([1.0, 4.0]).double()
BASE = numbers(2, 4, seed=1)
EXTRA = torch.tensor([1.2, 0.1]).double()  # lambda / lower
OPTIONS = BoundsOptions(power=60, seed=5)


def toy(gradient: Callable[[Tensor], Tensor], steps: int = 5) -> Subproblems:
    """Two subproblems in four dimensions with lambda = 0.6 and 0.2."""

    def into(point: Tensor, out: Tensor | None = None) -> Tensor:
        return gradient(point) if out is None else out.copy_(gradient(point))

    objective = Objective(lambda point: point.square().sum(1), into)
    init = scale_clip(numbers(2, 4, seed=2), LOWER, LOWER)
    gamma, negative_norm = torch.full((2,), 0.05).double(), torch.tensor([0.6, 0.2]).double()
    return Subproblems(
        objective=objective, exact=objective, local=BASE, init=init, lower=LOWER, upper=UPPER, steps=steps,
        gamma=gamma, negative_norm=negative_norm,
    )  # fmt: skip


def test_the_iterate_half_way_is_kept() -> None:
    problems, middle = toy(lambda point: point), []
    problems.learn(problems.gamma, middle)
    (half,) = middle
    assert torch.equal(half, replace(problems, steps=3).learn(problems.gamma).last)


def test_the_negative_norm_adds_to_the_largest_curvature() -> None:
    """Of a quadratic with eigenvalues up to 3; ratios between pairs of points are smaller."""
    problems = toy(lambda point: point * torch.tensor([0.2, 3.0, -1.0, 0.5]).double())
    result = problems.smoothness([problems.init, 2 * problems.init], [], OPTIONS)
    assert result.amax(0).tolist() == pytest.approx([3 + 1.2, 3 + 0.1], rel=1e-6), "each has an L_alpha of its own"
    assert result.shape == (2 + 2, 2)


def flat_near(point: Tensor, there: Callable[[Tensor], Tensor], elsewhere: Callable[[Tensor], Tensor]) -> Subproblems:
    """A gradient that is constant around ``point``, so that it has no curvature there."""

    def gradient(w: Tensor) -> Tensor:
        near = (w - point).norm(dim=1, keepdim=True) < 0.05
        return torch.where(near, there(w), elsewhere(w))

    return toy(gradient)


def drawn() -> tuple[Tensor, Tensor]:
    """The two points of the annuli whose gradients are compared."""
    one, other = (in_annulus(BASE, LOWER, UPPER, OPTIONS.seed + i) for i in (101, 102))
    return BASE + one, BASE + other


def test_it_adds_to_ratios_between_random_points() -> None:
    init = toy(torch.zeros_like).init
    one, _ = drawn()
    problems = flat_near(BASE + init, lambda w: 6 * one, lambda w: 6 * w)  # as steep from ``one`` to itself as flat
    assert problems.smoothness([init], [], OPTIONS).max().item() == pytest.approx(6 + 1.2)


def test_it_adds_to_ratios_between_the_last_point_and_a_random_one() -> None:
    init = toy(torch.zeros_like).init
    one, _ = drawn()
    problems = flat_near(BASE + init, lambda w: torch.ones_like(w), lambda w: torch.zeros_like(w))
    ratio = 2 / (BASE + init - one).norm(dim=1)  # |(1, 1, 1, 1)| = 2
    result = problems.smoothness([2 * init, init], [], OPTIONS)
    assert result.amax(0).tolist() == pytest.approx((ratio + EXTRA).tolist())


MEASURED = ("phi", "residual", "stationarity", "error", "lipschitz", "descent", "projection")


def test_steps_are_measured_with_the_negative_norm_in_them() -> None:
    none = torch.zeros(5, 2).double()
    problems = toy(torch.zeros_like)
    for name in ("lipschitz", "descent"):
        seen = Trajectory(last=problems.init, **dict.fromkeys(MEASURED, none))
        steep = replace(seen, **{name: none + torch.tensor([7.0, 9.0]).double()})
        result = problems.smoothness([problems.init], [seen, steep], OPTIONS)
        assert result.amax(0).tolist() == [7.0, 9.0]
        assert result.shape == (3 + 2 * 2 * 5, 2)
