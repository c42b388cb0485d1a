"""Cells, attacked and scored: the one place where attacks meet releases whose truth is known."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from ..attack.attack import Hooks, Knowledge
from ..attack.registry import SHARING, find
from ..attack.results import Result
from ..attack.simulate import noise, respond_all
from ..attack.view import Server, View
from ..errors import EquipoiseError
from ..mechanism.protection import Leakage
from ..randomness import experiment_key
from .cells import Cell
from .options import AuditOptions
from .results import FAILED, Outcome
from .scoring import Case, Trace, score
from .targets import Materials, Targets

Progress = Callable[[str, float], None]
"""Called with what is being done and how many steps of it were made, see ``Attack.work``."""


def released(cell: Cell, targets: Targets, options: AuditOptions) -> Tensor:
    """The releases ``[N, P]`` of all target batches, with noise that no attack draws."""
    server, weights, key = cell.server, cell.weights, experiment_key(options.seed, "audit/noise")
    drawn = partial(noise, server, key, like=weights)
    return respond_all(server, weights, targets.inputs, targets.labels, drawn)


def attack_cell(
    cell: Cell,
    targets: Targets,
    materials: Materials,
    options: AuditOptions,
    diameter: float = Leakage.D,
    progress: Progress | None = None,
    keep: Callable[[Outcome], None] = lambda outcome: None,
    *,
    forgiving: bool = False,
) -> list[Outcome]:
    """All attacks that the options name, on the cell's own releases or on simulated ones of the targets.

    ``keep`` gets each outcome as soon as there is one. An attack that cannot work here, say because no release moves
    the weights, raises a typed error, or, if that is to be forgiven, has an outcome without values that says why.
    """
    view = cell.view
    if view is None:
        view = View(cell.weights.expand(len(targets), -1), released(cell, targets, options), targets.labels)
    knowledge, results = targets.knowledge(materials.attack), []
    memory: dict[str, Any] | None = {"knowledge": knowledge} if len(SHARING & set(options.attacks)) > 1 else None
    for name in options.attacks:
        trace = Trace(targets.inputs, diameter)
        hooks = Hooks(trace.watch, steps(name, progress), memory if name in SHARING else None)
        try:
            result = run_attack(name, cell.server, view, knowledge, options, hooks)
            case = Case(cell, name, find(name).seen(view), targets, materials, options, trace)
            results.append(score(result, case))
        except EquipoiseError as error:
            if not forgiving:
                raise
            results.append(Outcome(cell.about, name, {}, {}, notes={FAILED: error.cause}))
        keep(results[-1])
    return results


def run_attack(
    name: str, server: Server, view: View, knowledge: Knowledge, options: AuditOptions, hooks: Hooks
) -> Result:
    """One attack by its name, handed what it needs, in copies: what it writes there reaches no other attack."""
    attack = find(name)
    view, knowledge = attack.seen(view).copy(), attack.granted(knowledge).copy()
    return attack.run(server, view, knowledge, {**options.settings, "seed": options.seed}, hooks)


def steps(name: str, progress: Progress | None) -> Callable[[int], None] | None:
    """Steps of an attack as progress."""
    return None if progress is None else lambda count: progress(name, count)
