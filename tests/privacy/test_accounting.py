"""What many releases are worth together: known answers, never below the exact composition, never above the sum."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import BudgetError, ConfigError
from equipoise.privacy import accounting
from equipoise.privacy.accounting import basic_epsilon, composed_epsilon


def closed_form(epsilon: float, releases: int) -> list[tuple[float, float]]:
    """Kairouz, Oh and Viswanath (2015), Theorem 3.3 with delta = 0: the corners (epsilon', delta') of k releases."""
    k, corners = releases, []
    for i in range(k // 2 + 1):
        terms = (
            math.comb(k, j) * (math.exp((k - j) * epsilon) - math.exp((k - 2 * i + j) * epsilon)) for j in range(i)
        )
        corners.append(((k - 2 * i) * epsilon, math.fsum(terms) / (1 + math.exp(epsilon)) ** k))
    return corners


def exact_delta(budgets: dict[float, int], epsilon: float) -> float:
    """The hockey-stick divergence of randomized responses, outcome by outcome."""
    losses = {0.0: 1.0}
    for size, count in budgets.items():
        truth = 1 / (1 + math.exp(-size))
        for _ in range(count):
            new: dict[float, float] = {}
            for (loss, chance), (sign, share) in product(losses.items(), ((1, truth), (-1, 1 - truth))):
                key = round(loss + sign * size, 9)
                new[key] = new.get(key, 0.0) + chance * share
            losses = new
    return math.fsum(chance * -math.expm1(epsilon - loss) for loss, chance in losses.items() if loss > epsilon)


def exact_epsilon(budgets: dict[float, int], delta: float) -> float:
    low, high = 0.0, basic_epsilon(budgets)
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if exact_delta(budgets, middle) <= delta else (middle, high)
    return high


# --- known answers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 8.0, 29.9, 30.1, 1e3, 1e6])
def test_one_release_is_worth_its_own_epsilon(epsilon: float) -> None:
    assert basic_epsilon({epsilon: 1}) == epsilon
    assert composed_epsilon({epsilon: 1}, 0.0) == epsilon
    least = math.log(math.exp(epsilon) - 1e-9 * (1 + math.exp(epsilon))) if epsilon < 30 else epsilon
    assert least * (1 - 1e-12) <= composed_epsilon({epsilon: 1}, 1e-9) <= epsilon
    assert composed_epsilon({epsilon: 1}, 1e-9) == pytest.approx(epsilon, rel=1e-6)


def test_without_delta_epsilons_add_up() -> None:
    assert composed_epsilon({1.0: 3, 0.25: 4}, 0.0) == basic_epsilon({1.0: 3, 0.25: 4}) == 4.0
    assert composed_epsilon({0.1: 1000}, 1e-30) == pytest.approx(100, rel=1e-12), "a delta that rounding would drown"


@pytest.mark.parametrize("count", range(2, 21))
@pytest.mark.parametrize("epsilon", [0.05, 0.3, 1.0, 3.0])
def test_the_closed_form_of_optimal_composition(epsilon: float, count: int) -> None:
    compared = 0
    for expected, delta in closed_form(epsilon, count):
        if delta > 1e-8 and expected > 0:
            actual = composed_epsilon({epsilon: count}, delta)
            assert expected * (1 - 1e-12) <= actual <= expected + 2e-4 * epsilon, (expected, delta)
            compared += 1
    assert compared >= (count - 1) // 2 - 3 * (epsilon == 0.05)
    assert exact_epsilon({epsilon: count}, 1e-6) <= composed_epsilon({epsilon: count}, 1e-6) <= epsilon * count


def test_many_releases_cost_much_less_than_their_sum() -> None:
    """k (e^eps - 1) eps / (e^eps + 1) + eps sqrt(2 k log(1/delta)) bounds it (Kairouz, Oh and Viswanath, 3.4)."""
    result = composed_epsilon({0.1: 1000}, 1e-5)
    drift = 1000 * math.expm1(0.1) * 0.1 / (math.exp(0.1) + 1)
    assert drift < result < drift + 0.1 * math.sqrt(2 * 1000 * math.log(1e5)) < 100
    assert result == pytest.approx(17.787, abs=1e-3)


@pytest.mark.parametrize(
    "budgets", [{1.0: 5, 0.5: 6}, {0.1: 7, 0.3: 5}, {0.7: 4, 0.2: 3, 2.0: 2}], ids=["on the grid", "off it", "three"]
)
@pytest.mark.parametrize("delta", [1e-6, 1e-3])
def test_unlike_releases_against_every_outcome(budgets: dict[float, int], delta: float) -> None:
    exact, result = exact_epsilon(budgets, delta), composed_epsilon(budgets, delta)
    assert exact <= result <= exact * 1.005
    assert result < basic_epsilon(budgets)


# --- what always holds -------------------------------------------------------------------------------------

EPSILONS = st.floats(1e-4, 1e4, allow_nan=False)


@given(st.dictionaries(EPSILONS, st.integers(0, 200), max_size=3), st.floats(0, 0.5), st.floats(1, 3))
def test_never_above_the_sum_and_falling_in_delta(budgets: dict[float, int], delta: float, more: float) -> None:
    result, looser = composed_epsilon(budgets, delta), composed_epsilon(budgets, min(delta * more, 0.9))
    assert 0 <= looser <= result * (1 + 1e-8) <= basic_epsilon(budgets) * (1 + 2e-8)


@given(st.floats(0.01, 5), st.integers(1, 60), st.integers(0, 60))
def test_more_releases_are_worth_more(epsilon: float, count: int, more: int) -> None:
    few, many = (composed_epsilon({epsilon: n}, 1e-6) for n in (count, count + more))
    assert few <= many * (1 + 1e-8)


def test_large_epsilons_are_added_to_what_the_others_make() -> None:
    rest = composed_epsilon({0.1: 500}, 1e-5)
    assert composed_epsilon({0.1: 500, 1000.0: 3}, 1e-5) == pytest.approx(3000 + rest, rel=1e-12)


def test_no_release_is_worth_nothing() -> None:
    assert basic_epsilon({}) == composed_epsilon({}, 1e-5) == composed_epsilon({1.0: 0, 2.0: 0}, 1e-5) == 0.0


def test_millions_of_releases_take_little_time_and_stay_below_their_sum() -> None:
    for budgets in ({0.5: 3_000_000}, {0.5: 10, 1e-6: 10_000}):
        assert composed_epsilon(budgets, 1e-5) <= basic_epsilon(budgets)


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, "1", True])
@pytest.mark.parametrize("call", [basic_epsilon, lambda budgets: composed_epsilon(budgets, 1e-5)], ids=["sum", "both"])
def test_an_impossible_epsilon(call: Callable[[object], float], epsilon: object) -> None:
    with pytest.raises(BudgetError, match="epsilon="):
        call({epsilon: 3})


@pytest.mark.parametrize("count", [-1, 1.5, True, "2"])
def test_an_impossible_count(count: object) -> None:
    with pytest.raises(ConfigError, match="releases"):
        basic_epsilon({1.0: count})  # type: ignore[dict-item]


@pytest.mark.parametrize("delta", [-1e-9, 1.0, 2, math.nan, None, True])
def test_an_impossible_delta(delta: object) -> None:
    with pytest.raises(ConfigError, match="delta="):
        composed_epsilon({1.0: 3}, delta)  # type: ignore[arg-type]


def test_without_the_package_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "dp_accounting"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    with pytest.raises(ConfigError, match="pip install dp-accounting"):
        accounting.composed_epsilon({1.0: 3}, 1e-5)
    assert accounting.composed_epsilon({1.0: 3}, 0.0) == accounting.basic_epsilon({1.0: 3}) == 3, "needs no library"
