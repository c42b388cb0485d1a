"""Updates as whole numbers: what one record adds, bounded exactly, and what is drawn on top of it.

Floats do not have the sensitivity that a proof assumes: ``start - eta * gradient`` is rounded, and the server chooses
``start``, and with it by how much. So a formal mechanism counts in steps of a grid that depends on public numbers
alone, adds its noise there, and the received weights last of all, to what is no secret any more.

Formal guarantees, for records of any kind, also those whose gradients are not finite, and for any floats that the
gradients may be:

* ``steps`` maps the gradient of one record, and nothing else, to integers of an L1 norm of at most ``bound``: the norm
  is compared as an integer, and a record that still exceeds it counts as zero;
* so replacing a record moves the sum by at most ``2 * bound``, and adding or removing one by at most ``bound``;
* ``noise_scale`` is at least ``2 * bound / epsilon``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor

from ..errors import ConfigError
from .intensity import intensity

FINENESS = 1000
"""Rounding every coordinate moves a record by at most 1 / FINENESS of what the clip allows."""
LARGEST_SUM = 2**60
"""Of what all records add up to. Noise is exact below 2^62, so a total is exact, and cut off at twice this number."""
_MARGIN = Fraction(1, 2**20)
_EXPONENTS = range(-900, 901)


@dataclass(frozen=True)
class Grid:
    """Whole multiples of ``2**exponent``, of which one record may use ``bound``.

    >>> grid = Grid.of(eta=0.1, clip=50.0, batch=4, size=1000)
    >>> grid.exponent, grid.bound, grid.noise_scale(2.5)  # 2.5 is the noise scale at epsilon 1
    (-20, 1310720, 2621443)
    >>> whole, clipped = grid.steps(torch.tensor([[60.0, -40.0], [1e-9, float("inf")]]), 0.1, 50.0, 4)
    >>> whole.tolist(), clipped.tolist()
    ([[-786432, 524288], [0, 0]], [True, True])
    """

    exponent: int
    bound: int

    @classmethod
    def of(cls, eta: float, clip: float, batch: int, size: int) -> Grid:
        """The coarsest grid that is fine enough for ``size`` parameters; a function of public numbers alone."""
        reach = Fraction(eta) * Fraction(clip) / batch
        most = reach / (FINENESS * size)
        exponent = most.numerator.bit_length() - most.denominator.bit_length()
        exponent -= Fraction(2) ** exponent > most  # now 2^exponent <= most < 2^(exponent + 1)
        if exponent not in _EXPONENTS:
            raise ConfigError(
                f"No grid of floats suits updates of {float(eta):.3g} * {float(clip):.3g} / {batch}.",
                "Choose eta and clip nearer to 1.",
            )
        return cls(exponent, math.floor(reach / Fraction(2) ** exponent))

    @property
    def step(self) -> float:
        return 2.0**self.exponent

    def noise_scale(self, scale: float) -> int:
        """A noise scale in whole steps, rounded up; by a millionth first, as ``scale`` may be a float32."""
        return max(1, math.ceil(Fraction(scale) * (1 + _MARGIN) / Fraction(2) ** self.exponent))

    def steps(self, gradients: Tensor, eta: float, clip: float, batch: int) -> tuple[Tensor, Tensor]:
        """What one record in each of R rows adds to an update: int64 ``[R, P]``, and which gradients were clipped.

        Towards zero, so that rounding cannot lengthen a record.
        """
        exact = gradients.double()
        size = intensity(exact, "l1").unsqueeze(-1)
        whole = (exact * (clip / size.clamp_min(clip)) * (-eta / batch / self.step)).trunc()
        norm = _norm(whole)
        whole = torch.where(norm > self.bound, (whole * (self.bound / norm)).trunc(), whole)
        whole = torch.where(_norm(whole) <= self.bound, whole, 0.0)  # nor what is not a number
        return whole.long(), ~(size <= clip).squeeze(-1)


def _norm(whole: Tensor) -> Tensor:
    """The L1 norm of integers, compared exactly: below 2^53 float64 adds them so, and larger sums stay larger."""
    return whole.abs().sum(-1, keepdim=True)


def added(start: Tensor, whole: Tensor, grid: Grid) -> Tensor:
    """``start`` and whole steps of the grid, in the type of ``start`` and always finite: for what may be seen."""
    most = torch.finfo(start.dtype).max
    return (start.double() + whole.double() * grid.step).clamp(-most, most).to(start.dtype)
