"""What a user sets: one of three limits, checked, and the epsilon that it comes to."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from ..errors import BudgetError, ConfigError, is_number
from ..mechanism.run_budget import GaussianSettings
from ..privacy.gaussian import LARGEST_EPSILON, noise_multiplier
from ..privacy.limits import blind_success
from ..privacy.limits import limit as proved_limit

Kind = Literal["epsilon", "identification", "accuracy"]
CANDIDATES = 200
"""Records that an attacker picks one of."""
EPSILONS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0, 5.6, 8.0)
"""What is tried for an accuracy, the strictest first."""
LEAST_EPSILON = 1e-4
DIGITS = 3
"""Of an epsilon that follows from a limit on identification, rounded down."""


@dataclass(frozen=True)
class Limit:
    """A limit on the loss of privacy over a whole run, or on the loss of accuracy."""

    kind: Kind
    value: float

    def words(self) -> str:
        """
        >>> Limit("epsilon", 2.0).words(), Limit("accuracy", 0.9).words()
        ('epsilon at most 2 for the whole run', 'an accuracy of at least 90.0%')
        """
        if self.kind == "epsilon":
            return f"epsilon at most {self.value:g} for the whole run"
        if self.kind == "accuracy":
            return f"an accuracy of at least {self.value:.1%}"
        return f"at most {100 * self.value:.3g}% of records identified among {CANDIDATES} by any attacker, whole run"


def limit_of(epsilon: Any = None, identification: Any = None, accuracy: Any = None) -> Limit:
    """The one limit that was given.

    >>> limit_of(epsilon=2)
    Limit(kind='epsilon', value=2.0)
    >>> limit_of(identification=0.001)
    Traceback (most recent call last):
    equipoise.errors.ConfigError: Expected identification=0.001 to lie between chance, 1/200 = 0.005, and 1. No no...
    """
    kinds: dict[Kind, Any] = {"epsilon": epsilon, "identification": identification, "accuracy": accuracy}
    given = {kind: value for kind, value in kinds.items() if value is not None}
    if len(given) != 1:
        named = " and ".join(f"--{kind}" for kind in given)
        raise ConfigError(
            f"Expected one limit, got {len(given)}: {named}." if given else "No limit was given.",
            "Give --epsilon (for example 2), --identification (0.02) or --accuracy (0.9): just one of them.",
        )
    ((kind, value),) = given.items()
    if not is_number(value) or not math.isfinite(value):
        raise ConfigError(f"Expected {kind}={value!r} to be a finite number.", f"For example --{kind} {USUAL[kind]}.")
    if kind == "epsilon" and not 0 < value <= LARGEST_EPSILON:
        raise BudgetError(
            f"Expected epsilon={value!r} to be > 0 and at most {LARGEST_EPSILON:g}.",
            "Give that of the whole run: 1 to 8 are usual.",
        )
    chance = blind_success(CANDIDATES)
    if kind == "identification" and not chance < value < 1:
        raise ConfigError(
            f"Expected identification={value!r} to lie between chance, 1/{CANDIDATES} = {chance:g}, and 1.",
            "No noise is better than a guess; 0.02 is about what epsilon 2 proves.",
        )
    if kind == "accuracy" and not 0 < value < 1:
        remedy = f"It is a share: write {value / 100:g} for {value:g}%." if 1 < value <= 100 else "For example 0.9."
        raise ConfigError(f"Expected accuracy={value!r} to lie between 0 and 1.", remedy)
    return Limit(kind, float(value))


USUAL: dict[Kind, str] = {"epsilon": "2", "identification": "0.02", "accuracy": "0.9"}


def proved(epsilon: float, gaussian: GaussianSettings, rounds: int) -> float:
    """The most that any attacker identifies over a whole run with that budget, as a share.

    >>> round(proved(2.0, GaussianSettings(), 50), 4)
    0.019
    """
    noise = _noise(gaussian, rounds)
    sigma = noise_multiplier(epsilon, gaussian.delta, rounds, gaussian.sampling_rate, noise)
    return proved_limit(blind_success(CANDIDATES), sigma, rounds, gaussian.sampling_rate, "run", noise)


def epsilon_for(identification: float, gaussian: GaussianSettings, rounds: Iterable[int]) -> float | None:
    """The largest epsilon whose proved limit is at most this, with any of these rounds; None where none is so small.

    >>> found = epsilon_for(0.02, GaussianSettings(), [25, 50])
    >>> found, proved(found, GaussianSettings(), 50) <= 0.02
    (2.09, True)
    """
    tried = sorted(set(rounds))

    def holds(epsilon: float) -> bool:
        try:
            return all(proved(epsilon, gaussian, count) <= identification for count in tried)
        except BudgetError:  # so much noise that nothing is left
            return True

    low, high = LEAST_EPSILON, LARGEST_EPSILON
    if not holds(low):
        return None
    while high / low > 1 + 10.0**-DIGITS / 2:
        middle = math.sqrt(low * high)
        low, high = (middle, high) if holds(middle) else (low, middle)
    step = 10.0 ** (math.floor(math.log10(low)) - DIGITS + 1)
    return float(f"{math.floor(low / step * (1 + 1e-12)) * step:.{DIGITS}g}")


def _noise(gaussian: GaussianSettings, rounds: int) -> tuple[tuple[float, int], ...]:
    return replace(gaussian, rounds=rounds).noise()
