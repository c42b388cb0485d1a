"""Budgets: the paper's numbers, both maps and their inverses, and what is refused with which words."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import BudgetError, ConfigError
from equipoise.mechanism import registry as mechanisms
from equipoise.mechanism.budget import GaussianBudget, LaplaceBudget, LeakageBudget, Measure
from equipoise.mechanism.registry import MECHANISMS, Mechanism, measure, mechanism, register
from equipoise.mechanism.schedule import schedule

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
    assert "'none'" in caught.value.remedy


@pytest.mark.parametrize("budget", [-1e-9, -0.5, -80])
def test_negative_budgets_are_refused(budget: float) -> None:
    with pytest.raises(BudgetError, match=r"Expected budget=-.* to be >= 0"):
        LeakageBudget().lower(budget)
    for kind in SCALES:
        with pytest.raises(BudgetError, match=r"Expected budget=-.* to be > 0"):
            kind().lower(budget)


def test_a_scale_budget_of_zero_needs_infinite_noise() -> None:
    with pytest.raises(BudgetError, match=r"Expected budget=0 to be > 0.*infinite noise"):
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


def test_every_mechanism_is_calibrated_by_its_measure() -> None:
    expected = {
        "leakage": LeakageBudget, "laplace": LaplaceBudget, "gaussian": GaussianBudget, "epsilon": LaplaceBudget,
    }  # fmt: skip
    for row in MECHANISMS.values():
        if isinstance(row.measure, str):
            made = measure(row.measure, sensitivity=4.0, factor=3.0)
            assert type(made) is expected[row.measure]
            assert made.factor == 3.0
    assert measure("laplace", sensitivity=4.0).lower(2) == 2.0
    assert measure("leakage", leakage=LeakageBudget(D=28)).lower(0.96) == pytest.approx(8 - 0.00025)


def test_the_table_of_mechanisms() -> None:
    rows = {m.name: (m.measure, m.noise, m.norm, m.learns, m.clips) for m in MECHANISMS.values() if not m.per_example}
    assert rows == {
        "none": (None, "laplace", "l2", False, False),
        "pl-identical": ("leakage", "laplace", "l2", False, False),
        "pl-learn": ("leakage", "laplace", "l2", True, False),
        "ls-static": ("laplace", "laplace", "l1", False, True),
        "ls-learn": ("laplace", "laplace", "l1", True, True),
        "gs-static": ("gaussian", "gaussian", "l2", False, True),
        "gs-learn": ("gaussian", "gaussian", "l2", True, True),
    }
    dp = Mechanism("laplace-dp", "epsilon", noise="laplace", norm="l1", learns=False, clips=False, per_example=True)
    assert [m for m in MECHANISMS.values() if m.per_example] == [dp]
    assert {m.name for m in MECHANISMS.values() if m.on_sphere} == {"pl-identical", "pl-learn"}
    assert {m.name for m in MECHANISMS.values() if not m.distorts} == {"none"}


def test_a_mechanism_of_the_users_own_is_known_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mechanisms, "MECHANISMS", dict(MECHANISMS))
    mine = register(Mechanism("half-distance", HalfDistance(), learns=True))
    assert mechanism("half-distance") is mine
    assert mine.on_sphere, "its budget bounds the intensity itself"
    assert not replace(mine, measure=HalfDistance(bounds_draw=True)).on_sphere
    with pytest.raises(ConfigError, match="'half-distance' exists"):
        register(mine)
    with pytest.raises(ConfigError, match="lacks leakage, lower, factor or bounds_draw"):
        register(Mechanism("broken", object()))  # type: ignore[arg-type]


def test_an_unknown_mechanism_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"Unknown mechanism 'pl-lern'. Did you mean 'pl-learn'\?") as caught:
        mechanism("pl-lern")
    assert "ls-static" in caught.value.remedy


# --- schedules ---------------------------------------------------------------------------------------------


def test_a_number_holds_for_everyone_always() -> None:
    assert schedule(0.96, [1, 7, 5000], clients=3) == [[0.96] * 3] * 3
    assert schedule(80, [1], clients=2) == [[80.0, 80.0]]


def test_one_number_per_client() -> None:
    assert schedule([0.1, 0.2], [1, 9], clients=2) == [[0.1, 0.2], [0.1, 0.2]]
    assert schedule((0.1, 0.2), [1], clients=2) == [[0.1, 0.2]]


def test_each_value_of_a_schedule_holds_from_its_round_on() -> None:
    plan = {"rounds": [1, 3, 10], "values": [1, [2, 3], 4.5]}
    rows = schedule(plan, [1, 2, 3, 9, 10, 11], clients=2)
    assert rows == [[1.0, 1.0], [1.0, 1.0], [2.0, 3.0], [2.0, 3.0], [4.5, 4.5], [4.5, 4.5]]
    assert schedule(plan, [10, 1], clients=2) == [[4.5, 4.5], [1.0, 1.0]], "any rounds, in any order"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([0.1], "one for each of 2 clients"),
        ([0.1, 0.2, 0.3], "one for each of 2 clients"),
        ([], "one for each of 2 clients"),
        (math.nan, "finite number"),
        (math.inf, "finite number"),
        ([0.1, math.nan], "finite number"),
        ("ab", "finite number"),
        (["a", "b"], "finite number"),
        (None, "finite number"),
        (True, "finite number"),
        ([0.1, True], "finite number"),
        ({}, "'rounds' and 'values'"),
        ({"rounds": [1]}, "'rounds' and 'values'"),
        ({"rounds": [], "values": []}, "'rounds' and 'values'"),
        ({"rounds": [1, 2], "values": [0.1]}, "one length"),
        ({"rounds": [1], "values": [0.1], "extra": 1}, "'rounds' and 'values'"),
        ({"rounds": 1, "values": 0.1}, "'rounds' and 'values'"),
        ({"rounds": ["1"], "values": [0.1]}, "begin at 1"),
        ({"rounds": [1.0, 2.5], "values": [0.1, 0.2]}, "begin at 1"),
        ({"rounds": [2], "values": [0.1]}, "begin at 1"),
        ({"rounds": [1, 5, 3], "values": [0.1, 0.2, 0.3]}, "to rise"),
        ({"rounds": [1, 5, 5], "values": [0.1, 0.2, 0.3]}, "to rise"),
        ({"rounds": [1, 2], "values": [0.1, [0.2]]}, "one for each of 2 clients"),
    ],
)
def test_a_malformed_schedule_is_refused_by_name(value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schedule(value, [1, 2], clients=2, name="gamma")
    assert words in caught.value.cause
    assert "gamma" in caught.value.cause
