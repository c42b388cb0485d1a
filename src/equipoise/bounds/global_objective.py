"""F at the snapshots of a run: its value, gradient and curvature, and how far mini-batch gradients stray from it.

These are the constants of Assumptions 5.2 and 5.3 of Zhang et al. (arXiv:2305.15148), which Lemma C.1 and Theorem 5.2
share. A server rate s other than 1 turns eta into s*eta and Delta_t into s*Delta_t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from ..engine.tables import default_chunk
from ..mechanism.intensity import intensity
from ..mechanism.release import local_step
from .context import BoundsContext
from .estimates import bias_ratio, curvature, deviations
from .rows import Row, assumption, average, compared, figure, given, largest


@dataclass
class GlobalObjective:
    """What is known of every federation's F; by round where it was measured at a snapshot."""

    context: BoundsContext
    loss: dict[int, Tensor] = field(default_factory=dict)  # [F]
    gradient: dict[int, Tensor] = field(default_factory=dict)  # [F, P]
    curvatures: list[Tensor] = field(default_factory=list)  # [F] each: L_F from below
    variance: dict[int, list[Row]] = field(default_factory=dict)  # sigma_g^2 of every federation
    bias: dict[int, list[float]] = field(default_factory=dict)  # about 1 where gradients are unbiased

    def smoothness(self, index: int) -> Row:
        """L_F of a federation, from below."""
        return largest(torch.stack(self.curvatures)[:, index])

    def largest_variance(self, index: int) -> Row:
        """sigma_g^2 as Assumption 5.3 asks for it: a bound at every round looked at."""
        return max((result[index] for result in self.variance.values()), key=lambda one: float(one["value"]))

    def squared_gradient(self, round_number: int, index: int) -> float:
        return float(intensity(self.gradient[round_number][index : index + 1].double())) ** 2

    def measure(self, round_number: int, params: Tensor) -> None:
        """F, its gradient and curvature, and the variance of mini-batch gradients, at ``params`` ``[F, P]``."""
        context, options = self.context, self.context.options
        gradient = context.gradients(params)
        self.loss[round_number], self.gradient[round_number] = context.losses(params), gradient
        some = context.drawn_examples(options.seed + round_number)
        probe = partial(curvature, epsilon=1e-4 if params.dtype == torch.float64 else 2e-3, seed=options.seed)
        # a direction from some examples, its curvature from all of them
        _, along = probe(partial(context.gradients, rows=some), params, options.power)
        self.curvatures.append(probe(context.gradients, params, 1, start=along)[0])
        context.tell(f"gradients and curvature of F at {round_number}", 1.0 * len(params))
        self.variance[round_number], self.bias[round_number] = [], []
        for index in range(len(params)):
            squares, mean = gradient_deviations(context, round_number, index, params[index], gradient[index])
            self.variance[round_number].append(average(squares))
            self.bias[round_number].append(bias_ratio(mean, gradient[index], float(squares.mean()), len(squares)))
        context.tell(f"mini-batch gradients at {round_number}", 0.3 * len(params))

    def compare(self, weights: dict[int, Tensor]) -> None:
        """Gradients at two snapshots, set against the way between them: L_F is at least their ratio."""
        rounds = sorted(weights)
        for i, one in enumerate(rounds):
            for other in rounds[i + 1 :]:
                apart = intensity((weights[one] - weights[other]).double())
                moved = intensity((self.gradient[one] - self.gradient[other]).double())
                self.curvatures.append(torch.where(apart > 0, moved / apart.clamp_min(1e-300), 0.0))


def gradient_deviations(
    context: BoundsContext, round_number: int, index: int, params: Tensor, full: Tensor
) -> tuple[Tensor, Tensor]:
    """Squared deviations ``[N]`` of the aggregated gradients of fresh rounds from the full one, and their mean."""
    sweep, count = context.sweep.at(round_number, context.sweep.state.params), context.options.samples
    s, slots, rows = sweep.settings, sweep.draws.slots, context.batch_rows(index)
    protection = s.protection.of_rows(sweep.federations[index].mechanism, 0.0, 0.0, 0.0)  # only its clip matters
    pixels = sweep.inputs[0].numel() * s.protection.batch
    size = max(1, default_chunk(len(params), pixels, sweep.dtype, sweep.device) // slots)
    squares, total = [], torch.zeros_like(params, dtype=torch.float64)
    for start in range(0, count, size):
        rounds = [round_number + 1 + j for j in range(start, min(start + size, count))]
        tables = sweep.tables(rounds)
        examples = tables.batches[:, rows].flatten(0, 1)
        objective = sweep.batched.at(sweep.inputs[examples], sweep.labels[examples])
        here = params.expand(len(examples), -1).contiguous()
        moved, _ = local_step([objective], here, 1.0, protection)  # one step of size 1 shows the (clipped) gradient
        share = tables.weights[:, index].to(moved)
        each = (here - moved).view(len(rounds), slots, -1)
        mean = (each * (share / share.sum(1, keepdim=True)).unsqueeze(-1)).sum(1)
        squares.append(deviations(mean, full))
        total += mean.double().sum(0)
    return torch.cat(squares), (total / count).to(full)


# -- assumptions ---------------------------------------------------------------------------------------------------


def largest_eta(smoothness: float) -> float:
    """The largest step that Lemma C.1 and Theorem 5.2 cover.

    >>> largest_eta(2.0), largest_eta(-1.0)
    (0.125, inf)
    """
    return 1 / (4 * smoothness) if smoothness > 0 else math.inf


@dataclass(frozen=True)
class Sampling:
    """What became of the releases of some rounds: clipped and refused gradients are biased ones."""

    clipped: float  # share
    refused: float  # share
    count: int


def assumptions(objective: GlobalObjective, index: int, eta: float, round_number: int, sampling: Sampling) -> list[Row]:
    """Assumptions 5.2 and 5.3 and the step size, for one federation; the bias is that at ``round_number``."""
    smooth, smoothness = objective.context.smooth, objective.smoothness(index)
    note = (
        "a network's gradient is Lipschitz on bounded sets only; L_F is an estimate from below, on the points visited"
        if smooth
        else "a layer is not known to be smooth: no L_F need exist"
    )
    return [
        assumption("F bounded below", "held", "cross-entropy is never negative", infimum=given(0.0)),
        assumption("L_F-Lipschitz gradient", "not checkable" if smooth else "violated", note, L_F=smoothness),
        compared("eta <= 1/(4 L_F)", given(eta), given(largest_eta(smoothness["value"])), strict=False,
                 note="L_F errs from below: a violation is certain, the contrary is not"),
        _unbiased(objective, index, round_number, sampling),
        assumption("bounded variance", "not checkable", "measured at the snapshots only"),
    ]  # fmt: skip


def _unbiased(objective: GlobalObjective, index: int, round_number: int, sampling: Sampling) -> Row:
    """Whether mini-batch gradients are unbiased: by the way they are drawn, and by what was seen."""
    sweep = objective.context.sweep
    s, shares = sweep.settings, sweep.shares[sweep.federations[index].dataset]
    broken = []
    if s.training.sampling != "uniform":
        broken.append("passes draw without replacement over rounds")
    if s.training.participants not in (None, s.protection.clients) and float(shares.max() - shares.min()) > 1e-12:
        broken.append("some of several clients of unequal size take part, and their mean is a ratio")
    if sampling.clipped > 0:
        broken.append("the gradient clip acted")
    if sampling.refused > 0:
        broken.append("some releases were refused")
    note = "; ".join(broken) or "uniform mini-batches, no clip acted; the bias ratio is about 1 without bias"
    draws = objective.variance[round_number][index]["count"]
    return assumption(
        "unbiased gradient sampling", "violated" if broken else "held", note,
        bias_ratio=figure(objective.bias[round_number][index], draws, "ratio"),
        clipped_share=figure(sampling.clipped, sampling.count, "share"),
        refused_share=figure(sampling.refused, sampling.count, "share"),
    )  # fmt: skip
