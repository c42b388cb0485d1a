"""Models for tokens: padding changes nothing, and replicas give what each gives alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from equipoise.models.batched import Batched
from equipoise.models.check import check_model
from equipoise.models.text import LSTM, Transformer, pooled
from tests.models.reference import assert_replicas_alone


def small(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(1)
    return kind((8,), 3, 20)


def tokens(*shape: int) -> torch.Tensor:
    """Sequences of eight, the last two of them padding."""
    drawn = torch.randint(1, 20, (*shape, 8), generator=torch.Generator().manual_seed(2))
    drawn[..., 6:] = 0
    return drawn


def test_the_size_of_the_transformer() -> None:
    assert sum(p.numel() for p in Transformer().parameters()) == 345_410


@pytest.mark.parametrize("kind", [Transformer, LSTM])
def test_padding_changes_nothing(kind: type[nn.Module]) -> None:
    model, padded = small(kind), tokens(3)
    assert torch.allclose(model(padded), model(padded[:, :6]), atol=1e-6)


@pytest.mark.parametrize("kind", [Transformer, LSTM])
def test_every_token_counts(kind: type[nn.Module]) -> None:
    model, one = small(kind), tokens(1)
    for place in range(6):
        other = one.clone()
        other[0, place] = 1 + other[0, place] % 19
        assert not torch.allclose(model(one), model(other), atol=1e-5)


@pytest.mark.parametrize("kind", [Transformer, LSTM])
def test_padding_alone_is_finite_and_so_is_its_gradient(kind: type[nn.Module]) -> None:
    model = small(kind)
    model(torch.zeros(2, 8, dtype=torch.int64)).sum().backward()
    assert all(p.grad is None or bool(torch.isfinite(p.grad).all()) for p in model.parameters())


def test_the_order_of_tokens_matters_to_both() -> None:
    one = tokens(1)
    other = one.clone()
    other[0, :6] = one[0, :6].flip(0)
    for kind in (Transformer, LSTM):
        assert not torch.allclose(small(kind)(one), small(kind)(other), atol=1e-5)


def test_replicas_of_the_transformer_give_what_each_gives_alone() -> None:
    model = small(Transformer)
    check_model(model, tokens(2), 3)
    assert_replicas_alone(Batched(model), tokens(3, 4), torch.randint(3, (3, 4)))


def test_replicas_of_the_lstm_give_what_each_gives_alone() -> None:
    pytest.importorskip("equipoise.models.recurrent")
    model = small(LSTM)
    check_model(model, tokens(2), 3)
    assert_replicas_alone(Batched(model), tokens(3, 4), torch.randint(3, (3, 4)))


def test_the_mean_is_over_real_tokens() -> None:
    states = torch.arange(12.0).view(2, 3, 2)
    result = pooled(states, torch.tensor([[1, 1, 0], [0, 0, 0]]))
    assert result.tolist() == [[1.0, 2.0], [0.0, 0.0]]
