"""Privacy losses of releases with Poisson sampling and Gaussian noise, composed over a run by dp-accounting.

P is the run with the unit, Q without it: in a round with noise sigma, Q is N(0, sigma^2) and P the mixture
(1-q) N(0, sigma^2) + q N(1, sigma^2), and rounds are independent. These two dominate every adaptive run of clipped sums
with that noise (Zhu, Dong and Wang, "Optimal accounting of differential privacy via characteristic function",
arXiv:2106.08567). Losses are put on a grid so that no divergence shrinks ("connect the dots", Doroshenko et al.,
arXiv:2207.04380), and convolved by Fourier transforms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BudgetError, missing_package

ROUNDING = (1e-12, 3e-15)
"""Added to every delta, once and for every round: what Fourier transforms may have lost; tests hold it to q = 1."""
FINE, COARSEST, CELLS = 128, 1e-3, 1 << 17
"""Cells of the grid to a standard deviation of one round's loss; the widest cell; the most cells of one round."""


@dataclass(frozen=True)
class Losses:
    """Those of a whole run: ``remove`` of P against Q, ``add`` of Q against P; ``slack`` is part of every delta."""

    remove: Any
    add: Any
    slack: float

    def delta(self, epsilon: float) -> float:
        """Of the run, add/remove: the worse of both directions."""
        with np.errstate(all="ignore"):
            both = [float(one.get_delta_for_epsilon(epsilon)) for one in (self.remove, self.add)]
        return min(1.0, _worst(both) + self.slack)

    def epsilon(self, delta: float) -> float:
        """The least with which the run is (epsilon, delta)-DP, add/remove; delta must exceed the slack."""
        with np.errstate(all="ignore"):
            both = [float(one.get_epsilon_for_delta(delta - self.slack)) for one in (self.remove, self.add)]
        return _worst(both)

    def removal(self, epsilons: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """delta of P against Q at these epsilons, in ascending order; negative ones too."""
        with np.errstate(all="ignore"):
            found = np.asarray(self.remove.get_delta_for_epsilon(epsilons), dtype=np.float64)
        return np.minimum(1.0, np.maximum(found, 0.0) + self.slack)


def _worst(both: list[float]) -> float:
    """The larger one; of numbers that are none, nothing may be said."""
    if any(math.isnan(one) for one in both):
        raise _no_number()
    return max(both)


def _no_number() -> BudgetError:
    return BudgetError(
        "dp-accounting finds no number for this noise, sampling rate and number of rounds.",
        "Choose less extreme ones, or a sampling rate of 1.",
    )


@lru_cache(maxsize=8)
def composed_losses(sigma: float, noise: tuple[tuple[float, int], ...], rate: float) -> Losses:
    """Of a run in which ``count`` rounds have noise ``sigma * relative``, for every pair of ``noise``; 0 < rate < 1."""
    try:
        from dp_accounting.pld.privacy_loss_mechanism import AdjacencyType
    except ImportError as error:
        raise missing_package("Accounting for Poisson sampling", "dp-accounting") from error
    try:
        remove, add = (_composed(sigma, noise, rate, way) for way in (AdjacencyType.REMOVE, AdjacencyType.ADD))
    except (ValueError, ArithmeticError, MemoryError) as error:
        raise _no_number() from error
    return Losses(remove, add, ROUNDING[0] + ROUNDING[1] * sum(count for _, count in noise))


def _composed(sigma: float, noise: tuple[tuple[float, int], ...], rate: float, direction: Any) -> Any:
    cell, total = _cell(sigma, noise, rate), None
    for relative, count in noise:
        with np.errstate(all="ignore"):
            part = _one_round(sigma * relative, rate, cell, direction).self_compose(count)
            total = part if total is None else total.compose(part, 1e-15)
    return total


def _cell(sigma: float, noise: tuple[tuple[float, int], ...], rate: float) -> float:
    """The width of a cell: fine against the loss of every round, and not so fine that cells become too many."""
    widths = [COARSEST]
    ranges = [0.0]
    for relative, _ in noise:
        precision = 1 / (sigma * relative) ** 2
        widths.append(rate * math.sqrt(math.expm1(min(precision, 50.0))) / FINE)
        most = precision / 2 + 12 * math.sqrt(precision)  # of a round that the unit is known to be drawn for
        ranges.append(most if most > 50 else math.log1p(rate * math.expm1(most)))
    return max(min(widths), max(ranges) / CELLS)


def _one_round(sigma: float, rate: float, cell: float, direction: Any) -> Any:
    """The losses of one round, on the grid, by public parts of dp-accounting that keep the two directions apart."""
    from dp_accounting.pld.pld_pmf import create_pmf_pessimistic_connect_dots_fixed_gap as connect_dots
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    loss = GaussianPrivacyLoss(sigma, sampling_prob=rate, adjacency_type=direction)
    bounds = loss.connect_dots_bounds()
    least, most = math.floor(bounds.epsilon_lower / cell), math.ceil(bounds.epsilon_upper / cell)
    return connect_dots(cell, least, most, loss.get_delta_for_epsilon(np.arange(least, most + 1) * cell)).to_dense_pmf()
