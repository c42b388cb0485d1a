"""The release of ``gaussian-dp``: a sum of what units add, and Gaussian noise, all as integers; the weights last.

docs/gaussian_dp.md has the proof. In short: what a unit adds follows from it alone and has a norm of at most the clip
(``units.py``); a Gaussian rounded to the grid and added to integers is a Gaussian added to them and then rounded; all
that comes after, the public divisor and the received weights included, is post-processing. So is what a hostile server
put into those weights. Nothing about data or noise is checked afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError
from ..privacy.rounded_gaussian import rounded_gaussians
from ..randomness import Words
from .l2_grid import L2Grid
from .protection import Protection
from .units import LARGEST_SUM, Units

STEPS = (1e-100, 1e100)
"""Of an update, for a sum of gradients of norm 1."""
_SPARE = 1 + 2.0**-40
"""More noise than asked for: above what the few products on the way to its scale may have rounded off."""


def noised_sum(
    units: Units, start: Tensor, words: Sequence[Words], eta: float, protection: Protection
) -> tuple[Tensor, Tensor, Tensor]:
    """Releases of R clients ``[R, P]``, the noise in each ``[R, P]``, and the share of clipped units ``[R]``.

    ``protection.scale`` is the standard deviation of the noise on an update.
    """
    clip, per_unit = protection.clip, update_per_gradient(eta, protection)
    if clip is None:
        raise ConfigError("gaussian-dp needs a clip: without one its sensitivity is infinite.", "Set gaussian.clip.")
    rate = protection.sampling_rate
    rows = [units.pool.records.sampled(row, rate, source) for row, source in zip(units.rows, words, strict=True)]
    total, clipped = units.pool.total(rows, start, clip)
    grid = units.pool.grid(clip)
    scales = torch.as_tensor(protection.scale, dtype=torch.float64).expand(len(start)).tolist()
    noise = _noise(grid, [scale / per_unit * _SPARE for scale in scales], words, start)
    noised = (total + noise).clamp_(-2 * LARGEST_SUM, 2 * LARGEST_SUM)
    return _added(start, noised, grid, per_unit), _added(torch.zeros_like(start), noise, grid, per_unit), clipped


def update_per_gradient(eta: float, protection: Protection) -> float:
    """How far a sum of gradients of norm 1 moves the weights; of public numbers alone."""
    if protection.divisor is None:
        raise ConfigError("gaussian-dp divides by a public number, and has none.", "Set gaussian.divisor.")
    result = eta / (protection.sampling_rate * protection.divisor)
    if not STEPS[0] <= result <= STEPS[1]:  # floats that are nearly zero have few digits: noise could be rounded down
        raise ConfigError(
            f"Expected eta / (sampling_rate * divisor) to lie between {STEPS[0]:g} and {STEPS[1]:g}, got {result:g}.",
            "Choose another eta or gaussian.divisor.",
        )
    return result


def update_per_mean(eta: float, count: int, protection: Protection) -> float:
    """How far a mean of ``count`` gradients of norm 1 moves the weights, under a mechanism that clips each of them."""
    return count * update_per_gradient(eta, protection) if protection.mechanism.whole_run else eta


def _noise(grid: L2Grid, deviations: Sequence[float], words: Sequence[Words], like: Tensor) -> Tensor:
    first = np.stack([source(like.shape[-1]) for source in words]).view(np.int64)
    scales = [grid.noise_scale(deviation) for deviation in deviations]
    return rounded_gaussians(scales, torch.from_numpy(first).to(like.device), words).double()


def _added(start: Tensor, whole: Tensor, grid: L2Grid, per_unit: float) -> Tensor:
    """A step down the sum from ``start``, in its type and always finite: for what may be seen."""
    most = torch.finfo(start.dtype).max
    return (start.double() - whole * (grid.step * per_unit)).clamp_(-most, most).to(start.dtype)
