"""Privacy budget chi -> distortion intensity, and back: Examples 5.1 and 5.2 of Zhang et al. (arXiv:2305.15148).

A *measure* maps an intensity to a leakage score and inverts it. Two come from the paper, one more shows
that the protocol is open. None of them is a differential-privacy guarantee by itself; ``laplace-dp`` alone makes one of
``LaplaceBudget``, by a sensitivity that it derives (docs/laplace_dp.md):

==================  ==================================  =========================================
measure             leakage(intensity)                  lower(budget)
==================  ==================================  =========================================
``LeakageBudget``   1 - (c_a*b + c_a*c_res*I^(p-1))/4D  max(2*c_res*I^(p-1), inverse)
``LaplaceBudget``   S / sigma                           S / chi
``GaussianBudget``  S / sigma                           S / chi
==================  ==================================  =========================================

``LeakageBudget`` scores the realised L2 norm b of a distortion against one attack, conditionally on
constants that nobody verifies. The other two calibrate a noise *scale*: the intensity bounds follow from
each draw.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from ..errors import BudgetError, is_finite, is_number


@runtime_checkable
class Measure(Protocol):
    """What a privacy measure must offer. ``bounds_draw`` says what ``lower`` is the lower bound of.

    ``bounds_draw=False``: of the intensity itself. ``bounds_draw=True``: of the noise scale; the intensity
    bounds are then the realised intensity of each draw and ``factor`` times it.
    """

    @property
    def factor(self) -> float: ...

    @property
    def bounds_draw(self) -> bool: ...

    def leakage(self, intensity: float) -> float: ...

    def lower(self, budget: float) -> float: ...


def _require(ok: bool, message: str, remedy: str) -> None:
    if not ok:
        raise BudgetError(message, remedy)


def _positive(**values: float) -> None:
    for name, value in values.items():
        _require(
            is_finite(value) and value > 0,
            f"Expected {name}={value!r} to be a finite number > 0.",
            f"Set {name} to a positive number.",
        )


@dataclass(frozen=True)
class LeakageBudget:
    """The paper's attack-specific score (eq. 5) and its max-form map (eq. 11).

    ``c_res`` stands for c_2*c_b/c_a. Defaults are the paper's: the threshold is then 5e-4.

    >>> round(LeakageBudget().lower(0.96), 5), round(LeakageBudget().lower(0.995), 5)
    (15.99975, 1.99975)
    """

    D: float = 56.0
    c_a: float = 0.56
    c_res: float = 0.01
    p: float = 0.5
    iterations: int = 1600
    factor: float = 2.0
    bounds_draw: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        _positive(D=self.D, c_a=self.c_a, c_res=self.c_res)
        _positive(p=self.p, iterations=self.iterations, factor=self.factor)
        _require(self.p < 1, f"Expected p={self.p!r} to lie in (0, 1).", "The paper uses 0.5.")
        _require(
            self.iterations >= 1,
            f"Expected iterations={self.iterations!r} to be >= 1.",
            "The score is defined for an attack that runs; without one the leakage is 0.",
        )
        _check_factor(self.factor)

    @property
    def _decay(self) -> float:
        return math.pow(self.iterations, self.p - 1)  # I^(p-1)

    @property
    def threshold(self) -> float:
        """The intensity from which the score is a bound (Lemma D.1, eq. D.9)."""
        return 2 * self.c_res * self._decay

    def leakage(self, intensity: float) -> float:
        """The score of an intensity. A negative value is returned as it is, never clamped."""
        ok = is_number(intensity) and intensity >= 0
        _require(ok, f"Expected intensity={intensity!r} to be >= 0.", "An intensity is a norm.")
        residual = self.c_a * self.c_res * self._decay
        return 1 - (self.c_a * intensity + residual) / (4 * self.D)

    def lower(self, budget: float) -> float:
        """Eq. 11 (Example 5.1): never below the threshold, even where the inverse is."""
        _finite(budget)
        _require(
            budget < 1,
            f"Expected budget={budget!r} to be < 1.",
            "A leakage score is at most 1, and a smaller budget is stricter: choose one below 1, for example 0.98.",
        )
        inverse = (1 - budget) * 4 * self.D / self.c_a - self.c_res * self._decay
        _require(
            budget >= 0,
            f"Expected budget={budget!r} to be >= 0.",
            "Choose one between 0 and 1, for example 0.98: no reconstruction is assumed to lie farther away than D.",
        )
        return max(self.threshold, inverse)


@dataclass(frozen=True)
class _ScaleBudget:
    """S / sigma. ``sensitivity`` is a number that is given, not a proved bound of anything."""

    sensitivity: float = 10.0
    factor: float = 2.0
    bounds_draw: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        _positive(sensitivity=self.sensitivity)
        _check_factor(self.factor)

    def leakage(self, intensity: float) -> float:
        _positive(scale=intensity)
        return self.sensitivity / intensity

    def lower(self, budget: float) -> float:
        _finite(budget)
        _require(
            budget > 0,
            f"Expected budget={budget!r} to be > 0.",
            "Choose a positive one: the paper's are 80 to 800, and a smaller one is stricter.",
        )
        scale = self.sensitivity / budget
        _require(math.isfinite(scale), f"budget={budget!r} asks for an infinite scale.", "Choose a larger budget.")
        return scale


class LaplaceBudget(_ScaleBudget):
    """Eq. 13 (Example 5.2): the scale of the Laplace draw.

    >>> LaplaceBudget(sensitivity=10).lower(80)
    0.125
    """


class GaussianBudget(_ScaleBudget):
    """The same ratio for the standard deviation of a Gaussian draw.

    >>> GaussianBudget(sensitivity=1).lower(4)
    0.25
    """


def _finite(budget: float) -> None:
    ok = is_finite(budget)
    _require(ok, f"Expected budget={budget!r} to be a finite number.", "Give a number.")


def _check_factor(factor: float) -> None:
    ok = is_finite(factor) and factor >= 1
    _require(ok, f"Expected factor={factor!r} to be >= 1.", "upper = factor * lower; the paper uses 2.")
