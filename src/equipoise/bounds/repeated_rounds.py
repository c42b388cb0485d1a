"""Rounds trained again: the one after a snapshot many times (Lemma C.1), and a short run from the start (Theorem 5.2).

All federations go at once. What the rounds show of F's curvature is added to what is known of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..engine.sweep import Sweep
from ..engine.tables import Tables
from ..mechanism.intensity import intensity
from .estimates import descent_ratio
from .global_objective import GlobalObjective


@dataclass(frozen=True)
class RepeatedRound:
    """The round after a snapshot, N times: ``[N, F]`` each. Distortions as they move the model."""

    decrease: Tensor  # F(W) - F(W_t) on examples drawn afresh, the same for both
    distortion: Tensor  # |Delta_t|^2
    clipped: Tensor  # share of the clients
    refused: Tensor  # share of the clients


def repeat_round(objective: GlobalObjective, round_number: int, eta: float) -> RepeatedRound:
    """The round after ``round_number`` again and again, with fresh mini-batches and noise."""
    context, options = objective.context, objective.context.options
    params = context.weights[round_number]
    sweep = context.sweep.at(round_number, params, eta)
    rounds = list(range(round_number + 1, round_number + 1 + options.repeats))
    tables = sweep.tables(rounds)
    decrease = []
    for i, draw in enumerate(rounds):
        new = _trained(sweep, tables, i, draw)
        some = context.drawn_examples(options.seed + draw)
        decrease.append(context.losses(params, some) - context.losses(new, some))
        if i == 0:  # with F over all examples, what its smoothness must be at least
            before, after = objective.loss[round_number], context.losses(new)
            slope, move = objective.gradient[round_number].double(), (new - params).double()
            objective.curvatures.append(descent_ratio(before, after, slope, move))
        context.tell(f"round {round_number + 1} repeated with eta {eta:.3g}", 0.1 * len(params))
    clipped, refused = tables.clipped.double().mean(2), 1 - tables.accepted.double().mean(2)
    return RepeatedRound(torch.stack(decrease), _moved(tables), clipped, refused)


@dataclass(frozen=True)
class ShortRun:
    """T rounds from the first weights with a small eta."""

    eta: float
    squared_gradient: Tensor  # [T, F] |grad F(W_{t-1})|^2
    distortion: Tensor  # [T, F] |Delta_t|^2
    decrease: Tensor  # [F] F(W_0) - F(W_T)
    clipped: Tensor  # [F] share of the releases
    refused: Tensor  # [F] share of the releases


def short_run(objective: GlobalObjective, eta: float) -> ShortRun:
    """Train from the first weights with the given eta, looking at F in every round."""
    context = objective.context
    sweep = context.sweep.at(0, context.sweep.state.params, eta)
    rounds = list(range(1, context.options.short + 1))
    tables = sweep.tables(rounds)
    squared, gradient, loss = [], objective.gradient[0], objective.loss[0]
    for i, draw in enumerate(rounds):
        squared.append(intensity(gradient.double()).square())
        new = _trained(sweep, tables, i, draw)
        after, value = context.gradients(new), context.losses(new)
        move = (new - sweep.state.params).double()
        length = intensity(move).clamp_min(1e-300)
        ratio = torch.where(length > 1e-300, intensity((after - gradient).double()) / length, 0.0)
        objective.curvatures += [ratio, descent_ratio(loss, value, gradient.double(), move)]
        gradient, loss, sweep.state.params = after, value, new
        context.tell(f"short run with eta {eta:.3g}", 0.5 * len(new))
    clipped, refused = tables.clipped.double().mean((0, 2)), 1 - tables.accepted.double().mean((0, 2))
    decrease = objective.loss[0] - loss
    return ShortRun(eta, torch.stack(squared), _moved(tables), decrease, clipped, refused)


def _trained(sweep: Sweep, tables: Tables, place: int, round_number: int) -> Tensor:
    """The global models ``[F, P]`` after the round that has row ``place`` of the tables."""
    return sweep.round(tables, torch.tensor([place], device=sweep.device), sweep.noise_table(round_number))


def _moved(tables: Tables) -> Tensor:
    """|Delta_t|^2 ``[S, F]``, as the server applied it."""
    return (tables.server_rate * tables.distortion.double()).square()
