"""Poisson sampling: how often, how independently, and exactly how likely."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from functools import partial

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from equipoise.errors import ConfigError
from equipoise.privacy.poisson import included
from equipoise.randomness import Words, experiment_key, keyed_words, system_words

ERROR_RATE = 1e-6
KEYED = partial(keyed_words, experiment_key(7, "inclusion"), 1, 2)
SOURCES: dict[str, Callable[[], Words]] = {"keyed": KEYED, "system": lambda: system_words}


def these(*calls: list[int]) -> Words:
    """Words call by call, as many as each asks for; an error for whoever asks again."""
    left = list(calls)

    def give(count: int) -> NDArray[np.uint64]:
        taken = left.pop(0)
        assert len(taken) == count
        return np.array(taken, dtype=np.uint64)

    return give


def often_enough(seen: NDArray[np.bool_], rate: float) -> float:
    return float(stats.binomtest(int(seen.sum()), seen.size, rate).pvalue)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("rate", [1e-4, 0.1, 0.256, 0.5, 0.999])
def test_units_are_included_as_often_as_they_should(rate: float, source: str) -> None:
    assert often_enough(included(SOURCES[source](), 400_000, rate), rate) > ERROR_RATE


@pytest.mark.parametrize("wrong", [0.98, 1.02])
def test_an_error_of_two_percent_in_the_rate_is_noticed(wrong: float) -> None:
    right, mutant = (included(KEYED(), 400_000, 0.256 * factor) for factor in (1, wrong))
    assert often_enough(right, 0.256) > 1e-3 > 1e-4 > often_enough(mutant, 0.256)


@pytest.mark.parametrize("source", SOURCES)
def test_inclusions_are_independent(source: str) -> None:
    """Of one another within a round, and from round to round: every pair of 12 units over 40,000 rounds."""
    words, rate = SOURCES[source](), 0.25
    rounds = included(words, 12 * 40_000, rate).reshape(-1, 12)
    pairs = [rounds[:, i] & rounds[:, j] for i, j in itertools.combinations(range(12), 2)]
    pairs += [rounds[1:, i] & rounds[:-1, i] for i in range(12)]
    assert min(often_enough(pair, rate**2) for pair in pairs) > ERROR_RATE
    sizes = np.bincount(rounds.sum(1), minlength=13)[:9]  # binomial, not fixed
    chances = stats.binom.pmf(np.arange(9), 12, rate)
    assert stats.chisquare(sizes, chances / chances.sum() * sizes.sum()).pvalue > ERROR_RATE


@pytest.mark.parametrize("rate", [0.1, 0.256, 1 / 3, 1 - 2.0**-53, 2.0**-64])
def test_the_rate_is_met_exactly(rate: float) -> None:
    """At 0.1 the float's digits end within the first word: that many of the 2^64 words are in, not one more."""
    edge = Fraction(rate) * 2**64
    assert edge.denominator == 1
    found = included(these([int(edge) - 1, int(edge), 0, 2**64 - 1]), 4, rate)
    assert found.tolist() == [True, False, True, False]


@pytest.mark.parametrize("rate", [0.0001, 1e-19, 1e-60, 5e-324])
def test_digits_beyond_the_first_word_are_compared_too(rate: float) -> None:
    digits, rest, alike = 0, Fraction(rate), []
    while rest:
        digits, rest = divmod(rest * 2**64, 1)
        alike.append(int(digits))
    assert len(alike) > 1
    below, above = alike[-1] - 1, alike[-1]  # U >= rate where all digits are the rate's own
    for last, inside in ((below, True), (above, False)):
        assert included(these(*([digit] for digit in [*alike[:-1], last])), 1, rate).tolist() == [inside]


def test_only_ties_take_further_words() -> None:
    first, second = (int(part) for part in divmod(Fraction(0.0001) * 2**128, 2**64))
    words = these([5, first, 2**63, first, first - 1], [second - 1, second + 1])
    assert included(words, 5, 0.0001).tolist() == [True, True, False, False, True]


def test_a_rate_of_one_includes_all_and_draws_nothing() -> None:
    assert included(these(), 5, 1.0).tolist() == [True] * 5
    assert included(these(), 5, 1).tolist() == [True] * 5


def test_no_units_are_no_units() -> None:
    assert included(system_words, 0, 0.5).shape == (0,)


def test_inclusions_depend_on_their_words_alone() -> None:
    assert np.array_equal(included(KEYED(), 500, 0.3), included(KEYED(), 500, 0.3))
    other = keyed_words(experiment_key(7, "inclusion"), 1, 3)
    assert not np.array_equal(included(other, 500, 0.3), included(KEYED(), 500, 0.3))


def test_whoever_is_in_at_a_rate_is_in_at_every_higher_one() -> None:
    low, high = (included(KEYED(), 5000, rate) for rate in (0.2, 0.4))
    assert (low <= high).all()


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.0000001, math.nan, math.inf])
def test_rates_that_are_none_are_refused(rate: float) -> None:
    with pytest.raises(ConfigError, match="sampling_rate"):
        included(system_words, 3, rate)
