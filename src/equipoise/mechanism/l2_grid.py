"""Gradients as whole numbers of bounded L2 norm: what one unit may add to a sum.

Floats do not have the sensitivity that a proof assumes. So ``gaussian-dp`` clips each unit's gradient, rounds it
towards zero onto a grid that follows from public numbers, and sums integers; noise is rounded to the same grid, and the
received weights are added last of all.

Formal guarantees, for gradients of any kind, also those that are not finite, and for any floats that they may be:

* ``whole`` maps the gradient of one unit, and nothing else, to integers whose squared L2 norm is at most ``most``, and
  that is at most ``(clip / step)^2``: the norm is compared as an integer, and a unit that still exceeds it counts as 0;
* so adding or removing a unit moves the sum by at most ``clip`` in L2; a sum that is rounded once more, by ``coarser``,
  by at most ``clip * stretch``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction

import torch
from torch import Tensor

from ..errors import ConfigError

FINENESS = 1000
"""Rounding every coordinate moves a unit by at most 1 / FINENESS of the clip."""
SPARE = 16_000
"""The same for a sum that is rounded as a whole."""
_EXPONENTS = range(-400, 401)
_MARGIN = 1 + 2.0**-20
EXACT = 2**24
"""Integers up to here are exact in float32."""
_RUN = 128
_LENGTH_ERROR = 2.0**-17
"""More than the part of a length that ``length`` may be off by."""
_SMALLEST = -62


@dataclass(frozen=True)
class L2Grid:
    """Whole multiples of ``2**exponent``; those of one unit have a squared norm of at most ``most``.

    >>> grid = L2Grid.of(clip=1.0, size=4)
    >>> grid.exponent, grid.most
    (-11, 4194304)
    >>> whole, clipped = grid.whole(torch.tensor([[3.0, 4.0, 0.0, 0.0], [0.1, 0.0, float("nan"), 0.0]]), 1.0)
    >>> whole.tolist(), clipped.tolist()
    ([[1228.0, 1638.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]], [True, True])
    """

    exponent: int
    most: int
    stretch: float = 1.0  # of what one unit can do to a sum, in terms of the clip

    @classmethod
    def of(cls, clip: float, size: int, fineness: int = FINENESS) -> L2Grid:
        """The coarsest grid that is fine enough for ``size`` coordinates: ``step * sqrt(size) <= clip / fineness``."""
        return cls.at(largest_power(Fraction(clip) ** 2 / (fineness**2 * size)), clip)

    @classmethod
    def at(cls, exponent: int, clip: float) -> L2Grid:
        """The grid of a given step."""
        if exponent not in _EXPONENTS:
            raise ConfigError(f"No grid of floats suits a clip of {clip:.3g}.", "Choose gaussian.clip nearer to 1.")
        return cls(exponent, math.floor(Fraction(clip) ** 2 / Fraction(4) ** exponent))

    @property
    def step(self) -> float:
        return 2.0**self.exponent

    def noise_scale(self, deviation: float) -> float:
        """The deviation for units that move sums by the clip, in steps; a millionth more, as it may be a float32."""
        return deviation * self.stretch * _MARGIN / self.step

    def coarser(self, clip: float, size: int, whole: Tensor | None = None) -> tuple[L2Grid, Tensor | None]:
        """A grid for sums of ``size`` coordinates that are finer than need be, and such a sum rounded down to it.

        Two sums that differ by one unit may be rounded apart by one step in each coordinate: by
        ``step * sqrt(size) <= clip / SPARE`` in all, on top of the clip.
        """
        grid = replace(L2Grid.of(clip, size, SPARE), stretch=1 + 1 / SPARE)
        if grid.exponent <= self.exponent:
            return self, whole
        return grid, None if whole is None else (whole * 2.0 ** (self.exponent - grid.exponent)).floor_()

    def whole(self, gradients: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        """Gradients ``[..., P]`` of one unit each as integers, and which of them were clipped.

        The integers are in float32 where gradients are and it holds them exactly, and else in float64. They may take
        the place of the gradients, so that no second tensor of their size is needed.
        """
        narrow = gradients.dtype == torch.float32 and self.most < EXACT**2 // 4 and self.exponent >= _SMALLEST
        size = _sizes(gradients, quick=narrow and gradients.device.type == "cpu")
        factor = clip / size.clamp_min(clip) / self.step
        scaled = gradients if narrow else gradients.double()
        whole = towards_zero(scaled.mul_(factor.to(scaled.dtype)))
        if narrow and bool((length(whole) <= math.sqrt(self.most) * (1 - _LENGTH_ERROR)).all()):  # not so for NaN
            return whole, (size > clip).squeeze(-1)
        whole = whole.double()
        norm = squared(whole)
        shorter = (whole * (math.sqrt(self.most) / norm.sqrt() * (1 - 2.0**-20))).trunc_()
        whole = torch.where(norm > self.most, shorter, whole)
        whole = torch.where(squared(whole) <= self.most, whole, 0.0)  # nor what is not a number
        return whole, ~(size <= clip).squeeze(-1)


def _sizes(gradients: Tensor, quick: bool) -> Tensor:
    """The norms ``[..., 1]`` that gradients ``[..., P]`` are clipped by, in float64.

    ``quick``: no copy in float64, which takes a CPU as long as all the rest; then they are a little too large, so that
    what is clipped by them passes the check of its integers.
    """
    if quick:
        found = length(gradients) * (1 + 3 * _LENGTH_ERROR)
        if bool(torch.isfinite(found).all()):
            return found
    exact = torch.linalg.vector_norm(gradients, dim=-1, keepdim=True, dtype=torch.float64)
    return torch.where(torch.isfinite(found), found, exact) if quick else exact


def length(values: Tensor) -> Tensor:
    """The L2 norm of float32 numbers ``[..., P]`` as float64 ``[..., 1]``, off by less than ``_LENGTH_ERROR`` of it.

    A sum of ``_RUN`` squares in float32, in whatever order, is off by at most ``_RUN`` parts in 2^24, and its root by
    half of that and one more; roots are put together in float64. Squares of numbers below 2^-62 may be lost: on a grid
    as coarse as ``_SMALLEST`` asks for, these are zero.
    """
    runs = values.shape[-1] // _RUN * _RUN
    parts = [values[..., :runs].unflatten(-1, (-1, _RUN)), values[..., None, runs:]]
    norms = [torch.linalg.vector_norm(part, dim=-1) for part in parts if part.numel()]
    whole: Tensor = torch.linalg.vector_norm(torch.cat(norms, -1), dim=-1, keepdim=True, dtype=torch.float64)
    return whole


def squared(whole: Tensor) -> Tensor:
    """The squared norm of integers ``[..., P]``: below 2^53 float64 adds them exactly, and larger sums stay larger."""
    return whole.square().sum(-1, keepdim=True)


def towards_zero(values: Tensor) -> Tensor:
    """``values.trunc_()``, which takes torch ten times as long as a division in place.

    >>> towards_zero(torch.tensor([1.7, -1.7, -0.3, 0.0])).tolist()
    [1.0, -1.0, -0.0, 0.0]
    """
    return values.div_(1, rounding_mode="trunc")


def largest_power(square: Fraction) -> int:
    """The largest e with 4^e <= ``square``."""
    exponent = (square.numerator.bit_length() - square.denominator.bit_length()) // 2 + 1
    while Fraction(4) ** exponent > square:
        exponent -= 1
    return exponent
