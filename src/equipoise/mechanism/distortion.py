"""Algorithm 2, LearnDistortion: learn the distortion of a local model within its intensity bounds.

Reference: the paper's Algorithm 2; the feasible sets and the theorem on its iterates follow it.
Everything is batched: ``[R, P]`` holds one distortion per row, each with its own bounds, step size and
coefficient, and no row influences another.

Not claimed: a learned distortion carries no differential-privacy guarantee, whatever its noise was.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .intensity import STABILISER, Norm, intensity, scale_clip


def on_inner_sphere(noise: Tensor, lower: Tensor, factor: Tensor | float = 2.0) -> tuple[Tensor, Tensor, Tensor]:
    """The PL branch (l. 5, 8): noise rescaled to intensity ``lower``; bounds ``[lower, factor*lower]``.

    >>> init, lower, upper = on_inner_sphere(torch.tensor([[0.0, 2.0]]), torch.tensor([5.0]))
    >>> init.tolist(), upper.item()
    ([[0.0, 5.0]], 10.0)
    """
    upper = lower * factor
    return scale_clip(noise, lower, lower, "l2"), lower, upper


def as_drawn(noise: Tensor, factor: Tensor | float = 2.0, norm: Norm = "l1") -> tuple[Tensor, Tensor, Tensor]:
    """The LS branch (l. 10): noise as drawn; bounds ``[h(noise), factor*h(noise)]`` from this very draw.

    >>> init, lower, upper = as_drawn(torch.tensor([[3.0, -4.0]]))
    >>> lower.item(), upper.item()
    (7.0, 14.0)
    """
    lower = intensity(noise, norm)
    return noise, lower, lower * factor


def learn_distortion(
    gradient: Callable[[Tensor], Tensor],
    base: Tensor,
    init: Tensor,
    lower: Tensor,
    upper: Tensor,
    norm: Norm = "l2",
    steps: int = 10,
    lr: Tensor | float = 0.1,
    negative_norm: Tensor | float = 1e-5,
) -> Tensor:
    """Algorithm 2, l. 12-18, from a feasible ``init`` ``[R, P]``.

    ``gradient`` is any callable ``[R, P] -> [R, P]``: the mini-batch gradient at the distorted model.
    ``lr`` and ``negative_norm`` are numbers or ``[R, 1]``.

    >>> bowl = lambda w: w                                   # gradient of |w|^2 / 2
    >>> one = torch.ones(1)
    >>> learn_distortion(bowl, torch.zeros(1, 2), torch.tensor([[0.0, 2.0]]), one, 2 * one, steps=50)
    tensor([[0., 1.]])
    """
    alpha, trial = init.clone(), torch.empty_like(init)  # two buffers serve all steps
    for _ in range(steps):  # l. 12
        direction = gradient(torch.add(base, alpha, out=trial))  # l. 13-14: of the sampled loss ...
        size = intensity(alpha, "l2").clamp_min(STABILISER).unsqueeze(-1)
        alpha.mul_(1 + lr * negative_norm / size)  # ... and of -lambda*|alpha|_2; both in l. 15
        alpha.sub_(torch.mul(direction, lr, out=trial))
        scale_clip(alpha, lower, upper, norm, out=alpha)  # l. 16
    return alpha
