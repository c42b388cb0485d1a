"""The families of noise: from uniform numbers to standard noise, symmetric about 0, and what is known of each.

``register_noise`` adds a family of your own; a ``Mechanism`` then names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import torch
from torch import Tensor

from ..errors import ConfigError


@dataclass(frozen=True)
class NoiseFamily:
    """A symmetric distribution of scale 1.

    Uniform noise on [-1, 1]:

    >>> family = NoiseFamily(
    ...     quantile=lambda tail: 1 - tail,
    ...     variance=1 / 3,
    ...     scale=lambda drawn: 2 * float(drawn.abs().mean()),
    ...     misfit=lambda rest, scale: torch.where(rest.abs().amax(1) <= scale, 0.0, torch.inf),
    ... )
    >>> family.quantile(torch.tensor([0.25])).tolist()
    [0.75]
    """

    quantile: Callable[[Tensor], Tensor]  # of two-sided tail probabilities, up to the sign; may work in place
    variance: float  # of standard noise
    scale: Callable[[Tensor], float]  # the scale behind draws
    misfit: Callable[[Tensor, float], Tensor]  # residuals [R, P] and a scale -> negative log-likelihood [R]


def _gaussian_quantile(tail: Tensor) -> Tensor:
    quantile: Tensor = torch.special.ndtri(tail.mul_(0.5))
    return quantile


_KNOWN = {
    "laplace": NoiseFamily(
        torch.log_,
        variance=2.0,
        scale=lambda drawn: float(drawn.abs().mean()),
        misfit=lambda rest, scale: rest.abs().sum(1) / scale,
    ),
    "gaussian": NoiseFamily(
        _gaussian_quantile,
        variance=1.0,
        scale=lambda drawn: float(drawn.square().mean().sqrt()),
        misfit=lambda rest, scale: (rest / scale).square().sum(1) / 2,
    ),
}


PIECE = 1 << 17
"""Numbers that stay in a CPU's cache from one operation to the next."""
OURS = frozenset(_KNOWN)
"""The families of this package; none can be replaced."""
NOISES: Mapping[str, NoiseFamily] = MappingProxyType(_KNOWN)
"""Read-only: what "laplace" means is part of a proof."""


def register_noise(name: str, family: NoiseFamily) -> None:
    """Add a family under a name of its own; a ``Mechanism`` then names it.

    Args:
        name: not one of those that exist.
        family: its quantile function, variance, and how attacks fit and weigh it.

    >>> from equipoise import Mechanism
    >>> def misfit(rest, scale):  # of a triangular distribution on [-1, 1]
    ...     return -torch.log((1 - rest.abs() / scale).clamp_min(1e-9)).sum(1)
    >>> family = NoiseFamily(lambda tail: 1 - tail.sqrt(), 1 / 6, lambda drawn: 3 * float(drawn.abs().mean()), misfit)
    >>> register_noise("triangular", family)
    >>> Mechanism("triangular-annulus", "leakage", noise="triangular").noise
    'triangular'
    """
    if name in _KNOWN:
        raise ConfigError(f"The noise {name!r} exists.", "Choose another name.")
    _KNOWN[name] = family


def standard_noise(numbers: Tensor, family: str) -> Tensor:
    """Uniform numbers to standard noise of a family (scale 1), symmetric about 0, never infinite.

    What floating point does to it: a float32 draw has 2^24 possible values, the largest about 16.6 scales
    for Laplace and 5.4 for Gaussian noise.

    >>> standard_noise(torch.tensor([0.0, 0.5]), "laplace")[0].item() < -16
    True
    """
    noise = torch.empty_like(numbers, memory_format=torch.contiguous_format)
    size = PIECE if numbers.device.type == "cpu" else max(1, numbers.numel())
    for piece, place in zip(numbers.reshape(-1).split(size), noise.view(-1).split(size), strict=True):
        _noise(piece, NOISES[family], place)
    return noise


def _noise(numbers: Tensor, family: NoiseFamily, out: Tensor) -> None:
    half_step = 2.0**-25 if numbers.dtype == torch.float32 else 2.0**-54
    centred = numbers - (0.5 - half_step)
    tail = torch.rsub(centred.abs(), 1.0, alpha=2.0)  # exact: an odd multiple of 2*half_step, never 0
    torch.copysign(family.quantile(tail), centred, out=out)
