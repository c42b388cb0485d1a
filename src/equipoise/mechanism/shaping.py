"""Shaping: mechanisms that change the update itself, where the others add noise to it or learn where to.

A ``Shaping`` says what becomes of R updates. It knows where tensors lie in the flat vector, because defences of the
literature treat each of them by itself. No host value depends on data, so that a round can be captured as a CUDA graph.

Not claimed: anything. What an update loses on the way is measured by attacks, and proved by nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..errors import ModelError
from ..models.layout import Stretches

if TYPE_CHECKING:
    from .protection import Protection

Shape = Callable[[Tensor, Tensor, Tensor | None, Tensor, Stretches], Tensor]
"""(updates ``[R, P]``, the weights ``[R, P]`` they start from, standard noise ``[R, P]`` or None, scales ``[R]`` in
float64, where the tensors lie) -> shaped updates ``[R, P]``; no row influences another."""


@dataclass(frozen=True)
class Shaping:
    """What becomes of an update before it leaves.

    The sign of every coordinate, and nothing else of it:

    >>> signs = Shaping("signs", lambda update, start, noise, scale, stretches: update.sign() / scale.unsqueeze(1))
    >>> signs.shape(torch.tensor([[3.0, -4.0]]), torch.zeros(1, 2), None, torch.tensor([2.0]), ((0, 2),))
    tensor([[ 0.5000, -0.5000]])
    """

    name: str
    shape: Shape
    noised: float = 0.0  # the share of coordinates that get noise, at most; 0: none is drawn
    scale: str = "scale"  # what the scale of its measure is called
    caution: str = "The server may decide how much that hides, by the weights that it sends and by eta."  # in a policy


def shaped(
    start: Tensor, local: Tensor, noise: Tensor | None, protection: Protection, stretches: Stretches | None
) -> Tensor:
    """The models ``[R, P]`` that leave: ``start`` and the shaped update."""
    shaping = protection.mechanism.shaping
    assert shaping is not None
    if stretches is None:
        raise ModelError(
            f"The mechanism {protection.mechanism.name!r} needs to know where tensors lie in the flat vector.",
            "Use Batched.at, or set the objective's stretches to Layout.stretches.",
        )
    scale = torch.as_tensor(protection.scale, dtype=torch.float64, device=local.device).expand(len(local))
    return start + shaping.shape(local - start, start, noise, scale, stretches)


def largest(sizes: Tensor, count: Tensor | int) -> Tensor:
    """Which ``count`` entries of every row are the largest: ``[R, n]``, a number or ``[R]`` -> bool ``[R, n]``.

    Of equal ones the first; NaN is larger than any number, so that it is never dropped unseen.

    >>> largest(torch.tensor([[1.0, 3.0, 3.0, 2.0]]), 1)
    tensor([[False,  True, False, False]])
    """
    order = sizes.argsort(dim=1, descending=True, stable=True)
    within = torch.arange(sizes.shape[1], device=sizes.device) < (
        count.unsqueeze(1) if isinstance(count, Tensor) else count
    )
    return torch.zeros_like(order, dtype=torch.bool).scatter(1, order, within.expand_as(order))
