"""The rule by which a cell agrees with the paper, and the intervals, against scipy by hand."""

from __future__ import annotations

from math import sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from equipoise.reproduction.agreement import (
    REACH,
    above,
    below,
    between,
    compared,
    paired,
    rank_correlation,
    reach,
    rule,
    spread,
    together,
)

VALUES = [50.0, 51.0, 53.0, 52.5, 49.0, 50.5, 51.5, 52.0]
numbers = st.lists(st.floats(-100, 100), min_size=2, max_size=9)


def test_the_interval_of_the_mean_is_scipys() -> None:
    result = spread(VALUES)
    low, high = stats.t.interval(0.95, len(VALUES) - 1, np.mean(VALUES), stats.sem(VALUES))
    assert result["interval"] == pytest.approx((low, high), rel=1e-12)
    assert result["mean"] == pytest.approx(np.mean(VALUES))
    assert result["sd"] == pytest.approx(np.std(VALUES, ddof=1))
    assert result["seeds"] == 8


def test_one_seed_has_neither_deviation_nor_interval() -> None:
    assert spread([7.0]) == {"mean": 7.0, "sd": None, "interval": None, "seeds": 1}


def test_the_reach_is_half_a_prediction_interval_for_one_further_seed() -> None:
    half = stats.t.ppf(0.975, 7) * np.std(VALUES, ddof=1) * sqrt(1 + 1 / 8)
    assert 3 < half < 10, "neither limit acts on these values"
    assert reach(VALUES, "accuracy") == pytest.approx(half, rel=1e-12)


def test_a_prediction_interval_holds_one_further_seed_in_95_of_100_cases() -> None:
    """The name of the rule is its meaning: were it an interval of the mean, 4 of 10 would fall outside."""
    rng = np.random.default_rng(1)
    draws = rng.normal(50, 2, (4000, 9))
    inside = [abs(row[:8].mean() - row[8]) <= reach(list(row[:8]), "accuracy") for row in draws]
    assert 0.935 < np.mean(inside) < 0.97


@pytest.mark.parametrize(
    ("quantity", "least", "most"),
    [("accuracy", 3.0, 10.0), ("mse", 0.1, 0.33), ("ssim", 1.0, 3.3), ("cap", 0.1, 0.33)],
)
def test_the_reach_has_a_least_and_a_most(quantity: str, least: float, most: float) -> None:
    assert REACH[quantity] == (least, most)
    assert reach([1.0] * 8, quantity) == reach([1.0], quantity) == least
    assert reach([0.0, 100.0], quantity) == most


@pytest.mark.parametrize(
    ("values", "paper", "agrees"),
    [
        ([50.0, 50.0], 53.0, True),  # the least reach, to the point
        ([50.0, 50.0], 53.01, False),
        ([50.0, 50.0], 47.0, True),
        ([50.0, 50.0], 46.99, False),
        ([20.0, 80.0], 60.0, True),  # the most, to the point
        ([20.0, 80.0], 60.01, False),
        ([50.0], 53.0, True),  # a single seed has the least
        ([50.0], 53.01, False),
        (VALUES, 51.1875 - 3.2, True),  # between the limits: 3.35 to each side
        (VALUES, 51.1875 - 3.5, False),
    ],
)
def test_a_cell_agrees_up_to_its_reach(values: list[float], paper: float, agrees: bool) -> None:
    result = compared(values, paper, "accuracy")
    assert result["agrees"] is agrees
    assert result["difference"] == pytest.approx(np.mean(values) - paper)
    assert (result["paper"], result["values"]) == (paper, values)
    assert result["reach"] == reach(values, "accuracy")


@given(numbers, st.floats(-200, 200))
def test_agreement_is_symmetric_and_shifts_with_the_values(values: list[float], paper: float) -> None:
    mirrored = compared([-value for value in values], -paper, "accuracy")
    result = compared(values, paper, "accuracy")
    assert mirrored["reach"] == pytest.approx(result["reach"])
    assert 3.0 <= result["reach"] <= 10.0
    if abs(abs(result["difference"]) - result["reach"]) > 1e-9:
        assert mirrored["agrees"] == result["agrees"]


def test_rank_correlation_is_spearmans_with_ties() -> None:
    one, other = [1, 2, 2, 4, 5], [3, 1, 4, 1, 5]
    assert rank_correlation(one, other) == pytest.approx(stats.spearmanr(one, other).statistic, abs=1e-11)
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == 1.0


@pytest.mark.parametrize(
    ("interval", "level", "over", "under"),
    [
        ((0.1, 2.0), 0.0, True, False),
        ((0.0, 2.0), 0.0, False, False),  # touching is not above
        ((-2.0, 0.0), 0.0, False, False),
        ((-2.0, -0.1), 0.0, False, True),
        ((-1.0, 1.0), 0.0, False, False),
        ((19.0, 30.0), 20.0, False, False),
        ((21.0, 30.0), 20.0, True, False),
        (None, 0.0, False, False),  # one seed proves nothing
    ],
)
def test_above_and_below_take_the_whole_interval(
    interval: tuple[float, float] | None, level: float, over: bool, under: bool
) -> None:
    result = {"mean": 5.0, "interval": interval}
    assert above(result, level) is over
    assert below(result, level) is under


@pytest.mark.parametrize("quantity", REACH)
def test_the_rule_in_words_has_the_limits_of_the_quantity(quantity: str) -> None:
    least, most = REACH[quantity]
    assert rule(quantity, "points").endswith(f"taken at least {least:g} and at most {most:g} points to each side.")


def test_values_are_paired_by_seed_and_none_is_left_over() -> None:
    assert paired([1.0, 5.0], [4.0, 2.0]) == [-3.0, 3.0]
    with pytest.raises(ValueError, match="zip"):
        paired([1.0, 5.0], [4.0])


@pytest.mark.parametrize(
    ("interval", "state"),
    [
        ((1.1, 1.9), "holds"),
        ((0.1, 0.9), "fails"),
        ((2.1, 2.9), "fails"),
        ((0.9, 1.1), "not shown"),
        ((0.5, 2.5), "not shown"),
        ((1.0, 1.5), "not shown"),
        ((0.5, 1.0), "not shown"),
        ((1.5, 2.0), "not shown"),
        ((2.0, 2.5), "not shown"),
        ((float("nan"), float("nan")), "not shown"),
        (None, "not shown"),
    ],
)
def test_an_interval_lies_between_two_levels_beyond_one_of_them_or_neither(
    interval: tuple[float, float] | None, state: str
) -> None:
    """One that touches a level decides nothing."""
    assert between({"interval": interval}, 1.0, 2.0) == state


def test_one_side_may_be_open() -> None:
    assert between({"interval": (5.0, 6.0)}, low=4.0) == "holds"
    assert between({"interval": (5.0, 6.0)}, low=7.0) == "fails"
    assert between({"interval": (5.0, 6.0)}, high=7.0) == "holds"
    assert between({"interval": (5.0, 6.0)}, high=4.0) == "fails"


def test_all_cells_show_a_claim_and_one_refutes_it() -> None:
    assert together(["holds", "holds"]) == "holds"
    assert together(["holds", "fails", "not shown"]) == "fails"
    assert together(["not shown", "holds"]) == "not shown"
    assert together([]) == "not shown"
