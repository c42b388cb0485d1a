"""Plain PyTorch over replicas: any model, and no replica sees another or the caller's model."""

from __future__ import annotations

import copy
import os
import threading

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.models.batched import Batched
from equipoise.models.routes import Name
from tests.models.odd_models import Pair, Sequence, logits_loss, pair_batch

ROUTES = ["loop", "threads"]


@pytest.fixture(autouse=True)
def _two_threads() -> object:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def expected_gradient(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    loss = nn.functional.cross_entropy(model(x), y)
    return torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))])


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_models_have_the_gradients_of_autograd(route: Name, kind: type[nn.RNNBase]) -> None:
    models = [Sequence(kind).double() for _ in range(3)]
    batched = Batched(models[0], route=route)
    flat = torch.stack([batched.layout.flatten(dict(one.named_parameters())) for one in models])
    x, y = torch.randint(7, (3, 2, 6)), torch.randint(3, (3, 2))
    gradient, apart = batched.at(x, y).gradient(flat), batched.each(flat, x, y)
    for r, model in enumerate(models):
        torch.testing.assert_close(gradient[r], expected_gradient(model, x[r], y[r]))
        for b in range(2):
            torch.testing.assert_close(apart[r, b], expected_gradient(model, x[r, b : b + 1], y[r, b : b + 1]))


def test_several_inputs_and_outputs_of_any_form() -> None:
    model = Pair().double()
    (inputs, labels), flat = pair_batch(2), torch.randn(2, 38, dtype=torch.float64)
    gradient = Batched(model, logits_loss, route="loop").at(inputs, labels).gradient(flat)
    layout = Batched(model, logits_loss).layout
    for r in range(2):
        model.load_state_dict(layout.unflatten(flat[r]))
        value = logits_loss(model(**{name: part[r] for name, part in inputs.items()}), labels[r])
        parts = torch.autograd.grad(value, list(model.parameters()))
        torch.testing.assert_close(gradient[r], torch.cat([part.flatten() for part in parts]))


@pytest.mark.parametrize("route", ROUTES)
def test_a_replica_is_the_same_to_the_bit_beside_any_others(route: Name) -> None:
    """At every place in memory, too: 19 numbers a record and 790 a model lie at no multiple of 16 bytes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(19, 37), nn.Tanh(), nn.Linear(37, 5), nn.Identity())
    batched = Batched(model, route=route)
    flat, x, y = torch.randn(7, batched.layout.size), torch.randn(7, 3, 19), torch.randint(5, (7, 3))
    whole, apart = batched.at(x, y).gradient(flat), batched.each(flat, x, y)
    for r in range(7):
        own = slice(r, r + 1)
        assert torch.equal(batched.at(x[own].clone(), y[own]).gradient(flat[own].clone())[0], whole[r])
        for b in range(3):
            alone = batched.each(flat[own], x[own, b : b + 1].clone(), y[own, b : b + 1])
            assert torch.equal(alone[0, 0], apart[r, b])


@pytest.mark.parametrize("route", ROUTES)
def test_the_callers_model_is_left_as_it_is(route: Name) -> None:
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    before = copy.deepcopy(model.state_dict())
    batched = Batched(model, route=route)
    batched.at(torch.rand(2, 5, 4), torch.zeros(2, 5, dtype=torch.int64)).gradient(torch.rand(2, batched.layout.size))
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_workers_have_one_thread_each_and_change_nobody_elses() -> None:
    seen: dict[str, int] = {}
    both = threading.Barrier(2)

    class Watching(nn.Linear):
        def forward(self, input: Tensor) -> Tensor:
            both.wait(60)  # else one worker may have done all before the other one is awake
            seen[threading.current_thread().name] = torch.get_num_threads()
            return super().forward(input)

        def __deepcopy__(self, memo: object) -> Watching:
            return Watching(3, 2)

    batched = Batched(Watching(3, 2), route="threads")
    for _ in range(3):
        batched.at(torch.rand(8, 2, 3), torch.zeros(8, 2, dtype=torch.int64)).gradient(torch.rand(8, 8))
    assert len(seen) == 2
    assert set(seen.values()) == {1}
    other: list[int] = []
    thread = threading.Thread(target=lambda: other.append(torch.get_num_threads()))
    thread.start()
    thread.join()
    assert torch.get_num_threads() == 2 == other[0]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_process_has_workers_of_its_own() -> None:
    batched = Batched(nn.Linear(3, 2), route="threads")
    call = batched.at(torch.rand(4, 2, 3), torch.zeros(4, 2, dtype=torch.int64)).gradient
    flat = torch.rand(4, 8)
    expected = call(flat)
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # OpenMP's own threads do not outlive a fork either
        os._exit(0 if torch.equal(call(flat), expected) else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_an_error_of_a_worker_is_raised() -> None:
    batched = Batched(nn.Linear(3, 2), route="threads")
    with pytest.raises(IndexError, match="out of bounds"):
        batched.at(torch.rand(4, 2, 3), torch.full((4, 2), 5)).gradient(torch.rand(4, 8))


def test_a_model_that_cannot_be_copied_is_refused_with_a_remedy() -> None:
    class Open(nn.Linear):
        def __deepcopy__(self, memo: object) -> Open:
            raise TypeError("a secret path")

    batched = Batched(Open(3, 2), route="loop")
    with pytest.raises(ModelError, match=r"cannot be copied: TypeError at test_looped.py:\d+. Make copy.deepcopy"):
        batched.outputs(torch.rand(1, 8), torch.rand(1, 2, 3))


def test_parameters_that_play_no_part_have_no_gradient() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Identity())
    model.register_parameter("spare", nn.Parameter(torch.ones(4)))
    batched = Batched(model, route="loop")
    place = next(slot for slot in batched.layout.slots if slot.name == "spare")
    gradient = batched.at(torch.rand(1, 2, 3), torch.zeros(1, 2, dtype=torch.int64)).gradient(torch.rand(1, 12))
    assert not gradient[0, place.start : place.stop].any()
    assert gradient.any()


class Viewing(nn.Module):
    """Pictures that are convolved and then seen as rows, as many a tutorial does it."""

    def __init__(self, reshape: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.last = nn.Conv2d(3, 4, 3), nn.Linear(144, 2)
        self.reshape, self.seen = reshape, list[bool]()

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append(images.is_contiguous())
        inner = self.conv(images)
        return self.last(inner.reshape(len(images), -1) if self.reshape else inner.view(len(images), -1))


@pytest.mark.parametrize("route", ROUTES)
def test_pictures_lie_channels_last_unless_the_model_takes_views_of_them(route: Name) -> None:
    """Which is tried first, on made-up numbers in both orders."""
    x, y = torch.rand(3, 5, 3, 8, 8), torch.randint(2, (3, 5))
    results = []
    for reshape in (True, False):
        batched = Batched(Viewing(reshape), route=route)
        flat = batched.layout.flatten(dict(batched.model.named_parameters())).repeat(3, 1)
        results.append((batched.at(x, y).gradient(flat), batched.at(x, y).loss(flat)))
        seen = batched._route._copies[0]._model.seen  # type: ignore[attr-defined]
        assert seen[:2] == [True, False]
        assert len(seen) > 2
        assert seen[2:] == [not reshape] * len(seen[2:]), "from then on as the model needs it"
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_other_errors_of_a_model_are_its_own() -> None:
    batched = Batched(Viewing(True), route="loop")
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        batched.at(torch.rand(1, 5, 3, 9, 9), torch.zeros(1, 5, dtype=torch.int64)).loss(torch.rand(1, 402))


class Writing(nn.Module):
    """Its forward writes into a buffer and a frozen parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.frozen = nn.Linear(4, 2), nn.Parameter(torch.ones(4), requires_grad=False)
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.seen += x.sum(0)
            self.frozen.mul_(1.5)
        return self.last(x * self.frozen + self.seen)


@pytest.mark.parametrize("route", ROUTES)
def test_no_call_sees_what_another_one_left(route: Name) -> None:
    batched = Batched(Writing(), route=route)
    flat, x, y = (
        torch.randn(1, 10).repeat(6, 1),
        torch.rand(1, 3, 4).repeat(6, 1, 1),
        torch.ones(6, 3, dtype=torch.int64),
    )
    for values in (batched.at(x, y).gradient(flat), batched.outputs(flat, x), batched.each(flat, x, y)):
        assert torch.equal(values, values[:1].expand_as(values))
        assert values.any()
    alone = Batched(Writing(), route=route)
    assert torch.equal(alone.outputs(flat[:1], x[:1])[0], batched.outputs(flat, x)[0])


def test_parameters_that_lie_channels_last_are_set_as_others() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 2)).double()
    flat, x, y = torch.rand(2, 146).double(), torch.rand(2, 3, 3, 4, 4).double(), torch.ones(2, 3, dtype=torch.int64)
    plain = Batched(model, route="loop").at(x, y).gradient(flat)
    other = Batched(copy.deepcopy(model).to(memory_format=torch.channels_last), route="loop")  # type: ignore[call-overload]
    torch.testing.assert_close(other.at(x, y).gradient(flat), plain)
