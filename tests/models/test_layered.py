"""Hand-written layers as a route: features are computed once for a mini-batch. Numbers: test_batched, test_layers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.models.batched import Batched
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
