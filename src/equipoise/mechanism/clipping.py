"""Bounding what gradients can do, before any noise: the norm of a mini-batch's gradient, or that of every example's."""

from __future__ import annotations

import torch
from torch import Tensor

from .intensity import Norm, intensity


def clip_gradient(gradient: Tensor, bound: float, norm: Norm) -> tuple[Tensor, Tensor]:
    """Rows of norm above ``bound`` rescaled to it, and which rows those were.

    >>> clip_gradient(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), 1.0, "l2")[1].tolist()
    [True, False]
    """
    size = intensity(gradient, norm)
    return gradient * (bound / size.clamp_min(bound)).unsqueeze(-1), size > bound


def clipped_mean(gradients: Tensor, bound: float, norm: Norm) -> tuple[Tensor, Tensor]:
    """The mean ``[R, P]`` of ``[R, B, P]`` gradients of one example each, clipped, and the share that was.

    Formal guarantee: for one of the B gradients replaced by any other, even one that is not finite, the mean moves by
    at most ``2 * bound / B`` in ``norm``, up to rounding. A gradient that is not finite counts as zero: refusing the
    release instead would tell of one example.

    >>> clipped_mean(torch.tensor([[[3.0, -1.0], [0.5, 0.0], [float("inf"), 0.0], [0.0, 0.0]]]), 1.0, "l1")
    (tensor([[ 0.3125, -0.0625]]), tensor([0.5000]))
    """
    clipped, acted = clip_gradient(gradients, bound, norm)
    finite = torch.isfinite(intensity(gradients, norm))
    counted = torch.where(finite.unsqueeze(-1), clipped, 0.0)
    return counted.mean(1), (acted | ~finite).to(gradients.dtype).mean(1)
