"""On a GPU: capture one round as a CUDA graph and replay it, so that launching kernels costs nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor

from .tables import LENGTH, Tables

if TYPE_CHECKING:
    from .sweep import Sweep

NOISE_ROUNDS, NOISE_NUMBERS = 10, 2 << 20
"""Rounds whose noise is drawn at once, as the generator is many small kernels; fewer, if they are so many numbers."""

T = TypeVar("T")
MOST_STREAMS = 8
"""Blocks up to which each gets a stream of its own."""


def side_by_side(tasks: list[Callable[[], T]]) -> list[T]:
    """Run independent GPU tasks on a stream each; small kernels of one fill the gaps of another."""
    main = torch.cuda.current_stream()
    done = []
    streams = [torch.cuda.Stream() for _ in tasks]
    for task, stream in zip(tasks, streams, strict=True):
        stream.wait_stream(main)
        with torch.cuda.stream(stream):
            done.append(task())
    for stream in streams:
        main.wait_stream(stream)
    return done


class RoundGraph:
    """A captured ``Sweep.round`` that reads its tables at a step counter living on the device."""

    def __init__(self, sweep: Sweep, first: Tables):
        self.sweep = sweep
        self.tables = first.head(len(first.batches))
        self.step = torch.zeros(1, dtype=torch.int64, device=sweep.device)
        self.at = torch.zeros(1, dtype=torch.int64, device=sweep.device)
        first_noise = sweep.noise_table(1)
        numbers = sum(table.numel() for table in first_noise.values())
        self.length = max(1, min(NOISE_ROUNDS, NOISE_NUMBERS // max(1, numbers)))  # rounds of noise
        self.noise = {name: table.expand(self.length, -1, -1).contiguous() for name, table in first_noise.items()}
        self._capture()

    def _capture(self) -> None:
        state = self.sweep.state
        before = state.params.clone()
        velocity = None if state.velocity is None else state.velocity.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):  # warm-up: lazily made tensors and library handles
            for _ in range(3):
                self._round()
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self._round()
        state.params.copy_(before)
        if state.velocity is not None and velocity is not None:
            state.velocity.copy_(velocity)

    def _round(self) -> None:
        noise: dict[str, Tensor] = {
            name: table[0] if self.length == 1 else table.index_select(0, self.at)[0]
            for name, table in self.noise.items()
        }
        self.step.clamp_(max=len(self.tables.batches) - 1)
        self.sweep.state.params.copy_(self.sweep.round(self.tables, self.step, noise))
        self.step.add_(1)
        self.at.add_(1).remainder_(self.length)

    def run(self, rounds: list[int], tables: Tables, on_round: Callable[[int], None] | None) -> Tables:
        """Replay the graph for every round; returns what they recorded."""
        self.tables.copy_(tables)
        self.step.zero_()
        for start in range(0, len(rounds), self.length):
            part = rounds[start : start + self.length]
            for name, table in self.noise.items():
                self.sweep.draw(part, name, out=table[: len(part)])
            self.at.zero_()
            for round_number in part:
                self.graph.replay()
                if on_round:
                    on_round(round_number)
        return self.tables.head(len(rounds))


def capturable(sweep: Sweep, rounds: list[int]) -> bool:
    """Whether these rounds can be replayed: on a GPU, several, the noise in one table, nobody listening to releases."""
    table = sweep.noise_fits and not sweep.formal
    return sweep.device.type == "cuda" and table and 1 < len(rounds) <= LENGTH and sweep.on_releases is None
