"""Sequences of known layers have the derivatives of plain autograd; every other model is declined."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import nn

from equipoise.models import layers
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP, LeNetZhu, SmallCNN
from equipoise.models.convolution import Conv, GroupedConv, PatchConv
from tests.models.reference import (
    DEVICES,
    KINDS,
    assert_first_order,
    assert_second_order,
    batch,
    fresh,
    labelled,
    odd,
    randomised,
)

ACTIVATIONS = (nn.Sigmoid, nn.Tanh, nn.ReLU)
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def sequences(draw: Any) -> tuple[nn.Sequential, tuple[int, int, int]]:
    """Up to three convolutions with odd shapes, activations anywhere, one or two linear layers."""
    channels, height, width = draw(st.integers(1, 3)), draw(st.integers(3, 9)), draw(st.integers(3, 9))
    shape = (channels, height, width)
    made: list[nn.Module] = []
    for _ in range(draw(st.integers(0, 3))):
        kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
        stride, padding = draw(pairs), draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
        spread = (height + 2 * padding[0] - kernel[0], width + 2 * padding[1] - kernel[1])
        assume(min(spread) >= 0)
        out = draw(st.integers(1, 3))
        made.append(nn.Conv2d(channels, out, kernel, stride, padding, bias=draw(st.booleans())))
        channels, height, width = out, spread[0] // stride[0] + 1, spread[1] // stride[1] + 1
        made += [kind() for kind in draw(st.lists(st.sampled_from(ACTIVATIONS), max_size=2))]
    made.append(nn.Flatten())
    features = channels * height * width
    assume(features <= 400)
    made += [kind() for kind in draw(st.lists(st.sampled_from(ACTIVATIONS), max_size=1))]
    if draw(st.booleans()):
        made.append(nn.Linear(features, 5, bias=draw(st.booleans())))
        made += [kind() for kind in draw(st.lists(st.sampled_from(ACTIVATIONS), max_size=2))]
        features = 5
    made.append(nn.Linear(features, 4, bias=draw(st.booleans())))
    return nn.Sequential(*made), shape


@settings(max_examples=60)
@given(sequences(), st.sampled_from(DEVICES), st.integers(1, 3), st.integers(1, 3))
def test_any_sequence_of_known_layers(
    made: tuple[nn.Sequential, tuple[int, int, int]], device: str, count: int, size: int
) -> None:
    model, shape = randomised(made[0]), made[1]
    assert_first_order(Batched(model, device=device), model, *batch(shape, count, size, classes=4))


SHARED = nn.Tanh()


TRICKY = {
    "one activation object used twice": nn.Sequential(
        nn.Flatten(), nn.Linear(8, 5), SHARED, nn.Linear(5, 5), SHARED, nn.Linear(5, 4)
    ),
    "two activations in a row": nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.Sigmoid(), nn.Tanh(), nn.Linear(5, 4)),
    "relu after sigmoid": nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.Sigmoid(), nn.ReLU(), nn.Linear(5, 4)),
    "an activation on the images": nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(8, 4)),
    "an activation first": nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(8, 4)),
    "an activation last": nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.Tanh()),
    "activations around flatten": nn.Sequential(
        nn.Conv2d(1, 3, 1), nn.Sigmoid(), nn.Flatten(), nn.Tanh(), nn.Linear(24, 4)
    ),
    "flatten twice": nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.Flatten(), nn.Sigmoid(), nn.Linear(5, 4)),
    "an activation in place": nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.ReLU(inplace=True), nn.Linear(5, 4)),
    "linear on the last axis of images": nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6, 4)),
    "identity": nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(8, 4)),
    "named string padding": nn.Sequential(nn.Conv2d(1, 2, 1, padding="same"), nn.Flatten(), nn.Linear(16, 4)),
    "dilation": nn.Sequential(nn.Conv2d(1, 2, (1, 2), dilation=2), nn.Flatten(), nn.Linear(8, 4)),
    "groups": nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1, groups=2), nn.Flatten(), nn.Linear(16, 4)),
    "circular padding": nn.Sequential(
        nn.Conv2d(1, 2, 1, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(48, 4)
    ),
    "pooling": nn.Sequential(nn.Conv2d(1, 2, 1), nn.AvgPool2d((1, 2)), nn.Flatten(), nn.Linear(8, 4)),
    "flatten of some axes": nn.Sequential(nn.Flatten(2), nn.Linear(8, 4), nn.Flatten()),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TRICKY)
def test_sequences_that_invite_mistakes(name: str, device: str) -> None:
    """Whichever path takes them, the numbers are autograd's."""
    model = randomised(copy.deepcopy(TRICKY[name]))
    assert_first_order(Batched(model, device=device), model, *batch((1, 2, 4), classes=4))


def test_tables_instead_of_images() -> None:
    model = randomised(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    assert_first_order(Batched(model), model, *batch((6,), classes=3))


def test_the_device_decides_the_kind_of_convolution() -> None:
    for device, kind in zip(DEVICES, (GroupedConv, PatchConv), strict=True):
        built = layers.build(LeNetZhu(), torch.device(device))
        assert built is not None
        assert sum(type(layer) is kind for layer in built[0]) == 3


def hooked() -> nn.Sequential:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    model[1].register_forward_hook(lambda *_: None)
    return model


def frozen() -> nn.Sequential:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    model[1].bias.requires_grad_(False)
    return model


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 4))
    model[2].weight = model[1].weight
    return model


DECLINED: dict[str, nn.Module] = {
    "a hook": hooked(),
    "a frozen parameter": frozen(),
    "a shared parameter": tied(),
    "no sequence": nn.Linear(4, 2),
    "no parameters": nn.Sequential(nn.Flatten()),
    "never flat": nn.Sequential(nn.Conv2d(1, 2, 1)),
    "linear before flatten": nn.Sequential(nn.Linear(4, 2), nn.Flatten()),
    "a convolution of features": nn.Sequential(nn.Flatten(), nn.Conv2d(1, 1, 1)),
    "an unknown layer": nn.Sequential(nn.Flatten(), nn.Linear(4, 2), nn.Softplus()),
    "an activation without a layer before it": nn.Sequential(nn.Flatten(), nn.ReLU(), nn.Linear(4, 2)),
    "groups": nn.Sequential(nn.Conv2d(2, 2, 1, groups=2), nn.Flatten()),
    "dilation": nn.Sequential(nn.Conv2d(1, 1, 2, dilation=2), nn.Flatten()),
    "padding by name": nn.Sequential(nn.Conv2d(1, 1, 1, padding="same"), nn.Flatten()),
}


@pytest.mark.parametrize("why", DECLINED)
def test_what_the_layers_cannot_do_is_declined(why: str) -> None:
    assert layers.build(DECLINED[why], torch.device("cpu")) is None


def test_the_layers_of_nested_sequences_come_in_order_with_their_names() -> None:
    same = nn.Tanh()
    model = nn.Sequential(nn.Sequential(nn.Conv2d(1, 3, 2), same), nn.Flatten(), nn.Linear(3, 5), same)
    assert [name for name, _ in layers.leaves(model)] == ["0.0", "0.1", "1", "2", "3"]
    built = layers.build(model, torch.device("cpu"))
    assert built is not None
    assert [type(layer).__name__ for layer in built[0]] == [
        "GroupedConv",
        "Activation",
        "Flatten",
        "Linear",
        "Activation",
    ]
    assert [(slot.name, slot.start, slot.stop, slot.axes) for slot in built[1].slots] == [
        ("0.0.weight", 0, 12, (0, 2, 3, 1)),
        ("0.0.bias", 12, 15, (0,)),
        ("2.weight", 15, 30, (0, 1)),
        ("2.bias", 30, 35, (0,)),
    ]


# --- second derivatives ---------------------------------------------------------------------------------------


def deep() -> nn.Module:
    """Unlike strides and paddings, two convolutions in a row, an activation at the very end."""
    return nn.Sequential(
        nn.Conv2d(1, 2, (3, 2), stride=(2, 3), padding=(2, 1)),
        nn.Conv2d(2, 3, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(3, 2, 2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(2 * 6 * 3, 10),
        nn.Tanh(),
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [LeNetZhu, MLP, SmallCNN, odd, deep])
@pytest.mark.parametrize("replicas", [1, 3])
def test_sequences_of_known_layers(make: Callable[[], nn.Module], device: str, kind: str, replicas: int) -> None:
    models = [fresh(make, seed) for seed in range(replicas)]
    batched = Batched(models[0], device=device)
    assert batched.route == "layers"
    convolutions = [layer for layer in batched._route.sequence if isinstance(layer, Conv)]
    expected = GroupedConv if device == "cpu" else PatchConv
    assert all(type(layer) is expected for layer in convolutions)
    assert_second_order(batched, models, *labelled(kind, replicas, 4))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [LeNetZhu, MLP, SmallCNN, odd, deep])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_batches_of_one_image(make: Callable[[], nn.Module], device: str, replicas: int) -> None:
    models = [fresh(make, seed) for seed in range(replicas)]
    batched = Batched(models[0], device=device)
    assert_second_order(batched, models, *labelled("whole labels", replicas, 1))


@pytest.mark.parametrize("device", DEVICES)
def test_second_derivatives_of_tables(device: str) -> None:
    models = [
        fresh(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 10)), s) for s in (0, 1)
    ]
    assert_second_order(Batched(models[0], device=device), models, *labelled("any weights", 2, 3, (6,)))
