"""Models that a plain call with one tensor does not fit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn


class Pair(nn.Module):
    """Two named inputs, a dictionary of outputs; 38 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.out = nn.Linear(3, 4), nn.Linear(2, 4), nn.Linear(4, 2)

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        hidden = torch.tanh(self.left(left) + self.right(right))
        return {"logits": self.out(hidden), "hidden": hidden}


def logits_loss(outputs: dict[str, Tensor], labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs["logits"], labels)


def pair_batch(replicas: int, examples: int = 4) -> tuple[dict[str, Tensor], Tensor]:
    draw: Any = torch.Generator().manual_seed(1)
    left = torch.randn(replicas, examples, 3, generator=draw, dtype=torch.float64)
    right = torch.randn(replicas, examples, 2, generator=draw, dtype=torch.float64)
    return {"left": left, "right": right}, torch.randint(2, (replicas, examples), generator=draw)


class Sequence(nn.Module):
    """Embedding, a recurrent layer, a linear one: nothing that torch.func can run as it is."""

    def __init__(self, kind: type[nn.RNNBase] = nn.LSTM) -> None:
        super().__init__()
        self.embedding, self.recurrent = nn.Embedding(7, 4), kind(4, 5, batch_first=True)
        self.out = nn.Linear(5, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs: Tensor = self.out(self.recurrent(self.embedding(tokens))[0].mean(1))
        return outputs
