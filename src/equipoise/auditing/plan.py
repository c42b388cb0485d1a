"""What an audit will do and about how long that takes, counted before it begins.

Attacks count their own work in gradients of a batch (``Attack.work``); how long one takes is measured, with this model
and each mechanism, on this machine.
"""

from __future__ import annotations

import textwrap
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from ..attack.attack import Work
from ..attack.registry import SHARING, find
from ..attack.simulate import chunk, gradients, noise, respond
from ..attack.view import Server
from ..randomness import experiment_key
from .options import AuditOptions
from .summary import counted
from .targets import Materials, Targets

TIMES = 3
"""How often simulated releases are timed: the best counts, because on a busy machine threads that wait for each other
make single measurements several times too long."""
MOST_TIMED = 256
"""Of the releases that an attack simulates at once."""
MOST_STEPS = 50
"""Of a learner that are timed: more take as long each."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What an audit will do.

    >>> print(Plan(federations=2, snapshots=3, cells=9, there=4, attacks=["lti"], releases=32, seconds=130).text())
    2 federations x 3 snapshots: 9 cells (a defence at certain weights), each
    attacked by lti on 32 releases.
    4 of 9 cells were already there.
    About 2 min on this machine.
    """

    federations: int
    snapshots: int
    kind: str = "image"  # of the inputs
    cells: int = 0  # each counted once, controls and twins included
    there: int = 0  # of them, finished before
    attacks: Sequence[str] = ()
    releases: int = 0
    seconds: float = 0.0  # for all that is not there
    replayed: int = 0  # rounds of each federation that multi-round replays
    limited: int = 0  # cells that are held against proved limits
    games: int = 0  # in each of them, and in each replay of a federation with such limits
    remarks: Sequence[str] = ()  # of what cannot be kept, or was not taken

    def text(self) -> str:
        """What a reader should know before it starts, in lines of at most 80 columns."""
        first = (
            f"{counted(self.federations, 'federation')} x {counted(self.snapshots, 'snapshot')}: "
            f"{counted(self.cells, 'cell')} (a defence at certain weights), each attacked by "
            f"{', '.join(self.attacks)} on {self.releases} releases."
        )
        lines = textwrap.wrap(first, 80) if self.attacks and self.cells else []
        if self.limited:
            played = (
                f"{counted(self.limited, 'cell')} held against proved limits: {counted(self.games, 'game')} each, with "
                "the record and without it."
            )
            lines += textwrap.wrap(played, 80)
        if self.there:
            lines.append(f"{self.there} of {self.cells + self.limited} cells were already there.")
        lines += [line for remark in self.remarks for line in textwrap.wrap(remark, 80)]
        if self.replayed:
            lines += textwrap.wrap(f"multi-round replays {self.replayed} rounds of each federation.", 80)
        if self.attacks or self.replayed:
            whole = ", that replay included" if self.attacks and self.replayed else ""
            lines.append(f"About {rough(self.seconds)} on this machine{whole}.")
        return "\n".join(lines)


def rough(seconds: float) -> str:
    """
    >>> rough(0), rough(42), rough(130), rough(8000)
    ('5 s', '45 s', '2 min', '2.2 h')
    """
    if seconds < 90:
        return f"{max(5, -(-seconds // 5) * 5):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def work_of(attack: str, server: Server, targets: Targets, materials: Materials, options: AuditOptions) -> Work:
    """What an attack will do to one cell; one that does not tell counts as nothing."""
    found = find(attack)
    if found.work is None:
        return Work(0, 0.0)
    knowledge = targets.knowledge(materials.attack)
    knowledge = knowledge if attack in SHARING else found.granted(knowledge)
    return found.work(server, targets.labels, knowledge, {**options.settings, "seed": options.seed})


@dataclass
class Stopwatch:
    """How long a gradient takes with each kind of mechanism, measured once for each."""

    known: dict[tuple[object, ...], float] = field(default_factory=dict)

    def seconds(self, server: Server, weights: Tensor) -> float:
        """Of one gradient of a batch, as part of a simulated release."""
        protection = server.protection
        mechanism = protection.mechanism
        shaping = mechanism.shaping and mechanism.shaping.name
        one = (mechanism.distorts, mechanism.learns, mechanism.per_example, mechanism.clips, shaping)
        kind = (*one, gradients(server))
        if kind not in self.known:
            steps = min(protection.steps, MOST_STEPS)  # a folder may ask for any number
            server = replace(server, protection=replace(protection, steps=steps))
            many = min(MOST_TIMED, chunk(server, weights))
            self._simulate(server, weights, many)  # the first one prepares kernels and memory
            took = []
            for _ in range(TIMES):
                started = time.perf_counter()
                self._simulate(server, weights, many)
                took.append(time.perf_counter() - started)
            self.known[kind] = min(took) / (many * gradients(server))
        return self.known[kind]

    def per_product(self, like: Tensor) -> float:
        """Seconds of one multiplication in a matrix product."""
        if ("product",) not in self.known:
            square = torch.ones(256, 256, dtype=torch.float64, device=like.device)
            for _ in range(2):  # the first one prepares kernels and memory
                started = time.perf_counter()
                float((square @ square).sum())
                self.known["product",] = (time.perf_counter() - started) / 256**3
        return self.known["product",]

    @staticmethod
    def _simulate(server: Server, weights: Tensor, count: int) -> None:
        rows = torch.arange(count, device=weights.device)
        inputs = weights.new_full((count, server.examples, *server.shape), 0.5)
        inputs = torch.ones_like(inputs, dtype=torch.int64) if server.tokens else inputs
        labels = torch.zeros(count, server.examples, dtype=torch.int64, device=weights.device)
        drawn = noise(server, experiment_key(0, "audit/speed"), rows, weights)
        respond(server, weights, inputs, labels, drawn)
        if weights.device.type == "cuda":
            torch.cuda.synchronize(weights.device)
