"""What a sweep reports: a row per federation and evaluated round, and the final results."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ..mechanism.registry import get_mechanism
from ..models.inputs import placed
from .evaluation import by_client, score
from .tables import Tables

if TYPE_CHECKING:
    from .sweep import Sweep

Row = dict[str, Any]


@dataclass(kw_only=True)
class Tally:
    """Running sums, so that what is kept does not grow with the rounds. F federations, K slots."""

    rounds: Tensor  # [1] since the last evaluation
    recent: Tensor  # [F, 7] float64 sums since then, see COLUMNS
    total: Tensor  # [F, 3] float64 over all rounds: utility loss, accepted, refused
    last_utility: Tensor  # [F, K] of the last round
    last_intensity: Tensor  # [F, K]
    best_validation: Tensor  # [F] float64
    best_round: Tensor  # [F]
    best_accuracy: Tensor  # [F] float64, on the test set at the best validation round

    COLUMNS: ClassVar[tuple[str, ...]] = (
        "utility_loss", "intensity", "clipped_share", "accepted", "refused",
        "distortion_norm", "distortion_norm_squared",
    )  # fmt: skip

    @classmethod
    def empty(cls, federations: int, slots: int) -> Tally:
        def zeros(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
            return torch.zeros(shape, dtype=dtype)

        return cls(
            rounds=zeros(1, dtype=torch.int64),
            recent=zeros(federations, len(cls.COLUMNS)),
            total=zeros(federations, 3),
            last_utility=zeros(federations, slots),
            last_intensity=zeros(federations, slots),
            best_validation=zeros(federations) - 1,
            best_round=zeros(federations, dtype=torch.int64),
            best_accuracy=zeros(federations),
        )

    def add(self, done: Tables) -> None:
        """Take in what some rounds recorded; a refused release counts as refused and as nothing else."""
        accepted = done.accepted.cpu()
        utility, size, clipped = (
            torch.where(accepted, part.cpu().double(), 0.0)
            for part in (done.utility_loss, done.intensity, done.clipped)
        )
        moved = done.distortion.cpu().double()
        count = accepted.double().sum(2)
        refused = (~accepted).double().sum(2)
        sums = [utility.sum(2), size.sum(2), clipped.sum(2), count, refused, moved, moved**2]
        # one round after the other: how rounds are grouped must not show in the last bit
        for row in torch.stack(sums, dim=-1):  # [F, columns]
            self.recent += row
            self.total += row[:, [0, 3, 4]]
        self.rounds += len(utility)
        self.last_utility = torch.where(accepted[-1], utility[-1], torch.nan)
        self.last_intensity = torch.where(accepted[-1], size[-1], torch.nan)


def noise_to_update(start: Tensor, released: Tensor, distortion: Tensor) -> Tensor:
    """L2 norm of the noise over that of the update: ``[F, P]``, ``[F, K, P]`` twice -> ``[F, K]``.

    >>> noise_to_update(torch.zeros(1, 2), torch.tensor([[[6.0, 7.0]]]), torch.tensor([[[6.0, 8.0]]]))
    tensor([[10.]])
    """
    update = (released - distortion).sub_(start.unsqueeze(1))
    sizes = (torch.linalg.vector_norm(values, dim=-1) for values in (distortion, update))
    return torch.divide(*sizes)


def evaluate(sweep: Sweep, extra: list[Row] | None) -> list[Row]:
    """Rows after the current round: scores of the global models, means since the last evaluation."""
    rows = _since_last(sweep)
    for name, dataset in sweep.datasets.items():
        mine = sweep.federations_on(name)
        params = sweep.state.params[mine]
        for prefix, split in (("", dataset.test), ("validation_", dataset.validation)):
            images, labels = placed(split.inputs, sweep.device, sweep.dtype), split.labels.to(sweep.device)
            correct, loss = score(sweep.batched, params, images, labels)
            parts = sweep.test_parts[name, prefix]
            accuracy, each = correct.double().mean(1).tolist(), by_client(correct, parts).tolist()
            for place, i in enumerate(mine):
                rows[i][f"{prefix}accuracy"] = accuracy[place]
                rows[i][f"{prefix}loss"] = float(loss[place].double().mean())
                rows[i][f"{prefix}client_accuracy"] = each[place]
    _keep_best(sweep, rows)
    for row, more in zip(rows, extra or [{}] * len(rows), strict=True):
        row.update(more)
    return rows


def _since_last(sweep: Sweep) -> list[Row]:
    tally, rows = sweep.state.tally, []
    count = int(tally.rounds)
    for i, fed in enumerate(sweep.federations):
        sums = dict(zip(tally.COLUMNS, tally.recent[i].tolist(), strict=True))
        releases = max(1.0, sums["accepted"])
        means = {name: sums[name] / releases for name in ("utility_loss", "intensity", "clipped_share")}
        means |= {name: sums[name] / count for name in ("distortion_norm", "distortion_norm_squared")}
        means |= {name: int(sums[name]) for name in ("accepted", "refused")}
        rows.append(
            {
                **sweep.about(fed),
                "round": sweep.state.round,
                "rounds_averaged": count,
                **means,
                "utility_loss_last": tally.last_utility[i].tolist(),
                "intensity_last": tally.last_intensity[i].tolist(),
                "noise_to_update": _ratio(sweep, i),
            }
        )
    tally.rounds.zero_()
    tally.recent.zero_()
    return rows


def _ratio(sweep: Sweep, federation: int) -> float | None:
    """Noise to update of the last round, a mean over accepted releases; None under a guarantee, which hides it."""
    if get_mechanism(sweep.federations[federation].mechanism).formal:
        return None
    accepted = ~torch.isnan(sweep.state.tally.last_intensity[federation])
    ratio = float(sweep.relative[federation].cpu().double()[accepted].mean())
    return ratio if isfinite(ratio) else None


def _keep_best(sweep: Sweep, rows: list[Row]) -> None:
    tally = sweep.state.tally
    for i, row in enumerate(rows):
        if row["validation_accuracy"] > float(tally.best_validation[i]):
            tally.best_validation[i] = row["validation_accuracy"]
            tally.best_round[i] = row["round"]
            tally.best_accuracy[i] = row["accuracy"]
