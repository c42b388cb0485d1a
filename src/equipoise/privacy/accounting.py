"""What many releases of one client are worth together, for the one mechanism whose budget is a guarantee: laplace-dp.

A release with budget epsilon is epsilon-differentially private (delta = 0). Every such mechanism is dominated by
randomized response with that epsilon (Kairouz, Oh and Viswanath, "The composition theorem for differential privacy",
2015), so the composition of randomized responses bounds that of the releases, also where a later release depends on
earlier ones. dp-accounting composes them, rounding every loss upwards. See docs/laplace_dp.md.

No other mechanism has anything to compose: their budgets are scores of one release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ..errors import BudgetError, ConfigError, is_count, is_finite, is_number, missing_package

LARGE = 30.0
"""Epsilons above this are simply added: such a randomized response lies once in 10^13, which composition cannot use."""

GRID, CELLS = 1024, 1 << 20
"""Parts of the smallest epsilon that losses are rounded up to; and the most cells of the grid that the sum may take."""

ROUNDING = (1e-12, 3e-15)
"""Taken off delta, once and for every release: ten times the error of the Fourier transforms as measured."""


def basic_epsilon(budgets: Mapping[float, int]) -> float:
    """The epsilon of all releases together with delta = 0: their sum. ``budgets``: epsilon -> number of releases.

    >>> basic_epsilon({1.0: 3, 0.5: 2})
    4.0
    """
    _check(budgets)
    return math.fsum(epsilon * count for epsilon, count in budgets.items())


def composed_epsilon(budgets: Mapping[float, int], delta: float) -> float:
    """The smallest epsilon known to hold, with ``delta``, for all releases of one client; never above their sum.

    Args:
        budgets: the epsilon of a release, with the number of releases that have it. They must have been fixed
            beforehand, not chosen in the light of earlier releases.
        delta: of the composed guarantee.

    Returns:
        The epsilon of all of them together.

    Formal guarantee: mechanisms that are epsilon-DP each, in the numbers given, are together (result, delta)-DP.

    ==========================  ==============================================
    edge case                   result
    ==========================  ==============================================
    no release                  0
    one release                 its own epsilon, less what delta makes of it
    delta = 0, or below 1e-11   the sum: rounding would drown a smaller delta
    epsilon above 30            added to what the others make
    ==========================  ==============================================

    >>> composed_epsilon({0.1: 1000}, 0.0), round(composed_epsilon({0.1: 1000}, 1e-5), 2)
    (100.0, 17.79)
    """
    total = basic_epsilon(budgets)
    if not is_number(delta) or not 0 <= delta < 1:
        raise ConfigError(f"Expected delta={delta!r} to lie in [0, 1).", "For example 1e-5.")
    small = {float(epsilon): count for epsilon, count in budgets.items() if epsilon <= LARGE and count}
    slack = ROUNDING[0] + ROUNDING[1] * sum(small.values())
    if not small or delta < 10 * slack:
        return total
    low, high = 0.0, basic_epsilon(small)  # the sum always holds
    large = total - high
    losses = _losses(small, high)
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        enough = losses.get_delta_for_epsilon(middle) + slack <= delta
        low, high = (low, middle) if enough else (middle, high)
    return min(total, high + large)


def _losses(budgets: Mapping[float, int], total: float) -> Any:
    """The privacy losses of that many randomized responses, composed."""
    try:
        from dp_accounting.pld import common, privacy_loss_distribution
    except ImportError as error:
        raise missing_package("Composing releases", "dp-accounting") from error
    cell = min(budgets) / (1 if len(budgets) == 1 else GRID)  # a single epsilon is its own grid: nothing is rounded
    while total > CELLS * cell:
        cell *= 2  # stays an exact part of the smallest epsilon for as long as it is one
    composed = privacy_loss_distribution.identity(cell)
    for epsilon, count in budgets.items():
        one = privacy_loss_distribution.from_privacy_parameters(
            common.DifferentialPrivacyParameters(epsilon, 0), value_discretization_interval=cell
        )
        composed = composed.compose(one.self_compose(count))
    return composed


def _check(budgets: Mapping[float, int]) -> None:
    for epsilon, count in budgets.items():
        if not is_finite(epsilon) or epsilon <= 0:
            raise BudgetError(f"Expected epsilon={epsilon!r} to be a finite number > 0.", "Give that of one release.")
        if not is_count(count):
            raise ConfigError(f"Expected releases={count!r} to be a whole number >= 0.", "Count the releases.")
