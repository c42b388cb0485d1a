"""The flat vector: into it and back, and what does not fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from equipoise.errors import ModelError
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP, LeNetZhu, SmallCNN
from equipoise.models.layout import Layout, Slot, add_slot
from equipoise.models.routes import Name
from tests.models.reference import Residual


@pytest.mark.parametrize("route", [None, "vmap"])
@pytest.mark.parametrize("make", [LeNetZhu, MLP, SmallCNN, Residual])
def test_flatten_and_unflatten_undo_each_other(make: Callable[[], nn.Module], route: Name | None) -> None:
    model = make()
    layout = Batched(model, route=route).layout
    tensors = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    flat = layout.flatten(model.state_dict())
    assert flat.shape == (layout.size,)
    assert layout.size == sum(t.numel() for t in tensors.values())
    back = layout.unflatten(flat)
    assert list(back) == list(tensors)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    other = torch.arange(float(layout.size))
    assert torch.equal(layout.flatten(layout.unflatten(other)), other)


def test_every_missing_or_misshapen_tensor_is_named() -> None:
    layout = Batched(MLP((1, 2, 3), classes=3, hidden=5)).layout
    tensors = dict(MLP((1, 2, 3), classes=3, hidden=5).named_parameters())
    del tensors["fc1.bias"], tensors["fc2.bias"]
    tensors["fc2.weight"] = nn.Parameter(torch.zeros(5, 3))
    with pytest.raises(ModelError) as caught:
        layout.flatten(tensors)
    assert "Missing tensors: fc1.bias, fc2.bias" in caught.value.cause
    assert "fc2.weight (5, 3) instead of (3, 5)" in caught.value.cause
    assert "same model" in caught.value.remedy


@pytest.mark.parametrize("shape", [(52,), (54,), (1, 53), (53, 1)])
def test_a_vector_of_another_size_is_refused(shape: tuple[int, ...]) -> None:
    layout = Batched(MLP((1, 2, 3), classes=3, hidden=5)).layout
    assert layout.size == 53
    with pytest.raises(ModelError, match="Expected 53 parameters"):
        layout.unflatten(torch.zeros(shape))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ModelError, match="no trainable parameters"):
        Batched(nn.Sequential(nn.Flatten()))


def test_a_slot_takes_its_part_of_every_row_without_a_copy() -> None:
    slot = Slot("weight", (2, 3), 4, (1, 0))
    assert slot.stop == 10
    flat = torch.arange(24.0).view(2, 12)
    taken = slot.take(flat)
    assert taken.tolist() == [
        [[4.0, 5.0], [6.0, 7.0], [8.0, 9.0]],
        [[16.0, 17.0], [18.0, 19.0], [20.0, 21.0]],
    ]
    taken.zero_()
    assert flat[:, 4:10].eq(0).all()
    assert flat[:, 3].tolist() == [3.0, 15.0]


def test_the_axes_say_in_which_order_a_tensor_lies() -> None:
    slots: list[Slot] = []
    add_slot(slots, "bias", torch.zeros(2), (0,))
    add_slot(slots, "weight", torch.zeros(2, 3), (1, 0))
    layout = Layout(slots)
    tensors = {"weight": torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]), "bias": torch.tensor([7.0, 8.0])}
    flat = layout.flatten({**tensors, "a buffer": torch.zeros(9)})
    assert flat.tolist() == [7.0, 8.0, 1.0, 4.0, 2.0, 5.0, 3.0, 6.0]
    assert all(torch.equal(tensor, tensors[name]) for name, tensor in layout.unflatten(flat).items())


def test_the_natural_layout_leaves_out_what_is_frozen() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2, bias=False))
    model[0].weight.requires_grad_(False)
    result = [(slot.name, slot.shape, slot.start, slot.axes) for slot in Layout.of(model).slots]
    assert result == [("0.bias", (2,), 0, (0,)), ("1.weight", (2, 2), 2, (0, 1))]


@pytest.mark.parametrize("given", [[torch.zeros(2)], {"weight": [1.0]}, None])
def test_what_is_no_state_dict_is_refused(given: Any) -> None:
    with pytest.raises(ModelError, match="Expected a state dict"):
        Layout.of(nn.Linear(3, 2)).flatten(given)
