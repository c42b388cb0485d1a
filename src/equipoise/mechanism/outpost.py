"""Outpost: pruning, and noise where weights spread and gradients are large.

Reference: Wang, Hugh and Li, "More than Enough is Too Much: Adaptive Defenses against Gradient Leakage in Production
Federated Learning" (IEEE INFOCOM 2023); constants are those of its configurations in TL-System/plato.

For every tensor l of an update:

* its *risk* is the variance of its weights, at most 1;
* the 20 % of its coordinates with the largest magnitude are kept;
* Gaussian noise of standard deviation ``risk * noise base``, in terms of the gradient, is added to those of its
  coordinates that are among the 40 % of the whole update with the largest square (the empirical Fisher information).

Choices (docs/defences.md): it is applied in every round (decay ``beta`` = 0), once to the whole update rather than to
every local step; risks are those of the weights that were received, which the server knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import BudgetError, is_finite
from ..models.layout import Stretches
from .pruning import pruned
from .shaping import Shaping, largest

KEPT = 0.2
"""Of every tensor: what a percentile of 80 leaves."""
PHI = 0.4
"""Of the whole update: where noise goes."""


@dataclass(frozen=True)
class OutpostBudget:
    """One over the noise base: smaller is stricter, and the default of the authors, 0.8, is a budget of 1.25.

    The scale is that of noise on the update at a risk of 1: a gradient is multiplied by ``eta`` on its way there, and
    the noise of several local steps adds up in variance.

    >>> OutpostBudget(eta=0.1, local_steps=4).lower(0.5)
    0.4
    """

    eta: float = 0.1
    local_steps: int = 1
    factor: float = field(default=1.0, init=False)  # nothing is learned between bounds
    bounds_draw: bool = field(default=True, init=False)

    @property
    def _unit(self) -> float:
        return self.eta * math.sqrt(self.local_steps)

    def leakage(self, intensity: float) -> float:
        """The budget behind a scale."""
        if not is_finite(intensity) or intensity <= 0:
            raise BudgetError(f"Expected scale={intensity!r} to be a finite number > 0.", "A scale is positive.")
        return self._unit / intensity

    def lower(self, budget: float) -> float:
        """The scale of the noise at a risk of 1."""
        if not is_finite(budget) or budget <= 0:
            raise BudgetError(
                f"Expected budget={budget!r} to be a finite number > 0.",
                "It is one over the noise base: 1.25 for the usual 0.8; smaller is stricter.",
            )
        scale = self._unit / budget
        if not is_finite(scale):
            raise BudgetError(f"budget={budget!r} asks for an infinite scale.", "Choose a larger budget.")
        return scale


def risks(weights: Tensor, stretches: Stretches) -> Tensor:
    """The leakage risk ``[R, L]`` of L tensors in models ``[R, P]``: the variance of its weights, at most 1.

    A single number has no spread, and so no risk by this measure.

    >>> risks(torch.tensor([[1.0, 2.0, 3.0, 4.0, 7.0, 5.0]]), ((0, 3), (3, 5), (5, 6)))
    tensor([[1., 1., 0.]])
    """
    parts = [weights[:, start:stop].double() for start, stop in stretches]
    spread = [part.var(dim=1, correction=1) if part.shape[1] > 1 else part.new_zeros(len(part)) for part in parts]
    return torch.stack(spread, dim=1).clamp(max=1.0).to(weights.dtype)


def perturbed(update: Tensor, weights: Tensor, noise: Tensor | None, scale: Tensor, stretches: Stretches) -> Tensor:
    """Updates ``[R, P]`` pruned and noised; see ``Shape``."""
    assert noise is not None
    size = update.shape[1]
    ratio = torch.full((len(update),), 1 / KEPT, dtype=torch.float64, device=update.device)
    chosen = largest(update.square(), max(1, math.floor(PHI * size)))
    deviation = torch.empty_like(update)
    each = risks(weights, stretches) * scale.to(update.dtype).unsqueeze(1)  # [R, L]
    for place, (start, stop) in enumerate(stretches):
        deviation[:, start:stop] = each[:, place : place + 1]
    return pruned(update, ratio, stretches) + torch.where(chosen, deviation * noise, 0.0)


OUTPOST = Shaping(
    "outpost", perturbed, noised=PHI, scale="noise scale (risk 1)",
    caution=(
        "The server decides how much of this noise there is: it is multiplied by the variance of the weights that the "
        "server sends, and may be none, and a larger eta of the run makes the update larger beside it."
    ),
)  # fmt: skip
