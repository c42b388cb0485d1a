"""What all results share: the run as it was, at the weights of its snapshots, and F with its gradient there."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from ..engine.evaluation import full_gradient, score
from ..engine.sweep import Sweep
from ..models.batched import Batched
from .options import BoundsOptions
from .rows import Row

Progress = Callable[[str, float], None]
"""Called with what is being done and how much of it, in seconds on a slow machine."""
SMOOTH = (nn.Sequential, nn.Flatten, nn.Linear, nn.Conv2d, nn.Sigmoid, nn.Tanh, nn.Softplus, nn.Identity)
"""Layers that are twice continuously differentiable; of others, nobody says so."""


@dataclass
class BoundsContext:
    """A sweep and the weights of its snapshots; all that is per federation follows ``sweep.federations``."""

    sweep: Sweep
    snapshots: list[int]  # the rounds asked for
    weights: dict[int, Tensor]  # round -> [F, P]: of those, and of the last snapshot there is
    options: BoundsOptions
    progress: Progress | None = None

    @property
    def last(self) -> int:
        """The round of the last snapshot, asked for or not: Theorem 5.2 is about the whole run."""
        return max(self.weights)

    def tell(self, what: str, amount: float) -> None:
        if self.progress:
            self.progress(what, amount)

    def about(self, index: int, round_number: int | None) -> Row:
        """What a row is about: a federation, at a snapshot or (None) over the whole run."""
        return {**self.sweep.about(self.sweep.federations[index]), "round": round_number}

    @cached_property
    def double(self) -> Batched:
        """The model in float64."""
        return Batched(copy.deepcopy(self.sweep.batched.model).double(), device=self.sweep.device)

    @cached_property
    def smooth(self) -> bool:
        """Whether every layer of the model is known to be smooth."""
        return all(isinstance(part, SMOOTH) for part in self.sweep.batched.model.modules())

    # -- a federation's place in the sweep -------------------------------------------------------------------

    def server_rate(self, index: int, round_number: int) -> float:
        sweep = self.sweep
        (rate,) = sweep.settings.server_rates(sweep.federations[index], [round_number], sweep.batched.layout.size)
        return rate

    def streams(self, index: int) -> list[int]:
        """The streams of randomness of a federation's slots (see ``Draws``)."""
        draws = self.sweep.draws
        first = draws.seeds.index(self.sweep.federations[index].seed) * draws.slots
        return list(range(first, first + draws.slots))

    def batch_rows(self, index: int) -> list[int]:
        """Where ``Tables.batches`` has the mini-batches of a federation's slots."""
        dataset = list(self.sweep.datasets).index(self.sweep.federations[index].dataset)
        return [self.sweep.draws.streams * dataset + stream for stream in self.streams(index)]

    # -- F ---------------------------------------------------------------------------------------------------

    def losses(self, params: Tensor, rows: Mapping[str, Tensor] | None = None) -> Tensor:
        """F of every federation's model ``[F, P] -> [F]`` in float64, over all its examples or given ones."""
        out = torch.zeros(len(params), dtype=torch.float64, device=params.device)
        for mine, images, labels in self._data(rows):
            out[mine] = score(self.sweep.batched, params[mine], images, labels)[1].double().mean(1)
        return out

    def gradients(self, params: Tensor, rows: Mapping[str, Tensor] | None = None) -> Tensor:
        """grad F, likewise: ``[F, P] -> [F, P]``."""
        out = torch.zeros_like(params)
        for mine, images, labels in self._data(rows):
            out[mine] = full_gradient(self.sweep.batched, params[mine], images, labels)
        return out

    def _data(self, rows: Mapping[str, Tensor] | None) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Every dataset's federations, and the images and labels that F averages over."""
        for name in self.sweep.datasets:
            chosen = self.sweep.examples(name) if rows is None else rows[name]
            yield self.sweep.federations_on(name), self.sweep.inputs[chosen], self.sweep.labels[chosen]

    def drawn_examples(self, seed: int) -> dict[str, Tensor]:
        """Rows of ``options.examples`` random training examples of every dataset."""
        drawn = {}
        for name in self.sweep.datasets:
            rows = self.sweep.examples(name)
            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
            drawn[name] = rows[order[: self.options.examples].to(rows.device)]
        return drawn
