"""Which defence is attacked at which weights: a mechanism, its static twins, and no defence at all.

A ``Cell`` is a defence at certain weights. All cells of an audit see the same targets and the same standard noise, so
their differences are paired. Every attacked set of weights gets a *positive* control: the same attacks on undistorted
releases show what they can do at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..attack.simulate import Companions, chunk, pieces, respond
from ..attack.simulate import noise as draw_noise
from ..attack.view import Public, Server, View
from ..data.dataset import Dataset
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..mechanism.budget import LeakageBudget
from ..mechanism.distortion import draw_bounds
from ..mechanism.intensity import intensity
from ..mechanism.protection import NO_PROTECTION, Protection, ProtectionSettings
from ..mechanism.registry import MECHANISMS, get_mechanism
from ..mechanism.schedule import value_at
from ..models.batched import Batched
from ..randomness import experiment_key
from .options import AuditOptions
from .table_scores import column_range
from .targets import Materials

OWN, POSITIVE = "own", "undistorted"
EQUAL_LOWER, EQUAL_NORM = "static, equal lower bound", "static, equal final norm"
SIMULATED = 64
"""Releases from which the final norm of a learned distortion is estimated."""
NEAR = 0.01
"""A final norm so near to the lower bound, as a share of it, is the lower bound: both twins are one, attacked once."""


@dataclass(frozen=True)
class Cell:
    """A defence at certain weights, and what it is called in the results."""

    weights: Tensor  # [P]
    server: Server
    about: dict[str, Any]  # dataset, mechanism, budget, seed, round, role
    view: View | None = None  # releases that are given; None: those of the targets are simulated

    def key(self) -> tuple[Any, ...]:
        """What tells one defence at some weights from another; a mechanism that does not learn has no steps."""
        protection = self.server.protection
        weights, mechanism = hashlib.sha256(self.weights.cpu().numpy().tobytes()).hexdigest(), protection.mechanism
        if not (mechanism.distorts or mechanism.clips or mechanism.per_example):
            return (weights,)
        steps = (protection.steps, protection.gamma, protection.negative_norm, protection.factor)
        learner, scale = steps if mechanism.learns else (), float(f"{float(protection.scale):.9g}")
        clip = (protection.clip, protection.clip_norm) if mechanism.clips or mechanism.per_example else ()
        kind = (mechanism.noise, mechanism.norm, mechanism.on_sphere, mechanism.clips, mechanism.per_example)
        shaping = () if mechanism.shaping is None else (mechanism.shaping.name,)
        return (weights, *kind, clip, scale, learner, *shaping)


def server_of(settings: Settings, dataset: Dataset, batched: Batched, protection: Protection) -> Server:
    """The attacker's position in a federation with these settings."""
    low, high = input_range(dataset)
    return Server(
        batched=batched, shape=dataset.shape, classes=dataset.classes, batch=settings.protection.batch,
        low=low, high=high, eta=settings.protection.eta, protection=protection,
        local_steps=settings.protection.local_steps, tokens=dataset.kind == "tokens",
    )  # fmt: skip


def input_range(dataset: Dataset) -> tuple[Tensor | float, Tensor | float]:
    """What is publicly known of the range of inputs: pixels lie in [0, 1]; columns about where public records do."""
    if dataset.kind == "tokens":
        return 0.0, float((dataset.vocabulary or 2) - 1)
    if dataset.kind == "table":
        return column_range(dataset.public_attack.inputs)
    blank = torch.zeros(1, *dataset.shape)
    scale = dataset.pixels(blank + 1) - dataset.pixels(blank)  # normalised = (pixel - offset) / scale
    low, high = ((edge - dataset.pixels(blank)) / scale for edge in (0.0, 1.0))
    return low[0, :, :1, :1], high[0, :, :1, :1]


def federation_cell(
    settings: Settings, federation: Federation, round_number: int, weights: Tensor, plain: Server
) -> Cell:
    """A federation's own mechanism at the weights after a round, as the client with the least noise will apply it next.

    Where clients have settings of their own, the row says which ``client`` that is.
    """
    own, coming = settings.protection, round_number + 1
    client = loosest_client(own, federation, coming)
    protection = own.at(federation.mechanism, federation.budget, coming, client)
    about = {**asdict(federation), "round": round_number}
    if per_client(own, federation):
        about["client"] = client
    if isinstance(own.measure(federation.mechanism), LeakageBudget):  # the score that this budget keeps below
        about["promised_leakage"] = value_at(federation.budget, coming, client, own.clients, "budget")
    return Cell(weights, replace(plain, protection=protection), about)


def loosest_client(settings: ProtectionSettings, federation: Federation, round_number: int) -> int:
    """The client with the least noise scale in a round; the first of several, so 0 where all are treated alike."""
    if not per_client(settings, federation):
        return 0
    scales = settings.scales(federation.mechanism, federation.budget, [round_number])[0]
    return scales.index(min(scales))


def per_client(settings: ProtectionSettings, federation: Federation) -> bool:
    """Whether clients differ in the budget or, where the distortion is learned, in gamma or lambda."""
    learner = (settings.gamma, settings.negative_norm) if get_mechanism(federation.mechanism).learns else ()
    return any(
        isinstance(part, list | tuple) and len(set(part)) > 1
        for value in (federation.budget, *learner)
        for part in (value["values"] if isinstance(value, Mapping) else [value])
    )


@dataclass(frozen=True)
class Planned:
    """A cell that is made when it is attacked: the norm of a twin takes a simulation, its key does not."""

    about: dict[str, Any]
    key: tuple[Any, ...]  # of ``Cell.key``; of a twin of equal final norm, that of the learned one and how it is found
    weights: Tensor
    server: Server  # as costly to attack as the cell's own
    make: Callable[[], Cell]


def with_controls(cell: Cell, materials: Materials, options: AuditOptions) -> Iterator[Cell]:
    """The defence itself, its static twins where it learns (these need public data), and no defence at all."""
    return (planned.make() for planned in planned_cells(cell, materials, options))


def planned_cells(cell: Cell, materials: Materials, options: AuditOptions) -> Iterator[Planned]:
    """Likewise, none of them made yet."""

    def playing(role: str, protection: Protection) -> Cell:
        about = {**cell.about, "role": role, "control": "positive" if role == POSITIVE else None}
        view = cell.view if role == OWN else None
        return replace(cell, server=replace(cell.server, protection=protection), about=about, view=view)

    def at_hand(role: str, protection: Protection) -> Planned:
        made = playing(role, protection)
        return Planned(made.about, made.key(), made.weights, made.server, lambda: made)

    own, public = cell.server.protection, materials.attack
    yield at_hand(OWN, own)
    if own.mechanism.learns and options.twins and public is not None:
        same = unlearned(own)
        yield at_hand(EQUAL_LOWER, same)
        like = playing(EQUAL_NORM, same)
        yield Planned(
            like.about, (*cell.key(), EQUAL_NORM, options.seed), like.weights, like.server,
            lambda: playing(EQUAL_NORM, replace(same, scale=final_norm(cell.server, cell.weights, public, options))),
        )  # fmt: skip
    if own.mechanism != NO_PROTECTION.mechanism:
        yield at_hand(POSITIVE, NO_PROTECTION)


def unlearned(protection: Protection) -> Protection:
    """The same noise, as it is drawn."""
    mechanism = protection.mechanism
    return replace(protection, mechanism=replace(mechanism, name=f"{mechanism.name} unlearned", learns=False))


def final_norm(server: Server, weights: Tensor, public: Public, options: AuditOptions) -> float:
    """The noise scale at which static noise has the final norm of a learned one: its mean over simulated releases.

    Learning often ends at the lower bound itself, to less than ``NEAR``.
    """
    protection, mechanism = server.protection, server.protection.mechanism
    same = unlearned(protection)
    key = experiment_key(options.seed, "audit/twins")
    pool = Companions((public[0], server.strata(public[1])), options.seed, "audit/twins")
    known = server.strata(public[1]).unique()
    labels = known[torch.arange(server.examples, device=known.device) % len(known)].expand(SIMULATED, -1)
    first = final = 0.0
    for some in pieces(SIMULATED, chunk(server, weights), weights.device):
        drawn = draw_noise(server, key, some, weights)
        assert drawn is not None
        rows = pool.draw(labels[some], some)
        batch = public[0][rows], public[1][rows]
        start = draw_bounds(drawn, protection)[0]
        static = respond(replace(server, protection=same), weights, *batch, drawn)
        learned = respond(server, weights, *batch, drawn)
        first += float(intensity(start, mechanism.norm).double().sum())
        final += float(intensity(learned - (static - start), mechanism.norm).double().sum())
    grown = final / first
    return float(protection.scale) * (1.0 if abs(grown - 1) < NEAR else grown)


def static_name(name: str) -> str | None:
    """The static mechanism that a learned one is compared with: alike in all but the learning."""
    mechanism = get_mechanism(name)
    if not mechanism.learns:
        return None
    plain = replace(mechanism, name="", learns=False)
    return next((other for other, known in MECHANISMS.items() if replace(known, name="") == plain), None)
