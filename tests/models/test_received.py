"""A received state dict is matched with the model by name and shape; tied names are one tensor, the rest stays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.models.layout import Layout
from equipoise.models.received import Received


class Tied(nn.Module):
    """An embedding that is the output layer too, a frozen layer, and buffers, one of them not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)
        self.out = nn.Linear(3, 5, bias=False)
        self.out.weight = self.embedding.weight
        self.register_buffer("scratch", torch.zeros(2), persistent=False)


def values(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def refused(model: nn.Module, entries: Any) -> str:
    with pytest.raises(ModelError) as caught:
        Received(model, entries)
    return str(caught.value)


def test_what_is_trained_has_the_names_of_the_layout() -> None:
    model = Tied()
    received = Received(model, values(model))
    assert set(received.trainable()) == {slot.name for slot in Layout.of(model).slots}
    fixed = {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked", "frozen.weight", "frozen.bias"}
    assert set(received.fixed()) == fixed


@pytest.mark.parametrize("missing", ["embedding.weight", "out.weight", None])
def test_a_tied_weight_may_come_under_one_name_or_all(missing: str | None) -> None:
    model = Tied()
    entries = {name: tensor for name, tensor in values(model).items() if name != missing}
    received = Received(model, entries)
    new = {slot.name: torch.full(slot.shape, 7.0) for slot in Layout.of(model).slots}
    result = received.filled(new)
    assert list(result) == list(entries)
    for name in {"embedding.weight", "out.weight"} - {missing}:
        assert torch.equal(received.trainable()["embedding.weight"], entries[name])
        assert torch.equal(result[name], torch.full((5, 3), 7.0))


def test_tied_names_that_hold_different_values_are_refused_by_name() -> None:
    model = Tied()
    entries = values(model)
    entries["out.weight"] += 1
    assert "'embedding.weight' and 'out.weight' are one tensor of the model" in refused(model, entries)
    entries["out.weight"] = entries["embedding.weight"].double()
    assert "are one tensor of the model" in refused(model, entries)


def test_every_problem_is_named_at_once() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    entries: dict[str, Any] = values(model)
    del entries["0.bias"]
    entries["more"] = torch.zeros(1)
    entries["0.weight"] = entries["0.weight"].t()
    entries["1.running_mean"] = torch.zeros(4)
    entries["1.running_var"] = [1.0]
    entries["1.bias"] = torch.zeros(3, dtype=torch.int64)
    words = refused(model, entries)
    for part in (
        "the model has no 'more'", "'0.bias' is missing", "'0.weight' has shape (2, 3), expected (3, 2)",
        "'1.running_mean' has shape (4,), expected (3,)", "'1.running_var' is list, not a tensor",
        "'1.bias' is torch.int64, not floating point",
    ):  # fmt: skip
        assert part in words


def test_a_buffer_that_is_not_saved_is_no_entry() -> None:
    model = Tied()
    assert "the model has no 'scratch'" in refused(model, {**values(model), "scratch": torch.zeros(2)})


@pytest.mark.parametrize("bad", [3, None, [torch.zeros(1)], nn.Linear(1, 1)])
def test_what_is_no_state_dict_is_refused(bad: Any) -> None:
    assert "Expected a state dict" in refused(nn.Linear(1, 1), bad)


def test_buffers_and_frozen_parameters_may_be_left_out() -> None:
    model = Tied()
    entries = {name: values(model)[name] for name in ("out.weight", "norm.weight", "norm.bias")}
    received = Received(model, entries)
    assert received.fixed() == {}
    assert list(received.filled(received.trainable())) == list(entries)


def test_fixed_values_have_the_models_precision_and_filled_ones_the_received() -> None:
    model = Tied().double()
    entries = {name: t.float() if t.is_floating_point() else t.clone() for name, t in values(model).items()}
    received = Received(model, entries)
    assert received.fixed()["frozen.weight"].dtype == torch.float64
    assert received.fixed()["norm.num_batches_tracked"].dtype == torch.int64
    result = received.filled({slot.name: torch.ones(slot.shape).double() for slot in Layout.of(model).slots})
    assert {name: tensor.dtype for name, tensor in result.items()} == {name: t.dtype for name, t in entries.items()}


def test_nothing_that_is_returned_shares_memory() -> None:
    model = Tied()
    entries = values(model)
    new = {slot.name: torch.ones(slot.shape) for slot in Layout.of(model).slots}
    result = Received(model, entries).filled(new)
    places = [tensor.data_ptr() for tensor in (*entries.values(), *new.values(), *model.state_dict().values())]
    own = [tensor.data_ptr() for tensor in result.values()]
    assert not set(own) & set(places)
    assert len(set(own)) == len(own), "nor with one another"
