"""Halving keeps what is best, prefers what is simpler among what noise cannot tell apart, and spends little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from equipoise.choosing.halving import Outcome, Rung, halve, preferred, within_noise

RUNGS = [Rung(1, 6), Rung(3, 3), Rung(6, 3)]


class Noisy:
    """Candidates 0 to 19, of which one is planted; accuracies with the noise of seeds."""

    def __init__(self, best: int, spread: float, stopped: Sequence[int] = ()):
        self.best, self.spread, self.stopped = best, spread, stopped
        self.runs: Counter[int] = Counter()

    def __call__(self, alive: Sequence[int], seeds: Sequence[int]) -> Mapping[int, Sequence[float]]:
        found = {}
        for one in alive:
            self.runs[one] = len(seeds)
            drawn = [np.random.default_rng((one, seed)).normal(0, self.spread) for seed in seeds]
            centre = 0.93 if one == self.best else 0.90 - 0.001 * one
            found[one] = [] if one in self.stopped else [centre + noise for noise in drawn]
        return found


@pytest.mark.parametrize("best", range(20))
def test_a_planted_best_candidate_is_kept(best: int) -> None:
    run = Noisy(best, 0.005)
    found = halve(range(20), run, RUNGS)
    assert found.finalists[0] == best
    assert sum(run.runs.values()) <= 20 + 6 * 2 + 3 * 3, "seeds go to those that may win"
    assert run.runs[best] == 6


def test_without_noise_the_worst_goes_first() -> None:
    found = halve(range(10), Noisy(3, 0.0), RUNGS)
    assert found.finalists == [3, 0, 1]
    assert found.gone == {6: 1, 7: 1, 8: 1, 9: 1, 2: 2, 4: 2, 5: 2}


def test_what_is_protected_stays_while_its_like_leads() -> None:
    found = halve(range(10), Noisy(3, 0.0), RUNGS, lambda one, leader: one == 9 and leader == 3)
    assert found.finalists == [3, 0, 1, 9]
    assert 9 not in halve(range(10), Noisy(3, 0.0), RUNGS, lambda one, leader: one == 9 and leader == 4).finalists


def test_what_was_stopped_does_not_go_on() -> None:
    found = halve(range(3), Noisy(0, 0.0, stopped=[1]), RUNGS)
    assert found.finalists == [0, 2]
    assert found.gone == {1: 1}


def test_of_what_noise_cannot_tell_apart_the_first_in_order_is_preferred() -> None:
    noisy = {"wide": [0.90, 0.96, 0.93], "plain": [0.92, 0.93, 0.93], "worse": [0.80, 0.81, 0.80]}
    outcome = Outcome(["wide", "plain", "worse"], noisy, {})
    assert preferred(outcome, lambda one: ({"worse": 0, "plain": 1, "wide": 2}[one],)) == "plain"
    assert preferred(outcome, lambda one: (0,)) == "wide"


def test_a_lead_beyond_a_standard_error_counts() -> None:
    assert within_noise([0.9], [0.9])
    assert not within_noise([0.9], [0.89])
    assert within_noise([0.90, 0.94], [0.91, 0.92])
    assert not within_noise([0.92, 0.93, 0.94], [0.90, 0.91, 0.93])
    assert within_noise([0.902, 0.902, 0.902], [0.9, 0.9, 0.9]), "three records of 1,500, however often"
