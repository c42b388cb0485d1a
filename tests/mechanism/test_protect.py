"""``protect`` and ``protected_step``: the engine's release, entropy that no seed reaches, nothing half-protected."""

from __future__ import annotations

import gc
import json
import random
import re
import subprocess
import sys
import traceback
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise import randomness
from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.errors import BudgetError, ConfigError, DataError, EquipoiseError, ModelError, ReleaseError
from equipoise.mechanism import protect as protection
from equipoise.mechanism.distortion import on_inner_sphere
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protect import Protected, protect, protected_step
from equipoise.mechanism.protection import Protection, ProtectionSettings
from equipoise.mechanism.registry import MECHANISMS, get_mechanism
from equipoise.mechanism.release import release
from equipoise.mechanism.run_budget import GaussianSettings
from equipoise.models.batched import Batched
from equipoise.models.bundled import LeNetZhu

BUDGETS = {name: None if name == "none" else 0.98 if name.startswith("pl") else 200 for name in MECHANISMS}
BUDGETS |= {"pruning": 0.1, "outpost": 1.25}
WHOLE = [name for name, kind in MECHANISMS.items() if not kind.per_example]  # the others: test_laplace_dp.py
LOWER = 7.99975  # of budget 0.98
RUN = ProtectionSettings(gaussian=GaussianSettings(rounds=3))
Call = Callable[..., Protected]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors: a second thread gains nothing, and waits where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def model() -> nn.Module:
    return _filled(LeNetZhu(), 1)


@pytest.fixture
def batch() -> tuple[Tensor, Tensor]:
    return torch.randn(4, 1, 28, 28, generator=torch.Generator().manual_seed(2)), torch.tensor([0, 1, 2, 3])


@pytest.fixture
def call(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Call:
    """``protected_step`` with all that it needs, to be changed by name."""
    return partial(_called, protected_step, model, batch)


@pytest.fixture
def trained(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Call:
    """``protect`` likewise; ``local`` is what the training reached."""

    def run(local: dict[str, Tensor] | None = None, **change: Any) -> Protected:
        received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        if local is not None:
            model.load_state_dict(local)
        return _called(protect, model, batch, **{"received": received, **change})

    return run


def _called(function: Call, net: nn.Module, data: Any, /, **change: Any) -> Protected:
    given = {"model": net, "received": net.state_dict(), "batch": data, "mechanism": "pl-learn", "budget": 0.98}
    return function(**{**given, **change})


def _filled(model: nn.Module, seed: int) -> nn.Module:
    """Parameters from a generator of one's own, so that no global state decides a test."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.copy_((torch.rand(tensor.shape, generator=generator) - 0.5) / 2)
    return model


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensors[name].detach().double().flatten() for name in sorted(tensors)])


def distance(one: dict[str, Tensor], two: dict[str, Tensor], order: int = 2) -> float:
    return float(torch.linalg.vector_norm(flat(one) - flat(two), order))


# --- the same release as the engine's ---------------------------------------------------------------------------


def engine_releases(sweep: Sweep, round_number: int) -> Iterator[tuple[Federation, int, dict[str, Tensor], Any]]:
    """(federation, client, released tensors, record) of a round from the sweep's current state."""
    tables, noise = sweep.tables([round_number]), sweep.noise_table(round_number)
    for block in sweep.blocks:
        made, _ = sweep.release(block, tables, torch.tensor([0]), sweep.block_noise(block, noise))
        for row in range(len(made.parameters)):
            federation = sweep.federations[block.federations.start + row // block.shape[1]]
            client = block.slots.start + row % block.shape[1]
            yield federation, client, sweep.batched.layout.unflatten(made.parameters[row]), made.first(row + 1).record


def test_the_same_release_as_the_engine_for_every_mechanism_client_and_round(few: Dataset) -> None:
    federations = [Federation("few", name, BUDGETS[name], seed=3) for name in MECHANISMS]
    settings = Settings.flat(rounds=3, dtype="float64").for_run()  # the rounds that a budget of a whole run is for
    sweep = Sweep(settings, federations, {"few": few})
    network, compared = LeNetZhu().double(), 0
    for round_number in (1, 2):
        tables = sweep.tables([round_number])
        for federation, client, expected, record in engine_releases(sweep, round_number):
            place = sweep.federations.index(federation)
            start = sweep.batched.layout.unflatten(sweep.state.params[place])
            of_all = get_mechanism(federation.mechanism).whole_run  # draws its own batch
            examples = sweep.parts["few"][client] if of_all else tables.batches[0, client]
            sent = protected_step(
                network, start, (sweep.inputs[examples], sweep.labels[examples]), federation.mechanism,
                federation.budget, settings=settings.protection, client=client, round_number=round_number,
                experiment_seed=3,
            )  # fmt: skip
            formal = get_mechanism(federation.mechanism).formal  # laplace-dp rounds to its grid, here of steps of 1e-6
            apart = distance(sent.parameters, expected)
            most = 0 if of_all else 1e-3 if formal else 1e-9  # the same calls, bit for bit; up to rounding otherwise
            assert apart <= most, (federation, client, round_number)
            for name in ("lower", "upper", "intensity", "clipped", "utility_loss")[: 4 if formal else 5]:
                assert sent.record[name] == pytest.approx(float(getattr(record, name)[-1]), rel=1e-9, abs=1e-9)
            compared += 1
        sweep.train(round_number)
    assert compared == 2 * len(MECHANISMS) * 4


def test_one_client_is_a_row_of_a_batch() -> None:
    generator = torch.Generator().manual_seed(4)
    batched = Batched(LeNetZhu())
    x = torch.rand(5, 4, 1, 28, 28, dtype=torch.float64, generator=generator)
    y = torch.randint(0, 10, (5, 4), generator=generator)
    start = torch.rand(5, batched.layout.size, dtype=torch.float64, generator=generator) - 0.5
    settings = ProtectionSettings()
    for name, kind in MECHANISMS.items():
        if kind.formal:
            continue  # see test_laplace_dp
        measure, budget = settings.measure(name), BUDGETS[name]
        scale = 0.0 if measure is None or budget is None else measure.lower(budget)
        key = randomness.experiment_key(9, "noise")
        numbers = randomness.uniform([key] * 5, range(5), [6], batched.layout.size, torch.float64)[0]
        noise = standard_noise(numbers, kind.noise) if kind.draws else None
        given = Protection(kind, scale, clip=settings.clip)
        rows = release([batched.at(x, y)], start, noise, settings.eta, given)
        network = LeNetZhu().double()
        for row in range(5):
            begin = batched.layout.unflatten(start[row])
            sent = protected_step(
                network, begin, (x[row], y[row]), name, budget, client=row, round_number=6, experiment_seed=9
            )
            assert distance(sent.parameters, batched.layout.unflatten(rows.parameters[row])) < 1e-9, name


def test_another_client_round_or_seed_gets_other_noise(call: Call) -> None:
    first = call(experiment_seed=1)
    assert distance(first.parameters, call(experiment_seed=1).parameters) == 0
    for change in ({"client": 1}, {"round_number": 2}, {"experiment_seed": 2}):
        assert distance(first.parameters, call(**{"experiment_seed": 1, **change}).parameters) > 1


# --- entropy ----------------------------------------------------------------------------------------------------


def test_without_a_seed_no_two_releases_are_alike(call: Call) -> None:
    one, two = call(), call()
    assert distance(one.parameters, two.parameters) > 1
    assert one.record["experiment"] is None
    assert call(experiment_seed=0).record["experiment"] == "seeded"


def test_no_global_seed_reaches_the_noise_and_none_is_disturbed(call: Call, generator: torch.Generator) -> None:
    results = []
    with torch.random.fork_rng(devices=[]):
        numpy_state, python_state = np.random.get_state(), random.getstate()
        for _ in range(2):
            torch.manual_seed(5)
            np.random.seed(5)
            random.seed(5)
            results.append(call().parameters)
            after = float(torch.rand(())), float(np.random.rand()), random.random()
            torch.manual_seed(5)
            np.random.seed(5)
            random.seed(5)
            assert after == (float(torch.rand(())), float(np.random.rand()), random.random())
        np.random.set_state(numpy_state)
        random.setstate(python_state)
    assert distance(results[0], results[1]) > 1


FORK = """
import os, sys, torch
from equipoise import LeNetZhu, protected_step

torch.set_num_threads(1)
torch.manual_seed(0)
model = LeNetZhu()
batch = torch.zeros(2, 1, 28, 28), torch.tensor([0, 1])

def noise():
    return float(protected_step(model, model.state_dict(), batch, "pl-learn", 0.98).parameters["fc.bias"][0])

noise()  # all that is made once is made before the fork
for _ in range(3):
    child = os.fork()
    if child == 0:
        print(noise().hex(), flush=True)
        os._exit(0)
    os.waitpid(child, 0)
print(noise().hex(), flush=True)
"""


@pytest.mark.slow
def test_forked_processes_draw_different_noise() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, timeout=100, check=True)
    result = done.stdout.split()
    assert len(result) == 4
    assert len(set(result)) == 4


def test_the_record_holds_plain_numbers_and_no_key(call: Call) -> None:
    sent = call(client=3, round_number=8)
    assert set(sent.record) == {
        "mechanism", "budget", "norm", "client", "round", "lower", "upper", "intensity", "clipped", "utility_loss",
        "noise_to_update", "experiment",
    }  # fmt: skip
    assert (sent.record["mechanism"], sent.record["budget"], sent.record["norm"]) == ("pl-learn", 0.98, "l2")
    assert (sent.record["client"], sent.record["round"]) == (3, 8)
    assert json.loads(json.dumps(sent.record)) == sent.record
    assert "1234567" not in json.dumps(call(experiment_seed=1234567).record), "whoever has the seed has the noise"


def test_the_noise_comes_from_the_system_alone(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes from the operating system give the same release, and they are read anew each time."""
    sizes: list[int] = []

    def fixed(count: int) -> bytes:
        sizes.append(count)
        return bytes((7 * i + 3) % 256 for i in range(count))

    monkeypatch.setattr("os.urandom", fixed)
    assert distance(call().parameters, call().parameters) == 0
    assert sizes == [32, 32], "a key for each release, and no call for a number"


def test_whoever_knows_the_seed_has_the_noise(model: nn.Module, call: Call) -> None:
    """Why a seeded experiment protects nothing: what a server needs is the seed, the client, the round, the budget."""
    sent = call(mechanism="pl-identical", experiment_seed=7, client=2, round_number=5)
    layout = Batched(model).layout
    numbers = randomness.uniform([randomness.experiment_key(7, "noise")], [2], [5], layout.size)[0]
    noise, _, _ = on_inner_sphere(standard_noise(numbers, "laplace"), torch.tensor([LOWER]))
    result = layout.unflatten(layout.flatten(sent.parameters) - noise[0])
    assert distance(result, call(mechanism="none", budget=None).parameters) < 1e-4


def test_the_noise_of_two_hundred_releases_is_unrelated(batch: tuple[Tensor, Tensor]) -> None:
    """20 clients, 5 rounds, each asked twice, as after a lost reply. 8 deviations: once in 10^10 runs by chance."""
    network = _filled(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), 3)
    local = network.state_dict()
    places = [(client, round_number) for client in range(20) for round_number in range(1, 6)] * 2
    added = [
        flat(protect(network, local, batch, "pl-identical", 0.98, client=client, round_number=round_number).parameters)
        - flat(local)
        for client, round_number in places
    ]
    noise = torch.stack(added)
    size = noise.shape[1]
    correlation = torch.corrcoef(noise) - torch.eye(len(noise), dtype=torch.float64)
    assert float(correlation.abs().max()) < 8 / size**0.5
    shifted = torch.corrcoef(torch.cat([noise[:, :-1], noise[:, 1:]]))  # nor the same numbers, one place further
    shifted.fill_diagonal_(0)
    assert float(shifted[: len(noise), len(noise) :].abs().max()) < 8 / size**0.5
    assert len({row.numpy().tobytes() for row in noise}) == 200


# --- what is sent -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name in WHOLE if name != "none"])
def test_what_was_trained_is_distorted_by_the_recorded_intensity(model: nn.Module, trained: Call, name: str) -> None:
    local = {key: tensor + 0.01 for key, tensor in model.state_dict().items()}
    sent = trained(mechanism=name, budget=BUDGETS[name], local=local)
    order = 1 if get_mechanism(name).norm == "l1" else 2
    size = distance(sent.parameters, local, order)
    assert size == pytest.approx(sent.record["intensity"], rel=1e-5)
    assert sent.record["lower"] * (1 - 1e-4) <= size <= sent.record["upper"] * (1 + 1e-4)
    assert sent.record["clipped"] == 0, "no gradient step is made"
    assert all(torch.equal(tensor, local[key]) for key, tensor in model.state_dict().items()), "the model is untouched"


def test_none_sends_the_local_model_itself(model: nn.Module, trained: Call) -> None:
    local = {key: tensor + 0.01 for key, tensor in model.state_dict().items()}
    sent = trained(mechanism="none", budget=None, local=local)
    assert distance(sent.parameters, local) == 0
    assert sent.record["intensity"] == 0.0
    assert "utility_loss" not in sent.record, "no batch was looked at"


def test_without_distortion_the_step_is_plain_gradient_descent(
    model: nn.Module, batch: tuple[Tensor, Tensor], call: Call
) -> None:
    sent = call(mechanism="none", budget=None, settings=ProtectionSettings(eta=0.3))
    loss = nn.functional.cross_entropy(model(batch[0]), batch[1])
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for (name, tensor), gradient in zip(model.named_parameters(), gradients, strict=True):
        assert torch.allclose(sent.parameters[name], tensor - 0.3 * gradient, atol=1e-6), name


def test_the_recorded_utility_loss_is_that_of_the_batch(
    model: nn.Module, batch: tuple[Tensor, Tensor], trained: Call
) -> None:
    sent = trained()

    def loss(tensors: dict[str, Tensor]) -> float:
        outputs = torch.func.functional_call(model, tensors, (batch[0],))
        return float(nn.functional.cross_entropy(outputs, batch[1]))

    assert sent.record["utility_loss"] == pytest.approx(loss(sent.parameters) - loss(model.state_dict()), abs=1e-5)


def test_the_model_itself_is_left_alone(model: nn.Module, call: Call) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sent = call(received={name: torch.zeros_like(tensor) for name, tensor in before.items()})
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    for tensor in sent.parameters.values():
        assert tensor.untyped_storage().nbytes() == tensor.nbytes, "saved alone, it carries nothing else along"
        tensor.fill_(7.0)  # what is sent shares no memory with anything that stays
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())


class Residual(nn.Module):
    """Not a sequence: it runs through torch.func. One layer is frozen, and there is a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(49, 49)
        self.frozen = nn.Linear(49, 49).requires_grad_(False)
        self.head = nn.Linear(49, 10)
        self.register_buffer("shift", torch.full((49,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.avg_pool2d(x, 4).flatten(1) + self.shift
        return self.head(x + torch.tanh(self.inner(x)) + self.frozen(x))


def test_a_module_of_ones_own_sends_its_trainable_parameters_distorted(batch: tuple[Tensor, Tensor]) -> None:
    network = _filled(Residual(), 6)
    sent = protect(network, copied(network), batch, "pl-learn", 0.98)
    trainable = {name: tensor for name, tensor in network.named_parameters() if tensor.requires_grad}
    assert set(sent.parameters) == set(network.state_dict())
    moved = {name: sent.parameters[name] for name in trainable}
    assert distance(moved, trainable) == pytest.approx(sent.record["intensity"], rel=1e-5)


def test_inputs_may_be_whole_numbers() -> None:
    """Words or categories: the parameters stay floating-point numbers."""
    network = _filled(nn.Sequential(nn.Embedding(5, 30), nn.Flatten(), nn.Linear(60, 3)), 8)
    words = torch.tensor([[0, 1], [2, 3], [4, 4]]), torch.tensor([0, 1, 2])
    sent = protect(network, network.state_dict(), words, "pl-learn", 0.98)
    assert distance(sent.parameters, network.state_dict()) == pytest.approx(sent.record["intensity"], rel=1e-5)
    assert LOWER * (1 - 1e-4) <= sent.record["intensity"] <= 2 * LOWER * (1 + 1e-4)


def test_the_names_are_those_of_the_model(model: nn.Module, call: Call) -> None:
    sent = call()
    assert {name: tensor.shape for name, tensor in sent.parameters.items()} == {
        name: tensor.shape for name, tensor in model.named_parameters()
    }
    model.load_state_dict(sent.parameters)


# --- a whole state dict comes back ----------------------------------------------------------------------------------


class Language(nn.Module):
    """Tied weights, a frozen layer, running statistics, and a buffer that is no floating-point number."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(6, 8)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.norm = nn.BatchNorm1d(8)
        self.out = nn.Linear(8, 6)
        self.out.weight = self.embedding.weight

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.norm(self.frozen(self.embedding(words).mean(1))))


WORDS = torch.tensor([[0, 1, 2], [3, 4, 5], [5, 0, 1], [2, 2, 4]]), torch.tensor([3, 0, 2, 1])
TIED = ("embedding.weight", "out.weight")
KEPT = ("frozen.weight", "frozen.bias", "norm.running_mean", "norm.running_var", "norm.num_batches_tracked")


def language() -> nn.Module:
    return _filled(Language(), 4).eval()


def fitted_locally(model: nn.Module) -> None:
    """What a client's own training leaves in the model: statistics of its private data."""
    model.train()
    with torch.no_grad():
        model(WORDS[0])
        model.frozen.weight += 1
        model.frozen.bias += 1
    model.eval()


@pytest.mark.parametrize("function", [protect, protected_step])
@pytest.mark.parametrize("name", ["none", "pl-learn", "ls-static"])
def test_what_comes_back_is_a_state_dict_of_the_model(function: Call, name: str) -> None:
    model = language()
    received = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    fitted_locally(model)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    sent = function(model, received, WORDS, name, BUDGETS[name]).parameters
    assert list(sent) == list(received)
    for key in KEPT:
        assert torch.equal(sent[key], received[key]), f"{key} leaves as it came"
        assert not torch.equal(before[key], received[key]), "although the client's own is another"
    assert torch.equal(sent["embedding.weight"], sent["out.weight"])
    if name != "none":
        assert not torch.equal(sent["out.weight"], before["out.weight"])
    assert all(torch.equal(model.state_dict()[key], tensor) for key, tensor in before.items()), "the model is untouched"
    model.load_state_dict(sent)
    assert model.out.weight is model.embedding.weight
    assert {key: tensor.dtype for key, tensor in sent.items()} == {key: t.dtype for key, t in received.items()}


@pytest.mark.parametrize("function", [protect, protected_step])
@pytest.mark.parametrize("missing", TIED)
def test_a_tied_weight_is_distorted_once_under_whichever_name(function: Call, missing: str) -> None:
    model = language()
    whole = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    part = {key: tensor for key, tensor in whole.items() if key != missing}
    one = function(model, part, WORDS, "pl-learn", 0.98, experiment_seed=1)
    both = function(model, whole, WORDS, "pl-learn", 0.98, experiment_seed=1)
    assert list(one.parameters) == list(part)
    assert all(torch.equal(both.parameters[key], tensor) for key, tensor in one.parameters.items())
    if function is protect:
        moved = {key: both.parameters[key] for key in whole if key not in (*KEPT, "out.weight")}
        assert distance(moved, {key: whole[key] for key in moved}) == pytest.approx(both.record["intensity"], rel=1e-5)


@pytest.mark.parametrize("function", [protect, protected_step])
@pytest.mark.parametrize("name", ["pl-learn", "laplace-dp", "gaussian-dp"])
def test_no_statistic_that_was_fitted_locally_decides_the_release(function: Call, name: str) -> None:
    """The loss is that of the model as the server has it: with received statistics, and received frozen layers."""
    if get_mechanism(name).formal and function is protect:
        return  # is refused
    model = language()
    received = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    about: dict[str, Any] = {"settings": RUN, "experiment_seed": 1, "round_number": 1}
    plain = function(model, received, WORDS, name, BUDGETS[name], **about)
    fitted_locally(model)
    fitted = function(model, received, WORDS, name, BUDGETS[name], **about)
    assert all(torch.equal(fitted.parameters[key], tensor) for key, tensor in plain.parameters.items())
    assert fitted.record == plain.record


def test_protect_starts_from_the_model_and_protected_step_from_what_was_received() -> None:
    model = language()
    received = {key: torch.zeros_like(t) if key in TIED else t.clone() for key, t in model.state_dict().items()}
    assert torch.equal(protect(model, received, WORDS, "none").parameters["out.weight"], model.out.weight)
    step = protected_step(model, received, WORDS, "none", settings=ProtectionSettings(eta=1e-9)).parameters[
        "out.weight"
    ]
    assert float(step.detach().abs().max()) < 1e-6


@pytest.mark.parametrize("function", [protect, protected_step])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("out.bias"), "'out.bias' is missing"),
        (lambda s: s.update(extra=torch.zeros(2)), "the model has no 'extra'"),
        (lambda s: s.update({"out.bias": torch.zeros(5)}), r"'out.bias' has shape \(5,\), expected \(6,\)"),
        (lambda s: s.update({"norm.running_var": torch.ones(1)}), r"'norm.running_var' has shape \(1,\)"),
        (lambda s: s.update({"out.weight": torch.zeros(6, 8)}), "are one tensor of the model"),
    ],
    ids=["missing", "unknown", "shape", "buffer's shape", "tied"],
)
def test_entries_that_do_not_fit_the_model_are_named(function: Call, change: Callable[[Any], Any], words: str) -> None:
    model = language()
    received = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    change(received)
    with pytest.raises(ModelError, match=words):
        function(model, received, WORDS, "pl-learn", 0.98)


def test_the_received_types_are_kept_and_a_distortion_that_they_cannot_carry_is_refused() -> None:
    model = language().double()
    half = {key: t.half() if t.is_floating_point() else t.clone() for key, t in model.state_dict().items()}
    sent = protect(model, half, WORDS, "pl-learn", 0.98).parameters
    assert {key: tensor.dtype for key, tensor in sent.items()} == {key: tensor.dtype for key, tensor in half.items()}
    for value in (3e4, 1e6):  # there float16 numbers lie 16 apart; or end
        with torch.no_grad():
            model.out.bias.fill_(value)
        with pytest.raises(ReleaseError, match=r"are torch.float16: rounding .* Nothing was released"):
            protect(model, half, WORDS, "pl-learn", 0.98)


# --- a loss of one's own --------------------------------------------------------------------------------------------


def squared(outputs: Tensor, labels: Tensor) -> Tensor:
    return ((outputs - nn.functional.one_hot(labels, 10)) ** 2).sum(1).mean()


def test_a_loss_of_ones_own_is_the_one_that_is_minimised(
    model: nn.Module, batch: tuple[Tensor, Tensor], call: Call
) -> None:
    sent = call(mechanism="none", budget=None, loss=squared, settings=ProtectionSettings(eta=0.05))
    gradients = torch.autograd.grad(squared(model(batch[0]), batch[1]), list(model.parameters()))
    for (name, tensor), gradient in zip(model.named_parameters(), gradients, strict=True):
        assert torch.allclose(sent.parameters[name], tensor - 0.05 * gradient, atol=1e-6), name
    learned = call(loss=squared)
    assert LOWER * (1 - 1e-4) <= learned.record["intensity"] <= 2 * LOWER * (1 + 1e-4)


def per_example(outputs: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, labels, reduction="none")


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    return (outputs.argmax(1) == labels).sum()


def hinge(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.mean() if outputs.sum() > 0 else -outputs.mean()


@pytest.mark.parametrize("function", [protect, protected_step])
def test_a_loss_may_decide_by_values(model: nn.Module, batch: tuple[Tensor, Tensor], function: Call) -> None:
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    sent = function(model, received, batch, "pl-learn", 0.98, loss=hinge)
    assert sent.record["intensity"] >= LOWER * (1 - 1e-4)


def private(outputs: Tensor, labels: Tensor) -> Tensor:
    raise KeyError("patient 4711")


@pytest.mark.parametrize("function", [protect, protected_step])
@pytest.mark.parametrize(
    ("loss", "cause", "remedy"),
    [
        (per_example, r"The loss returned shape \(4,\), expected one number", "reduction='mean'"),
        (
            lambda out, y: per_example(out, y).mean().view(1),
            r"The loss returned shape \(1,\)",
            "the mean over the batch",
        ),
        (lambda out, y: 0.5, "The loss returned float", "Return the tensor itself"),
        (accuracy, "The loss returned torch.int64", "can be differentiated"),
        (lambda out, y: (out - y).mean(), "The loss of this batch cannot be computed: RuntimeError at", "by itself"),
        (private, "The loss of this batch cannot be computed: KeyError at test_protect.py:", "by itself"),
        ("mean", "Expected loss to be a function, got str", r"loss\(outputs, labels\)"),
    ],
    ids=[
        "per example",
        "one in a row",
        "float",
        "count",
        "shapes",
        "own error",
        "no function",
    ],
)
def test_a_loss_that_cannot_be_used_is_refused_with_its_remedy(
    model: nn.Module, batch: tuple[Tensor, Tensor], function: Call, loss: Any, cause: str, remedy: str
) -> None:
    with pytest.raises(EquipoiseError, match=cause) as caught:
        _called(function, model, batch, loss=loss)
    assert re.search(remedy, caught.value.remedy)
    assert "4711" not in "".join(traceback.format_exception(caught.value)), "what it says may quote the batch"


def test_the_gradient_of_every_example_refuses_such_a_loss_too(call: Call) -> None:
    with pytest.raises(ModelError, match="The loss returned shape"):
        call(mechanism="laplace-dp", budget=10.0, loss=per_example)


class Particular(nn.Module):
    """Fails on some values alone: its check, on other examples, passes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        if torch._C._functorch.is_batchedtensor(x):
            return self.fc(x)
        if float(x.detach().max()) > 4710:
            raise ValueError("cannot use patient 4711")
        return self.fc(x)


@pytest.mark.parametrize("function", [protect, protected_step])
@pytest.mark.parametrize("row", [0, 3], ids=["seen by the check", "seen by the loss"])
@pytest.mark.parametrize("own", [False, True])
def test_the_words_of_an_error_in_forward_are_not_quoted(function: Call, row: int, own: bool) -> None:
    network, x, y = Particular(), torch.zeros(4, 4), torch.tensor([0, 1, 2, 0])
    x[row] = 4711
    loss = nn.functional.cross_entropy if own else None
    for known in (False, True):
        if known:
            function(network, network.state_dict(), (torch.zeros(4, 4), y), "pl-learn", 0.98, loss=loss)
        with pytest.raises(ModelError, match=r"ValueError at test_protect.py:") as caught:
            function(network, network.state_dict(), (x, y), "pl-learn", 0.98, loss=loss)
        assert "4711" not in "".join(traceback.format_exception(caught.value))


def test_outputs_that_cross_entropy_cannot_take_are_refused() -> None:
    network = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))
    with pytest.raises(ModelError, match=r"Cross-entropy needs outputs \[B, classes\], got \(2,\)"):
        protect(network, network.state_dict(), (torch.zeros(4, 4), torch.zeros(4, dtype=torch.int64)), "pl-learn", 0.98)


@pytest.mark.parametrize("name", ["none", "pl-learn", "laplace-dp", "gaussian-dp"])
def test_nothing_keeps_a_protected_model_or_its_loss_alive(batch: tuple[Tensor, Tensor], name: str) -> None:
    """A process that protects for years must not hold on to the models and losses it has seen."""
    seen: list[weakref.ref[Any]] = []
    for i in range(3):
        network = _filled(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), i)
        loss = partial(nn.functional.cross_entropy)
        sent = protected_step(
            network, network.state_dict(), batch, name, BUDGETS[name], loss=loss, settings=RUN, experiment_seed=i,
            round_number=1,
        )  # fmt: skip
        seen += [weakref.ref(network), weakref.ref(loss)]
    del network, loss
    gc.collect()
    assert [one() for one in seen] == [None] * 6
    assert all(torch.isfinite(tensor).all() for tensor in sent.parameters.values()), "what was sent does not need it"


def test_what_is_remembered_of_a_model_goes_with_it(batch: tuple[Tensor, Tensor]) -> None:
    gc.collect()
    before = len(protection._CHECKED)
    network = _filled(nn.Sequential(nn.Flatten(), nn.Linear(784, 10)), 1)
    for _ in range(3):
        protected_step(network, network.state_dict(), batch, "pl-learn", 0.98)
    assert len(protection._CHECKED) == before + 1
    assert len(protection._CHECKED[network]) == 1, "checked once under the same circumstances"
    protected_step(network, network.state_dict(), batch, "laplace-dp", 10.0)
    assert len(protection._CHECKED[network]) == 1, "a guarantee looks at a copy, whose values are public"
    del network
    gc.collect()
    assert len(protection._CHECKED) == before


def test_budgets_and_rates_may_follow_client_and_round(call: Call) -> None:
    budget = {"rounds": [1, 5], "values": [0.96, [0.98, 0.99, 0.98, 0.98]]}
    lower = {(0, 1): 15.99975, (0, 5): LOWER, (1, 4): 15.99975, (1, 9): 3.99975}
    for (client, round_number), bound in lower.items():
        sent = call(budget=budget, client=client, round_number=round_number)
        assert sent.record["lower"] == pytest.approx(bound, rel=1e-6)
    try:
        before = call(budget=budget, round_number=0).record["lower"]
    except ConfigError:  # the rounds of a schedule begin at 1: to refuse is right as well
        before = 15.99975
    assert before == pytest.approx(15.99975, rel=1e-6), "never the last value"
    slow = call(settings=ProtectionSettings(gamma=[0.0, 0.1, 0.1, 0.1]), experiment_seed=1)
    still = call(mechanism="pl-identical", experiment_seed=1)
    assert distance(slow.parameters, still.parameters) < 1e-4, "client 0 learns nothing"


# --- refusals: a typed error, and nothing released ------------------------------------------------------------------


def test_a_value_that_is_not_finite_is_refused_wherever_it_is(
    model: nn.Module, batch: tuple[Tensor, Tensor], call: Call, trained: Call
) -> None:
    x, y = batch
    good = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    trained()  # a model that was checked while its parameters were finite
    for value in (float("nan"), float("inf")):
        bad_x = x.clone()
        bad_x[2, 0, 3, 4] = value
        with pytest.raises(DataError, match="inputs of the batch are not finite"):
            call(batch=(bad_x, y))
        bad = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        bad["fc.bias"][3] = value
        with pytest.raises(ReleaseError, match="'received' are not finite"):
            call(received=bad)
        with pytest.raises(ReleaseError, match="'model' are not finite"):
            trained(local=bad)
        model.load_state_dict(good)


X, Y = torch.zeros(4, 1, 28, 28), torch.tensor([0, 1, 2, 3])


@pytest.mark.parametrize(
    "bad",
    [
        (X[:0], Y[:0]),
        (X, Y[:3]),
        (X[:3], Y),
        X,
        (X, Y, Y),
        (X, [0, 1, 2, 3]),
        None,
        (torch.tensor(1.0), Y),
        (X, Y.float()),
        (X, Y.view(4, 1)),
        (X, torch.tensor([0, 1, 2, 10])),
        (X, torch.tensor([0, 1, 2, -1])),
    ],
    ids=["empty", "labels missing", "inputs missing", "one tensor", "three", "a list", "nothing", "a number",
         "float labels", "two-dimensional labels", "a label too large", "a label below 0"],
)  # fmt: skip
def test_a_batch_that_is_not_one_is_refused(call: Call, bad: Any) -> None:
    with pytest.raises(DataError):
        call(batch=bad)


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("bad", [torch.zeros(4, 3, 28, 28), X.double()], ids=["shape", "type"])
def test_inputs_that_do_not_fit_the_model_are_refused(call: Call, bad: Tensor, known: bool) -> None:
    if known:
        call()  # a model that was checked with other inputs
    with pytest.raises(ModelError, match="forward failed"):
        call(batch=(bad, Y))


@pytest.mark.parametrize("function", [protect, protected_step])
def test_parameters_that_are_no_state_dict_are_refused(
    model: nn.Module, batch: tuple[Tensor, Tensor], function: Call
) -> None:
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    for bad in (arrays, list(model.parameters()), model, 3, {}):
        with pytest.raises(ModelError):
            _called(function, model, batch, received=bad)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"budget": None}, ConfigError, "'pl-learn' needs a budget"),
        ({"mechanism": "none"}, ConfigError, "'none' takes no budget, got 0.98"),
        ({"mechanism": "pl-lern"}, ConfigError, "Did you mean 'pl-learn'"),
        ({"budget": 1.2}, BudgetError, "budget=1.2 to be < 1"),
        ({"budget": float("nan")}, EquipoiseError, "budget"),
        ({"budget": "much"}, EquipoiseError, "budget"),
        ({"budget": [0.98], "client": 1}, ConfigError, "budget has 1 values, none for client 1"),
        ({"mechanism": "ls-learn", "budget": 0}, BudgetError, "to be > 0"),
        ({"settings": ProtectionSettings(factor=0.5)}, EquipoiseError, "factor=0.5"),
        ({"settings": ProtectionSettings(gamma=[0.1, 0.2]), "client": 1}, ConfigError, "gamma"),
        ({"settings": ProtectionSettings(negative_norm={"rounds": [1], "values": []})}, ConfigError, "negative_norm"),
        ({"settings": ProtectionSettings(steps=-1)}, ConfigError, "steps"),
        ({"client": -1}, EquipoiseError, "client"),
        ({"round_number": -1}, EquipoiseError, "round"),
        ({"mechanism": 5}, ConfigError, "mechanism"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    call: Call, change: dict[str, Any], error: type[EquipoiseError], text: str
) -> None:
    with pytest.raises(error, match=text):
        call(**change)


def test_a_model_with_running_statistics_is_refused(batch: tuple[Tensor, Tensor]) -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 5), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(2 * 24 * 24, 10))
    with pytest.raises(ModelError, match=r"'1' \(BatchNorm2d\)"):
        protect(network, copied(network), batch, "pl-learn", 0.98)


def test_a_model_put_back_into_train_mode_is_checked_again(batch: tuple[Tensor, Tensor]) -> None:
    network = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(784), nn.Linear(784, 10)).eval()
    protect(network, copied(network), batch, "pl-learn", 0.98)
    with pytest.raises(ModelError, match="BatchNorm1d"):
        protect(network.train(), copied(network), batch, "pl-learn", 0.98)


# --- what a forward may do to buffers -------------------------------------------------------------------------------


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


class Remembering(nn.Module):
    """Notes the largest input in a buffer, by a write that torch.func lets pass, while it is differentiated."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.register_buffer("peak", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            torch.maximum(self.peak, x.amax(0), out=self.peak)
        result: Tensor = self.layer(x)
        return result


@pytest.mark.parametrize("send", [protect, protected_step])
def test_what_a_forward_writes_into_a_buffer_does_not_leave(send: Any) -> None:
    model = Remembering()
    received = copied(model)
    sent = send(model, received, (torch.rand(5, 4) + 100, torch.tensor([0, 1, 2, 0, 1])), "pl-learn", 0.98)
    assert sent.parameters["peak"].tolist() == [0.0] * 4
    assert received["peak"].tolist() == [0.0] * 4, "nor does the caller's copy change"


def test_a_module_with_two_names_keeps_its_own_tensors() -> None:
    """torch's tie_weights would leave the received buffers in it, for later training to write into."""
    shared = nn.BatchNorm1d(4, affine=False).eval()
    model = nn.Sequential(shared, nn.Linear(4, 4), shared, nn.Linear(4, 3))
    received, before = copied(model), {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    protect(model, received, (torch.rand(5, 4) + 50, torch.tensor([0, 1, 2, 0, 1])), "pl-learn", 0.98)
    assert {name: id(tensor) for name, tensor in model.state_dict(keep_vars=True).items()} == before
    assert all(isinstance(parameter, nn.Parameter) for parameter in model[1].parameters())


@pytest.mark.parametrize("send", [protect, protected_step])
def test_buffers_of_the_models_own_memory_are_not_taken_for_received_ones(send: Any) -> None:
    """``model.state_dict()`` holds what training has left there."""
    model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)).eval()
    batch = torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])
    with pytest.raises(ModelError, match=r"'0.running_mean' is the model's own memory.*copied before you train"):
        send(model, model.state_dict(), batch, "pl-learn", 0.98)


@pytest.mark.parametrize("name", WHOLE)
def test_an_exploding_step_releases_nothing(call: Call, name: str) -> None:
    change = {"mechanism": name, "budget": BUDGETS[name], "client": 2, "round_number": 5}
    with pytest.raises(ReleaseError, match=r"client 2 in round 5 .* Nothing was released"):
        call(**change, settings=ProtectionSettings(eta=1e39, clip=None))


def test_a_distortion_that_rounding_swallows_is_not_released(model: nn.Module, trained: Call) -> None:
    """At 1e8 float32 numbers lie 8 apart: adding 0.1 to each changes nothing, whatever was drawn."""
    local = {name: tensor + 1e8 for name, tensor in model.state_dict().items()}
    with pytest.raises(ReleaseError, match="Nothing was released"):
        trained(local=local)


def test_a_release_that_was_not_accepted_never_leaves(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    genuine = protection.updated_release

    def out_of_bounds(*arguments: Any, **named: Any) -> Any:
        made, local = genuine(*arguments, **named)
        made.record.accepted.fill_(False)
        return made, local

    monkeypatch.setattr(protection, "updated_release", out_of_bounds)
    with pytest.raises(ReleaseError, match="Nothing was released"):
        call()
