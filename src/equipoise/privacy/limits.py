"""What any attacker can achieve at best against a run of clipped sums with Gaussian noise: proved limits.

The attacker knows all other records, the model and every setting, has any amount of computing power, and sees all
releases (scope ``run``) or one of them (``release``; ``release_known`` if it is told that the record was drawn for it).
Let kappa be its success where the record is not there: 1/m for picking one of m equally likely candidates, the
false-positive rate for membership. Its success where the record is there is at most

    gamma(kappa) = inf over all real epsilon of e^epsilon kappa + delta_{P||Q}(epsilon),

P the run with the record and Q without it (Hayes et al., arXiv:2302.07225; Kaissis et al., arXiv:2307.03928;
Kulynych et al., arXiv:2507.06969). Every epsilon gives a valid limit, negative ones too. With all units in every round
it is Phi(Phi^-1(kappa) + mu).

These are limits of the *noise*, not of a pair (epsilon, delta), and only for that game: with the record or without it,
candidates that are exchangeable beforehand, on average over them. Swapping a record for another is a different game
(*replace*) with larger limits. See docs/gaussian_dp.md.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..errors import expected, is_finite, is_whole
from .gaussian import Noise, check_sigma, mu_of, parts
from .losses import composed_losses

Scope = Literal["run", "release", "release_known"]
SCOPES: tuple[Scope, ...] = ("run", "release", "release_known")
NORMAL = NormalDist()
MARGIN = 1 + 1e-12
"""Floats of the closed form may be too small by less."""
GRID = np.arange(-6000, 8001) / 200
"""Epsilons from -30 to 40 at which P and Q are compared: below, every limit is 1, and beyond, kappa would be 1e-17."""

MOST_CANDIDATES = 10**12


def limit(
    kappa: float,
    sigma: float,
    rounds: int,
    sampling_rate: float = 1.0,
    scope: Scope = "run",
    schedule: Noise | None = None,
) -> float:
    """gamma(kappa): the most that any attacker achieves where one that saw nothing of the record achieves kappa.

    Args:
        kappa: ``blind_success(candidates)`` for identification, the false-positive rate for membership.
        sigma: noise multiplier.
        rounds: noised releases of the run, T.
        sampling_rate: q; 1 if every release is made of all units.
        scope: all releases, one, or one for which the record is known to be drawn; of several, that with least noise.
        schedule: relative noise of the rounds, as for ``noise_multiplier``.

    Returns:
        A probability, never below the truth: of picking the right candidate, or the true-positive rate.

    >>> round(limit(1 / 200, 14.09839, 50), 5), round(limit(1 / 200, 14.09839, 50, scope="release"), 5)
    (0.01903, 0.00612)
    """
    if not is_finite(kappa) or not 0 <= kappa <= 1:
        raise expected("kappa", kappa, "a probability", "1/m for m candidates, or a false-positive rate.")
    noise, rate = parts(rounds, sampling_rate, schedule)
    check_sigma(sigma)
    if kappa in (0, 1):
        return float(kappa)  # what never happens without the record never happens with it: all noise reaches everywhere
    if _known(scope) != "run":
        largest = _shifted(kappa, 1 / (sigma * noise[0][0]))
        share = rate if scope == "release" else 1.0
        return min(1.0, (1 - share) * kappa + share * largest)
    if rate == 1:
        return _shifted(kappa, mu_of(sigma, noise))
    return min(1.0, float(np.min(np.exp(GRID) * kappa + _removal(float(sigma), noise, rate))))


def advantage(sigma: float, rounds: int, sampling_rate: float = 1.0, schedule: Noise | None = None) -> float:
    """The most by which the true-positive rate of any test for the record exceeds its false-positive rate: delta(0).

    The test sees the whole run.

    >>> round(advantage(14.09839, 50), 4)
    0.198
    """
    noise, rate = parts(rounds, sampling_rate, schedule)
    check_sigma(sigma)
    if rate == 1:
        return _distance(mu_of(sigma, noise))
    return float(_removal(float(sigma), noise, rate)[np.searchsorted(GRID, 0.0)])


def blind_success(candidates: int) -> float:
    """kappa of picking the one record that is there from ``candidates``, all equally likely.

    >>> blind_success(200)
    0.005
    """
    if not is_whole(candidates) or not 2 <= candidates <= MOST_CANDIDATES:
        most = f"a whole number from 2 to {MOST_CANDIDATES:,}"
        raise expected("candidates", candidates, most, "Give how many there are to choose from.")
    return 1 / candidates


def _known(scope: Scope) -> Scope:
    if scope not in SCOPES:
        raise expected("scope", scope, f"one of {', '.join(SCOPES)}", "Say what the attacker sees.")
    return scope


def _shifted(kappa: float, mu: float) -> float:
    """Phi(Phi^-1(kappa) + mu)."""
    return min(1.0, math.erfc(-(NORMAL.inv_cdf(kappa) + mu) / math.sqrt(2)) / 2 * MARGIN)


def _distance(mu: float) -> float:
    """2 Phi(mu/2) - 1: the total variation distance of two Gaussians."""
    return min(1.0, math.erf(mu / 2 / math.sqrt(2)) * MARGIN)


@lru_cache(maxsize=64)
def _removal(sigma: float, noise: Noise, rate: float) -> npt.NDArray[np.float64]:
    """delta of P against Q on the grid."""
    return composed_losses(sigma, noise, rate).removal(GRID)
