"""What a sweep reports: a row per federation and evaluated round, and the final results.

Some quantities look inside a client (losses on its full data, the distortion itself). They exist only in
experiments, where one process plays every part, and only as numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from .evaluate import by_client, full_gradient, full_loss, score
from .intensity import intensity
from .partition import partition
from .randomness import experiment_key, standard_noise, uniform
from .stretch import Block, Stretch

if TYPE_CHECKING:
    from .federation import Sweep

Row = dict[str, Any]


def evaluate(sweep: Sweep, done: list[Stretch], extra: list[Row] | None) -> list[Row]:
    """Rows after the current round: scores of the global models, means since the last evaluation."""
    rows = _since_last(sweep, done)
    for name, dataset in sweep.datasets.items():
        mine = [i for i, fed in enumerate(sweep.federations) if fed.dataset == name]
        params = sweep.state.params[mine]
        for kind, split in (("test", dataset.test), ("validation", dataset.validation)):
            images, labels = split.images.to(sweep.device, sweep.dtype), split.labels.to(sweep.device)
            correct, loss = score(sweep.batched, params, images, labels)
            clients = partition(split.labels, sweep.settings.clients, "identical", sizes=sweep.settings.sizes)
            accuracy, each = correct.double().mean(1).tolist(), by_client(correct, clients).tolist()
            for place, i in enumerate(mine):
                prefix = "" if kind == "test" else "validation_"
                rows[i][f"{prefix}accuracy"] = accuracy[place]
                rows[i][f"{prefix}loss"] = float(loss[place].double().mean())
                rows[i][f"{prefix}client_accuracy"] = each[place]
    _keep_best(sweep, rows)
    for row, more in zip(rows, extra or [{}] * len(rows), strict=True):
        row.update(more)
    return rows


def _since_last(sweep: Sweep, done: list[Stretch]) -> list[Row]:
    def join(name: str) -> Tensor:
        return torch.cat([getattr(part, name).cpu() for part in done]).double()

    utility, size, clipped = join("utility_loss"), join("intensity"), join("clipped")
    refused, moved = 1 - join("accepted"), join("distortion")
    return [
        {
            "dataset": fed.dataset,
            "mechanism": fed.mechanism,
            "budget": fed.budget,
            "seed": fed.seed,
            "round": sweep.state.round,
            "rounds_averaged": len(utility),
            "utility_loss": float(utility[:, i].mean()),
            "utility_loss_last": utility[-1, i].tolist(),
            "intensity": float(size[:, i].mean()),
            "intensity_last": size[-1, i].tolist(),
            "distortion_norm": float(moved[:, i].mean()),
            "distortion_norm_squared": float((moved[:, i] ** 2).mean()),
            "clipped_share": float(clipped[:, i].mean()),
            "refused": int(refused[:, i].sum()),
        }
        for i, fed in enumerate(sweep.federations)
    ]


def _keep_best(sweep: Sweep, rows: list[Row]) -> None:
    state = sweep.state
    for i, row in enumerate(rows):
        if row["validation_accuracy"] > float(state.best_validation[i]):
            state.best_validation[i] = row["validation_accuracy"]
            state.best_round[i] = row["round"]
            state.best_accuracy[i] = row["accuracy"]


def results(sweep: Sweep, last: list[Row]) -> list[Row]:
    """The final result of every federation, in the caller's order; ``last`` are the rows of the last round."""
    found = []
    for place, row in enumerate(last):
        i = sweep.order.index(place)
        fed, state, s = sweep.federations[i], sweep.state, sweep.settings
        found.append(
            {
                "dataset": fed.dataset,
                "mechanism": fed.mechanism,
                "budget": fed.budget,
                "seed": fed.seed,
                "rounds": state.round,
                "eta": s.eta,
                "server": {"rule": "mean", "rate": s.server_rate},
                "accuracy": row["accuracy"],
                "client_accuracy": row["client_accuracy"],
                "best_validation_round": int(state.best_round[i]),
                "accuracy_at_best_validation": float(state.best_accuracy[i]),
                "mean_utility_loss": float(state.utility_sum[i]) / state.round,
                "final_utility_loss": float(state.final_utility[i]),
                "final_intensity": row["intensity_last"],
                "releases_refused": int(state.refused[i]),
            }
        )
    return found


# -- full-client records ------------------------------------------------------------------------------------------


@dataclass
class _Full:
    """Full-client quantities of one round, per federation: lists over clients."""

    utility: list[float]
    expected: list[float]
    expected_error: list[float]


def full_record(sweep: Sweep, when: int) -> list[Row]:
    """What round ``when`` will do to every client's full loss, from the state just before it.

    The round's randomness is keyed, so looking at it here does not change it.
    """
    tables, step = sweep.tables([when]), torch.zeros(1, dtype=torch.int64, device=sweep.device)
    noise = sweep.noise_table(when)
    found = [_Full([], [], []) for _ in sweep.federations]
    for block in sweep.blocks:
        released, distortion = sweep.release(block, tables, step, sweep.block_noise(block, noise))
        local = released.parameters - distortion
        for r in range(len(local)):
            _one_client(sweep, block, r, released.parameters[r], local[r], found, tables, when)
    rows = []
    gradients = _squared_gradients(sweep)
    for i, full in enumerate(found):
        row: Row = {"full_utility_loss": full.utility, "gradient_norm_squared": gradients[i]}
        if full.expected:
            row["expected_utility_loss"] = full.expected
            row["expected_utility_loss_error"] = full.expected_error
            row["expected_draws"] = sweep.settings.expected_draws
        rows.append(row)
    return rows


def _one_client(
    sweep: Sweep, block: Block, r: int, released: Tensor, local: Tensor, found: list[_Full], tables: Stretch, when: int
) -> None:
    federation = block.federations.start + r // block.shape[1]
    slot = block.slots.start + r % block.shape[1]
    fed = sweep.federations[federation]
    seed = sweep.draws.seeds.index(fed.seed)
    client = int(sweep.draws.participants([when])[0, seed, slot])
    part = sweep.parts[fed.dataset][client].to(sweep.device)
    images, labels = sweep.images[part], sweep.labels[part]
    trials = [local, released]
    if block.kind.distorts and not block.kind.learns and block.kind.measure != "leakage":
        # Example 2: the expected loss over the mechanism's distribution, by sampling
        count, size = sweep.settings.expected_draws, len(local)
        key = experiment_key(fed.seed, "expected")
        numbers = uniform(
            [key] * count, [client * count + j for j in range(count)], [when], size, sweep.dtype, sweep.device
        )
        scale = tables.scale[0, federation, slot]
        trials += list(local + scale * standard_noise(numbers[0], block.kind.noise))
    stacked = torch.stack(trials)
    losses = full_loss(
        sweep.batched, stacked, images.expand(len(stacked), *images.shape), labels.expand(len(stacked), -1)
    )
    found[federation].utility.append(float(losses[1] - losses[0]))
    if len(trials) > 2:
        gains = (losses[2:] - losses[0]).double()
        found[federation].expected.append(float(gains.mean()))
        found[federation].expected_error.append(float(gains.std() / len(gains) ** 0.5))


def _squared_gradients(sweep: Sweep) -> list[float]:
    """|grad F(W)|^2 over all training examples, for every federation's current model."""
    squared = [0.0] * len(sweep.federations)
    for name, parts in sweep.parts.items():
        mine = [i for i, fed in enumerate(sweep.federations) if fed.dataset == name]
        rows = torch.cat(parts).to(sweep.device)
        gradient = full_gradient(sweep.batched, sweep.state.params[mine], sweep.images[rows], sweep.labels[rows])
        for place, i in enumerate(mine):
            squared[i] = float(intensity(gradient[place : place + 1].double())) ** 2
    return squared
