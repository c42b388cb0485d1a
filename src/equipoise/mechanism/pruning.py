"""Gradient pruning: of every tensor of an update the largest entries leave, all others stay at home.

References: Zhu, Liu and Han, "Deep Leakage from Gradients" (NeurIPS 2019, arXiv:1906.08935), who try it as a defence;
Lin et al., "Deep Gradient Compression" (ICLR 2018, arXiv:1712.01887), whose thresholds are per tensor.

Choices (docs/defences.md): exactly the asked number of coordinates of every tensor is kept, at least one; of equal
magnitudes the first in the order of the flat vector. There is no error feedback: the memory of Deep Gradient
Compression would send later what a defence withholds now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ..errors import BudgetError, is_finite
from ..models.layout import Stretches
from .shaping import Shaping, largest

SLACK = 1 + 1e-6
"""A share may have been rounded to float32 on its way: 0.3 of 10 coordinates are 3."""


@dataclass(frozen=True)
class ShareBudget:
    """The share of coordinates that is kept. Its scale is the compression ratio, one over the share.

    >>> ShareBudget().lower(0.01), ShareBudget().leakage(100.0)
    (100.0, 0.01)
    """

    factor: float = field(default=1.0, init=False)  # nothing is learned between bounds
    bounds_draw: bool = field(default=True, init=False)

    def leakage(self, intensity: float) -> float:
        """The share that a compression ratio keeps."""
        if not is_finite(intensity) or intensity < 1:
            raise BudgetError(f"Expected ratio={intensity!r} to be >= 1.", "At most all coordinates are kept.")
        return 1 / intensity

    def lower(self, budget: float) -> float:
        """The compression ratio."""
        if not is_finite(budget) or not 0 < budget <= 1:
            raise BudgetError(
                f"Expected budget={budget!r} to lie in (0, 1].",
                "It is the share of coordinates that is kept, for example 0.01; smaller is stricter.",
            )
        ratio = 1 / budget
        if not is_finite(ratio):
            raise BudgetError(f"budget={budget!r} asks for an infinite ratio.", "Choose a larger budget.")
        return ratio


def pruned(update: Tensor, ratio: Tensor, stretches: Stretches) -> Tensor:
    """The largest entries of every tensor, the rest 0: ``[R, P]``, compression ratios ``[R]`` -> ``[R, P]``.

    >>> pruned(torch.tensor([[3.0, -4.0, 1.0, 0.5]]), torch.tensor([2.0]), ((0, 3), (3, 4)))
    tensor([[ 0.0000, -4.0000,  0.0000,  0.5000]])
    """
    result = torch.zeros_like(update)
    for start, stop in stretches:
        size = stop - start
        kept = (size / ratio.double() * SLACK).floor().clamp(min(1, size), size)  # in float64, whatever the weights are
        part = update[:, start:stop]
        result[:, start:stop] = torch.where(largest(part.abs(), kept), part, 0.0)
    return result


PRUNING = Shaping(
    "pruning",
    lambda update, start, noise, scale, stretches: pruned(update, scale, stretches),
    scale="compression ratio",
    caution=(
        "There is no noise: what is kept leaves exactly as it is, at least one coordinate of every tensor, and the "
        "server decides by the weights that it sends which those are."
    ),
)
