"""Noise for a budget and budget for a noise: releases of clipped sums with Gaussian noise, composed over a run.

A release is a sum in which one unit (a record, or the records of a group) moves the L2 norm by at most C, plus a
Gaussian of standard deviation sigma * C. Adding or removing a unit is then never easier to notice than telling a
Gaussian with mean 0 from one with mean 1/sigma; where units are drawn by Poisson sampling at rate q, than telling it
from a mixture that has mean 1/sigma with probability q. T such releases compose, also where a later one depends on
earlier ones, as long as sigma, q and T were fixed before the first.

- q = 1: in closed form. All releases together are one Gaussian with mu^2 = sum over rounds of 1/sigma_t^2 (Dong, Roth
  and Su, "Gaussian differential privacy", arXiv:1905.02383, Corollary 3.3), and delta(epsilon) = Phi(mu/2 - epsilon/mu)
  - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle and Wang, arXiv:1805.06530, Theorem 8). ``math`` alone computes it.
- q < 1: by dp-accounting's privacy-loss distributions (``losses.py``), the worse of adding and removing.

Every function rounds to the safe side: sigma, epsilon and delta may come out too large, never too small. The relation
is add/remove throughout; *replacing* a unit is another relation, with larger epsilons. See docs/gaussian_dp.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import ROUND_CEILING, Context, Decimal
from functools import lru_cache

from ..errors import BudgetError, ConfigError, expected, is_finite, is_whole, too_low
from .losses import composed_losses

Noise = tuple[tuple[float, int], ...]
"""Relative noise multipliers with the numbers of rounds that have them: ((1.0, 25), (0.8, 25))."""

RELATION = "add/remove"
LARGEST_EPSILON = 1000.0
SIGMAS = (0.01, 1e6)
"""Noise multipliers between which anything is promised, and anything is left of the sum."""
MOST_ROUNDS, MOST_SAMPLED = 1_000_000, 100_000
"""Of a run, and of one with Poisson sampling, whose accounting takes longer."""
LEAST_RATE, LEAST_DELTA = 1e-9, 1e-100
LEVELS = 8
"""Different noise multipliers that Poisson sampling may have in one run: each costs a convolution."""
DIGITS = 7
"""Of a noise multiplier, rounded up, so that it can be written down and read back on any machine."""


def noise_multiplier(
    epsilon: float, delta: float, rounds: int, sampling_rate: float = 1.0, schedule: Noise | None = None
) -> float:
    """The least noise multiplier sigma, rounded up, with which a whole run is (epsilon, delta)-DP, add/remove.

    Args:
        epsilon: of the whole run.
        delta: of the whole run.
        rounds: releases that the run may make, T.
        sampling_rate: q; 1 if every release is made of all units, less for Poisson sampling.
        schedule: relative noise, as pairs (multiplier, number of rounds) that come to ``rounds`` rounds; all 1 without.

    Returns:
        sigma: the noise of a round is sigma times its relative multiplier times the clip norm.

    Formal guarantee: ``epsilon_of(result, delta, ...) <= epsilon``, which is checked before it is returned.

    >>> noise_multiplier(2.0, 1e-5, 50), noise_multiplier(2.0, 1e-5, 50, schedule=((1.0, 25), (0.5, 25)))
    (14.09839, 22.29151)
    """
    _check_budget(epsilon, delta)
    noise = _noise(rounds, schedule)
    rate = _rate(sampling_rate, noise)
    return _noise_multiplier(float(epsilon), float(delta), noise, rate)


def epsilon_of(
    sigma: float, delta: float, rounds: int, sampling_rate: float = 1.0, schedule: Noise | None = None
) -> float:
    """The epsilon of a whole run with that noise multiplier, add/remove; never below the truth.

    Args:
        sigma: noise multiplier, times those of ``schedule``.
        delta: of the whole run.
        rounds: releases that the run may make, T.
        sampling_rate: q, as for ``noise_multiplier``.
        schedule: relative noise, as for ``noise_multiplier``.

    Returns:
        epsilon; 0 where the run is (0, delta)-DP.

    >>> round(epsilon_of(14.09839, 1e-5, 50), 5)
    2.0
    """
    noise = _noise(rounds, schedule)
    rate = _rate(sampling_rate, noise)
    check_sigma(sigma)
    _check_delta(delta)
    return _epsilon(float(sigma), float(delta), noise, rate)


def delta_of(
    sigma: float, epsilon: float, rounds: int, sampling_rate: float = 1.0, schedule: Noise | None = None
) -> float:
    """The delta of a whole run with that noise multiplier at a given epsilon, add/remove; never below the truth.

    >>> delta_of(14.09839, 2.0, 50) <= 1e-5 < delta_of(14.098, 2.0, 50)
    True
    """
    noise = _noise(rounds, schedule)
    rate = _rate(sampling_rate, noise)
    check_sigma(sigma)
    if not is_finite(epsilon) or epsilon < 0:
        raise BudgetError(f"Expected epsilon={epsilon!r} to be a finite number >= 0.", "For example 2.")
    return _delta(float(sigma), float(epsilon), noise, rate)


def mu_of(sigma: float, noise: Noise) -> float:
    """How far apart the two Gaussians of a run at q = 1 are: the root of the sum of 1/sigma_t^2.

    >>> mu_of(2.0, ((1.0, 4),))
    1.0
    """
    return math.sqrt(math.fsum(count / (sigma * relative) ** 2 for relative, count in noise))


def parts(rounds: int, sampling_rate: float = 1.0, schedule: Noise | None = None) -> tuple[Noise, float]:
    """Rounds and schedule as one checked, sorted schedule, and the checked sampling rate.

    >>> parts(50), parts(3, 0.5, ((1.0, 1), (0.8, 1), (1.0, 1)))
    ((((1.0, 50),), 1.0), (((0.8, 1), (1.0, 2)), 0.5))
    """
    noise = _noise(rounds, schedule)
    return noise, _rate(sampling_rate, noise)


# -- all units in every round: closed form -------------------------------------------------------------------------


def _mills(t: float) -> float:
    """Phi(t) / phi(t), for t <= 5: the tail of a Gaussian over its density, without underflow."""
    x = -t / math.sqrt(2)
    if x < 3:
        scaled = math.exp(x * x) * math.erfc(x)
    else:  # the continued fraction of erfc, from its end: Abramowitz and Stegun 7.1.14
        fraction = x
        for k in range(100, 0, -1):
            fraction = x + k / 2 / fraction
        scaled = 1 / (fraction * math.sqrt(math.pi))
    return math.sqrt(math.pi / 2) * scaled


def _log_delta(mu: float, epsilon: float) -> float:
    """log delta(epsilon) of two Gaussians at distance mu, above the truth by at most what floats may have lost.

    As b^2 - a^2 = 2 epsilon, e^epsilon phi(b) = phi(a): delta is phi(a) times a difference of Mills ratios, which keeps
    its digits where delta is 1e-300. Where mu is so small that they cancel all the same, log Phi(a) is returned.
    """
    a, b = mu / 2 - epsilon / mu, -mu / 2 - epsilon / mu
    log_density = -a * a / 2 - math.log(2 * math.pi) / 2
    margin = 1e-12 + 1e-14 * (1 + abs(b)) / mu
    if a > 5:  # delta is nearly 1: nothing cancels
        return min(0.0, math.log1p(-math.erfc(a / math.sqrt(2)) / 2 - math.exp(log_density) * _mills(b)) + margin)
    if margin > 0.1:
        return min(0.0, math.log(_mills(a)) + log_density * (1 - 1e-9))
    return min(0.0, math.log(_mills(a) - _mills(b)) + log_density + margin)


def _least(holds: Callable[[float], bool], high: float) -> float:
    """The least number above 0, to the last digits, from which on ``holds`` is true, as it is at ``high``."""
    low = 0.0
    while (middle := (low + high) / 2) not in (low, high):
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high


def _closed_epsilon(mu: float, delta: float) -> float:
    target = math.log(delta)
    if _log_delta(mu, 0.0) <= target:
        return 0.0
    return _least(lambda epsilon: _log_delta(mu, epsilon) <= target, mu * (mu / 2 + math.sqrt(-2 * target) + 1))


def _closed_sigma(epsilon: float, delta: float, noise: Noise) -> float:
    """1/mu for the largest mu that the budget allows, times what the schedule makes of sigma = 1."""
    target = math.log(delta)
    enough = 1e-3
    while enough <= SIGMAS[1] and _log_delta(1 / enough, epsilon) > target:
        enough *= 2
    return mu_of(1.0, noise) * _least(lambda spread: _log_delta(1 / spread, epsilon) <= target, enough)


# -- either --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _noise_multiplier(epsilon: float, delta: float, noise: Noise, rate: float) -> float:
    sigma = _closed_sigma(epsilon, delta, noise)  # enough for any rate: sampling only hides more
    if rate < 1:
        sigma = _searched_sigma(epsilon, delta, noise, rate, sigma)
    sigma, step = rounded_up(sigma), 10.0**-DIGITS
    while sigma <= SIGMAS[1] and _delta(sigma, epsilon, noise, rate) > delta:
        sigma, step = rounded_up(sigma * (1 + step)), 2 * step
    if sigma > SIGMAS[1]:
        raise BudgetError(
            f"Epsilon {epsilon:g} at delta {delta:g} in {sum(count for _, count in noise)} rounds would take noise of "
            f"more than {SIGMAS[1]:g} times the clip norm.",
            "Choose a larger epsilon or delta, or fewer rounds.",
        )
    return max(sigma, SIGMAS[0])


def _searched_sigma(epsilon: float, delta: float, noise: Noise, rate: float, high: float) -> float:
    """The least sigma for Poisson sampling, to 1e-6, by the Illinois method on log sigma and log epsilon."""

    def excess(sigma: float) -> float:
        return math.log(min(max(_epsilon(sigma, delta, noise, rate), 1e-9), 1e9) / epsilon)

    high = min(max(high, SIGMAS[0]), SIGMAS[1])
    above = excess(high)
    low, below = high, above
    while below <= 0:
        if low <= SIGMAS[0]:
            return SIGMAS[0]
        high, above = low, below
        low = max(low * max(rate, 0.3), SIGMAS[0])
        below = excess(low)
    missed, side = above, 0  # of high itself: ``above`` and ``below`` are halved where one end stays
    while missed < -1e-6 and math.log(high / low) > 1e-6:
        middle = low * math.exp(below / (below - above) * math.log(high / low))
        value = excess(middle)
        if value > 0:
            low, below, above = middle, value, above / 2 if side > 0 else above
            side = 1
        else:
            high, above, below = middle, value, below / 2 if side < 0 else below
            missed, side = value, -1
    return high


def _epsilon(sigma: float, delta: float, noise: Noise, rate: float) -> float:
    if rate == 1:
        return _closed_epsilon(mu_of(sigma, noise), delta)
    losses = composed_losses(sigma, noise, rate)
    _check_delta(delta, losses.slack)
    return losses.epsilon(delta)


def _delta(sigma: float, epsilon: float, noise: Noise, rate: float) -> float:
    if rate == 1:
        return math.nextafter(math.exp(_log_delta(mu_of(sigma, noise), epsilon)), 1.0)
    return composed_losses(sigma, noise, rate).delta(epsilon)


def rounded_up(number: float) -> float:
    """To so many digits that it can be written down.

    >>> rounded_up(14.098381234), rounded_up(0.1)
    (14.09839, 0.1)
    """
    return float(Context(prec=DIGITS, rounding=ROUND_CEILING).plus(Decimal(repr(number))))


# -- what is refused -----------------------------------------------------------------------------------------------


def _check_budget(epsilon: float, delta: float) -> None:
    if not is_finite(epsilon) or epsilon <= 0:
        raise BudgetError(
            f"Expected epsilon={epsilon!r} to be a finite number > 0.", "Give that of the whole run, for example 2."
        )
    if epsilon > LARGEST_EPSILON:
        raise BudgetError(
            f"Expected epsilon={epsilon:g} to be <= {LARGEST_EPSILON:g}: beyond that nothing is promised.",
            "Choose a smaller one: 1 to 8 are usual.",
        )
    _check_delta(delta)


def _check_delta(delta: float, slack: float = 0.0) -> None:
    if not is_finite(delta) or not LEAST_DELTA <= delta < 1:
        raise BudgetError(f"Expected delta={delta!r} to lie between {LEAST_DELTA:g} and 1.", "For example 1e-5.")
    if delta < 10 * slack:
        raise BudgetError(
            f"Expected delta={delta:g} to be >= {10 * slack:.2g}: the numbers of Poisson sampling are no more exact.",
            "Choose a larger delta, or a sampling rate of 1.",
        )


def check_sigma(sigma: float) -> None:
    if not is_finite(sigma) or not SIGMAS[0] <= sigma <= SIGMAS[1]:
        raise BudgetError(
            f"Expected sigma={sigma!r} to be a number from {SIGMAS[0]:g} to {SIGMAS[1]:g}.",
            "It is the standard deviation of the noise over the clip norm; 1 to 20 are usual.",
        )


def _noise(rounds: int, schedule: Noise | None) -> Noise:
    if not is_whole(rounds) or rounds < 1:
        raise too_low("rounds", rounds, 1)
    if rounds > MOST_ROUNDS:
        raise expected("rounds", rounds, f"at most {MOST_ROUNDS:,}", "Make fewer, larger steps.")
    if schedule is None:
        return ((1.0, rounds),)
    counts: dict[float, int] = {}
    for relative, count in schedule:
        if not is_finite(relative) or not 1e-3 <= relative <= 1e3:
            raise expected("noise_schedule", relative, "numbers from 0.001 to 1000", "1 is the noise of the budget.")
        if not is_whole(count) or count < 1:
            raise expected("noise_schedule", count, "for a whole number of rounds >= 1", "Count the rounds of each.")
        counts[float(relative)] = counts.get(float(relative), 0) + count
    if sum(counts.values()) != rounds:
        raise ConfigError(
            f"The noise schedule is for {sum(counts.values())} rounds, the budget for {rounds}.",
            "Give both the same number of rounds.",
        )
    return tuple(sorted(counts.items()))


def _rate(sampling_rate: float, noise: Noise) -> float:
    if not is_finite(sampling_rate) or not LEAST_RATE <= sampling_rate <= 1:
        most = f"from {LEAST_RATE:g} to 1"
        raise expected("sampling_rate", sampling_rate, most, "1 takes every unit in every round.")
    rounds = sum(count for _, count in noise)
    if sampling_rate < 1 and rounds > MOST_SAMPLED:
        remedy = "Make fewer, larger steps, or use a sampling rate of 1."
        raise expected("rounds", rounds, f"at most {MOST_SAMPLED:,} with Poisson sampling", remedy)
    if sampling_rate < 1 and len(noise) > LEVELS:
        raise ConfigError(
            f"The noise schedule has {len(noise)} different values, more than the {LEVELS} that Poisson sampling may.",
            "Change the noise in fewer steps, or use a sampling rate of 1.",
        )
    return float(sampling_rate)
