"""What the coming round will do to clients' losses on all of their data, and the full gradient of the global loss.

These look inside a client. They exist only in experiments, where one process plays every part, and only as numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..mechanism.intensity import intensity
from ..mechanism.noise import standard_noise
from ..randomness import experiment_key, uniform
from .evaluation import full_gradient, full_loss
from .metrics import Row

if TYPE_CHECKING:
    from .state import Preview
    from .sweep import Sweep


def full_record(sweep: Sweep) -> list[Row]:
    """A row per federation about the round to come, from the state just before it; lists are over its clients."""
    rows: list[Row] = [{"full_utility_loss": [], "gradient_norm_squared": g} for g in squared_gradients(sweep)]
    for seen in sweep.preview():
        for r, (federation, slot) in enumerate(seen.rows()):
            _one_client(sweep, seen, r, federation, slot, rows[federation])
    return rows


def _one_client(sweep: Sweep, seen: Preview, r: int, federation: int, slot: int, row: Row) -> None:
    fed, mechanism, round_number = sweep.federations[federation], seen.block.mechanism, sweep.state.round + 1
    seed = sweep.draws.seeds.index(fed.seed)
    client = int(sweep.draws.participants([round_number])[0, seed, slot])
    part = sweep.parts[fed.dataset][client].to(sweep.device)
    images, labels = sweep.inputs[part], sweep.labels[part]
    local = seen.released[r] - seen.distortion[r]
    trials = [local, seen.released[r]]
    if mechanism.distorts and mechanism.adds and not mechanism.on_sphere:
        # Example 5.2: the expected loss over the mechanism's distribution, by sampling
        count, key = sweep.settings.run.expected_draws, experiment_key(fed.seed, "expected")
        streams = [client * count + j for j in range(count)]
        numbers = uniform([key] * count, streams, [round_number], len(local), sweep.dtype, sweep.device)
        scale = seen.tables.scale[0, federation, slot]
        trials += list(local + scale * standard_noise(numbers[0], mechanism.noise))
    stacked = torch.stack(trials)
    many = len(stacked)
    losses = full_loss(sweep.batched, stacked, images.expand(many, *images.shape), labels.expand(many, -1))
    row["full_utility_loss"].append(float(losses[1] - losses[0]))
    if many > 2:
        gains = (losses[2:] - losses[0]).double()
        row.setdefault("expected_utility_loss", []).append(float(gains.mean()))
        row.setdefault("expected_utility_loss_error", []).append(float(gains.std() / len(gains) ** 0.5))
        row["expected_draws"] = sweep.settings.run.expected_draws


def squared_gradients(sweep: Sweep) -> list[float]:
    """|grad F(W)|^2 over all training examples, for every federation's current model."""
    squared = [0.0] * len(sweep.federations)
    for name in sweep.datasets:
        mine, rows = sweep.federations_on(name), sweep.examples(name)
        gradient = full_gradient(sweep.batched, sweep.state.params[mine], sweep.inputs[rows], sweep.labels[rows])
        for place, i in enumerate(mine):
            squared[i] = float(intensity(gradient[place : place + 1].double())) ** 2
    return squared
