"""The constants that the assumptions of Zhang et al. (arXiv:2305.15148) ask for, estimated at the points visited.

===================  =====================================================================  =======================
constant             estimate                                                               errs
===================  =====================================================================  =======================
L_alpha, L_F         largest ratio of gradients to points, largest norm of H v for unit v   from below
nu_alpha             largest distance of the implementation's gradient from the exact one   from below
sigma_g^2            mean squared deviation of fresh mini-batch gradients, at given weights  either way, with an error
c_a                  smallest ratio of inputs to updates over pairs                         from above
c_b                  largest such ratio                                                     from below
p                    slope of log sum r_i against log i, over the second half               a fit
c_2                  smallest that the residuals allow for a given p                        exact at that horizon
D                    largest distance seen                                                  from below
===================  =====================================================================  =======================

So an assumption that fails with an estimate fails; one that holds with it holds on the points visited, and no more is
known. Needs torch alone; every function is deterministic in its arguments.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DataError
from ..mechanism.intensity import intensity, scale_clip
from .trajectory import Gradient


@dataclass(frozen=True)
class Estimate:
    """A number, how many it was made from, and the standard error where it is a mean of independent draws."""

    value: float
    count: int
    error: float | None = None


def mean_of(values: Tensor) -> Estimate:
    """The mean of independent draws ``[N]`` and its standard error (None for a single one).

    >>> mean_of(torch.tensor([1.0, 2.0, 3.0, 4.0]))
    Estimate(value=2.5, count=4, error=0.645...)
    """
    flat = values.detach().double().flatten()
    if not len(flat):
        raise DataError("There is nothing to average.", "Draw at least one sample.")
    error = float(flat.std()) / len(flat) ** 0.5 if len(flat) > 1 else None
    return Estimate(float(flat.mean()), len(flat), error)


# -- smoothness ----------------------------------------------------------------------------------------------------


def curvature(
    gradient: Gradient,
    points: Tensor,
    iterations: int = 20,
    epsilon: float = 1e-4,
    seed: int = 0,
    start: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The largest ``|H v|`` met in a power iteration with the Hessian H at every point, and the last v.

    ``H v`` is a central difference of the gradient over ``epsilon``; give float64 points, or an epsilon of 1e-2 in
    float32. ``|H v|`` of a unit v never exceeds the largest eigenvalue in size: this errs from below, but for
    rounding. ``start`` replaces the random first directions. ``[R, P] -> [R], [R, P]``.

    >>> steep = torch.tensor([1.0, -3.0]).double()
    >>> round(curvature(lambda w: w * steep, torch.zeros(1, 2).double())[0].item(), 6)
    3.0
    """
    if start is None:
        draw = torch.randn(points.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        start = draw.to(points)
    direction = _unit(start)
    most = points.new_zeros(len(points))
    for _ in range(iterations):
        ahead, behind = gradient(points + epsilon * direction).clone(), gradient(points - epsilon * direction)
        turned = (ahead - behind) / (2 * epsilon)
        most = torch.maximum(most, intensity(turned))
        direction = _unit(turned)
    return most, direction


def _unit(rows: Tensor) -> Tensor:
    return rows / intensity(rows).clamp_min(torch.finfo(rows.dtype).tiny).unsqueeze(-1)


def ratios(gradient: Gradient, points: Tensor, others: Tensor) -> Tensor:
    """``|grad(x) - grad(y)| / |x - y|`` of every pair of rows, 0 where they coincide: a Lipschitz constant from below.

    >>> ratios(lambda w: 2 * w, torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]))
    tensor([2.])
    """
    apart = intensity(points - others)
    moved = intensity(gradient(points).clone() - gradient(others))
    return torch.where(apart > 0, moved / apart.clamp_min(torch.finfo(apart.dtype).tiny), 0.0)


def descent_ratio(before: Tensor, after: Tensor, slope: Tensor, move: Tensor) -> Tensor:
    """The L that the descent inequality needs for a step: ``2*(f(y) - f(x) - <grad f(x), y - x>) / |y - x|^2``.

    A smooth function's own L is at least that, so this too errs from below; it may be negative.

    >>> x, y = torch.tensor([[1.0]]), torch.tensor([[3.0]])
    >>> descent_ratio(x.square().sum(1), y.square().sum(1), 2 * x, y - x)
    tensor([2.])
    """
    length = intensity(move).square()
    climb = 2 * (after - before - (slope * move).sum(-1))
    return torch.where(length > 0, climb / length.clamp_min(torch.finfo(length.dtype).tiny), 0.0)


def in_annulus(like: Tensor, lower: Tensor, upper: Tensor, seed: int = 0) -> Tensor:
    """A random point of each row's annulus: any direction, radius uniform between the bounds.

    >>> point = in_annulus(torch.empty(1, 3), torch.tensor([2.0]), torch.tensor([4.0]))
    >>> bool(2 <= point.norm() <= 4)
    True
    """
    generator = torch.Generator().manual_seed(seed)
    draw = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)
    share = torch.rand(len(like), generator=generator, dtype=torch.float64).to(like)
    radius = lower + share * (upper - lower)
    return scale_clip(draw, radius, radius, "l2")


# -- stochastic gradients ------------------------------------------------------------------------------------------


def deviations(samples: Tensor, mean: Tensor) -> Tensor:
    """Squared distances ``[N]`` of gradients ``[N, P]`` from the full one ``[P]``; ``mean_of`` them is sigma_g^2.

    >>> deviations(torch.tensor([[1.0, 1.0], [0.0, 3.0]]), torch.tensor([0.0, 1.0])).tolist()
    [1.0, 4.0]
    """
    return intensity((samples - mean).double()).square()


def bias_ratio(mean: Tensor, full: Tensor, variance: float, count: int) -> float:
    """``N*|mean - full|^2 / variance``: about 1 where N gradients of that variance are unbiased, large where not.

    >>> bias_ratio(torch.tensor([1.0, 0.5]), torch.tensor([1.0, 0.0]), variance=1.0, count=4)
    1.0
    """
    apart = float(intensity((mean - full).double().unsqueeze(0))) ** 2
    return count * apart / variance if variance > 0 else (0.0 if apart == 0 else float("inf"))


# -- leakage -------------------------------------------------------------------------------------------------------


def stretches(inputs: Tensor, updates: Tensor, other_inputs: Tensor, other_updates: Tensor) -> Tensor:
    """``|d1 - d2| / |g(d1) - g(d2)|`` row by row (Assumption D.1): c_a is the least, c_b the largest.

    Infinite where two inputs share one update: then no c_b exists. A pair of equal inputs says nothing: NaN.

    >>> none = torch.zeros(2, 1)
    >>> stretches(torch.tensor([[2.0], [1.0]]), torch.tensor([[1.0], [0.0]]), none, none).tolist()
    [2.0, inf]
    """
    apart, moved = intensity((inputs - other_inputs).double()), intensity((updates - other_updates).double())
    ratio = torch.where(moved > 0, apart / moved.clamp_min(1e-300), torch.inf)
    return torch.where(apart > 0, ratio, torch.nan)


@dataclass(frozen=True)
class Envelope:
    """How the cumulative matching residual of N releases grows with the iterations of an attack; all ``[N]``."""

    total: Tensor  # sum of r_i over all iterations
    slope: Tensor  # p: of log sum against log i, least squares over the second half
    smallest: Tensor  # c_2 for the given p at the last iteration, which is all that the lemma needs
    uniform: Tensor  # c_2 for the given p at every iteration so far


def envelope(residuals: Tensor, p: float) -> Envelope:
    """Fit of ``sum_{i<=I} r_i <= c_2 * I^p`` (Assumption D.2) to residuals ``[I, N]``.

    >>> result = envelope(torch.ones(100, 1), p=0.5)
    >>> round(result.slope.item(), 6), result.smallest.item()
    (1.0, 10.0)
    """
    if len(residuals) < 2:
        raise DataError(f"Expected residuals of at least 2 iterations, got {len(residuals)}.", "Attack for longer.")
    sums = residuals.double().cumsum(0)
    iteration = torch.arange(1, len(sums) + 1, dtype=torch.float64, device=sums.device).unsqueeze(1)
    late = slice(len(sums) // 2 if len(sums) > 3 else 0, None)  # a slope takes two points
    x, y = iteration[late].log(), sums[late].clamp_min(1e-300).log()
    x = x - x.mean(0)
    slope = (x * (y - y.mean(0))).sum(0) / x.square().sum(0)
    needed = sums / iteration.pow(p)
    return Envelope(sums[-1], slope, needed[-1], needed.max(0).values)
