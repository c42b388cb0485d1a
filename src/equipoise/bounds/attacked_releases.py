"""InvGrad on releases of public images, with all that Lemma D.1 of Zhang et al. (arXiv:2305.15148) is about.

All federations and snapshots are attacked in one batch. The matching residual of every iteration is read off the
gradients that the attack computes anyway; distances come from ``auditing.scoring.Trace``, as in an audit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..attack.attack import Hooks
from ..attack.descent import Search
from ..attack.invgrad import invgrad
from ..attack.simulate import chunk, pieces
from ..attack.view import Server, View
from ..auditing import image_scores as scores
from ..auditing.cells import Cell, server_of
from ..auditing.examine import released
from ..auditing.options import AuditOptions
from ..auditing.scoring import Trace
from ..auditing.targets import Materials, build_targets
from ..mechanism.intensity import intensity
from ..mechanism.protection import NO_PROTECTION
from ..models.batched import Batched
from .context import BoundsContext
from .estimates import stretches

LOOKS = 8
"""Iterations at which examples are set beside their reconstructions one by one."""


@dataclass(frozen=True, kw_only=True)
class AttackedReleases:
    """What InvGrad made of the releases of one dataset: N rows, ``cells`` of equal size one after the other."""

    cells: list[tuple[int, int]]  # (federation, round)
    beta: Tensor  # [N] |alpha|_2 as it arrives
    leakage: Tensor  # [N]
    beyond: Tensor  # [N] share of distances beyond D
    farthest: Tensor  # [N] largest distance seen
    ratios: Tensor  # [pairs, N] |d1 - d2| / |g(d1) - g(d2)|, original against reconstruction
    public: Tensor  # [cells, pairs] likewise, public images of one label
    residuals: Tensor  # [I, N]
    alive: Tensor  # [N] bool: the attack's cost stayed finite

    def of(self, cell: int) -> slice:
        """The rows of one cell."""
        size = len(self.beta) // len(self.cells)
        return slice(cell * size, (cell + 1) * size)


def attack_releases(context: BoundsContext, name: str, cells: list[tuple[int, int]]) -> AttackedReleases:
    """InvGrad on ``targets`` releases of every cell, all with the same images and standard noise.

    Starting points are keyed by row, so those of the first cell are an audit's, and the others' are their own.
    """
    sweep, options = context.sweep, context.options
    s, dataset = sweep.settings, sweep.datasets[name]
    materials = Materials.of(dataset).to(sweep.device, sweep.dtype)
    server = server_of(s, dataset, sweep.batched, NO_PROTECTION)
    effort = AuditOptions(releases=options.targets, candidates=2, others=1, seed=options.seed)
    targets = build_targets(materials, server, effort)
    previous, out, clean = [], [], []
    for index, round_number in cells:
        fed, weights = sweep.federations[index], context.weights[round_number][index]
        protection = s.protection.at(fed.mechanism, fed.budget, round_number + 1)
        bare = replace(protection, mechanism=protection.mechanism.plain)
        out.append(released(Cell(weights, replace(server, protection=protection), {}), targets, effort))
        clean.append(released(Cell(weights, replace(server, protection=bare), {}), targets, effort))
        previous.append(weights.expand(options.targets, -1))
    labels = targets.labels.repeat(len(cells), 1)
    view = View(torch.cat(previous), torch.cat(out), labels)
    truth = targets.inputs.repeat(len(cells), *[1] * (targets.inputs.dim() - 1))
    beta = intensity((view.released - torch.cat(clean)).double())
    public = torch.stack([_public_ratios(server, materials, context.weights[at][index]) for index, at in cells])
    seen = AttackObserver(
        server, view, truth, s.protection.leakage.D, options.iterations or s.protection.leakage.iterations
    )
    images, alive = seen.attack(options.seed, context.tell)
    cost = torch.cdist(images.flatten(2), truth.flatten(2)).square() / server.pixels
    leakage, beyond = seen.trace.leakage(scores.match(cost, labels))
    return AttackedReleases(
        cells=cells, beta=beta.cpu(), leakage=leakage.double().cpu(), beyond=beyond.double().cpu(),
        farthest=seen.farthest.cpu(), ratios=seen.ratios, public=public.cpu(), residuals=seen.residuals.values.cpu(),
        alive=alive.cpu(),
    )  # fmt: skip


# -- watching the attack -------------------------------------------------------------------------------------------


class AttackObserver:
    """Watches an attack: residuals, distances, and ratios of inputs to updates."""

    def __init__(self, server: Server, view: View, truth: Tensor, D: float, iterations: int):
        self.server, self.view, self.truth, self.iterations = server, view, truth, iterations
        self.residuals, self.trace = ResidualRecorder(server, view, iterations), Trace(truth, D)
        self.farthest = torch.zeros(len(view), dtype=torch.float64, device=truth.device)
        self.looks = sorted({max(1, round(iterations * (j + 1) / LOOKS)) for j in range(LOOKS)} | {1})
        self.ratios = torch.full((len(self.looks) * server.examples, len(view)), torch.nan, dtype=torch.float64)

    def attack(self, seed: int, tell: Callable[[str, float], None]) -> tuple[Tensor, Tensor]:
        """Run InvGrad; the images that it ends with, and whether its cost stayed finite ``[N]``."""

        def watch(rows: Tensor, iteration: int, images: Tensor) -> None:
            self.watch(rows, iteration, images)
            tell("invgrad", len(rows) / 1700)

        result = invgrad(self.residuals.server, self.view, Search(iterations=self.iterations, seed=seed), Hooks(watch))
        assert result.stopped is not None
        return result.images, result.stopped == 0

    def watch(self, rows: Tensor, iteration: int, images: Tensor) -> None:
        self.residuals.watch(rows, iteration)
        self.trace.watch(rows, iteration, images)
        mine = rows.to(self.truth.device)
        own = (images - self.truth[mine]).flatten(2).norm(dim=2).max(1).values.double()
        self.farthest[mine] = torch.maximum(self.farthest[mine], own)
        if iteration in self.looks:
            first = self.looks.index(iteration) * self.server.examples
            result = _own_ratios(self.server, self.view.rows(mine), images, self.truth[mine])
            self.ratios[first : first + self.server.examples, rows] = result.cpu()


class ResidualRecorder:
    """The aggregate matching residuals ``r_i`` ``[I, N]`` of an attack under way, which must use this ``server``.

    The first gradient that is asked for after iteration i is the one at its images: by iteration i + 1, or by the
    final look at the cost.
    """

    def __init__(self, server: Server, view: View, iterations: int):
        self.server = replace(server, batched=_Overheard(server.batched, self._heard))  # type: ignore[arg-type]
        self.view, self.eta = view, server.eta
        self.values = torch.zeros(iterations, len(view), dtype=torch.float64, device=view.released.device)
        self._waiting: tuple[Tensor, int] | None = None

    def watch(self, rows: Tensor, iteration: int) -> None:
        self._waiting = rows.to(self.values.device), iteration

    def _heard(self, gradient: Tensor) -> None:
        if self._waiting is not None:
            rows, iteration = self._waiting
            apart = self.view.update[rows] + self.eta * gradient[: len(rows)]
            self.values[iteration - 1, rows] = intensity(apart).double()
        self._waiting = None


class _Overheard:
    """A ``Batched`` that shows the gradients an attack asks for; everything else is the original's."""

    def __init__(self, batched: Batched, heard: Callable[[Tensor], None]):
        self._batched, self._heard = batched, heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batched, name)

    def differentiable(self, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        result = self._batched.differentiable(params, images, labels)
        self._heard(result.detach())
        return result


# -- inputs against updates ----------------------------------------------------------------------------------------


def _updates(server: Server, weights: Tensor, images: Tensor, labels: Tensor) -> Tensor:
    """``g(d) - W`` of single examples ``[n, ...]`` at weights ``[n, P]``: ``[n, P]``."""
    parts = []
    for some in pieces(len(images), chunk(server, weights), images.device):
        objective = server.batched.at(images[some].unsqueeze(1), labels[some].unsqueeze(1))
        parts.append(-server.eta * objective.gradient(weights[some].contiguous()))
    return torch.cat(parts)


def _own_ratios(server: Server, view: View, images: Tensor, truth: Tensor) -> Tensor:
    """Of every original with its reconstruction: ``[E, n]``."""
    assert view.labels is not None
    count, labels = images.shape[1], view.labels.flatten()
    weights = view.previous.repeat_interleave(count, dim=0)
    guesses, originals = images.flatten(0, 1), truth.flatten(0, 1)
    moved, real = (_updates(server, weights, some, labels) for some in (guesses, originals))
    return stretches(guesses.flatten(1), moved, originals.flatten(1), real).view(-1, count).t()


def _public_ratios(server: Server, materials: Materials, weights: Tensor, count: int = 32) -> Tensor:
    """Of pairs of public images with one label: ``[pairs]``."""
    images, labels = materials.pool
    order = labels.argsort(stable=True)
    one, other = order[:-1], order[1:]
    same = (labels[one] == labels[other]).nonzero().flatten()
    same = same[torch.linspace(0, max(len(same) - 1, 0), min(count, len(same)), device=same.device).long()]
    if not len(same):
        return torch.full((1,), torch.nan, dtype=torch.float64)
    rows = torch.cat([one[same], other[same]])
    moved = _updates(server, weights.expand(len(rows), -1), images[rows], labels[rows])
    first, second = moved.chunk(2)
    return stretches(images[one[same]].flatten(1), first, images[other[same]].flatten(1), second)
