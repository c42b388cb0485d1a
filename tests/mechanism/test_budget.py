"""Budgets: the paper's numbers, both maps and their inverses, and what is refused with which words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import BudgetError
from equipoise.mechanism.budget import GaussianBudget, LaplaceBudget, LeakageBudget, Measure

SCALES = (LaplaceBudget, GaussianBudget)
budgets = st.floats(0.0, 1.0, exclude_max=True)

# --- the paper's numbers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "lower"), [(0.96, 15.99975), (0.97, 11.99975), (0.98, 7.99975), (0.99, 3.99975), (0.995, 1.99975)]
)
def test_the_papers_lower_bounds(budget: float, lower: float) -> None:
    assert LeakageBudget().lower(budget) == pytest.approx(lower, abs=1e-9)


def test_the_papers_upper_bound_and_threshold() -> None:
    paper = LeakageBudget()
    assert paper.factor * paper.lower(0.96) == pytest.approx(31.9995, abs=1e-9)
    assert paper.threshold == pytest.approx(5e-4, abs=1e-15)


@pytest.mark.parametrize("kind", SCALES)
def test_the_scale_is_sensitivity_over_budget(kind: type[LaplaceBudget]) -> None:
    assert kind(sensitivity=10).lower(80) == 0.125
    assert kind(sensitivity=10).lower(800) == 0.0125
    assert kind(sensitivity=3).leakage(1.5) == 2.0


def test_defaults_are_the_papers_and_the_fitted_ones() -> None:
    assert LaplaceBudget() == LaplaceBudget(sensitivity=10.0, factor=2.0)
    assert LeakageBudget() == LeakageBudget(D=56, c_a=0.56, c_res=0.01, p=0.5, iterations=1600, factor=2)


# --- the maps as functions ---------------------------------------------------------------------------------


@given(budgets, st.floats(1.0, 500.0), st.floats(0.05, 5.0), st.floats(1e-4, 1.0), st.floats(0.1, 0.9))
def test_leakage_inverts_lower_wherever_the_threshold_does_not_act(
    budget: float, distance: float, c_a: float, c_res: float, p: float
) -> None:
    score = LeakageBudget(D=distance, c_a=c_a, c_res=c_res, p=p)
    lower = score.lower(budget)
    assert lower >= score.threshold > 0
    if lower > score.threshold:
        assert score.leakage(lower) == pytest.approx(budget, abs=1e-9)
    else:  # more distortion than the budget asks for: the score can only be lower
        assert score.leakage(lower) <= budget + 1e-9


@given(st.floats(1e-6, 1e6), st.floats(1e-3, 1e3), st.sampled_from(SCALES))
def test_leakage_inverts_lower_for_scales(budget: float, sensitivity: float, kind: type[LaplaceBudget]) -> None:
    assert kind(sensitivity).leakage(kind(sensitivity).lower(budget)) == pytest.approx(budget, rel=1e-12)


@given(st.floats(0.0, 0.999), st.floats(0.0, 0.999))
def test_a_stricter_budget_never_asks_for_less(one: float, two: float) -> None:
    strict, loose = sorted((one, two))
    assert LeakageBudget().lower(strict) >= LeakageBudget().lower(loose)
    assert LaplaceBudget().lower(strict + 0.1) >= LaplaceBudget().lower(loose + 0.1)
    assert LeakageBudget().leakage(strict) >= LeakageBudget().leakage(loose)
    if loose - strict > 1e-6:
        assert LeakageBudget().lower(strict) > LeakageBudget().lower(loose)


def test_the_maximum_takes_over_where_the_inverse_is_too_small_or_negative() -> None:
    paper = LeakageBudget()
    for budget in (0.999999, 1 - 1e-12):
        inverse = (1 - budget) * 4 * 56 / 0.56 - 0.01 / 40
        assert inverse < paper.threshold
        assert paper.lower(budget) == paper.threshold
    assert (1 - (1 - 1e-12)) * 400 - 0.00025 < 0, "the last case is the one with a negative inverse"


def test_a_negative_score_is_not_clamped() -> None:
    assert LeakageBudget().leakage(1000.0) == pytest.approx(1 - (560 + 0.56 * 0.00025) / 224)
    assert LeakageBudget().leakage(1000.0) < 0


# --- refusals ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [LeakageBudget, LaplaceBudget, GaussianBudget])
@pytest.mark.parametrize("budget", [math.nan, math.inf, -math.inf, True, False, "0.96", None, [0.96]])
def test_a_budget_is_a_finite_number(kind: type[LeakageBudget], budget: Any) -> None:
    with pytest.raises(BudgetError) as caught:
        kind().lower(budget)
    assert f"budget={budget!r}" in str(caught.value)
    assert "finite number" in caught.value.cause
    assert caught.value.remedy


@pytest.mark.parametrize("budget", [1, 1.0, 1.2, 80])
def test_a_leakage_budget_of_one_or_more_promises_nothing(budget: float) -> None:
    with pytest.raises(BudgetError, match=r"Expected budget=.* to be < 1") as caught:
        LeakageBudget().lower(budget)
    assert repr(budget) in caught.value.cause
    assert "choose one below 1" in caught.value.remedy


@pytest.mark.parametrize("budget", [-1e-9, -0.5, -80])
def test_negative_budgets_are_refused(budget: float) -> None:
    with pytest.raises(BudgetError, match=r"Expected budget=-.* to be >= 0"):
        LeakageBudget().lower(budget)
    for kind in SCALES:
        with pytest.raises(BudgetError, match=r"Expected budget=-.* to be > 0"):
            kind().lower(budget)


def test_a_scale_budget_of_zero_needs_infinite_noise() -> None:
    with pytest.raises(BudgetError, match=r"Expected budget=0 to be > 0.*Choose a positive one"):
        LaplaceBudget().lower(0)
    assert LeakageBudget().lower(0) == pytest.approx(400 - 0.00025), "zero is a budget of the leakage score"


@pytest.mark.parametrize("sensitivity", [0, 0.0, -1.0, math.nan, math.inf, True, "10", None])
@pytest.mark.parametrize("kind", SCALES)
def test_sensitivity_is_positive(kind: type[LaplaceBudget], sensitivity: Any) -> None:
    with pytest.raises(BudgetError, match=r"Expected sensitivity=.* to be a finite number > 0") as caught:
        kind(sensitivity=sensitivity)
    assert repr(sensitivity) in caught.value.cause


@pytest.mark.parametrize("name", ["D", "c_a", "c_res"])
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, "1"])
def test_constants_are_positive(name: str, value: Any) -> None:
    with pytest.raises(BudgetError, match=rf"Expected {name}=.* to be a finite number > 0"):
        LeakageBudget(**{name: value})


@pytest.mark.parametrize("factor", [0.999, 0, -2, math.nan, math.inf, "2"])
@pytest.mark.parametrize("kind", [LeakageBudget, LaplaceBudget, GaussianBudget])
def test_factor_is_at_least_one(kind: Any, factor: Any) -> None:
    with pytest.raises(BudgetError, match=r"Expected factor=.* to be (>= 1|a finite number > 0)"):
        kind(factor=factor)


def test_factor_one_is_allowed() -> None:
    assert LeakageBudget(factor=1).factor == LaplaceBudget(factor=1).factor == 1


@pytest.mark.parametrize("p", [0, 1, 0.0, 1.0, -0.5, 1.5, math.nan, "0.5"])
def test_p_lies_strictly_between_zero_and_one(p: Any) -> None:
    with pytest.raises(BudgetError, match=r"Expected p=.* to (lie in \(0, 1\)|be a finite number > 0)"):
        LeakageBudget(p=p)


@pytest.mark.parametrize("iterations", [0, -1, 0.5, math.nan, "1600"])
def test_the_attack_runs_at_least_once(iterations: Any) -> None:
    with pytest.raises(BudgetError, match=r"Expected iterations=.* to be (>= 1|a finite number > 0)"):
        LeakageBudget(iterations=iterations)
    assert LeakageBudget(iterations=1).threshold == 0.02


@pytest.mark.parametrize("budget", [1e-320, 5e-324])
def test_a_budget_that_asks_for_an_infinite_scale_is_refused(budget: float) -> None:
    with pytest.raises(BudgetError, match="infinite scale"):
        LaplaceBudget().lower(budget)


@pytest.mark.parametrize("intensity", [-1.0, math.nan, "1", True, None])
def test_an_intensity_is_a_norm(intensity: Any) -> None:
    with pytest.raises(BudgetError, match="Expected intensity="):
        LeakageBudget().leakage(intensity)


@pytest.mark.parametrize("scale", [0.0, -0.1, math.nan])
def test_the_leakage_of_no_noise_is_refused(scale: float) -> None:
    with pytest.raises(BudgetError, match=r"Expected scale="):
        LaplaceBudget().leakage(scale)


# --- the protocol ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HalfDistance:
    """A user's own measure."""

    factor: float = 3.0
    bounds_draw: bool = False

    def leakage(self, intensity: float) -> float:
        return 1 / intensity

    def lower(self, budget: float) -> float:
        return 1 / budget


def test_measures_satisfy_the_protocol_and_a_users_own_does_too() -> None:
    for one in (LeakageBudget(), LaplaceBudget(), GaussianBudget(), HalfDistance()):
        assert isinstance(one, Measure)
    assert not isinstance(object(), Measure)
    mine: Measure = HalfDistance()
    assert mine.leakage(mine.lower(0.25)) == 0.25


def test_bounds_draw_says_what_lower_bounds() -> None:
    assert not LeakageBudget().bounds_draw
    assert LaplaceBudget().bounds_draw
    assert GaussianBudget().bounds_draw
