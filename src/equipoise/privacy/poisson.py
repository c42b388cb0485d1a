"""Poisson sampling: every unit is included by itself, with the same probability, whoever else is.

The accounting of a sampled Gaussian mechanism holds for this and for nothing else: not for batches of a fixed size, and
not for shuffled passes. Proved, for independent uniform words: inclusions are independent, and each has exactly the
probability that the float ``rate`` stands for, down to the last of its binary digits.
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from ..errors import expected
from ..randomness import Words


def included(words: Words, count: int, rate: float) -> NDArray[np.bool_]:
    """Whether each of ``count`` units is in this round: independent events of probability ``rate``, 0 < rate <= 1.

    A unit is in where the number U, uniform in [0, 1), is below the rate. Its digits are those of a word, and of a
    further word while they are the rate's own. A rate of 1 includes all and draws nothing.

    >>> included(lambda n: np.array([0, 1 << 62, 1 << 63, 3 << 62], dtype=np.uint64), 4, 0.5).tolist()
    [True, True, False, False]
    """
    if not 0 < rate <= 1:  # not-a-number neither
        raise expected("sampling_rate", rate, "> 0 and <= 1")
    if rate == 1:
        return np.ones(count, dtype=np.bool_)
    digits, rest = divmod(Fraction(rate) * 2**64, 1)
    drawn = words(count)
    result: NDArray[np.bool_] = drawn < np.uint64(digits)
    tied = np.flatnonzero(drawn == np.uint64(digits))
    while len(tied) and rest:
        digits, rest = divmod(rest * 2**64, 1)
        longer = words(len(tied))
        result[tied] = longer < np.uint64(digits)
        tied = tied[longer == np.uint64(digits)]
    return result
