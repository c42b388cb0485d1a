"""Discrete Laplace noise, P(k) proportional to exp(-|k| / t) for every integer k, drawn without floating point.

A sampler that computes in floats has a distribution of its own, which nobody has written down; that of this one is the
stated one, given uniform words. Where k is not 0, g = |k| - 1 is geometric, P(g) proportional to exp(-g / t), and the
binary digits of such a g are independent: digit j is 1 with probability 1 / (1 + exp(2^j / t)). So a draw is one
comparison per digit, of a uniform number with a probability, each carried only as far as it takes to tell them apart:

==================  ===============================  ==========================================================
what is decided     probability                      because
==================  ===============================  ==========================================================
k = 0               (1 - q) / (1 + q), q = e^(-1/t)  the sum of q^|k| over all integers is (1 + q) / (1 - q)
digit j of g        1 / (1 + e^(2^j / t))            q^g is the product of q^(2^j) over the digits that are 1
2^b more, again     e^(-2^b / t), b digits in all    P(g >= m + n | g >= n) = q^m
==================  ===============================  ==========================================================

The number of comparisons does not depend on what is drawn, but for ties and for draws beyond 2^b > 32 t.

Formal guarantee: for integers u and u' of L1 distance at most S, u + k and u' + k have probabilities of every outcome
within a factor e^(S/t) of each other.
"""

from __future__ import annotations

from decimal import Context
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import BudgetError
from ..randomness import Words

LARGEST_SCALE = 2**55 - 1
"""Of t: draws up to 32 t then have at most 60 digits."""
LARGEST_DRAW = 2**62
"""A larger draw, of probability below e^-128, is given as this; see ``mechanism.grid`` for why nothing is lost."""
_SPARE_DIGITS = 5

Event = Literal["zero", "digit", "more"]


def discrete_laplace(scale: int, count: int, words: Words) -> NDArray[np.int64]:
    """``count`` independent draws of scale t = ``scale``, a whole number >= 1.

    >>> from equipoise.randomness import experiment_key, keyed_words
    >>> discrete_laplace(3, 8, keyed_words(experiment_key(1, "noise"), 0, 1)).tolist()
    [0, 0, 2, 4, 2, -4, -3, 2]
    """
    if not 1 <= scale <= LARGEST_SCALE:
        raise BudgetError(
            "Noise of more than 2^55 steps of the grid, or of less than one, cannot be drawn.",
            "Choose a larger epsilon.",
        )
    digits = max(0, scale.bit_length() + _SPARE_DIGITS)
    size = np.ones(count, dtype=np.int64)
    for place in range(digits):
        size += _happens("digit", 1 << place, scale, count, words).astype(np.int64) << place
    beyond = np.arange(count)
    while len(beyond):
        beyond = beyond[_happens("more", 1 << digits, scale, len(beyond), words)]
        size[beyond] = np.minimum(size[beyond] + (1 << digits), LARGEST_DRAW)
    size[_happens("zero", 1, scale, count, words)] = 0
    negative = _small_words(count, words) & 1 == 1
    return np.where(negative, -size, size)


def _happens(event: Event, steps: int, scale: int, count: int, words: Words) -> NDArray[np.bool_]:
    """Independent events of one probability p: whether U < p, for uniform U in [0, 1), digit by digit."""
    known = 16
    drawn, digit = _small_words(count, words), probability(event, steps, scale, known)
    result: NDArray[np.bool_] = drawn < digit
    tied = np.flatnonzero(drawn == digit)
    while len(tied):
        digit = probability(event, steps, scale, known + 64) - (probability(event, steps, scale, known) << 64)
        known += 64
        longer = words(len(tied))
        result[tied] = longer < np.uint64(digit)
        tied = tied[longer == np.uint64(digit)]
    return result


def _small_words(count: int, words: Words) -> NDArray[np.uint16]:
    return words(-(-count // 4)).astype("<u8", copy=False).view("<u2")[:count]


@lru_cache(maxsize=1 << 16)
def probability(event: Event, steps: int, scale: int, places: int) -> int:
    """The first ``places`` binary digits of the probability of an event, as a whole number: floor(2^places * p).

    Exact: e^x is bracketed by fractions (Decimal rounds it correctly), until both ends have the same digits. They will,
    as e^x is irrational.

    >>> probability("more", 1, 1, 16) / 2**16  # 1 / e
    0.36787...
    """
    precision = places // 3 + 60
    while True:
        context = Context(prec=precision)
        power = Fraction(context.exp(context.divide(-steps, scale)))
        slack = (1 + Fraction(steps, scale)) / 10 ** (precision - 2)  # the quotient and the power are rounded once each
        ends = [_probability(event, power * (1 + side * slack)) * 2**places for side in (-1, 1)]
        low, high = (int(end.numerator // end.denominator) for end in ends)
        if low == high:
            return low
        precision *= 2


def _probability(event: Event, power: Fraction) -> Fraction:
    if event == "more":
        return power
    return (power if event == "digit" else 1 - power) / (1 + power)
