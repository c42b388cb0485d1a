"""Recurrent layers and attention in plain operations: torch's own numbers, from the very same tensors."""

from __future__ import annotations

import copy
import itertools
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils.rnn import pack_padded_sequence

from equipoise.errors import ModelError
from equipoise.models.recurrent import PADDED, PlainCell, PlainRecurrent, decomposed

DRAW = 7
KINDS: dict[str, Any] = {
    "lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN, "relu": lambda *a, **k: nn.RNN(*a, nonlinearity="relu", **k),
}  # fmt: skip


def drawn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(DRAW))


def filled(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(DRAW)
    with torch.no_grad():
        for tensor in module.parameters():
            tensor.copy_(torch.rand(tensor.shape, generator=generator) - 0.5)
    return module.double()


def tensors(value: Any) -> list[Tensor]:
    return [value] if isinstance(value, Tensor) else [tensor for part in value for tensor in tensors(part)]


def assert_alike(one: nn.Module, two: nn.Module, *inputs: Any) -> None:
    """The same results in the same structure, and the same gradients of parameters and inputs."""
    gradients = []
    for module in (one, two):
        given = [part.clone().requires_grad_() if isinstance(part, Tensor) else part for part in inputs]
        results = tensors(module(*given))
        loss = sum((result * (i + 1)).square().sum() for i, result in enumerate(results))
        leaves = [*module.parameters(), *(part for part in given if isinstance(part, Tensor))]
        gradients.append((results, torch.autograd.grad(loss, leaves)))
    (results, first), (again, second) = gradients
    assert [result.shape for result in results] == [result.shape for result in again]
    for a, b in zip((*results, *first), (*again, *second), strict=True):
        assert torch.allclose(a, b, rtol=1e-10, atol=1e-10)


FORMS = [
    {"num_layers": layers, "bidirectional": both, "batch_first": first, "bias": bias}
    for layers, both, first, bias in itertools.product((1, 2), (False, True), (False, True), (True, False))
]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_gives_torchs_numbers_and_gradients(kind: str, form: dict[str, Any]) -> None:
    module = filled(KINDS[kind](3, 4, **form))
    plain = decomposed(module)
    assert isinstance(plain, PlainRecurrent)
    assert_alike(module, plain, drawn(5, 6, 3))


@pytest.mark.parametrize("both", [False, True])
def test_a_projected_lstm(both: bool) -> None:
    module = filled(nn.LSTM(3, 4, num_layers=2, proj_size=2, bidirectional=both, batch_first=True))
    assert_alike(module, decomposed(module), drawn(5, 6, 3))


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_of_the_callers_and_one_sequence_without_a_batch(kind: str) -> None:
    module = filled(KINDS[kind](3, 4, num_layers=2, bidirectional=True))
    plain, state = decomposed(module), drawn(4, 6, 4)
    assert_alike(module, plain, drawn(5, 6, 3), (state, state + 1) if kind == "lstm" else state)
    assert_alike(module, plain, drawn(5, 3))
    alone = state[:, 0]
    assert_alike(module, plain, drawn(5, 3), (alone, alone + 1) if kind == "lstm" else alone)


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
@pytest.mark.parametrize("bias", [True, False])
def test_cells(cell: Any, bias: bool) -> None:
    module = filled(cell(3, 4, bias=bias))
    plain, state = decomposed(module), drawn(6, 4)
    assert isinstance(plain, PlainCell)
    assert_alike(module, plain, drawn(6, 3))
    assert_alike(module, plain, drawn(3))
    assert_alike(module, plain, drawn(6, 3), (state, state + 1) if cell is nn.LSTMCell else state)


class Sentence(nn.Module):
    """A model as people write it."""

    def __init__(self, kind: str = "lstm", **form: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 3)
        self.rnn = KINDS[kind](3, 4, batch_first=True, **form)
        self.out = nn.Linear(4 * (1 + self.rnn.bidirectional), 2)

    def forward(self, x: Tensor) -> Tensor:
        self.rnn.flatten_parameters()
        return self.out(self.rnn(self.words(x))[0][:, -1])


@pytest.mark.parametrize("kind", KINDS)
def test_several_sets_of_parameters_and_single_examples(kind: str) -> None:
    model = filled(Sentence(kind, num_layers=2, bidirectional=True))
    plain, x, y = decomposed(model), torch.arange(24).view(4, 6) % 9, torch.tensor([0, 1, 1, 0])
    both = {name: torch.stack([tensor.detach(), tensor.detach() / 2]) for name, tensor in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], inputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(functional_call(plain, parameters, (inputs,)), labels)

    each = vmap(vmap(grad(loss), in_dims=(None, 0, 0)), in_dims=(0, None, None))(both, x[:, None], y[:, None])
    for r, i in itertools.product(range(2), range(4)):
        here = copy.deepcopy(model)
        here.load_state_dict({name: tensor[r] for name, tensor in both.items()})
        nn.functional.cross_entropy(here(x[i : i + 1]), y[i : i + 1]).backward()
        for name, tensor in here.named_parameters():
            assert torch.allclose(each[name][r, i], tensor.grad, rtol=1e-9, atol=1e-12), name


def test_the_copy_shares_every_tensor_and_the_model_stays_as_it_is() -> None:
    model = Sentence()
    model.norm = nn.BatchNorm1d(2)
    before, parts = dict(model.state_dict(keep_vars=True)), list(model.modules())
    plain = decomposed(model)
    after = plain.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[name] is tensor for name, tensor in before.items())
    assert all(one is two for one, two in zip(model.modules(), parts, strict=True))
    assert type(model.rnn) is nn.LSTM
    assert plain.words is model.words, "what needs no other form is not copied"


def test_a_model_without_such_layers_is_returned_itself() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.TransformerEncoderLayer(4, 2, 4))
    assert decomposed(model) is model


def test_a_layer_with_two_names_stays_one_layer() -> None:
    shared = nn.GRUCell(2, 2)
    plain: Any = decomposed(nn.ModuleDict({"one": shared, "two": shared}))
    assert plain["one"] is plain["two"]


class Own(nn.LSTM):
    """Whatever it does, it is not what torch's does."""


def test_layers_derived_from_torchs_are_left_alone() -> None:
    model = nn.Sequential(Own(2, 2))
    assert decomposed(model) is model


def test_packed_sequences_get_an_answer() -> None:
    packed = pack_padded_sequence(torch.zeros(3, 2, 3), torch.tensor([3, 1]))
    with pytest.raises(ModelError, match="packed sequence") as caught:
        decomposed(nn.LSTM(3, 4))(packed)
    assert caught.value.remedy == PADDED


def test_the_remedy_for_packing_gives_the_packed_result() -> None:
    module, x, lengths = filled(nn.LSTM(3, 4, batch_first=True)), drawn(5, 6, 3), torch.tensor([6, 1, 4, 2, 5])
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    outputs = decomposed(module)(x)[0]
    assert torch.allclose(outputs[torch.arange(len(x)), lengths - 1], module(packed)[1][0][0])


def test_dropout_between_layers_is_an_error_in_train_mode_alone() -> None:
    module = filled(nn.GRU(3, 4, num_layers=2, dropout=0.5))
    with pytest.raises(ModelError, match="GRU draws random numbers between its layers"):
        decomposed(module)(drawn(2, 2, 3))
    assert_alike(module.eval(), decomposed(module), drawn(2, 2, 3))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(9, 4)
        layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.encoder(self.words(x), src_key_padding_mask=x == 0)
        return y + self.attention(y, y, y, key_padding_mask=x == 0, need_weights=False)[0]


def test_attention_in_eval_mode_has_a_batched_form_and_no_dropout() -> None:
    model, x = filled(Attention()).eval(), torch.tensor([[1, 2, 3, 4], [5, 6, 7, 0]])
    plain = decomposed(model)
    values = {name: tensor.detach() for name, tensor in model.named_parameters()}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.func warns of slow fallbacks
        both = {name: torch.stack([tensor, tensor]) for name, tensor in values.items()}
        results = vmap(lambda parameters: functional_call(plain, parameters, (x,)))(both)
        expected = model(x)
    real = (x != 0).unsqueeze(-1)  # the fast path leaves zeros at padded places
    assert torch.allclose(results[1] * real, expected * real, rtol=1e-8, atol=1e-8)
    assert not model.encoder.training
    assert not model.attention.training
    assert model.attention.dropout == 0.3
