"""Rounds trained again against the sweep's own training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from equipoise.bounds.context import BoundsContext
from equipoise.bounds.estimates import descent_ratio
from equipoise.bounds.global_objective import GlobalObjective
from equipoise.bounds.repeated_rounds import repeat_round, short_run
from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from tests.bounds.runs import CHEAP, untrained

FEDERATIONS = Federation("few", "none"), Federation("few", "pl-identical", 0.98), Federation("few", "ls-static", 200.0)


@pytest.fixture
def context(few: Dataset) -> BoundsContext:
    """The clip acts in every release of LS, and the server takes half of every step."""
    return untrained(few, *FEDERATIONS, options=replace(CHEAP, repeats=2, short=3), server_rate=0.5, clip=1e-3)


def looked(context: BoundsContext) -> GlobalObjective:
    """F and its gradient at the first weights, and nothing else."""
    params = context.sweep.state.params
    return GlobalObjective(context, loss={0: context.losses(params)}, gradient={0: context.gradients(params)})


def trained(context: BoundsContext, params: Tensor, number: int, eta: float) -> tuple[Tensor, Tensor]:
    """The models after round ``number`` from ``params``, and the squared norm of half of the mean distortion."""
    sweep = context.sweep.at(number - 1, params, eta)
    total = torch.zeros_like(params)
    for one in sweep.preview():
        for place, (federation, slot) in enumerate(one.rows()):
            total[federation] += one.distortion[place] * one.tables.weights[0, federation, slot]
    sweep.train(number)
    return sweep.state.params, (0.5 * total).double().square().sum(1)


def test_a_repeated_round_is_the_sweeps_own_with_fresh_draws(context: BoundsContext) -> None:
    objective, params = looked(context), context.weights[0]
    result = repeat_round(objective, 0, 0.02)
    for i in range(2):
        new, moved = trained(context, params, i + 1, 0.02)
        some = context.drawn_examples(i + 1)
        assert torch.allclose(result.decrease[i], context.losses(params, some) - context.losses(new, some), atol=1e-6)
        assert torch.allclose(result.distortion[i], moved, rtol=1e-4)
    assert result.distortion[:, 0].tolist() == [0, 0]
    assert result.decrease[0].tolist() != result.decrease[1].tolist()
    assert result.clipped.tolist() == [[0, 0, 1], [0, 0, 1]]
    assert result.refused.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_the_first_repetition_tells_of_the_smoothness(context: BoundsContext) -> None:
    objective, params = looked(context), context.weights[0]
    repeat_round(objective, 0, 0.02)
    new, _ = trained(context, params, 1, 0.02)
    expected = descent_ratio(
        context.losses(params), context.losses(new), context.gradients(params).double(), (new - params).double()
    )
    (only,) = objective.curvatures
    assert torch.allclose(only, expected, rtol=1e-3, atol=1e-3)


def test_a_short_run_is_the_sweeps_own_training_with_another_eta(context: BoundsContext) -> None:
    objective, params = looked(context), context.sweep.state.params
    result = short_run(objective, 0.02)
    assert result.eta == 0.02
    for i in range(3):
        squared = context.gradients(params).double().square().sum(1)
        assert torch.allclose(result.squared_gradient[i], squared, rtol=1e-3)
        new, moved = trained(context, params, i + 1, 0.02)
        assert torch.allclose(result.distortion[i], moved, rtol=1e-4)
        ratio, descent = objective.curvatures[2 * i : 2 * i + 2]
        slope, move = context.gradients(params).double(), (new - params).double()
        turned = (context.gradients(new).double() - slope).norm(dim=1)
        assert torch.allclose(ratio, turned / move.norm(dim=1), rtol=1e-2)
        losses = context.losses(params), context.losses(new)
        assert torch.allclose(descent, descent_ratio(*losses, slope, move), rtol=1e-2, atol=1e-2)
        params = new
    assert torch.allclose(result.decrease, objective.loss[0] - context.losses(params), atol=1e-5)
    assert len(objective.curvatures) == 6
    assert result.clipped.tolist() == [0, 0, 1]
    assert result.refused.tolist() == [0, 0, 0]


def test_the_run_itself_stays_as_it_was(context: BoundsContext) -> None:
    before = context.sweep.state.params.clone()
    objective = looked(context)
    repeat_round(objective, 0, 0.02)
    short_run(objective, 0.02)
    assert context.sweep.state.round == 0
    assert torch.equal(context.sweep.state.params, before)
    assert torch.equal(context.weights[0], before)
