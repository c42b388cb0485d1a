"""Privacy losses of Poisson sampling: against an integral, and which direction is which."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.privacy.losses import CELLS, COARSEST, Losses, _cell, composed_losses


def integral(sigma: float, rate: float, epsilon: float, direction: str) -> float:
    """The hockey-stick divergence of one round, by adding up densities on a fine grid."""
    x = np.linspace(-12 * sigma, 1 + 12 * sigma, 2_000_001)
    without = np.exp(-(x**2) / (2 * sigma**2)) / math.sqrt(2 * math.pi) / sigma
    moved = np.exp(-((x - 1) ** 2) / (2 * sigma**2)) / math.sqrt(2 * math.pi) / sigma
    present = (1 - rate) * without + rate * moved
    upper, lower = (present, without) if direction == "remove" else (without, present)
    return float(np.maximum(upper - math.exp(epsilon) * lower, 0).sum() * (x[1] - x[0]))


@pytest.mark.parametrize(("sigma", "rate"), [(2.0, 0.25), (0.8, 0.1), (5.0, 0.9)])
@pytest.mark.parametrize("epsilon", [-1.0, -0.05, 0.0, 0.05, 0.2])
def test_one_round_against_an_integral(sigma: float, rate: float, epsilon: float) -> None:
    found = composed_losses(sigma, ((1.0, 1),), rate)
    remove, add = integral(sigma, rate, epsilon, "remove"), integral(sigma, rate, epsilon, "add")
    assert found.removal(np.array([epsilon]))[0] == pytest.approx(remove, abs=1e-6)
    assert found.delta(epsilon) == pytest.approx(max(remove, add), abs=1e-6)


def test_two_parts_are_their_convolution() -> None:
    """Unlike rounds: the deltas of both orders agree, and lie between those of the larger and the smaller noise."""
    mixed = composed_losses(2.0, ((1.0, 10), (2.0, 10)), 0.25)
    quiet, loud = (composed_losses(sigma, ((1.0, 20),), 0.25) for sigma in (2.0, 4.0))
    for epsilon in (0.0, 0.5, 1.0):
        assert loud.delta(epsilon) < mixed.delta(epsilon) < quiet.delta(epsilon)
    same = composed_losses(2.0, ((1.0, 4), (1.0, 16)), 0.25)
    assert same.epsilon(1e-5) == pytest.approx(quiet.epsilon(1e-5), rel=1e-6)


def test_a_delta_has_its_slack_and_an_epsilon_is_found_below_it() -> None:
    found = composed_losses(2.0, ((1.0, 100),), 0.25)
    wide = Losses(found.remove, found.add, 1e-3)
    assert wide.delta(3.0) == pytest.approx(found.delta(3.0) - found.slack + 1e-3, rel=1e-12)
    assert wide.epsilon(2e-3) == pytest.approx(found.epsilon(1e-3 + found.slack), rel=1e-12)
    assert wide.removal(np.array([3.0]))[0] >= 1e-3
    assert wide.delta(-100.0) == 1.0


def test_cells_are_fine_and_not_too_many() -> None:
    assert _cell(0.5, ((1.0, 1),), 0.5) == COARSEST
    assert _cell(10.0, ((1.0, 1),), 0.001) < 1e-6
    assert _cell(10.0, ((1.0, 1), (0.1, 1)), 0.001) > 1e-5, "the loud part fills the cells"
    assert (1 / 2 / 0.01**2 + 12 / 0.01) / _cell(0.01, ((1.0, 1),), 0.5) <= CELLS
