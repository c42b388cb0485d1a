"""Distortion intensity h and its feasibility map ScaleClip, for R distortions at once.

Formal guarantees, for every row of a finite ``distortion`` and ``0 < lower <= upper``:

* ``lower <= h(scale_clip(...)) <= upper`` up to rounding;
* for ``norm="l2"`` the result is a Euclidean projection onto the annulus (Theorem 5.1 of Zhang
  et al., arXiv:2305.15148, needs that); for ``norm="l1"`` it is a radial map and *not* the Euclidean projection;
* a row already between its bounds is returned unchanged.

==========================  ==========================================================================
edge case                   result
==========================  ==========================================================================
intensity <= 1e-9           the fixed point ``(lower, 0, ..., 0)`` of the inner sphere
lower == upper              the row rescaled to that intensity
lower == 0                  a plain norm clip: small rows stay as they are
non-finite row              stays non-finite; ``release.py`` refuses it by name
==========================  ==========================================================================
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Norm = Literal["l1", "l2"]
STABILISER = 1e-9
LONG, PIECE = 1 << 18, 1 << 16
"""Rows longer than ``LONG`` are added up piece by piece: a CPU kernel that adds 10^8 float32 numbers one to the next
loses half of their L1 norm."""


def intensity(distortion: Tensor, norm: Norm = "l2") -> Tensor:
    """h of every row: ``[R, P] -> [R]``.

    >>> intensity(torch.tensor([[3.0, 4.0]])).item(), intensity(torch.tensor([[3.0, 4.0]]), "l1").item()
    (5.0, 7.0)
    """
    order = 1 if norm == "l1" else 2
    if distortion.device.type != "cpu" or distortion.shape[-1] <= LONG:
        size: Tensor = torch.linalg.vector_norm(distortion, ord=order, dim=-1)
        return size
    pieces = [torch.linalg.vector_norm(piece, ord=order, dim=-1) for piece in distortion.split(PIECE, dim=-1)]
    whole: Tensor = torch.linalg.vector_norm(torch.stack(pieces, -1).double(), ord=order, dim=-1)
    return whole.to(distortion.dtype)


def scale_clip(
    distortion: Tensor, lower: Tensor, upper: Tensor, norm: Norm = "l2", out: Tensor | None = None
) -> Tensor:
    """ScaleClip of Algorithm 2, l. 16: rescale rows whose intensity is outside ``[lower, upper]``.

    Args:
        distortion: ``[R, P]``.
        lower: of the intensity, ``[R]``.
        upper: likewise.
        norm: of the intensity.
        out: where the result goes; may be ``distortion`` itself.

    Returns:
        The rows, each with an intensity within its bounds.

    >>> scale_clip(torch.tensor([[3.0, 4.0]]), torch.tensor([10.0]), torch.tensor([20.0]))
    tensor([[6., 8.]])
    """
    size = intensity(distortion, norm)  # [R]
    factor = torch.minimum(torch.maximum(size, lower), upper) / size.clamp_min(STABILISER)  # 1 inside the bounds
    tiny = size <= STABILISER
    factor = torch.where(tiny, (lower <= 0).to(factor), factor)
    factor = torch.where(torch.isfinite(size), factor, torch.nan)  # a norm that overflowed must not become zero
    scaled = torch.mul(distortion, factor.unsqueeze(-1), out=out)
    scaled[..., 0] += torch.where(tiny, lower, torch.zeros_like(lower))
    return scaled
