"""Small models for sequences of tokens ``[B, L]``, whole numbers in which 0 is padding.

Attention is written out in plain operations and nothing is dropped out, so that many sets of parameters can be run at
once, and differentiated twice.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def pooled(states: Tensor, tokens: Tensor) -> Tensor:
    """The mean ``[B, W]`` of states ``[B, L, W]`` over the real tokens; zero for a sequence of padding alone.

    >>> pooled(torch.tensor([[[1.0], [3.0], [9.0]]]), torch.tensor([[4, 5, 0]]))
    tensor([[2.]])
    """
    real = (tokens != 0).unsqueeze(-1).to(states.dtype)
    return (states * real).sum(1) / real.sum(1).clamp_min(1)


class Attention(nn.Module):
    """Self-attention with several heads: every token looks at all real ones."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inward = nn.Linear(width, 3 * width)
        self.outward = nn.Linear(width, width)

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        batch, length, width = states.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.inward(states).chunk(3, -1)
        )
        scores = query @ key.transpose(-1, -2) * (width // self.heads) ** -0.5  # [B, heads, L, L]
        lowest = torch.finfo(scores.dtype).min  # not -inf: a sequence of padding alone would become NaN
        shares = scores.masked_fill(~real[:, None, None, :], lowest).softmax(-1)
        outputs: Tensor = self.outward((shares @ value).transpose(1, 2).reshape(batch, length, width))
        return outputs


class Layer(nn.Module):
    """Attention and a hidden layer, each beside a shortcut and after a normalisation."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads)
        self.norm2, self.fc1, self.fc2 = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, states: Tensor, real: Tensor) -> Tensor:
        states = states + self.attention(self.norm1(states), real)
        inner: Tensor = self.fc2(nn.functional.gelu(self.fc1(self.norm2(states))))
        return states + inner


class Transformer(nn.Module):
    """A transformer encoder (Vaswani et al., arXiv:1706.03762) that classifies a sequence by its mean state.

    ``shape`` is the longest length alone; shorter sequences, padded or not, will do.

    >>> sum(p.numel() for p in Transformer().parameters())
    345410
    """

    def __init__(
        self,
        shape: tuple[int, ...] = (64,),
        classes: int = 2,
        vocabulary: int = 1200,
        *,
        width: int = 96,
        layers: int = 2,
        heads: int = 4,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.randn(shape[0], width) / 10)
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.fc = nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        states, real = self.tokens(tokens) + self.places[: tokens.shape[1]], tokens != 0
        for layer in self.layers:
            states = layer(states, real)
        outputs: Tensor = self.fc(pooled(self.norm(states), tokens))
        return outputs


class LSTM(nn.Module):
    """An embedding, torch's LSTM over the whole sequence, and the mean of its states at the real tokens.

    Padding comes last, so that no state of a real token has seen any.

    >>> LSTM(vocabulary=50)(torch.tensor([[3, 7, 0, 0]])).shape
    torch.Size([1, 2])
    """

    def __init__(
        self,
        shape: tuple[int, ...] = (64,),  # any length will do
        classes: int = 2,
        vocabulary: int = 1200,
        *,
        width: int = 64,
        hidden: int = 128,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        states: Tensor = self.lstm(self.tokens(tokens))[0]
        outputs: Tensor = self.fc(pooled(states, tokens))
        return outputs
