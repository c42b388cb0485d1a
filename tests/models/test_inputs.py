"""One tensor, several by place, or several by name; and whatever a model returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.models.inputs import Listed, called, described, listed, only, tensors_in
from equipoise.models.objective import Inputs

A, B = torch.zeros(2, 3), torch.ones(2, dtype=torch.int64)
FORMS: list[Inputs] = [A, (A, B), {"a": A, "b": B}]


class Sum(nn.Module):
    def forward(self, a: Tensor, b: Tensor | None = None) -> Tensor:
        return a if b is None else a + b.unsqueeze(1)


@pytest.mark.parametrize("inputs", FORMS, ids=["one", "by place", "by name"])
def test_every_form_calls_the_model(inputs: Inputs) -> None:
    several = not isinstance(inputs, Tensor)
    assert len(listed(inputs)) == 1 + several
    assert called(Sum(), inputs).sum() == 6 * several


def test_what_takes_one_input_takes_the_only_one() -> None:
    assert only(A) is only((A,)) is only({"a": A}) is A
    with pytest.raises(ModelError, match="takes one input, got 2"):
        only((A, B))


def test_their_form_in_words_has_no_values() -> None:
    assert described(A + 4711) == "batch of shape (2, 3) and type torch.float32"
    assert described((A, B)) == "batch of (2, 3) torch.float32 and (2,) torch.int64"


@dataclass
class Output:
    logits: Tensor
    note: str = "no tensor"


@pytest.mark.parametrize("value", [A, (A, None), [A], {"x": {"y": A}}, Output(A)])
def test_tensors_are_found_in_whatever_a_model_returns(value: Any) -> None:
    (found,) = tensors_in(value)
    assert found is A
    assert tensors_in(3) == []


def test_a_listed_model_returns_a_tuple_of_tensors() -> None:
    (found,) = Listed(Sum())(a=A)
    assert found is A
