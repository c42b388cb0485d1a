"""Settings that suit a mechanism, and the server's rate that follows from its noise.

That keys of a user win over them is in ``tests/runs/test_config.py``.
"""

from __future__ import annotations

import math

import pytest

from equipoise.engine.federation import Federation
from equipoise.engine.recommended import RECIPES, recipe_of, recommended, recommended_for
from equipoise.engine.settings import Settings, check
from equipoise.mechanism.registry import MECHANISMS

EVERY = sorted(RECIPES)


@pytest.mark.parametrize("model", EVERY)
def test_longer_steps_with_less_noise_up_to_the_longest(model: str) -> None:
    recipe = RECIPES[model]
    rates = [recipe.rate(10.0**power, 0.8) for power in range(3, -8, -1)]
    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(recipe.drift * 0.2 / 1000)
    assert rates[-1] == recipe.rate(0.0, 0.8) == recipe.largest_rate


def test_momentum_shortens_steps_as_it_adds_them_up() -> None:
    recipe = RECIPES["scatter-linear"]
    assert recipe.rate(0.5, 0.9) == pytest.approx(recipe.rate(0.5, 0.0) / 10)


@pytest.mark.parametrize("model", EVERY)
def test_the_keys_are_settings_that_a_sweep_takes(model: str) -> None:
    keys = recommended("gaussian-dp", model)
    recipe = RECIPES[model]
    assert keys["rounds"] == recipe.rounds
    assert keys["server_momentum"] == recipe.momentum
    assert keys["gaussian"] == {"clip": recipe.clip}
    assert keys["server_rate"] == "auto"
    settings = Settings.flat(**keys, model=model)
    check(settings, [Federation("mnist", "gaussian-dp", 2.0)])
    assert all(0 <= number <= recipe.rounds for number in keys["snapshots"])
    assert keys["evaluate_every"] in range(1, recipe.rounds + 1)


def test_only_budgets_of_a_whole_run_have_recommended_settings() -> None:
    having = {name for name in MECHANISMS if recommended(name)}
    assert having == {name for name, mechanism in MECHANISMS.items() if mechanism.whole_run} == {"gaussian-dp"}
    assert recommended("no-such-mechanism") == {}


def test_a_model_without_a_recipe_gets_that_of_lenet_tanh() -> None:
    assert recipe_of("mlp") is RECIPES["lenet-tanh"]
    assert recipe_of("lenet-zhu") is RECIPES["lenet-zhu"]


def test_a_sweep_gets_settings_only_if_they_suit_all_of_it() -> None:
    own = recommended("gaussian-dp", "scatter-linear")
    assert recommended_for(["gaussian-dp"], "scatter-linear") == own
    assert recommended_for(["none", "gaussian-dp", "gaussian-dp"], "scatter-linear") == own
    for others in (["gaussian-dp", "pl-learn"], ["laplace-dp", "gaussian-dp"], ["none"], []):
        assert recommended_for(others, "scatter-linear") == {}


# -- the rate of a federation ------------------------------------------------------------------------------------------


def rate(budget: object, **change: object) -> float:
    keys = recommended("gaussian-dp", "scatter-linear") | {"model": "scatter-linear"} | change
    return Settings.flat(**keys).server_rates(Federation("mnist", "gaussian-dp", budget), [1, 50], 39_700)[0]


def test_the_rate_follows_from_the_noise_on_the_mean_of_all_clients() -> None:
    settings = Settings.flat(**recommended("gaussian-dp", "scatter-linear"), model="scatter-linear")
    own = settings.for_run().protection
    sigma = own.gaussian.sigma(1.0)
    one = sigma * own.gaussian.clip / own.gaussian.divisor  # of one client in one round, in gradients
    noise = one / math.sqrt(own.clients) * math.sqrt(50)
    assert rate(1.0) == pytest.approx(RECIPES["scatter-linear"].rate(noise, 0.8))
    assert rate(1.0) < RECIPES["scatter-linear"].largest_rate


def test_a_larger_budget_has_a_larger_rate_and_eta_cancels_out() -> None:
    assert rate(0.5) < rate(1.0) < rate(4.0) < rate(16.0)
    assert rate(1.0, eta=0.5) * 0.5 == pytest.approx(rate(1.0))
    assert rate([1.0, 1.0, 4.0, 4.0]) > rate(1.0)


def test_a_rate_that_is_given_is_taken() -> None:
    assert rate(1.0, server_rate=0.25) == 0.25
