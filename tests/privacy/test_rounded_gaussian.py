"""The sampler of rounded Gaussians: its distribution, and every draw against high precision."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

from equipoise.errors import BudgetError
from equipoise.privacy import rounded_gaussian as module
from equipoise.privacy.rounded_gaussian import GUARD, LARGEST_SCALE, REACH, rounded_gaussian, rounded_gaussians, tail
from equipoise.randomness import Words, experiment_key, keyed_words, system_words

ERROR_RATE = 1e-6
COUNT = 200_000
NEGATIVE = 1 << 63
KEYED = partial(keyed_words, experiment_key(7, "noise"), 1, 2)
SOURCES: dict[str, Callable[[], Words]] = {"keyed": KEYED, "system": lambda: system_words}


def chi_square(drawn: NDArray[np.int64], scale: float) -> float:
    """The p-value of the whole distribution up to five scales, integer by integer or in bins of many of them."""
    most = math.ceil(4 * scale)
    edges = np.unique(np.linspace(-most, most, min(2 * most + 1, 121)).astype(np.int64))
    chances = np.diff(stats.norm.cdf((edges + 0.5) / scale), prepend=0.0, append=1.0)
    seen = np.bincount(np.searchsorted(edges, drawn, side="left"), minlength=len(chances))
    rare = chances * len(drawn) < 5  # too few are expected there: together they are one bin
    seen, chances = (np.append(part[~rare], part[rare].sum()) for part in (seen, chances))
    return float(stats.chisquare(seen[chances > 0], chances[chances > 0] * len(drawn)).pvalue)


def ks(drawn: NDArray[np.int64], scale: float) -> float:
    """Against the continuous Gaussian, which integers of a large scale cannot be told from."""
    return float(stats.kstest(drawn.astype(float), stats.norm(scale=scale).cdf).pvalue)


def exactly(scale: float, *words: int) -> int:
    """The draw that belongs to these words, by mpmath: V in the middle of what they leave open."""
    with mpmath.workdps(60 + 40 * len(words)):
        digits = words[0] & (NEGATIVE - 1)
        for word in words[1:]:
            digits = digits << 64 | word
        share = (mpmath.mpf(digits) + 0.5) / mpmath.mpf(2) ** (64 * len(words))
        size = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * share) * mpmath.mpf(scale)
        return int(mpmath.floor(size + 0.5)) * (-1 if words[0] >= NEGATIVE else 1)


def share_of(cell: int, scale: float, places: int) -> Any:
    """2^places * P(N(0, scale^2) > cell - 1/2)."""
    return mpmath.erfc((mpmath.mpf(cell) - 0.5) / mpmath.mpf(scale) / mpmath.sqrt(2)) / 2 * mpmath.mpf(2) ** places


def these(*words: int) -> Words:
    """Exactly these words; an error for whoever asks for another one."""
    left = list(words)

    def give(count: int) -> NDArray[np.uint64]:
        assert count <= len(left), "more words than it should take"
        taken, left[:count] = left[:count], []
        return np.array(taken, dtype=np.uint64)

    return give


# --- the distribution ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("scale", [0.3, 1.0, 1.7, 5.0, 37.5, 1000.0])
def test_every_integer_has_its_probability(scale: float, source: str) -> None:
    assert chi_square(rounded_gaussian(scale, COUNT, SOURCES[source]()), scale) > ERROR_RATE


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("scale", [123_456.7, 1e7, 1e9])
def test_a_large_scale_is_that_of_gaussian_noise(scale: float, source: str) -> None:
    drawn = rounded_gaussian(scale, COUNT, SOURCES[source]())
    assert ks(drawn, scale) > ERROR_RATE
    assert chi_square(drawn, scale) > ERROR_RATE
    for size in (drawn % 2, drawn // 2 % 2, drawn % 3 == 0):  # low digits are as uniform as those of any integer
        assert stats.binomtest(int(size.sum()), COUNT, 1 / 3 if size.dtype == bool else 1 / 2).pvalue > ERROR_RATE
    assert stats.binomtest(int((drawn > 0).sum()), COUNT).pvalue > ERROR_RATE


@pytest.mark.parametrize("scale", [2.0**38, 2.0**43, LARGEST_SCALE])
def test_where_float64_can_tell_little_or_nothing_the_draws_are_right_too(scale: float) -> None:
    drawn = rounded_gaussian(scale, 500, KEYED())
    assert drawn.tolist() == [exactly(scale, int(word)) for word in KEYED()(500)]
    assert ks(drawn, scale) > 1e-3


@pytest.mark.parametrize("wrong", [0.98, 1.02])
def test_an_error_of_two_percent_in_scale_is_noticed(wrong: float) -> None:
    """By the very tests that the right scale passes, with mutants of the sampler in its place."""
    scale, many = 1000.0, 600_000
    right, mutant = (rounded_gaussian(scale * factor, many, KEYED()) for factor in (1.0, wrong))
    for test in (chi_square, ks):
        assert test(right, scale) > 1e-3 > 1e-4 > test(mutant, scale)


@pytest.mark.parametrize("wrong", [0.98, 1.02])
@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_an_error_of_two_percent_in_a_small_scale_is_noticed(scale: float, wrong: float) -> None:
    right, mutant = (rounded_gaussian(scale * factor, 600_000, KEYED()) for factor in (1.0, wrong))
    assert chi_square(right, scale) > 1e-3 > 1e-4 > chi_square(mutant, scale)


def test_neighbouring_draws_are_uncorrelated() -> None:
    drawn = rounded_gaussian(1e6, COUNT, KEYED()) / 1e6
    for lag in (1, 2, 4, 1 << 14):
        for left, right in ((drawn[lag:], drawn[:-lag]), (drawn[lag:] ** 2, drawn[:-lag] ** 2)):
            assert stats.pearsonr(left, right).pvalue > ERROR_RATE


# --- draw by draw, against high precision -------------------------------------------------------------------


@pytest.mark.parametrize("scale", [0.3, 5.0, 1e5, 3.3e8, 1e12])
def test_every_draw_is_that_of_high_precision(scale: float) -> None:
    assert rounded_gaussian(scale, 300, KEYED()).tolist() == [exactly(scale, int(word)) for word in KEYED()(300)]


@pytest.mark.parametrize("ticks", [0, 1, 2, 1 << 20, (1 << 44) - 1, 1 << 44, (1 << 63) - 2, (1 << 63) - 1])
@pytest.mark.parametrize("scale", [0.3, 5.0, 123_456.7, 1e9])
def test_the_most_extreme_words(scale: float, ticks: int) -> None:
    further = random.Random(ticks).getrandbits(64)
    needed = [ticks] if exactly(scale, ticks, 0) == exactly(scale, ticks, 2**64 - 1) else [ticks, further]
    expected = exactly(scale, *needed)
    assert rounded_gaussian(scale, 1, these(*needed)).tolist() == [expected]
    assert rounded_gaussian(scale, 1, these(needed[0] | NEGATIVE, *needed[1:])).tolist() == [-expected]


@pytest.mark.parametrize("extra", [0, 1, 2])
@pytest.mark.parametrize(("scale", "cell"), [
    (0.3, 1), (1.0, 1), (5.0, 3), (5.0, 40), (1e5, 1), (1e5, 67_449), (1e5, 400_000), (1e9, 10**9), (2.0**48, 2**47),
])  # fmt: skip
def test_words_on_the_boundary_of_a_cell_are_told_apart(scale: float, cell: int, extra: int) -> None:
    """V begins with all the digits of the boundary, and ``extra`` further words do too: the next one decides."""
    with mpmath.workdps(150):
        digits = [int(share_of(cell, scale, 64 * n)) for n in range(1, extra + 3)]
    alike = [digits[0], *(high - (low << 64) for low, high in itertools.pairwise(digits))]
    for step in (-1, 1):
        words = [*alike[:-1], alike[-1] + step]
        assert rounded_gaussian(scale, 1, these(*words)).tolist() == [exactly(scale, *words)]
        assert exactly(scale, *words) == (cell if step < 0 else cell - 1)


@pytest.mark.parametrize("scale", [5.0, 123_456.7, 1e9])
def test_words_beside_the_boundary_of_a_cell_need_no_others(scale: float) -> None:
    """The nearest words on both sides: where float64 cannot tell, and no digit of V is missing."""
    for cell in (1, 2, round(scale / 2), round(2 * scale), round(4 * scale)):
        with mpmath.workdps(60):
            digits = int(share_of(cell, scale, 64))
        for word, expected in ((digits - 1, cell), (digits + 1, cell - 1)):
            assert exactly(scale, word) == expected
            assert rounded_gaussian(scale, 1, these(word)).tolist() == [expected]


def test_float64_alone_is_wrong_beside_boundaries(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the guard is for: without it, the test above fails."""
    monkeypatch.setattr(module, "GUARD", 0.0)
    with pytest.raises(AssertionError):
        test_words_beside_the_boundary_of_a_cell_need_no_others(1e9)


def test_float64_and_exact_arithmetic_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same draws, whether all of them are left to exact arithmetic or almost none."""
    usual = rounded_gaussian(1e6, 1000, KEYED())
    monkeypatch.setattr(module, "_RARE", 1 << 63)
    assert np.array_equal(rounded_gaussian(1e6, 1000, KEYED()), usual)


def test_one_word_is_enough_for_a_draw() -> None:
    words = KEYED()(COUNT).tolist()
    rounded_gaussian(1e9, COUNT, these(*words))  # more would raise


# --- what exactness rests on --------------------------------------------------------------------------------


def test_ndtri_errs_by_less_than_a_fiftieth_of_the_guard() -> None:
    """On [2^-64, 1/2]: at random, next to both ends and to the places where its formula changes."""
    dice = random.Random(1)
    points = [
        *(dice.random() / 2 for _ in range(1500)),
        *(2.0**-power * (1 + dice.random()) for power in range(2, 65) for _ in range(25)),
        *(math.exp(-power) * (1 + side * 2.0**-bits) for power in (2, 32) for side in (-1, 1) for bits in range(3, 53)),
        *(0.5 - 2.0**-power for power in range(2, 54)),
        *(ticks * 2.0**-64 for ticks in range(1, 50)),
        0.5,
    ]
    found = torch.special.ndtri(torch.tensor(points, dtype=torch.float64)).tolist()
    with mpmath.workdps(50):
        worst = max(
            abs(mpmath.ncdf(x) - point) / mpmath.npdf(x)  # the error in x, to first order
            for x, point in zip(map(mpmath.mpf, found), points, strict=True)
        )
    assert 1e-17 < worst < 4e-15 < GUARD / 50


@pytest.mark.parametrize("places", [64, 128, 512])
@pytest.mark.parametrize(("scale", "cell"), [
    (1 / 64, 1), (0.3, 1), (0.3, 10), (5.0, 1), (5.0, 160), (1e5, 1), (1e5, 100_000), (1e9, 1), (1e9, 32 * 10**9),
    (LARGEST_SCALE, 1), (LARGEST_SCALE, 2**48),
])  # fmt: skip
def test_tails_are_enclosed(scale: float, cell: int, places: int) -> None:
    low, high = tail(cell, scale, places)
    with mpmath.workdps(250):
        assert low <= share_of(cell, scale, places) <= high <= low + 2


def test_tails_are_those_of_the_float_that_was_given() -> None:
    """Not of a decimal near it, and whatever precision the caller of this package computes decimals with."""
    import decimal

    with decimal.localcontext() as context:
        context.prec = 3
        low, high = tail(3, 0.7, 256)
    with mpmath.workdps(120):
        assert low <= share_of(3, 0.7, 256) <= high


# --- what a draw depends on ---------------------------------------------------------------------------------


def test_draws_are_symmetric() -> None:
    words = KEYED()(2000)
    drawn, mirrored = (
        rounded_gaussian(777.7, 2000, these(*(words ^ np.uint64(flip)).tolist())) for flip in (0, NEGATIVE)
    )
    assert np.array_equal(drawn, -mirrored)


def test_no_draw_depends_on_its_neighbours() -> None:
    """Whatever the others' words are, the rarest included: alone, in a row, and in another place of it."""
    words = KEYED()(40).tolist()
    usual = rounded_gaussian(1e5, 40, these(*words)).tolist()
    for neighbour in (0, NEGATIVE, 12345, (1 << 64) - 1):
        others = [word if i % 3 == 0 else neighbour for i, word in enumerate(words)]
        assert rounded_gaussian(1e5, 40, these(*others, *words, *words)).tolist()[::3] == usual[::3]
    assert [rounded_gaussian(1e5, 1, these(word)).item() for word in words] == usual
    long = words * 1000  # over several chunks
    assert rounded_gaussian(1e5, len(long), these(*long)).tolist() == usual * 1000


def test_rows_are_what_each_would_be_alone() -> None:
    scales, count = [5.0, 1e5, 3e9], 20_000
    streams = [keyed_words(experiment_key(1, "noise"), client, 2) for client in range(3)]
    first = torch.from_numpy(np.stack([stream(count) for stream in streams]).view(np.int64))
    first[1, 17] = first[2, 3] = 0  # these take further words
    together = rounded_gaussians(scales, first, streams)
    assert together.dtype == torch.int64
    for client, scale in enumerate(scales):
        further = keyed_words(experiment_key(1, "noise"), client, 2)
        further(count)
        assert torch.equal(together[client], rounded_gaussians([scale], first[client : client + 1], [further])[0])


def test_draws_depend_on_their_words_alone() -> None:
    def again() -> NDArray[np.int64]:
        return rounded_gaussian(1e6, 1000, keyed_words(experiment_key(1, "noise"), 3, 4))

    assert np.array_equal(again(), again())
    for key, client, round_number in [(2, 3, 4), (1, 4, 4), (1, 3, 5)]:
        other = rounded_gaussian(1e6, 1000, keyed_words(experiment_key(key, "noise"), client, round_number))
        assert not np.array_equal(other, again())
    assert not np.array_equal(*(rounded_gaussian(1e6, 100, system_words) for _ in range(2)))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("scale", [0.3, 1e5, 1e9])
def test_draws_are_the_same_on_a_gpu(scale: float) -> None:
    first = torch.from_numpy(KEYED()(COUNT).view(np.int64)).view(4, -1)
    here, there = (rounded_gaussians([scale] * 4, first.to(device), [KEYED()] * 4) for device in ("cpu", "cuda"))
    assert there.device.type == "cuda"
    assert torch.equal(here, there.cpu())


# --- edges --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("scale", "last"), [(5e-324, 0), (0.01, 0), (1 / 64, 1), (0.3, 10), (LARGEST_SCALE, 2**53)])
def test_draws_beyond_the_reach_are_the_last_within_it(scale: float, last: int) -> None:
    """Where every digit of V is 0, and more are never enough."""
    assert rounded_gaussian(scale, 2, lambda count: np.zeros(count, dtype=np.uint64)).tolist() == [last, last]
    assert last == math.floor(REACH * scale + 0.5)


def test_a_tiny_scale_is_all_zeros() -> None:
    assert set(rounded_gaussian(0.02, COUNT, KEYED()).tolist()) == {0}


def test_no_draws_are_no_draws() -> None:
    assert rounded_gaussian(1.0, 0, system_words).shape == (0,)
    assert rounded_gaussians([], torch.empty(0, 5, dtype=torch.int64), []).shape == (0, 5)


@pytest.mark.parametrize("scale", [0.0, -1.0, math.nan, math.inf, -math.inf, LARGEST_SCALE * 1.0001])
def test_scales_that_cannot_be_drawn_are_refused(scale: float) -> None:
    with pytest.raises(BudgetError, match="cannot be drawn"):
        rounded_gaussian(scale, 3, system_words)
    with pytest.raises(BudgetError, match="cannot be drawn"):
        rounded_gaussians([1.0, scale], torch.zeros(2, 3, dtype=torch.int64), [system_words] * 2)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.3, 3.0, 100.0, 1e6])
def test_ten_million_draws(scale: float) -> None:
    drawn = rounded_gaussian(scale, 10_000_000, system_words)
    assert (chi_square if scale < 1000 else ks)(drawn, scale) > ERROR_RATE
