"""Records one by one: none can make a release fail, and what is wrong with anything public is said before."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import BudgetError, ConfigError, DataError, ModelError
from equipoise.mechanism.grid import Grid
from equipoise.mechanism.protect import Protected, protected_step
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.records import blank_record, neutral, no_records, records, rehearse
from equipoise.models.batched import Batched

SETTINGS = ProtectionSettings(eta=0.2, clip=3.0)
SIZE = 15  # parameters of Particular
SECRET = 4711.0


class Particular(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x)


class Refusing(Particular):
    """Fails on some inputs."""

    def forward(self, x: Tensor) -> Tensor:
        plain = x
        while torch._C._functorch.is_batchedtensor(plain) or torch._C._functorch.is_gradtrackingtensor(plain):
            plain = torch._C._functorch.get_unwrapped(plain)
        if float(plain.max()) == SECRET:
            raise RuntimeError(f"patient {SECRET}")
        return self.fc(x)


def model_of(kind: type[Particular] = Particular) -> Particular:
    model = kind().double()
    local = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.rand(parameter.shape, generator=local, dtype=torch.float64) - 0.5)
    return model


def batch_of(count: int = 4) -> tuple[Tensor, Tensor]:
    local = torch.Generator().manual_seed(2)
    return torch.randn(count, 4, dtype=torch.float64, generator=local), torch.arange(count) % 3


def step(batch: Any, model: nn.Module | None = None, **change: Any) -> Protected:
    model = model or model_of()
    given = {"mechanism": "laplace-dp", "budget": 1.0, "settings": SETTINGS, "experiment_seed": 3, **change}
    received = given.pop("received", model.state_dict())
    return protected_step(model, received, batch, **given)


def integers(sent: Protected, divisor: int = 4, model: nn.Module | None = None) -> Tensor:
    """A release in steps of its grid, noise included."""
    grid = Grid.of(0.2, 3.0, divisor, SIZE)
    layout = Batched(model_of()).layout
    steps = (layout.flatten(sent.parameters) - layout.flatten((model or model_of()).state_dict())) / grid.step
    assert float((steps - steps.round()).abs().max()) < 1e-3
    return steps.round().long()


# --- records that cannot be computed with --------------------------------------------------------------------


def failing(name: str) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """A model, and a batch whose record 1 fails by ``name``."""
    x, y = batch_of()
    if name == "label":
        y[1] = 3
    elif name == "negative label":
        y[1] = -1
    elif name == "forward":
        x[1] = SECRET
    elif name in ("nan", "inf"):
        x[1, 2] = float(name)
    return model_of(Refusing if name == "forward" else Particular), (x, y)


@pytest.mark.parametrize("name", ["label", "negative label", "forward", "nan", "inf"])
def test_a_record_that_fails_counts_as_zero_and_nothing_else_changes(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, (x, y) = failing(name)
    with caplog.at_level(logging.WARNING, "equipoise"):
        sent = step((x, y), model)
    rest = [0, 2, 3]
    without = step((x[rest], y[rest]), model, divisor=4)
    assert torch.equal(integers(sent), integers(without)), "as if it were not there"
    assert "4711" not in caplog.text
    assert ("1 of 4 records count as zero" in caplog.text) == (name not in ("nan", "inf"))
    assert ("its label is out of range" in caplog.text) == ("label" in name)


def test_lack_of_memory_is_no_reason_to_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = Batched.at

    def at(self: Batched, images: Tensor, labels: Tensor) -> Any:
        calls.append(len(images))
        if len(calls) == 2:
            raise torch.OutOfMemoryError
        return real(self, images, labels)

    x, y = batch_of()
    expected = integers(step((x[[0, 2, 3]], y[[0, 2, 3]]), divisor=4))
    monkeypatch.setattr(Batched, "at", at)
    assert torch.equal(integers(step((x, y))), expected)
    assert len(calls) == 4


def test_all_records_may_fail() -> None:
    x, y = batch_of()
    assert torch.equal(integers(step((x * math.nan, y))), integers(step(None, divisor=4)))


def test_an_interrupt_is_not_an_error_of_a_record() -> None:
    def interrupted(outputs: Tensor, labels: Tensor) -> Tensor:
        if float(labels) == 2:
            raise KeyboardInterrupt
        return nn.functional.cross_entropy(outputs, labels)

    batched = Batched(model_of(), interrupted)
    each = records(batched, *batch_of(), None).per_example
    assert each is not None
    with pytest.raises(KeyboardInterrupt):
        list(each(batched.layout.flatten(batched.model.state_dict()).unsqueeze(0)))


# --- a public divisor ----------------------------------------------------------------------------------------


def test_with_a_divisor_one_record_more_or_less_moves_a_release_by_at_most_its_bound() -> None:
    """Record and replay: the noise is the same, so what differs is that record."""
    (x, y), grid = batch_of(6), Grid.of(0.2, 3.0, 4, SIZE)
    whole = integers(step((x * 10, y), divisor=4))
    for left_out in range(6):
        rest = [i for i in range(6) if i != left_out]
        lost = int((whole - integers(step((x[rest] * 10, y[rest]), divisor=4))).abs().sum())
        assert 0 < lost <= grid.bound


def test_dividing_by_the_number_at_hand_would_be_noticed() -> None:
    """That is what happens without a divisor, where the number of records is public."""
    (x, y), grid = batch_of(6), Grid.of(0.2, 3.0, 4, SIZE)
    one, other = step((x * 10, y)).parameters, step((x[:5] * 10, y[:5])).parameters
    moved = sum(float((one[name] - other[name]).abs().sum()) for name in one)
    assert moved > 1.2 * grid.bound * grid.step


def test_a_divisor_of_the_number_at_hand_changes_nothing() -> None:
    for settings in (SETTINGS, ProtectionSettings(eta=0.2, clip=3.0, batch=77)):
        sent = [step(batch_of(), settings=settings, divisor=divisor) for divisor in (None, 4)]
        assert torch.equal(integers(sent[0]), integers(sent[1]))


@pytest.mark.parametrize("batch", [None, (torch.zeros(0, 4).double(), torch.zeros(0).long())], ids=["none", "empty"])
def test_without_records_noise_is_released_of_the_same_scale(batch: Any) -> None:
    sent = step(batch, divisor=4)
    full = step(batch_of(), divisor=4)
    assert sent.record["lower"] == pytest.approx(full.record["lower"], rel=1e-12), "the same noise"
    assert sent.record["clipped"] == 0.0
    assert not torch.equal(integers(sent), integers(full))
    grid, noise = Grid.of(0.2, 3.0, 4, SIZE), integers(sent)
    assert int(noise.abs().sum()) * grid.step == pytest.approx(sent.record["lower"], rel=1e-9)
    fresh = [step(batch, divisor=4, experiment_seed=None) for _ in range(2)]
    assert not torch.equal(integers(fresh[0]), integers(fresh[1]))


@pytest.mark.parametrize("divisor", [0, -1, 2.5, "4", True])
def test_divisors_that_are_none(divisor: Any) -> None:
    with pytest.raises(ConfigError, match=r"Expected divisor=.* to be a whole number > 0"):
        step(batch_of(), divisor=divisor)


def test_no_records_need_a_divisor() -> None:
    for batch in (None, (torch.zeros(0, 4), torch.zeros(0))):
        with pytest.raises(ConfigError, match="Set divisor, or pass a batch with examples"):
            step(batch)


def test_other_mechanisms_take_no_divisor_and_need_records() -> None:
    with pytest.raises(ConfigError, match="'ls-static' takes no divisor"):
        step(batch_of(), mechanism="ls-static", divisor=4)
    for name in ("ls-static", "laplace-dp"):
        with pytest.raises(ConfigError, match=f"'{name}' takes no groups"):
            step(batch_of(), mechanism=name, groups=torch.arange(4))
    for batch in (None, (torch.zeros(0, 4), torch.zeros(0))):
        with pytest.raises(DataError):
            step(batch, mechanism="ls-static")


# --- what is public is checked first -------------------------------------------------------------------------


class Mixing(Particular):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("of any input")


def wrong_loss(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


PUBLIC: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no clip": ({"settings": ProtectionSettings(clip=None)}, ConfigError, "and a clip"),
    "two steps": ({"settings": ProtectionSettings(local_steps=2)}, ConfigError, "local_steps = 1"),
    "budget": ({"budget": -1.0}, BudgetError, "budget"),
    "epsilon too small": ({"budget": 1e-13}, BudgetError, "Choose a larger epsilon"),
    "epsilon far too small": ({"budget": 1e-290}, BudgetError, "Choose a larger epsilon"),
    "model": ({"model": model_of(Mixing)}, ModelError, "its forward failed"),
    "loss": ({"loss": wrong_loss}, ModelError, "The loss returned shape"),
    "not a loss": ({"loss": 3}, ConfigError, "Expected loss to be a function"),
    "received": ({"received": {}}, ModelError, "is missing"),
}


@pytest.mark.parametrize("name", PUBLIC)
def test_what_is_wrong_with_anything_public_is_said_whatever_the_records_are(name: str) -> None:
    change, error, words = PUBLIC[name]
    x, y = batch_of()
    for batch in ((x, y), (x * math.nan, y + 7)):
        with pytest.raises(error, match=words):
            step(batch, **change)


@pytest.mark.parametrize("name", ["no clip", "two steps", "budget", "received"])
def test_settings_are_checked_before_a_record_is_looked_at(name: str) -> None:
    """On a device that has no values to look at."""
    change, error, words = PUBLIC[name]
    with pytest.raises(error, match=words):
        step(tuple(part.to("meta") for part in batch_of()), **change)


def test_types_and_shapes_are_public() -> None:
    x, y = batch_of()
    with pytest.raises(DataError, match="as many inputs as labels, got shapes"):
        step((x, y[:2]))
    with pytest.raises(DataError, match=r"Expected labels .* of type int64"):
        step((x, y.double()))
    with pytest.raises(DataError, match="a pair of tensors"):
        step(x)


def test_rounding_to_lower_precision_is_no_reason_to_refuse() -> None:
    model = model_of()
    received = {name: tensor.half() for name, tensor in model.state_dict().items()}
    sent = step(batch_of(), model, received=received, budget=1e-8)
    assert {tensor.dtype for tensor in sent.parameters.values()} == {torch.float16}
    assert all(bool(torch.isfinite(tensor).all()) for tensor in sent.parameters.values())
    assert max(float(tensor.abs().max()) for tensor in sent.parameters.values()) == torch.finfo(torch.float16).max


def test_the_record_has_no_loss_of_all_records() -> None:
    assert "utility_loss" not in step(batch_of()).record
    assert "utility_loss" in step(batch_of(), mechanism="ls-static", budget=200.0).record


# --- the parts -----------------------------------------------------------------------------------------------


def test_a_blank_record_has_the_form_of_one() -> None:
    blank = blank_record(torch.ones(7, 2, 3, dtype=torch.int64))
    assert (blank.shape, blank.dtype, bool(blank.any())) == ((1, 2, 3), torch.int64, False)


def test_the_number_of_classes_and_a_loss_that_fails() -> None:
    blank = [blank_record(part) for part in batch_of()]
    assert rehearse(model_of(), *blank, None) == 3

    def broken(outputs: Tensor, labels: Tensor) -> Tensor:
        raise ValueError

    with pytest.raises(ModelError, match="The loss of this batch cannot be computed: ValueError"):
        rehearse(model_of(), *blank, broken)


@pytest.mark.parametrize("make", [no_records, lambda: records(Batched(model_of()), *batch_of(), 3)])
def test_nothing_looks_at_all_records_together(make: Callable[[], Any]) -> None:
    objective = make()
    for function in (objective.loss, objective.gradient):
        with pytest.raises(AssertionError, match="one record at a time"):
            function(torch.zeros(1, SIZE))


def test_whether_a_model_serves_depends_on_no_value_that_it_holds() -> None:
    """A server chooses what is received, and what a local copy holds may be fitted to private data."""
    one, two = model_of(), model_of()
    with torch.no_grad():
        for tensor in two.parameters():
            tensor.fill_(math.nan)
    for a, b in zip(neutral(one).parameters(), neutral(two).parameters(), strict=True):
        assert torch.equal(a, b)
        assert torch.isfinite(a).all()


def test_how_a_batch_lies_in_memory_does_not_reach_a_record() -> None:
    seen: list[tuple[int, ...]] = []

    class Looking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            seen.append(x.stride())
            result: Tensor = self.inner(x)
            return result

    batched = Batched(Looking())
    params = torch.zeros(1, batched.layout.size)
    for count in (1, 2, 5):
        images = torch.rand(4, count).T  # the batch axis last in memory
        list(records(batched, images, torch.zeros(count, dtype=torch.int64), 3).per_example(params))  # type: ignore[misc]
    assert len(set(seen)) == 1
