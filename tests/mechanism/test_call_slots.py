"""How many records one call may hold: as many as do not show in each other's bits."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.mechanism import call_slots
from equipoise.mechanism.call_slots import APART, FEW, SLOTS, call_size, slots_for
from equipoise.mechanism.units import EachRecord, Records
from equipoise.models.batched import Batched
from equipoise.models.routes import Name
from tests.mechanism.test_units import CLASSES, CLIP, data, network


def found_slots(batched: Batched) -> int:
    images, labels = data(1)
    return slots_for(batched, images * 0, labels * 0, CLASSES if batched.loss is None else None)


def test_kernels_that_mix_slots_get_one_record_a_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    true = Batched.each

    def mixing(self: Batched, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        result = true(self, params, images, labels)
        return result * (1 + 2.0**-20) if bool((torch.nan_to_num(images).abs() > 1e20).any()) else result

    def by_place(self: Batched, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        result = true(self, params, images, labels)
        result[:, 0] *= 1 + 2.0**-20
        return result

    assert found_slots(Batched(network())) == SLOTS
    for lie in (mixing, by_place):
        monkeypatch.setattr(Batched, "each", lie)
        with caplog.at_level(logging.WARNING, "equipoise"):
            assert found_slots(Batched(network())) == 1
    assert caplog.text.count("one record at a time") == 2


class Convolutional(nn.Module):
    """Not made of known layers; here some kernels round otherwise in other slots."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 7, 3, stride=2), nn.Conv2d(7, 5, 3)
        self.norm, self.last = nn.GroupNorm(1, 7), nn.Linear(125, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        seen = nn.functional.relu(self.norm(self.first(x)))
        return self.last(nn.functional.relu(self.second(seen)).flatten(1))


class Perceptron(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(inputs, hidden), nn.Linear(hidden, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(x.flatten(1))))


def assert_each_moves_itself_alone(model: nn.Module, shape: tuple[int, ...], start: Tensor | None = None) -> None:
    draw = torch.Generator().manual_seed(1)
    images, labels = torch.randn(60, *shape, generator=draw), torch.randint(CLASSES, (60,), generator=draw)
    batched = Batched(model)
    if start is None:
        start = torch.rand(batched.layout.size, generator=draw) - 0.5
    slots = slots_for(batched, images[:1], labels[:1], CLASSES)
    pool, everyone = EachRecord(batched, Records(images, labels), CLASSES, slots), torch.arange(60)
    whole, most = pool.total([everyone], start[None], CLIP)[0], math.sqrt(pool.grid(CLIP).most)
    for left_out in (0, 1, 7):
        rest = pool.total([everyone[everyone != left_out]], start[None], CLIP)[0]
        assert torch.equal(whole - rest, pool.total([everyone[[left_out]]], start[None], CLIP)[0])
        assert float((whole - rest).norm()) <= most


@pytest.mark.parametrize(
    ("make", "shape"),
    [(Convolutional, (3, 16, 16)), (lambda: Perceptron(4, 5), (4,)), (lambda: Perceptron(20, 16), (20,))],
)
def test_a_record_that_is_removed_moves_no_other_one(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    """Removed, it shifts all that come after it by one slot. Where that shows, there is one record a call."""
    assert_each_moves_itself_alone(make(), shape)


@pytest.mark.parametrize("size", [14, 30, 32, 54])
def test_not_even_where_rounding_decides_on_the_class(size: int) -> None:
    """A hostile server may send weights that are neighbours among floats."""
    row = torch.randn(size, generator=torch.Generator().manual_seed(0)) * 1e8
    weights = torch.stack([row, *[torch.nextafter(row, torch.tensor(math.inf))] * (CLASSES - 1)])
    model = nn.Sequential(nn.Flatten(), nn.Linear(size, CLASSES))
    assert_each_moves_itself_alone(model, (size,), torch.cat([weights.flatten(), torch.zeros(CLASSES)]))


def test_slots_are_looked_for_once_for_every_model_loss_and_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[Any] = []
    monkeypatch.setattr(call_slots, "_independent", lambda *about: tried.append(about[0].loss) or True)
    model = network()

    def one(outputs: Tensor, labels: Tensor) -> Tensor:
        return outputs.mean()

    for _ in range(2):
        found_slots(Batched(model))
        found_slots(Batched(model, one))
    assert tried == [None, one]
    found_slots(Batched(model.double(), one))
    assert len(tried) == 3


def test_a_loss_at_the_address_of_one_that_is_gone_is_tried_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = 0

    def count(*rest: Any) -> bool:
        nonlocal tried
        tried += 1
        return True

    monkeypatch.setattr(call_slots, "_independent", count)
    model, addresses = network(), set()
    for number in range(20):

        def loss(outputs: Tensor, labels: Tensor, number: int = number) -> Tensor:
            return outputs.mean() * number

        addresses.add(id(loss))
        found_slots(Batched(model, loss))
        del loss
    assert len(addresses) < 20, "the test would be empty"
    assert tried == 20


def test_a_call_has_as_many_slots_as_public_numbers_ask_for() -> None:
    known, other = Batched(network()), Batched(Convolutional())
    sizes = {0.1: FEW, 8: FEW, 9: 16, 100: SLOTS, 1e9: SLOTS}
    assert {expected: call_size(known, expected) for expected in sizes} == sizes
    assert call_size(other, 1) == call_size(other, 1000) == APART
    assert call_size(Batched(Perceptron(1000, 1000)), 1000) == FEW, "or as many as there is room for"


class Counting(nn.Linear):
    """Which no call leaves as it was."""

    calls = 0

    def forward(self, input: Tensor) -> Tensor:
        Counting.calls += 1
        return super().forward(input) * (1 + 0.01 * Counting.calls)


def test_a_model_that_remembers_is_refused_although_each_record_has_a_call_of_its_own() -> None:
    for layer in (Counting(4, 3), nn.Linear(4, 3)):
        batched, x, y = Batched(nn.Sequential(layer, nn.Identity()), route="loop"), torch.rand(1, 4), torch.tensor([0])
        if isinstance(layer, Counting):
            with pytest.raises(ModelError, match=r"depends on those before it.*call eval"):
                slots_for(batched, x, y, 3, FEW)
        else:
            assert slots_for(batched, x, y, 3, FEW) == FEW


class Careful(Counting):
    """The same, but takes no number that is not finite."""

    def forward(self, input: Tensor) -> Tensor:
        if not bool(torch.isfinite(input).all()) or float(input.abs().max()) > 1e6:
            raise ValueError("what kind of number is that")
        return super().forward(input)


class Fussy(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        if float(input.abs().max()) > 0:
            raise ValueError("a secret number")
        return super().forward(input)


@pytest.mark.parametrize("route", ["loop", "threads", "vmap"])
def test_whatever_a_model_refuses_it_is_tried(route: Name) -> None:
    x, y = torch.rand(1, 4), torch.tensor([0])
    if route != "vmap":
        with pytest.raises(ModelError, match="depends on those before it"):
            slots_for(Batched(nn.Sequential(Careful(4, 3)), lambda o, t: o.sum(), route=route), x, y, 3, FEW)
    with pytest.raises(ModelError, match=r"cannot be tried on made-up records: \w+ at") as caught:
        slots_for(Batched(nn.Sequential(Fussy(4, 3)), route=route), x, y, 3, FEW)
    assert "secret" not in str(caught.value)


def test_memory_is_found_where_calls_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    batched = Batched(nn.Sequential(Counting(4, 3)), lambda outputs, labels: outputs.square().mean(), route="vmap")
    with pytest.raises(ModelError, match="depends on those before it"):
        slots_for(batched, torch.rand(1, 4), torch.tensor([0]), 3, FEW)


def test_what_was_found_holds_until_a_layer_is_switched() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.Linear(4, 3)).eval()
    batched, x, y = Batched(model, route="loop"), torch.rand(1, 4), torch.tensor([0])
    assert slots_for(batched, x, y, 3, FEW) == FEW
    model[0].train()
    with pytest.raises(ModelError, match="draws random numbers"):
        slots_for(Batched(model, route="loop"), x, y, 3, FEW)


def test_empty_slots_of_calls_apart_are_not_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    each = Batched.each

    def watched(self: Batched, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        asked.append(labels.shape[1])
        return each(self, params, images, labels)

    monkeypatch.setattr(Batched, "each", watched)
    batched = Batched(Convolutional())
    records = Records(torch.rand(11, 3, 16, 16), torch.arange(11) % CLASSES)
    pool, start = EachRecord(batched, records, CLASSES, FEW), torch.rand(1, batched.layout.size)
    pool.total([torch.arange(11)], start, CLIP)
    assert asked == [FEW, 3]
    assert not pool.total([torch.arange(0)], start, CLIP)[0].any()
