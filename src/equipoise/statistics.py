"""Intervals over seeds, in one place."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt
from statistics import mean, stdev

from scipy.stats import t as student


def interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float] | None:
    """Student's interval of the mean; None for one value: one seed has no interval.

    >>> low, high = interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    if len(values) < 2:
        return None
    half = float(student.ppf((1 + level) / 2, len(values) - 1)) * stdev(values) / sqrt(len(values))
    return mean(values) - half, mean(values) + half
