"""Algorithm 2 followed step by step: what Theorem 5.1 of Zhang et al. (arXiv:2305.15148) bounds, in float64."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..mechanism.distortion import learn_distortion
from ..mechanism.intensity import STABILISER, intensity, scale_clip
from .theory import check_count

Gradient = Callable[[Tensor], Tensor]
"""``[R, P] -> [R, P]``."""
Loss = Callable[[Tensor], Tensor]
"""``[R, P] -> [R]``."""
SHORT = 1e-4
"""A step below this part of the distortion's norm says nothing about smoothness."""


def slack(dtype: torch.dtype) -> float:
    """How far from a sphere, relative to its radius, rounding may leave a projected point.

    >>> slack(torch.float32), slack(torch.float64)
    (1e-05, 1e-09)
    """
    return 1e-9 if dtype == torch.float64 else 1e-5


def stationarity_distance(
    gradient: Tensor, alpha: Tensor, lower: Tensor, upper: Tensor, tolerance: float | None = None
) -> Tensor:
    """``dist(0, gradient + N_A(alpha))`` for the annulus A, the s(alpha) of Theorem 5.1: ``[R, P] -> [R]``.

    N_A is the limiting normal cone: ``{0}`` inside, the outward ray on the outer sphere, the inward ray on the inner
    one, the whole radial line where the two coincide. A point within ``tolerance`` of a sphere, relative to its
    radius, counts as on it (``slack`` of the dtype unless given). Outside A the cone is empty and the distance
    infinite; a row that is not finite has distance NaN.

    >>> alpha, one = torch.tensor([[0.0, 1.0]]), torch.ones(1)
    >>> [stationarity_distance(torch.tensor([[3.0, s]]), alpha, one, 2 * one).item() for s in (4.0, -4.0)]
    [3.0, 5.0]
    """
    near = slack(alpha.dtype) if tolerance is None else tolerance
    size = intensity(alpha)
    radial = (gradient * alpha).sum(-1) / size.clamp_min(STABILISER)
    across = intensity(gradient - (radial / size.clamp_min(STABILISER)).unsqueeze(-1) * alpha)
    inner, outer = size <= lower * (1 + near), size >= upper * (1 - near)
    absorbed = (inner & (radial >= 0)) | (outer & (radial <= 0))  # on both: either way, so the whole line
    result = torch.where(absorbed, across, intensity(gradient))
    outside = (size < lower * (1 - near)) | (size > upper * (1 + near))
    return torch.where(torch.isfinite(size), torch.where(outside, torch.inf, result), torch.nan)


@dataclass(frozen=True, kw_only=True)
class Trajectory:
    """Algorithm 2 on R subproblems, as numbers per step; of the iterates only the last is kept."""

    phi: Tensor  # [M + 1, R] at alpha_1 .. alpha_{M+1}
    residual: Tensor  # [M, R] |R_m|^2
    stationarity: Tensor  # [M, R] s(alpha_{m+1})^2
    error: Tensor  # [M, R] |G_m - grad phi(alpha_m)|^2
    lipschitz: Tensor  # [M, R] |grad phi(alpha_{m+1}) - grad phi(alpha_m)| / |alpha_{m+1} - alpha_m|
    descent: Tensor  # [M, R] the L that the descent inequality needs; both are 0 where the step was SHORT
    projection: Tensor  # [M, R] distance of alpha_{m+1} from the float64 projection, relative to its norm
    last: Tensor  # [R, P]


@dataclass(frozen=True)
class _Iterate:
    """One iterate in float64: phi, the gradient of the loss there, and that of phi."""

    alpha: Tensor  # [R, P]
    phi: Tensor  # [R]
    loss_gradient: Tensor  # [R, P]
    gradient: Tensor  # [R, P]


def follow(
    gradient: Gradient,
    loss: Loss,
    base: Tensor,
    init: Tensor,
    lower: Tensor,
    upper: Tensor,
    *,
    steps: int,
    gamma: Tensor | float,
    negative_norm: Tensor | float = 0.0,
    exact: Gradient | None = None,
    visit: Callable[[int, Tensor], None] | None = None,
) -> Trajectory:
    """Run ``learn_distortion`` one step at a time on the L2 annulus, and measure every step in float64.

    Args:
        gradient: that of the implementation, ``[R, P] -> [R, P]``.
        loss: the objective's own in float64, ``[R, P] -> [R]``.
        base: the undistorted models ``[R, P]``.
        init: feasible first distortions ``[R, P]``.
        lower: of the annulus, ``[R]``.
        upper: likewise.
        steps: M.
        gamma: step size, a number or ``[R]``.
        negative_norm: lambda, likewise.
        exact: the objective's own gradient in float64; ``gradient`` unless given.
        visit: sees (m, alpha_{m+1}) and must not keep it.

    Returns:
        The iterates' objective, residuals and distances from stationarity, step by step.

    >>> one, start = torch.ones(1).double(), torch.tensor([[0.0, 2.0]]).double()
    >>> bowl = lambda w: w.square().sum(1) / 2
    >>> seen = follow(lambda w: w, bowl, torch.zeros(1, 2).double(), start, one, 2 * one, steps=3, gamma=0.5)
    >>> seen.phi.flatten().tolist(), seen.stationarity.flatten().tolist()
    ([2.0, 0.5, 0.5, 0.5], [0.0, 0.0, 0.0])
    """
    check_count("steps", steps)
    bounds, near, ground = (lower.double(), upper.double()), slack(init.dtype), base.double()
    step_size, pull = (
        _column(torch.as_tensor(value, dtype=torch.float64)).to(ground.device) for value in (gamma, negative_norm)
    )
    truth, origin, used = exact or gradient, loss(ground), torch.empty_like(init)

    def remembered(point: Tensor) -> Tensor:
        return used.copy_(gradient(point)).clone()

    def look(alpha: Tensor) -> _Iterate:
        here = alpha.double()
        size = intensity(here).unsqueeze(-1).clamp_min(STABILISER)
        slope = truth(ground + here)
        value = loss(ground + here) - origin - (pull * size).expand(len(here), 1)[:, 0]
        return _Iterate(here, value, slope, slope - pull * here / size)

    alpha = init
    before = look(alpha)
    values, rows = [before.phi], []
    for step in range(1, steps + 1):
        alpha = learn_distortion(
            remembered, base, alpha, lower, upper, norm="l2", steps=1, gamma=gamma, negative_norm=negative_norm
        )
        after = look(alpha)
        rows.append(_measured(before, after, used.double() - before.loss_gradient, step_size, bounds, near))
        values.append(after.phi)
        before = after
        if visit:
            visit(step, alpha)
    residual, apart, error, lipschitz, descent, projection = torch.stack(rows, dim=1)
    return Trajectory(
        phi=torch.stack(values), residual=residual, stationarity=apart, error=error, lipschitz=lipschitz,
        descent=descent, projection=projection, last=alpha,
    )  # fmt: skip


def _measured(
    before: _Iterate, after: _Iterate, error: Tensor, gamma: Tensor, bounds: tuple[Tensor, Tensor], near: float
) -> Tensor:
    """What a ``Trajectory`` holds of one step: six numbers for every subproblem, ``[6, R]``."""
    move = after.alpha - before.alpha
    still = intensity(move) <= SHORT * intensity(before.alpha)  # the ratios would show rounding, not smoothness
    length = intensity(move).masked_fill(still, 1.0)
    target = scale_clip(before.alpha - gamma * (before.gradient + error), *bounds, "l2")
    bend = intensity(after.gradient - before.gradient) / length
    climb = 2 * (after.phi - before.phi - (before.gradient * move).sum(-1)) / length.square()
    return torch.stack(
        [
            intensity(move / gamma).square(),
            stationarity_distance(after.gradient, after.alpha, *bounds, near).square(),
            intensity(error).square(),
            bend.masked_fill(still, 0.0),
            climb.masked_fill(still, 0.0),
            intensity(after.alpha - target) / intensity(target),
        ]
    )


def _column(value: Tensor) -> Tensor:
    return value.view(-1, 1) if value.dim() == 1 else value
