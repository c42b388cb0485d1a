"""Several inputs, and losses of the user's own."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from equipoise.errors import ModelError
from equipoise.models.objective import arguments, filled_up, map_inputs, mean_loss


def test_inputs_are_a_tensor_a_tuple_or_a_mapping() -> None:
    one, two = torch.zeros(2, 3), torch.ones(2, 5)
    assert arguments(one) == ((one,), {})
    assert arguments((one, two)) == ((one, two), {})
    assert arguments({"a": one}) == ((), {"a": one})
    assert map_inputs(lambda part: part[0], {"a": one, "b": two})["b"].tolist() == [1.0] * 5


def test_outputs_that_cross_entropy_cannot_take_name_the_remedy() -> None:
    with pytest.raises(ModelError, match=r"returns dict, and cross-entropy needs a tensor. Say which part"):
        mean_loss(None, {"logits": torch.zeros(2, 3)}, torch.tensor([0, 1]))
    value = mean_loss(lambda out, y: nn.functional.cross_entropy(out["logits"], y), {"logits": torch.zeros(2, 3)},
                      torch.tensor([0, 1]))  # fmt: skip
    assert float(value) == pytest.approx(1.0986, abs=1e-4)


def test_rows_are_filled_up_with_the_last() -> None:
    assert filled_up(torch.tensor([[1, 2, 3]]), 1, 2).tolist() == [[1, 2, 3, 3]]
    assert filled_up(torch.tensor([1, 2]), 0, 2).tolist() == [1, 2]
