"""Hand-written layers as a route: features are computed once for a mini-batch. Numbers: test_batched, test_layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.models.batched import Batched
from equipoise.models.check import check_model
from equipoise.models.features import FeatureModel


def test_features_are_computed_once_for_a_mini_batch() -> None:
    calls: list[int] = []

    class Counting(nn.Flatten):
        def forward(self, input: Tensor) -> Tensor:
            calls.append(len(input))
            return super().forward(input)

    batched = Batched(FeatureModel(Counting(), nn.Linear(4, 2)), route="layers")
    objective = batched.at(torch.rand(2, 3, 1, 2, 2), torch.zeros(2, 3, dtype=torch.int64))
    for _ in range(3):
        objective.gradient(torch.zeros(2, 10))
    assert calls == [6]


def test_a_model_without_hand_written_layers_is_refused_with_a_remedy() -> None:
    with pytest.raises(ModelError, match=r"no plain sequence of layers .* 'loop', which runs any model"):
        Batched(nn.LSTM(2, 2), route="layers")


@pytest.mark.parametrize("shape", [(10, 4), (40,), (2, 5, 4), (2, 5, 2, 2)])
def test_inputs_of_any_rank_are_flattened(shape: tuple[int, ...]) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(40, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = torch.rand(2, 5, *shape, dtype=torch.float64), torch.randint(3, (2, 5))
    params = torch.rand(2, 267, dtype=torch.float64) - 0.5
    layered, plain = (Batched(model, route=route) for route in ("layers", "loop"))
    for one, other in (
        (layered.at(x, y).gradient(params), plain.at(x, y).gradient(params)),
        (layered.each(params, x, y), plain.each(params, x, y)),
        (layered.outputs(params, x), plain.outputs(params, x)),
    ):
        torch.testing.assert_close(one, other)
    assert check_model(model, x[0], 3) == "layers"
    slopes = []
    for batched in (layered, plain):
        seen = x.clone().requires_grad_()
        slopes.append(torch.autograd.grad(batched.differentiable(params, seen, y).square().sum(), seen)[0])
    torch.testing.assert_close(*slopes)


def test_layers_that_see_series_step_by_step_take_another_route() -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(30, 2))
    assert check_model(model, torch.rand(2, 10, 4), 2) == "loop"
