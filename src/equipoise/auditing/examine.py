"""Cells, attacked and scored: the one place where attacks meet releases whose truth is known."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..attack.attack import Hooks, Knowledge, Watch
from ..attack.registry import find
from ..attack.results import Result
from ..attack.simulate import chunk, pieces, respond
from ..attack.simulate import noise as draw_noise
from ..attack.view import Server, View
from ..randomness import experiment_key
from .cells import Cell
from .options import AuditOptions
from .results import Outcome
from .scoring import Case, Trace, score
from .targets import Materials, Targets

Progress = Callable[[str, float], None]
"""Called with what is being done and how many steps of it were made, see ``Attack.work``."""


def released(cell: Cell, targets: Targets, options: AuditOptions) -> Tensor:
    """The releases ``[N, P]`` of all target batches, with noise that no attack draws."""
    key = experiment_key(options.seed, "audit/noise")
    parts = []
    for rows in pieces(len(targets.truth), chunk(cell.server, cell.weights), cell.weights.device):
        drawn = draw_noise(cell.server, key, rows, cell.weights)
        parts.append(respond(cell.server, cell.weights, targets.images[rows], targets.labels[rows], drawn))
    return torch.cat(parts)


def attack_cell(
    cell: Cell,
    targets: Targets,
    materials: Materials,
    options: AuditOptions,
    diameter: float = 56.0,
    progress: Progress | None = None,
    keep: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """All attacks that the options name, on the cell's own releases or on simulated ones of the targets.

    ``keep`` gets each outcome as soon as there is one.
    """
    view = cell.view
    if view is None:
        view = View(cell.weights.expand(len(targets.truth), -1), released(cell, targets, options), targets.labels)
    knowledge, results = targets.knowledge(materials.attack), []
    for name in options.attacks:
        trace = Trace(targets.images, diameter)
        result = run_attack(name, cell.server, view, knowledge, options, progress, trace.watch)
        results.append(score(result, Case(cell, name, view, targets, materials, options, trace)))
        keep(results[-1])
    return results


def run_attack(
    name: str,
    server: Server,
    view: View,
    knowledge: Knowledge,
    options: AuditOptions,
    progress: Progress | None = None,
    watch: Watch | None = None,
) -> Result:
    """One attack by its name, handed what it needs of the knowledge."""
    attack = find(name)

    def step(count: int) -> None:
        if progress is not None:
            progress(name, count)

    settings = {**options.settings, "seed": options.seed}
    return attack.run(server, view, attack.granted(knowledge), settings, Hooks(watch, step))
