"""The inner problems of a run's clients: what Algorithm 2 learned on in the rounds after a snapshot, learned again.

Assumption 5.1 of Zhang et al. (arXiv:2305.15148) is about these, and its L_alpha is estimated here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from ..mechanism.distortion import draw_bounds
from ..mechanism.release import local_step
from ..models.objective import Objective
from .context import BoundsContext
from .estimates import curvature, in_annulus, ratios
from .options import BoundsOptions
from .trajectory import Trajectory, follow


@dataclass(frozen=True, kw_only=True)
class Subproblems:
    """R subproblems of one federation at one snapshot."""

    objective: Objective  # of the implementation
    exact: Objective  # in float64
    local: Tensor  # [R, P]
    init: Tensor  # [R, P]
    lower: Tensor  # [R]
    upper: Tensor  # [R]
    steps: int  # M
    gamma: Tensor  # [R]
    negative_norm: Tensor  # [R] lambda

    def learn(self, gamma: Tensor, middle: list[Tensor] | None = None) -> Trajectory:
        """Learn all distortions with the given step sizes; ``middle`` receives the iterate half-way."""

        def visit(step: int, alpha: Tensor) -> None:
            if middle is not None and step == (self.steps + 1) // 2:
                middle.append(alpha)

        gradient = partial(self.objective.gradient, out=torch.empty_like(self.local))
        return follow(
            gradient, self.exact.loss, self.local, self.init, self.lower, self.upper, steps=self.steps,
            gamma=gamma.unsqueeze(-1), negative_norm=self.negative_norm.unsqueeze(-1), exact=self.exact.gradient,
            visit=visit,
        )  # fmt: skip

    def smoothness(self, points: Sequence[Tensor], learned: Sequence[Trajectory], options: BoundsOptions) -> Tensor:
        """L_alpha of every subproblem, K times from below: ``[K, R]``, of which the largest of a column counts.

        Hessians at ``points``, pairs in the annulus, and every step that was taken. The negative norm adds at
        most lambda/lower to the loss's own; the steps are measured on phi as a whole.
        """
        base, gradient = self.local.double(), self.exact.gradient
        lower, upper = self.lower.double(), self.upper.double()
        extra = (self.negative_norm / self.lower).double()
        results = [
            curvature(gradient, base + point.double(), options.power, seed=options.seed + i)[0] + extra
            for i, point in enumerate(points)
        ]
        one, other = (in_annulus(base, lower, upper, options.seed + i) for i in (101, 102))
        results.append(ratios(gradient, base + one, base + other) + extra)
        results.append(ratios(gradient, base + points[-1].double(), base + one) + extra)
        steps = [part for seen in learned for part in (seen.lipschitz, seen.descent)]
        return torch.cat([torch.stack(results), *steps])


def subproblems(context: BoundsContext, index: int, round_number: int) -> Subproblems:
    """What the clients of a federation would learn on in the rounds after ``round_number``, batch by batch."""
    params, most = context.weights[round_number], context.options.subproblems
    sweep = context.sweep.at(round_number, params)
    s, mechanism = sweep.settings, sweep.federations[index].mechanism
    rounds = list(range(round_number + 1, round_number + 1 + -(-most // sweep.draws.slots)))
    tables = sweep.tables(rounds)
    examples = tables.batches[:, context.batch_rows(index)].flatten(0, 1)[:most]  # [R, L*B]
    count = len(examples)

    def rows(table: Tensor) -> Tensor:
        return table[:, index].flatten()[:count]

    protection = s.protection.of_rows(mechanism, rows(tables.scale), rows(tables.gamma), rows(tables.negative_norm))
    x, y = sweep.inputs[examples], sweep.labels[examples]
    parts = [slice(i * s.protection.batch, (i + 1) * s.protection.batch) for i in range(s.protection.local_steps)]
    objectives = [sweep.batched.at(x[:, part], y[:, part]) for part in parts]
    local, _ = local_step(objectives, params[index].expand(count, -1).contiguous(), s.protection.eta, protection)
    noise = sweep.draw(rounds, protection.mechanism.noise, context.streams(index)).flatten(0, 1)[:count]
    init, lower, upper = draw_bounds(noise, protection)
    exact = context.double.at(x[:, parts[-1]].double(), y[:, parts[-1]])
    return Subproblems(
        objective=objectives[-1], exact=exact, local=local, init=init, lower=lower, upper=upper,
        steps=s.protection.steps,
        gamma=rows(tables.gamma), negative_norm=rows(tables.negative_norm),
    )  # fmt: skip
