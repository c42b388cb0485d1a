"""Intervals over seeds: Student's, against scipy's own, and covering the mean as often as they say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from equipoise.statistics import interval


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 3.0], (-0.484138, 4.484138)),  # 2 +- 4.302653 / sqrt(3)
        ([0.0, 1.0], (-5.853102, 6.853102)),  # 0.5 +- 12.706205 / 2
        ([5.0, 5.0, 5.0, 5.0], (5.0, 5.0)),
    ],
)
def test_known_answers(values: list[float], expected: tuple[float, float]) -> None:
    assert interval(values) == pytest.approx(expected, abs=1e-6)


def test_one_value_or_none_has_no_interval() -> None:
    assert interval([0.7]) is None
    assert interval([]) is None


@given(
    st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=30).filter(lambda x: np.std(x) > 1e-3), st.floats(0.5, 0.999)
)
def test_it_is_scipys(values: list[float], level: float) -> None:
    expected = stats.t.interval(level, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
    assert interval(values, level) == pytest.approx(expected, rel=1e-9, abs=1e-6)


def test_it_covers_the_mean_as_often_as_it_says() -> None:
    """2,000 samples of 4: 95 % of the intervals, up to five deviations of that share; those of 80 % do not pass."""
    rng = np.random.default_rng(3)
    samples = rng.normal(7.0, 2.0, (2000, 4))

    def share(level: float) -> float:
        found = [interval(row.tolist(), level) for row in samples]
        return sum(low < 7.0 < high for low, high in filter(None, found)) / len(samples)

    slack = 5 * (0.95 * 0.05 / 2000) ** 0.5
    assert abs(share(0.95) - 0.95) < slack
    assert abs(share(0.80) - 0.95) > slack
