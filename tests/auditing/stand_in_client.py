"""A client for the games against proved limits: softmax regression, gradients clipped one by one, Gaussian noise.

It claims ``sigma`` and uses ``sigma * share``; ``clips`` false leaves the clip out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.attack.known_others import Terms
from equipoise.auditing.limit_games import Game
from equipoise.auditing.targets import Materials

SIZE, CLASSES = 24, 4


@dataclass
class SoftmaxClient:
    game: Game
    terms: Terms
    share: float = 1.0  # of the noise that is claimed
    clips: bool = True
    seed: int = 0

    def units(self, weights: Tensor, rows: Tensor, clips: bool = True) -> Tensor:
        images = self.game.images[rows].double()
        outputs = images @ weights.view(CLASSES, SIZE).double().T
        errors = outputs.softmax(1) - torch.nn.functional.one_hot(self.game.labels[rows], CLASSES)
        gradients = (errors.unsqueeze(2) * images.unsqueeze(1)).flatten(1)
        norms = gradients.norm(dim=1, keepdim=True)
        return gradients * (self.terms.clip / norms).clamp(max=1) if clips else gradients

    def releases(
        self, weights: Tensor, data: Sequence[Tensor], streams: Sequence[int], round_number: int
    ) -> tuple[Tensor, Sequence[Tensor]]:
        released, took_part = [], []
        for rows, stream in zip(data, streams, strict=True):
            generator = torch.Generator().manual_seed(hash((self.seed, stream, round_number)) % 2**62)
            noise = torch.randn(weights.numel(), generator=generator, dtype=torch.float64)
            there = rows[torch.rand(len(rows), generator=generator) < self.terms.sampling_rate]
            spread = self.share * self.terms.sigma * self.terms.clip
            total = self.units(weights, there, self.clips).sum(0) + spread * noise
            released.append(weights - self.terms.rate * total)
            took_part.append(there)
        return torch.stack(released), took_part


def materials(pool: int = 200, seed: int = 0) -> Materials:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(pool + 40) % CLASSES
    images = torch.randn(pool + 40, SIZE, generator=generator)
    return Materials((images[:40], labels[:40]), (images[40:], labels[40:]), lambda values: values)


def weights(seed: int = 1) -> Tensor:
    return 0.3 * torch.randn(SIZE * CLASSES, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
