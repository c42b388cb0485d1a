"""Algorithm 2, LearnDistortion: learn the distortion of a local model within its intensity bounds.

Reference: Zhang et al., arXiv:2305.15148: Algorithm 2, its feasible set (eq. 17), and Theorem 5.1 on its iterates.
Everything is batched: ``[R, P]`` holds one distortion per row, each with its own bounds, step size and
coefficient, and no row influences another.

Not claimed: a learned distortion carries no differential-privacy guarantee, whatever its noise was.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from .intensity import STABILISER, Norm, intensity, scale_clip
from .protection import Protection

Start = tuple[Tensor, Tensor, Tensor]
"""The initial distortions ``[R, P]`` and their intensity bounds, ``[R]`` each."""


def draw_bounds(noise: Tensor, protection: Protection, out: Tensor | None = None) -> Start:
    """Algorithm 2, l. 4-11, from *standard* noise ``[R, P]``; ``protection.scale`` is g(chi) of l. 4.

    The distortions go to ``out``, which may be ``noise`` itself.
    """
    mechanism = protection.mechanism
    scale = torch.as_tensor(protection.scale, dtype=noise.dtype, device=noise.device).expand(noise.shape[0])
    if mechanism.on_sphere:  # l. 7
        return on_inner_sphere(noise, scale, protection.factor, out)  # rescaling makes the draw's scale irrelevant
    return as_drawn(torch.mul(noise, scale.unsqueeze(-1), out=out), protection.factor, mechanism.norm)


def on_inner_sphere(noise: Tensor, lower: Tensor, factor: Tensor | float = 2.0, out: Tensor | None = None) -> Start:
    """The PL branch (l. 5, 8): noise rescaled to intensity ``lower``; bounds ``[lower, factor*lower]``.

    >>> init, lower, upper = on_inner_sphere(torch.tensor([[0.0, 2.0]]), torch.tensor([5.0]))
    >>> init.tolist(), upper.item()
    ([[0.0, 5.0]], 10.0)
    """
    upper = lower * factor
    return scale_clip(noise, lower, lower, "l2", out=out), lower, upper


def as_drawn(noise: Tensor, factor: Tensor | float = 2.0, norm: Norm = "l1") -> Start:
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
    *,
    norm: Norm = "l2",
    steps: int = 10,
    gamma: Tensor | float = 0.1,
    negative_norm: Tensor | float = 1e-5,
) -> Tensor:
    """Algorithm 2, l. 12-18, from a feasible ``init`` ``[R, P]``.

    Args:
        gradient: the mini-batch gradient at the distorted models, ``[R, P] -> [R, P]``.
        base: the undistorted models ``[R, P]``.
        init: feasible first distortions ``[R, P]``.
        lower: bound of the intensity, ``[R]``.
        upper: likewise.
        norm: of the intensity.
        steps: M.
        gamma: step size, a number or ``[R, 1]``.
        negative_norm: lambda, likewise.

    Returns:
        The learned distortions ``[R, P]``, within their bounds.

    >>> bowl = lambda w: w                                   # gradient of |w|^2 / 2
    >>> one = torch.ones(1)
    >>> learn_distortion(bowl, torch.zeros(1, 2), torch.tensor([[0.0, 2.0]]), one, 2 * one, steps=50)
    tensor([[0., 1.]])
    """
    alpha, spare = init.clone(), torch.empty_like(init)
    for _ in range(steps):  # l. 12
        if base.requires_grad:
            alpha = update(alpha, gradient(base + alpha), lower, upper, norm, gamma, negative_norm)
        else:  # the same numbers, bit for bit, in two buffers that serve all steps
            slope = gradient(torch.add(base, alpha, out=spare))  # l. 13-14
            alpha.mul_(1 + gamma * negative_norm / _length(alpha)).sub_(torch.mul(slope, gamma, out=spare))  # l. 15
            scale_clip(alpha, lower, upper, norm, out=alpha)  # l. 16
    return alpha  # l. 18


def update(
    alpha: Tensor,
    slope: Tensor,
    lower: Tensor,
    upper: Tensor,
    norm: Norm,
    gamma: Tensor | float,
    negative_norm: Tensor | float,
) -> Tensor:
    """Algorithm 2, l. 13-16, plainly: a step down ``slope`` and away from 0, then back between the bounds.

    ``slope`` is the gradient of the sampled loss at the distorted model; that of -lambda*|alpha|_2 is
    -lambda*alpha/|alpha|_2.
    """
    alpha = alpha * (1 + gamma * negative_norm / _length(alpha)) - gamma * slope  # l. 15
    return scale_clip(alpha, lower, upper, norm)  # l. 16


def _length(alpha: Tensor) -> Tensor:
    return intensity(alpha, "l2").clamp_min(STABILISER).unsqueeze(-1)
