"""The server: check every release, average the rest with their weights, step.

``Total`` is the batched form the engine uses (F federations, any number of clients, added part by part, so
that memory does not grow with the clients). ``aggregate`` is the same for a list of releases of unknown
origin: each is refused with a named reason or counted.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from .errors import ReleaseError


class Total:
    """Running weighted sums over clients for F federations: ``sum_k p_k W_k`` and ``sum_k p_k``.

    Clients are added one after the other in float64, so the result does not depend on how they are grouped.
    """

    def __init__(self, like: Tensor):
        self.sum = torch.zeros_like(like, dtype=torch.float64)  # [F, P]
        self.distortion = torch.zeros_like(self.sum)  # sum_k p_k alpha_k
        self.mass = like.new_zeros(len(like), dtype=torch.float64)
        self.count = like.new_zeros(len(like), dtype=torch.int64)

    def add(self, where: slice, released: Tensor, distortion: Tensor, weights: Tensor, accepted: Tensor) -> None:
        """Add releases ``[f, k, P]`` of the federations ``where``; refused ones count for nothing."""
        share = torch.where(accepted, weights, 0.0)  # [f, k]
        keep = accepted.unsqueeze(-1)
        released, distortion = torch.where(keep, released, 0.0), torch.where(keep, distortion, 0.0)
        for k in range(released.shape[1]):
            weight = share[:, k, None].to(torch.float64)
            self.sum[where] += released[:, k] * weight
            self.distortion[where] += distortion[:, k] * weight
            self.mass[where] += weight[:, 0]
        self.count[where] += accepted.sum(1)

    def step(self, previous: Tensor, rate: Tensor | float, min_clients: int) -> tuple[Tensor, Tensor]:
        """Algorithm 1, l. 10: the new models (unchanged where too few were accepted) and ``|Delta_t|``.

        ``rate`` is 1 for the paper's plain mean; a number or one per federation ``[F]``.
        """
        valid = ((self.count >= min_clients) & (self.mass > 0)).unsqueeze(-1)
        mass = torch.where(valid[:, 0], self.mass, 1.0).unsqueeze(-1)
        mean = self.sum / mass
        rate = torch.as_tensor(rate, dtype=torch.float64, device=mean.device).view(-1, 1)
        moved = torch.where(rate == 1, mean, previous + rate * (mean - previous))
        size = torch.linalg.vector_norm(self.distortion / mass, dim=-1)
        return torch.where(valid, moved.to(previous.dtype), previous), size.to(previous.dtype)


@dataclass(frozen=True)
class Aggregate:
    """The new global parameters, who was counted, and why the others were not."""

    parameters: Tensor
    accepted: list[str]
    refused: dict[str, str] = field(default_factory=dict)
    void: bool = False


def refusal(candidate: object, like: Tensor, weight: object) -> str | None:
    """Why a release cannot be counted, or None.

    >>> refusal(torch.tensor([1.0, float("nan")]), torch.zeros(2), 1.0)
    '1 of 2 parameters are not finite'
    """
    if not isinstance(candidate, Tensor):
        return f"is {type(candidate).__name__}, not a tensor"
    if candidate.shape != like.shape:
        return f"has shape {tuple(candidate.shape)}, expected {tuple(like.shape)}"
    if candidate.dtype != like.dtype:
        return f"has dtype {candidate.dtype}, expected {like.dtype}"
    bad = int((~torch.isfinite(candidate)).sum())
    if bad:
        return f"{bad} of {candidate.numel()} parameters are not finite"
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight <= sys.float_info.max:
        return f"has weight {weight!r}, expected a finite number > 0"
    return None


def aggregate(
    previous: Tensor,
    releases: Mapping[str, object],
    weights: Mapping[str, object],
    rate: float = 1.0,
    min_clients: int = 1,
) -> Aggregate:
    """Weighted mean of the releases that pass every check; the model is unchanged when too few do.

    >>> result = aggregate(torch.zeros(2), {"a": torch.ones(2), "b": torch.tensor([1.0])}, {"a": 1, "b": 1})
    >>> result.parameters.tolist(), result.refused
    ([1.0, 1.0], {'b': 'has shape (1,), expected (2,)'})
    """
    if not isinstance(previous, Tensor) or previous.dim() != 1 or not torch.isfinite(previous).all():
        raise ReleaseError("Expected the global parameters to be a finite vector.", "Start from a healthy checkpoint.")
    if not (isinstance(rate, int | float) and math.isfinite(rate) and rate > 0):
        raise ReleaseError(f"Expected rate={rate!r} to be a finite number > 0.", "1 is the plain mean.")
    refused, kept = {}, []
    for name, candidate in releases.items():
        reason = refusal(candidate, previous, weights.get(name))
        if reason is None:
            kept.append(name)
        else:
            refused[name] = reason
    if len(kept) < max(min_clients, 1):
        return Aggregate(previous, kept, refused, void=True)
    shares = torch.tensor([float(weights[name]) for name in kept], dtype=torch.float64)  # type: ignore[arg-type]
    shares /= shares.max()  # so that no sum of finite weights overflows
    mean = torch.zeros_like(previous, dtype=torch.float64)
    for share, name in zip((shares / shares.sum()).tolist(), kept, strict=True):
        mean += share * releases[name].detach().to(torch.float64)  # type: ignore[attr-defined]
    moved = (previous.to(torch.float64) + rate * (mean - previous.to(torch.float64))).to(previous.dtype)
    if not torch.isfinite(moved).all():
        raise ReleaseError("The mean of the releases is not finite in their own precision.", "Check their magnitude.")
    return Aggregate(moved, kept, refused)
