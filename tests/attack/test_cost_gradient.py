"""The gradient of the cost that inverting gradients descends is that of plain double autograd."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from equipoise.attack import descent
from equipoise.attack import invgrad as invert
from equipoise.attack.view import Server, View
from equipoise.models.batched import Batched
from equipoise.models.bundled import LeNetZhu, SmallCNN
from tests.models.reference import DEVICES, TOLERANCE, Tensors, assert_close, flattened, fresh, labelled, leaf, odd


def plain_cost(model: nn.Module, x: Tensor, y: Tensor, target: Tensors, weight: float) -> Tensor:
    """1 - cosine over all parameters, and the total variation, written out for one release."""
    parameters = dict(model.named_parameters())
    loss = nn.functional.cross_entropy(model(x), y)
    result = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
    inner = sum((one * target[name]).sum() for name, one in zip(parameters, result, strict=True))
    sizes = [sum(t.square().sum() for t in tensors) ** 0.5 for tensors in (result, target.values())]
    down, right = x.diff(dim=-2).abs().mean(), x.diff(dim=-1).abs().mean()
    return 1 - inner / (sizes[0] * sizes[1]) + weight * (down + right)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [LeNetZhu, SmallCNN, odd])
def test_the_cost_of_inverting_gradients(make: Callable[[], nn.Module], device: str) -> None:
    models = [fresh(make, seed) for seed in range(3)]
    batched = Batched(copy.deepcopy(models[0]), device=device)
    truth, y = labelled("whole labels", 3, 4)
    previous = flattened(batched, models)
    released = previous - 0.25 * batched.at(truth, y).gradient(previous)
    server, view = Server(batched, (1, 28, 28), 10, 4, eta=0.25), View(previous, released, y)
    guess = leaf(truth.flip(1) + 0.3 * truth.roll(3, -1))
    cost = partial(invert._cosine, server)(guess, y, view) + 0.02 * descent.total_variation(guess)
    (actual,) = torch.autograd.grad(cost.sum(), guess)
    for r, model in enumerate(models):
        target = batched.layout.unflatten((previous[r] - released[r]) / 0.25)
        x = leaf(guess[r])
        expected = plain_cost(model, x, y[r], target, 0.02)
        assert float(cost[r].detach()) == pytest.approx(float(expected.detach()), rel=TOLERANCE)
        assert_close(actual[r], torch.autograd.grad(expected, x)[0], f"release {r}")
