"""The budget of ``gaussian-dp``: (epsilon, delta) of a whole run, and the noise of each release that follows."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import BudgetError, ConfigError, expected, is_finite, is_number, is_whole
from ..privacy.gaussian import epsilon_of, noise_multiplier
from .schedule import Schedule, schedule

MOST_ROUNDS = 1_000_000


@dataclass(frozen=True, kw_only=True)
class GaussianSettings:
    """What the guarantee of ``gaussian-dp`` depends on beside its epsilon. All of it is public and fixed before a run.

    >>> GaussianSettings(rounds=50).noise()
    ((1.0, 50),)
    """

    delta: float = 1e-5
    clip: float = 1.0  # L2 norm that the gradient of one unit is clipped to
    sampling_rate: float = 1.0  # of units: 1 takes all of them, less is a Poisson sample, drawn afresh in every round
    divisor: float = 1000.0  # a public stand-in for the number of units: sums are divided by sampling_rate * divisor
    rounds: int | None = None  # that the budget is for; None: those of the run
    noise_schedule: Any = 1.0  # noise relative to other rounds: a number, or a schedule over rounds
    sigmas: list[list[float]] = field(default_factory=list)  # known pairs of epsilon and noise multiplier

    def noise(self) -> tuple[tuple[float, int], ...]:
        """How many rounds have which relative noise."""
        rounds = range(1, (self.rounds or 1) + 1)
        relative = [row[0] for row in schedule(self.noise_schedule, rounds, 1, "gaussian.noise_schedule")]
        return tuple(sorted(Counter(relative).items()))

    def relative(self, rounds: list[int]) -> list[float]:
        """The relative noise of some rounds."""
        return [row[0] for row in schedule(self.noise_schedule, rounds, 1, "gaussian.noise_schedule")]

    def sigma(self, epsilon: float) -> float:
        """The noise multiplier of a round with relative noise 1: so much noise, in units of the clip."""
        for known, sigma in self.sigmas:
            if known == epsilon:
                return sigma
        if self.rounds is None:
            raise ConfigError(
                "The budget of gaussian-dp is for a whole run, and its rounds are not known.", "Set gaussian.rounds."
            )
        return noise_multiplier(epsilon, self.delta, self.rounds, self.sampling_rate, self.noise())

    def epsilon(self, sigma: float) -> float:
        """What a noise multiplier is worth: the epsilon of all rounds together."""
        return epsilon_of(sigma, self.delta, self.rounds or 1, self.sampling_rate, self.noise())


@dataclass(frozen=True)
class RunBudget:
    """The measure of ``gaussian-dp``: from epsilon to the standard deviation of the noise on an update.

    >>> budget = RunBudget(GaussianSettings(rounds=50), eta=1.0)
    >>> round(budget.lower(2.0), 5)  # a unit moves an update by at most clip / divisor = 0.001
    0.0141
    """

    gaussian: GaussianSettings
    eta: float
    factor: float = 1.0
    bounds_draw: bool = field(default=True, init=False)

    @property
    def reach(self) -> float:
        """How far one unit can move an update."""
        own = self.gaussian
        return self.eta * own.clip / (own.sampling_rate * own.divisor)

    def leakage(self, intensity: float) -> float:
        if not is_finite(intensity) or intensity <= 0:
            raise BudgetError(f"Expected scale={intensity!r} to be a finite number > 0.", "Set scale to such a number.")
        return self.gaussian.epsilon(intensity / self.reach)

    def lower(self, budget: float) -> float:
        if not is_finite(budget) or budget <= 0:
            raise BudgetError(f"Expected epsilon={budget!r} to be a finite number > 0.", "For example 2.")
        return self.gaussian.sigma(float(budget)) * self.reach


def check_budget(budget: Any) -> None:
    """A budget of a whole run cannot change along the way."""
    if isinstance(budget, Mapping):
        raise BudgetError(
            "The budget of gaussian-dp is the epsilon of the whole run: it has no schedule over rounds.",
            "Give one number, or one for each client; gaussian.noise_schedule moves noise between rounds.",
        )


def type_problems(own: Any) -> Iterator[ConfigError]:
    """Everything of the wrong type."""
    if not isinstance(own, GaussianSettings):
        yield expected("gaussian", own, "a table of settings")
        return
    for name in ("delta", "clip", "sampling_rate", "divisor"):
        if not is_number(getattr(own, name)):
            yield expected(f"gaussian.{name}", getattr(own, name), "a number")
    if own.rounds is not None and not (is_whole(own.rounds) and is_number(own.rounds)):
        yield expected("gaussian.rounds", own.rounds, "a whole number or none")
    pairs = own.sigmas if isinstance(own.sigmas, list | tuple) else [None]
    if not all(isinstance(pair, list | tuple) and len(pair) == 2 and all(map(is_finite, pair)) for pair in pairs):
        yield expected("gaussian.sigmas", own.sigmas, "a list of pairs of numbers")


def range_problems(own: GaussianSettings) -> Iterator[ConfigError]:
    """Everything out of range, in settings of the right types."""
    if not 0 < own.delta < 1:
        yield expected("gaussian.delta", own.delta, "between 0 and 1", "For example 1e-5: well below 1 / records.")
    if not 0 < own.sampling_rate <= 1:
        yield expected("gaussian.sampling_rate", own.sampling_rate, "in (0, 1]", "1 takes all records in every round.")
    for name in ("clip", "divisor"):
        if not (is_finite(getattr(own, name)) and getattr(own, name) > 0):
            yield expected(f"gaussian.{name}", getattr(own, name), "a finite number > 0")
    if own.rounds is not None and not 1 <= own.rounds <= MOST_ROUNDS:
        yield expected("gaussian.rounds", own.rounds, f"in 1..{MOST_ROUNDS}, or none")
    for epsilon, sigma in own.sigmas:
        if not (epsilon > 0 and sigma > 0):
            yield expected("gaussian.sigmas", own.sigmas, "pairs of numbers > 0")
    yield from _schedule_problems(own.noise_schedule)


def _schedule_problems(value: Schedule) -> Iterator[ConfigError]:
    if isinstance(value, list | tuple):
        yield expected("gaussian.noise_schedule", value, "a number or a schedule over rounds")
        return
    try:
        starts = value.get("rounds", [1]) if isinstance(value, Mapping) else [1]
        rows = schedule(value, list(starts), 1, "gaussian.noise_schedule")
        if not all(row[0] > 0 and math.isfinite(row[0]) for row in rows):
            yield expected("gaussian.noise_schedule", value, "> 0")
    except (ConfigError, TypeError) as error:
        yield error if isinstance(error, ConfigError) else expected("gaussian.noise_schedule", value, "a schedule")
