"""Models from daily work, by every mechanism: a release where one is possible, else an error whose remedy works.

docs/models.md has this as a table.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import DataError, ModelError
from equipoise.mechanism.protect import Protected, protect, protected_step
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.registry import MECHANISMS
from equipoise.mechanism.run_budget import GaussianSettings

SETTINGS = ProtectionSettings(steps=2, gaussian=GaussianSettings(rounds=2, divisor=4.0))
BUDGETS: dict[str, Any] = {"none": None, "pl-identical": 0.98, "pl-learn": 0.98, "ls-static": 50.0, "ls-learn": 50.0}
BUDGETS |= {"gs-static": 50.0, "gs-learn": 50.0, "laplace-dp": 10.0, "gaussian-dp": 2.0}
BUDGETS |= {"pruning": 0.3, "outpost": 1.25}
STATIC = [name for name, kind in MECHANISMS.items() if name in BUDGETS and not (kind.learns or kind.per_example)]
LEARNED = [name for name, kind in MECHANISMS.items() if name in BUDGETS and kind.learns]
FORMAL = [name for name, kind in MECHANISMS.items() if name in BUDGETS and kind.formal]
TOKENS = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [7, 8, 2, 0], [3, 3, 1, 0]])
LABELS = torch.tensor([0, 1, 2, 1])
NUMBERS = torch.rand(4, 6, generator=torch.Generator().manual_seed(1))


class Text(nn.Module):
    """Embedding, recurrent layer, last real output."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM, **form: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 5, padding_idx=0)
        self.rnn = kind(5, 6, batch_first=True, **form)
        self.out = nn.Linear(6 * (1 + self.rnn.bidirectional), 3)

    def forward(self, x: Tensor) -> Tensor:
        last = (x != 0).sum(1) - 1
        return self.out(self.rnn(self.words(x))[0][torch.arange(len(x)), last])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 5)
        self.out = nn.Linear(5, 9, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.words(x).mean(1)))


class Dictionary(nn.Module):
    """As the models of many libraries: several named inputs, a dictionary of outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(9, 5), nn.Linear(5, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        seen = self.words(input_ids) * attention_mask.unsqueeze(-1)
        return {"logits": self.out(seen.mean(1)), "seen": seen}


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 3), nn.Embedding(9, 3)

    def forward(self, numbers: Tensor, words: Tensor) -> Tensor:
        return self.one(numbers) + self.two(words).mean(1)


def frozen() -> nn.Module:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    model[0].requires_grad_(False)
    return model


def logits_loss(outputs: Any, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs["logits"], labels)


BATCHES: dict[str, Any] = {
    "tokens": (TOKENS, LABELS),
    "numbers": (NUMBERS, LABELS),
    "place": ((NUMBERS, TOKENS), LABELS),
    "name": ({"attention_mask": TOKENS != 0, "input_ids": TOKENS}, LABELS),
}
MODELS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "LSTM": (Text, "tokens"),
    "GRU, two layers, both directions": (lambda: Text(nn.GRU, num_layers=2, bidirectional=True), "tokens"),
    "RNN": (lambda: Text(nn.RNN), "tokens"),
    "tied weights": (Tied, "tokens"),
    "frozen layer": (frozen, "numbers"),
    "several inputs": (Two, "place"),
    "dictionary": (Dictionary, "name"),
    "BatchNorm in eval mode": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)).eval(),
        "numbers",
    ),
    "Dropout in eval mode": (lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(), nn.Linear(4, 3)).eval(), "numbers"),
}


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def send(model: nn.Module, batch: Any, name: str, received: Any = None, **more: Any) -> Protected:
    """``protect``, or for a guarantee ``protected_step``, from what was received."""
    call: Any = protected_step if MECHANISMS[name].formal else protect
    received = copied(model) if received is None else received
    return call(model, received, batch, name, BUDGETS[name], settings=SETTINGS, round_number=1, **more)


@pytest.fixture(autouse=True)
def _quiet() -> Any:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def test_every_mechanism_is_here() -> None:
    assert {*STATIC, *LEARNED, *FORMAL} == set(BUDGETS) == set(MECHANISMS)


@pytest.mark.parametrize("name", BUDGETS)
@pytest.mark.parametrize("what", MODELS)
def test_what_works(what: str, name: str) -> None:
    build, form = MODELS[what]
    model = build()
    loss = logits_loss if what == "dictionary" else None
    start = copied(model)
    with torch.no_grad():
        for parameter in model.parameters() if MECHANISMS[name].shaping is not None else ():
            parameter += 0.1 * parameter.requires_grad  # these send nothing where nothing was trained
    sent = send(model, BATCHES[form], name, start, loss=loss)
    assert list(sent.parameters) == list(start)
    trained = {key for key, tensor in model.named_parameters(remove_duplicate=False) if tensor.requires_grad}
    for key, tensor in sent.parameters.items():
        moved = key in trained and name != "none"
        assert torch.equal(tensor, start[key]) != moved, key
        assert torch.isfinite(tensor).all()
    model.load_state_dict(sent.parameters)
    if what == "tied weights":
        assert torch.equal(sent.parameters["words.weight"], sent.parameters["out.weight"])


@pytest.mark.parametrize("what", ["LSTM", "GRU, two layers, both directions"])
def test_the_gradient_of_a_recurrent_model_is_that_of_torch(what: str) -> None:
    model, (x, y) = MODELS[what][0](), BATCHES["tokens"]
    sent = protected_step(model, copied(model), (x, y), "none", settings=ProtectionSettings(eta=0.5))
    loss = nn.functional.cross_entropy(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    for (key, tensor), gradient in zip(model.named_parameters(), gradients, strict=True):
        assert torch.allclose(sent.parameters[key], tensor - 0.5 * gradient, atol=1e-6), key


# --- what static mechanisms take, and others do not -------------------------------------------------------------------


def text_with_dropout() -> nn.Module:
    return Text(nn.GRU, num_layers=2, dropout=0.3)


ACTIVE: dict[str, tuple[Callable[[], nn.Module], str, str, str]] = {
    "BatchNorm": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), "numbers",
        "'1' (BatchNorm1d) keeps running statistics", "call eval() on it",
    ),
    "Dropout": (
        lambda: nn.Sequential(nn.Linear(6, 4), nn.Dropout(), nn.Linear(4, 3)), "numbers",
        "'1' (Dropout) draws random numbers", "Call eval() on dropout",
    ),
    "GRU with dropout": (
        text_with_dropout, "tokens", "'rnn' (GRU) draws random numbers between its layers", "call eval() on it",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", STATIC)
@pytest.mark.parametrize("what", ACTIVE)
def test_in_train_mode_static_mechanisms_ask_nothing(what: str, name: str) -> None:
    model = ACTIVE[what][0]()
    sent = send(model, None, name)
    assert list(sent.parameters) == list(model.state_dict())
    assert model.training


@pytest.mark.parametrize("name", [*LEARNED, *FORMAL])
@pytest.mark.parametrize("what", ACTIVE)
def test_in_train_mode_the_others_name_the_module_and_the_remedy_works(what: str, name: str) -> None:
    build, form, cause, remedy = ACTIVE[what]
    model = build()
    with pytest.raises(ModelError) as caught:
        send(model, BATCHES[form], name)
    assert cause in caught.value.cause
    assert remedy in caught.value.remedy
    model.get_submodule(cause.split("'")[1]).eval()
    send(model, BATCHES[form], name)


@pytest.mark.parametrize("name", LEARNED)
def test_without_a_batch_nothing_can_be_learned(name: str) -> None:
    model = frozen()
    with pytest.raises(DataError, match="learns its distortion on a batch") as caught:
        send(model, None, name)
    assert "'pl-identical'" in caught.value.remedy
    send(model, None, "pl-identical")


@pytest.mark.parametrize("name", [*LEARNED, *FORMAL])
def test_a_dictionary_without_a_loss_is_told_which_loss(name: str) -> None:
    model = Dictionary()
    with pytest.raises(ModelError, match="returns dict, not a tensor") as caught:
        send(model, BATCHES["name"], name)
    loss = eval(caught.value.remedy.partition("loss=")[2].removesuffix("."), {"torch": torch})
    send(model, BATCHES["name"], name, loss=loss)


@pytest.mark.parametrize("name", [*LEARNED, *FORMAL])
def test_an_input_that_is_missing_is_told_by_name(name: str) -> None:
    with pytest.raises(ModelError, match=r"takes \(numbers, words\)") as caught:
        send(Two(), BATCHES["numbers"], name)
    assert "((x1, x2), y)" in caught.value.remedy


class Remembering(nn.Module):
    """Adds what it has seen so far to what it computes, in an attribute that torch knows nothing of."""

    def __init__(self) -> None:
        super().__init__()
        self.last, self.seen = nn.Linear(6, 3), 0.0

    def forward(self, x: Tensor) -> Tensor:
        if not bool(torch.isfinite(x).all()):
            raise ValueError
        outputs = self.last(x + self.seen)
        self.seen += float(x.detach().sum())
        return outputs


@pytest.mark.parametrize("name", FORMAL)
def test_a_guarantee_is_not_given_for_a_model_that_remembers(name: str) -> None:
    """It is found on made-up records: a blank one leaves nothing behind."""
    with pytest.raises(ModelError, match="depends on those before it"):
        send(Remembering(), (NUMBERS, LABELS), name)


# --- half precision ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", STATIC)
def test_half_precision_is_noised_in_single_precision(name: str, dtype: torch.dtype) -> None:
    model = Text().to(dtype)
    sent = send(model, None, name)
    assert {tensor.dtype for tensor in sent.parameters.values()} == {dtype}
    apart = torch.cat(
        [(sent.parameters[key].double() - tensor.double()).flatten() for key, tensor in copied(model).items()]
    )
    order = 1 if MECHANISMS[name].norm == "l1" else 2
    assert float(apart.norm(order)) == pytest.approx(sent.record["intensity"], rel=0.05)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", [*LEARNED, *FORMAL])
def test_gradients_want_single_precision_and_received_halves_are_fine(name: str, dtype: torch.dtype) -> None:
    model = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)).to(dtype)
    received = copied(model)
    with pytest.raises(ModelError, match=rf"Parameter '0.weight' is {dtype}") as caught:
        send(model, (NUMBERS.to(dtype), LABELS), name)
    assert "copy.deepcopy(model).float()" in caught.value.remedy
    sent = send(copy.deepcopy(model).float(), (NUMBERS, LABELS), name, received)
    assert {tensor.dtype for tensor in sent.parameters.values()} == {dtype}
