"""The budget of a whole run: the noise that follows from it, and every setting that is refused.

That the noise of all rounds is worth the epsilon that was asked for is in ``test_gaussian_lies.py``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from equipoise.errors import BudgetError, ConfigError
from equipoise.mechanism.protection import ProtectionSettings, check_protection
from equipoise.mechanism.run_budget import (
    MOST_ROUNDS,
    GaussianSettings,
    RunBudget,
    check_budget,
    range_problems,
    type_problems,
)
from equipoise.privacy.gaussian import noise_multiplier

OWN = GaussianSettings(rounds=10, clip=0.5, divisor=200.0)
FALLING = {"rounds": [1, 4], "values": [2.0, 1.0]}


# -- from epsilon to noise -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_sigma_is_that_of_the_accountant(epsilon: float) -> None:
    assert OWN.sigma(epsilon) == noise_multiplier(epsilon, 1e-5, 10)
    assert OWN.sigma(epsilon) > OWN.sigma(epsilon * 1.01)
    assert OWN.epsilon(OWN.sigma(epsilon)) == pytest.approx(epsilon, rel=1e-3)
    assert OWN.epsilon(OWN.sigma(epsilon)) <= epsilon * (1 + 1e-9)


@pytest.mark.parametrize(
    "change", [{"delta": 1e-9}, {"rounds": 20}, {"noise_schedule": {"rounds": [1, 4], "values": [1.0, 0.5]}}]
)
def test_all_that_the_guarantee_depends_on_changes_sigma(change: dict[str, Any]) -> None:
    assert replace(OWN, **change).sigma(2.0) > OWN.sigma(2.0) * 1.01
    assert replace(OWN, **change).epsilon(5.0) > OWN.epsilon(5.0) * 1.01


def test_a_poisson_sample_needs_less_noise() -> None:
    assert replace(OWN, sampling_rate=0.25).sigma(2.0) == noise_multiplier(2.0, 1e-5, 10, 0.25) < OWN.sigma(2.0) / 2


def test_known_sigmas_are_looked_up_and_no_others() -> None:
    own = replace(OWN, sigmas=[[2.0, 7.5], [4.0, 5.0]])
    assert (own.sigma(2.0), own.sigma(4.0)) == (7.5, 5.0)
    assert own.sigma(3.0) == OWN.sigma(3.0)
    with pytest.raises(ConfigError, match=r"rounds are not known.*Set gaussian\.rounds"):
        replace(own, rounds=None).sigma(2.0)


@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_a_known_sigma_that_is_too_little_for_its_epsilon_is_refused(rate: float) -> None:
    own = replace(OWN, sampling_rate=rate)
    enough = own.sigma(2.0)
    assert replace(own, sigmas=[[2.0, enough]]).sigma(2.0) == enough
    for change in ({"sigmas": [[2.0, enough * 0.99]]}, {"rounds": 11}, {"delta": 1e-6}):
        with pytest.raises(BudgetError, match=r"gaussian\.sigmas has the noise multiplier"):
            replace(own, **{"sigmas": [[2.0, enough]], **change}).sigma(2.0)


def test_where_there_is_no_accounting_a_known_sigma_of_a_sample_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.mechanism.run_budget.find_spec", lambda _: None)
    assert replace(OWN, sampling_rate=0.5, sigmas=[[2.0, 0.1]]).sigma(2.0) == 0.1
    with pytest.raises(BudgetError, match=r"has the noise multiplier 0\.1"):
        replace(OWN, sigmas=[[2.0, 0.1]]).sigma(2.0)


def test_rounds_that_the_budget_is_not_for_are_refused() -> None:
    OWN.check_round(10)
    for wrong in (0, 11):
        with pytest.raises(ConfigError, match=f"for 10 rounds, got round {wrong}"):
            OWN.check_round(wrong)


def test_noise_on_an_update_is_sigma_times_the_reach_of_a_unit() -> None:
    budget = RunBudget(OWN, eta=0.2)
    assert budget.reach == pytest.approx(0.2 * 0.5 / 200)
    assert budget.lower(2.0) == pytest.approx(OWN.sigma(2.0) * 0.2 * 0.5 / 200)
    assert budget.leakage(budget.lower(2.0)) == pytest.approx(2.0, rel=1e-3)
    sampled = RunBudget(replace(OWN, sampling_rate=0.25, sigmas=[[2.0, 6.0]]), eta=0.2)
    assert sampled.lower(2.0) == pytest.approx(6.0 * 0.2 * 0.5 / (0.25 * 200))


@pytest.mark.parametrize("value", [0, -1.0, math.inf, math.nan, "2", None])
def test_budgets_and_scales_that_are_no_positive_numbers_are_refused(value: Any) -> None:
    budget = RunBudget(OWN, eta=0.2)
    with pytest.raises(BudgetError, match="finite number > 0"):
        budget.lower(value)
    with pytest.raises(BudgetError, match="finite number > 0"):
        budget.leakage(value)


# -- noise over rounds -----------------------------------------------------------------------------------------------


def test_a_noise_schedule_is_counted_in_rounds() -> None:
    own = replace(OWN, noise_schedule=FALLING)
    assert own.noise() == ((1.0, 7), (2.0, 3))
    assert own.relative([1, 3, 4, 10]) == [2.0, 2.0, 1.0, 1.0]
    assert OWN.noise() == ((1.0, 10),)
    assert GaussianSettings().noise() == ((1.0, 1),)


def test_rounds_have_the_noise_of_their_schedule_and_of_their_client() -> None:
    own = replace(OWN, noise_schedule=FALLING, sigmas=[[2.0, 8.0], [4.0, 4.0]])
    settings = ProtectionSettings(eta=0.2, clients=2, gaussian=own)
    reach = 0.2 * 0.5 / 200
    scales = settings.scales("gaussian-dp", [2.0, 4.0], [1, 4])
    assert [[scale / reach for scale in row] for row in scales] == [
        pytest.approx([16.0, 8.0]),
        pytest.approx([8.0, 4.0]),
    ]
    one = settings.at("gaussian-dp", [2.0, 4.0], 1, client=1)
    assert one.scale == pytest.approx(8.0 * reach)
    assert (one.clip, one.divisor, one.sampling_rate) == (0.5, 200.0, 1.0)


def test_a_schedule_of_budgets_is_refused() -> None:
    given = {"rounds": [1, 5], "values": [1.0, 2.0]}
    for ask in (
        lambda: check_budget(given),
        lambda: ProtectionSettings(gaussian=OWN).at("gaussian-dp", given, 1),
        lambda: ProtectionSettings(gaussian=OWN).scales("gaussian-dp", given, [1]),
    ):
        with pytest.raises(BudgetError, match=r"epsilon of the whole run.*gaussian\.noise_schedule"):
            ask()
    check_budget(2.0)
    check_budget([1.0, 2.0])


# -- what can be wrong -----------------------------------------------------------------------------------------------


def problems(**change: Any) -> list[str]:
    own = replace(GaussianSettings(), **change)
    return [str(problem) for problem in list(type_problems(own)) or list(range_problems(own))]


def test_the_defaults_are_in_order() -> None:
    assert problems() == []
    assert problems(rounds=MOST_ROUNDS, sampling_rate=0.01, noise_schedule=FALLING, sigmas=[[1.0, 2.0]]) == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("delta", "small", "a number"),
        ("clip", None, "a number"),
        ("sampling_rate", [1], "a number"),
        ("divisor", "many", "a number"),
        ("rounds", 2.5, "a whole number or none"),
        ("rounds", True, "a whole number or none"),
        ("sigmas", 3.0, "a list of pairs of numbers"),
        ("sigmas", [[1.0]], "a list of pairs of numbers"),
        ("sigmas", [[1.0, math.nan]], "a list of pairs of numbers"),
        ("delta", 0.0, "between 1e-100 and 1"),
        ("delta", 1.0, "between 1e-100 and 1"),
        ("delta", math.nan, "between 1e-100 and 1"),
        ("sampling_rate", 0.0, "from 1e-09 to 1"),
        ("sampling_rate", 1.1, "from 1e-09 to 1"),
        ("clip", 0.0, "a finite number > 0"),
        ("clip", math.inf, "a finite number > 0"),
        ("divisor", -1.0, "a finite number > 0"),
        ("rounds", 0, "in 1..1000000"),
        ("rounds", MOST_ROUNDS + 1, "in 1..1000000"),
        ("sigmas", [[1.0, 0.0]], "pairs of numbers > 0"),
        ("sigmas", [[-1.0, 2.0]], "pairs of numbers > 0"),
        ("noise_schedule", [1.0, 2.0], "a number or a schedule over rounds"),
        ("noise_schedule", 0.0, "> 0"),
        ("noise_schedule", -1.0, "> 0"),
        ("noise_schedule", math.inf, "one finite number"),
        ("noise_schedule", "soft", "one finite number"),
        ("noise_schedule", {"rounds": [1, 5], "values": [1.0, 0.0]}, "> 0"),
        ("noise_schedule", {"rounds": [2], "values": [1.0]}, "begin at 1"),
        ("noise_schedule", {"rounds": [1, 5], "values": [1.0]}, "of one length"),
        ("noise_schedule", {"rounds": 5, "values": 1.0}, "schedule"),
        ("noise_schedule", {"rounds": [1], "values": [[1.0, 2.0]]}, "one finite number"),
        ("noise_schedule", {}, "of one length"),
    ],
)
def test_every_wrong_setting_is_named(name: str, value: Any, words: str) -> None:
    found = problems(**{name: value})
    assert len(found) == 1
    assert f"gaussian.{name}" in found[0]
    assert words in found[0]
    with pytest.raises(ConfigError, match=f"gaussian.{name}"):
        check_protection(ProtectionSettings(gaussian=replace(GaussianSettings(), **{name: value})))


def test_all_problems_are_told_at_once() -> None:
    assert len(problems(delta=0.0, clip=0.0, divisor=0.0, rounds=0, sampling_rate=2.0)) == 5
    assert len(problems(delta=None, clip=None)) == 2


def test_settings_that_are_no_table_are_refused() -> None:
    assert "a table of settings" in str(next(type_problems({"delta": 1e-5})))
