"""The sampler of integers: its probabilities digit by digit, its distribution, and what a wrong one would look like."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal, localcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from equipoise.errors import BudgetError
from equipoise.privacy import discrete_laplace as module
from equipoise.privacy.discrete_laplace import LARGEST_DRAW, LARGEST_SCALE, discrete_laplace, probability
from equipoise.randomness import Words, experiment_key, keyed_words, system_words

ERROR_RATE = 1e-6
COUNT = 200_000
KEYED = partial(keyed_words, experiment_key(7, "noise"), 1, 2)
SOURCES: dict[str, Callable[[], Words]] = {"keyed": KEYED, "system": lambda: system_words}


def chi_square(drawn: NDArray[np.int64], scale: float) -> float:
    """The p-value of the whole distribution up to six scales, integer by integer or in bins of equal probability."""
    q = math.exp(-1 / scale)

    def below(k: NDArray[Any]) -> NDArray[Any]:  # P(X <= k)
        return np.where(k < 0, q ** np.maximum(-k, 0) / (1 + q), 1 - q ** np.maximum(k + 1, 0) / (1 + q))

    most = math.ceil(6 * scale)
    edges = np.unique(np.linspace(-most, most, min(2 * most + 1, 121)).astype(np.int64))
    chances = np.diff(below(edges), prepend=0.0, append=1.0)
    seen = np.bincount(np.searchsorted(edges, drawn, side="left"), minlength=len(chances))
    return float(stats.chisquare(seen, chances * len(drawn)).pvalue)


def ks(drawn: NDArray[np.int64], scale: float) -> float:
    """Against continuous Laplace noise, which integers of a large scale cannot be told from."""
    return float(stats.kstest(drawn.astype(float), stats.laplace(scale=scale).cdf).pvalue)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("scale", [1, 2, 5, 37, 1000])
def test_every_integer_has_its_probability(scale: int, source: str) -> None:
    assert chi_square(discrete_laplace(scale, COUNT, SOURCES[source]()), scale) > ERROR_RATE


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("scale", [2**20 + 3, 2**33, LARGEST_SCALE])
def test_a_large_scale_is_that_of_laplace_noise(scale: int, source: str) -> None:
    drawn = discrete_laplace(scale, COUNT, SOURCES[source]())
    assert ks(drawn, scale) > ERROR_RATE
    for size in (drawn % 2, drawn // 2 % 2, drawn % 3 == 0):  # low digits are as uniform as those of any integer
        assert stats.binomtest(int(size.sum()), COUNT, 1 / 3 if size.dtype == bool else 1 / 2).pvalue > ERROR_RATE
    assert stats.binomtest(int((drawn > 0).sum()), COUNT).pvalue > ERROR_RATE


@pytest.mark.parametrize("wrong", [0.98, 1.02])
def test_an_error_of_two_percent_in_scale_is_noticed(wrong: float) -> None:
    """By the very tests that the right scale passes, with mutants of the sampler in its place."""
    scale, many = 1000, 600_000
    right, mutant = (discrete_laplace(round(scale * factor), many, KEYED()) for factor in (1.0, wrong))
    for test in (chi_square, ks):
        assert test(right, scale) > 1e-3 > 1e-4 > test(mutant, scale)


def test_a_sampler_that_forgets_the_zero_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two signs for a zero: a classic error."""
    real = module._happens

    def careless(event: Any, *rest: Any) -> NDArray[np.bool_]:
        return real("zero", 1, 10**6, *rest[2:]) if event == "zero" else real(event, *rest)

    monkeypatch.setattr(module, "_happens", careless)
    assert chi_square(discrete_laplace(5, COUNT, KEYED()), 5) < ERROR_RATE


# --- nothing is cut off, nothing is rounded ------------------------------------------------------------------


@pytest.mark.parametrize("spare", [-3, -1, 0])
def test_draws_beyond_the_last_digit_are_exact(spare: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With fewer digits than usual, so that many draws need more of them."""
    monkeypatch.setattr(module, "_SPARE_DIGITS", spare)
    drawn = discrete_laplace(5, COUNT, KEYED())
    assert np.abs(drawn).max() > 40
    assert chi_square(drawn, 5) > ERROR_RATE


def tied(rest: Words, *digits: int) -> Words:
    """Words whose first calls have every number equal to digits of a probability."""
    first = list(digits)
    return lambda count: np.full(count, first.pop(0), dtype=np.uint64) if first else rest(count)


@pytest.mark.parametrize("longer", [False, True], ids=["16 digits alike", "80 digits alike"])
def test_ties_are_decided_by_further_digits(longer: bool) -> None:
    """A number that begins like p is below p with the probability that the rest of p says."""
    event: Any = ("digit", 1, 3)
    begins, more, most = (probability(*event, places) for places in (16, 80, 144))
    alike = [begins * 0x0001_0001_0001_0001, more - (begins << 64)][: 1 + longer]
    rest = ((most - (more << 64)) if longer else (more - (begins << 64))) / 2**64
    result = module._happens(*event, COUNT, tied(KEYED(), *alike))
    assert stats.binomtest(int(result.sum()), COUNT, rest).pvalue > ERROR_RATE
    assert 0.01 < rest < 0.99


@pytest.mark.parametrize("places", [16, 80, 300])
@pytest.mark.parametrize(("event", "steps", "scale"), [
    ("digit", 1, 1), ("digit", 2**30, 3 * 2**30), ("digit", 64, 1), ("digit", 1, LARGEST_SCALE),
    ("more", 32, 1), ("more", 7, 5), ("zero", 1, 1), ("zero", 1, LARGEST_SCALE),
])  # fmt: skip
def test_probabilities_have_the_digits_they_should(event: Any, steps: int, scale: int, places: int) -> None:
    with localcontext() as context:
        context.prec = 400
        x = Decimal(steps) / Decimal(scale)
        exact = {"digit": 1 / (1 + x.exp()), "more": (-x).exp(), "zero": (1 - (-x).exp()) / (1 + (-x).exp())}[event]
        assert probability(event, steps, scale, places) == int(exact * 2**places)


def test_draws_depend_on_their_words_alone() -> None:
    def again() -> NDArray[np.int64]:
        return discrete_laplace(10**6, 1000, keyed_words(experiment_key(1, "noise"), 3, 4))

    assert np.array_equal(again(), again())
    for key, client, round_number in [(2, 3, 4), (1, 4, 4), (1, 3, 5)]:
        other = discrete_laplace(10**6, 1000, keyed_words(experiment_key(key, "noise"), client, round_number))
        assert not np.array_equal(other, again())
    assert not np.array_equal(*(discrete_laplace(10**6, 100, system_words) for _ in range(2)))


def test_the_largest_draw_is_cut_off_and_does_not_wrap_around(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def nearly_always(event: Any, steps: int, scale: int, count: int, words: Words) -> NDArray[np.bool_]:
        asked.append(event)
        return np.full(count, event != "zero" and asked.count("more") < 9)

    monkeypatch.setattr(module, "_happens", nearly_always)
    assert set(np.abs(discrete_laplace(LARGEST_SCALE, 5, system_words)).tolist()) == {LARGEST_DRAW}


@pytest.mark.parametrize("scale", [0, -1, LARGEST_SCALE + 1])
def test_scales_that_cannot_be_drawn_are_refused(scale: int) -> None:
    with pytest.raises(BudgetError, match="cannot be drawn"):
        discrete_laplace(scale, 3, system_words)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [1, 3, 100, 10**9])
def test_ten_million_draws(scale: int) -> None:
    draw = partial(discrete_laplace, scale, 10_000_000, system_words)
    assert (chi_square if scale < 1000 else ks)(draw(), scale) > ERROR_RATE
