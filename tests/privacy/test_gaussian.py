"""Noise for a budget and budget for a noise: closed forms, other libraries' numbers, never on the unsafe side."""

from __future__ import annotations

import math
import sys
from typing import Any

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import BudgetError, ConfigError
from equipoise.privacy import gaussian, losses
from equipoise.privacy.gaussian import Noise, delta_of, epsilon_of, mu_of, noise_multiplier, parts

DP_ACCOUNTING = [
    (14.09839, 1.0, 50, 1.9999988926, 2.4987332896),
    (4.244261, 1.0, 50, 7.9999987980, 9.5980336907),
    (5.149067, 0.25, 100, 1.9999895784, 2.5184612575),
    (1.711899, 0.25, 100, 7.9999652205, 9.8328926111),
    (1.0, 0.01, 1000, 1.8282436456, 2.4116957151),
    (2.0, 0.1, 500, 5.5554699547, 6.8241955478),
    (0.7, 0.05, 200, 10.5502335300, 13.6187064807),
]
"""sigma, q, T, and epsilon at delta 1e-5 and 1e-7: ``PLDAccountant()`` of dp-accounting 0.6.0 after composing
``SelfComposedDpEvent(PoissonSampledDpEvent(q, GaussianDpEvent(sigma)), T)``, without the sampling at q = 1."""

OPACUS = [
    (14.09839, 1.0, 50, 2.001119216, 2.173174126),
    (4.244261, 1.0, 50, 8.001381909, 8.599363647),
    (5.149067, 0.25, 100, 2.001113087, 2.183302971),
    (1.711899, 0.25, 100, 8.001396171, 8.729125862),
    (1.0, 0.01, 1000, 1.829368732, 2.101365272),
    (2.0, 0.1, 500, 5.556769621, 6.034322442),
]
"""sigma, q, T, and epsilon at delta 1e-5 of Opacus 1.6.0 (torch 2.13.0): ``accountant.history = [(sigma, q, T)]``, then
``PRVAccountant().get_epsilon(1e-5, eps_error=0.001)``, an upper estimate to that error, and ``RDPAccountant()``'s."""


def exact_delta(mu: float, epsilon: float) -> Any:
    """Balle and Wang (2018), Theorem 8, in sixty digits."""
    with mpmath.workdps(60):
        a, shift = mpmath.mpf(mu) / 2, mpmath.mpf(epsilon) / mpmath.mpf(mu)
        return mpmath.ncdf(a - shift) - mpmath.exp(mpmath.mpf(epsilon)) * mpmath.ncdf(-a - shift)


# --- all units in every round ------------------------------------------------------------------------------


@pytest.mark.parametrize("mu", [1e-5, 1e-3, 0.05, 0.5, 1.0, 3.0, 9.0, 12.0, 40.0])
@pytest.mark.parametrize("ratio", [0.0, 1e-6, 0.01, 0.5, 1.0, 3.0, 8.0, 30.0])
def test_the_closed_form_keeps_its_digits_and_is_never_too_small(mu: float, ratio: float) -> None:
    exact = exact_delta(mu, mu * ratio)
    found = delta_of(1 / mu, mu * ratio, 1)
    assert exact <= found
    assert float(found / exact) - 1 <= 1e-10 + 3e-14 * (1 + mu / 2 + ratio) / mu


@pytest.mark.parametrize(("sigma", "epsilon"), [(1e6, 1000.0), (1e5, 900.0), (1e6, 3.0), (100.0, 1000.0)])
def test_where_all_digits_would_cancel_the_result_stays_above(sigma: float, epsilon: float) -> None:
    assert 0 < delta_of(sigma, epsilon, 1) < 1e-300
    assert exact_delta(1 / sigma, epsilon) <= delta_of(sigma, epsilon, 1)


@given(st.floats(0.01, 60), st.floats(-12, -1), st.integers(1, 1000))
def test_the_noise_is_enough_and_hardly_less_would_do(epsilon: float, power: float, rounds: int) -> None:
    delta = 10**power
    sigma = noise_multiplier(epsilon, delta, rounds)
    assert exact_delta(math.sqrt(rounds) / sigma, epsilon) <= delta
    assert delta_of(sigma, epsilon, rounds) <= delta
    assert sigma == float(f"{sigma:.7g}"), "a number that can be written down"
    if sigma > 0.0101:
        assert exact_delta(math.sqrt(rounds) / (sigma * (1 - 3e-6)), epsilon) > delta


@given(st.floats(0.05, 1000), st.floats(-12, -1), st.integers(1, 1000))
def test_epsilon_is_never_below_the_truth(sigma: float, power: float, rounds: int) -> None:
    mu, delta = math.sqrt(rounds) / sigma, 10**power
    epsilon = epsilon_of(sigma, delta, rounds)
    assert exact_delta(mu, epsilon) <= delta
    if epsilon > 1e-6:
        assert exact_delta(mu, epsilon * (1 - 1e-7)) > delta


def test_more_noise_fewer_rounds_and_a_larger_delta_are_all_cheaper() -> None:
    base = epsilon_of(5.0, 1e-5, 50)
    assert epsilon_of(5.1, 1e-5, 50) < base
    assert epsilon_of(5.0, 1e-5, 49) < base
    assert epsilon_of(5.0, 2e-5, 50) < base
    assert epsilon_of(1000.0, 0.1, 1) == 0.0, "(0, delta)-DP already"


# --- other libraries ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sigma", "rate", "rounds", "usual", "small"), DP_ACCOUNTING)
def test_epsilons_of_dp_accounting(sigma: float, rate: float, rounds: int, usual: float, small: float) -> None:
    assert epsilon_of(sigma, 1e-5, rounds, rate) == pytest.approx(usual, rel=2e-5)
    assert epsilon_of(sigma, 1e-7, rounds, rate) == pytest.approx(small, rel=2e-5)


@pytest.mark.parametrize(("sigma", "rate", "rounds", "prv", "rdp"), OPACUS)
def test_epsilons_of_opacus(sigma: float, rate: float, rounds: int, prv: float, rdp: float) -> None:
    found = epsilon_of(sigma, 1e-5, rounds, rate)
    assert prv - 0.0025 < found < prv < rdp


# --- Poisson sampling --------------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 50, 2000, 100_000])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 4.0])
def test_the_losses_at_rate_one_against_the_closed_form(rounds: int, epsilon: float) -> None:
    """The same code as for less, where the answer is known: the slack covers what the transforms lose."""
    mu = 1.0
    found = losses.composed_losses(math.sqrt(rounds) / mu, ((1.0, rounds),), 1.0)
    exact = float(exact_delta(mu, epsilon))
    assert exact <= found.delta(epsilon) <= exact * (1 + 2e-4) + 2 * found.slack


@pytest.mark.parametrize(
    ("epsilon", "delta", "rounds", "rate", "known"),
    [(1.0, 1e-5, 100, 0.25, 9.475), (2.0, 1e-5, 100, 0.25, 5.149), (8.0, 1e-5, 100, 0.25, 1.7119),
     (4.0, 1e-5, 500, 0.256, 6.2746), (2.0, 1e-6, 1000, 0.999, None)],
)  # fmt: skip
def test_noise_for_poisson_sampling(
    epsilon: float, delta: float, rounds: int, rate: float, known: float | None
) -> None:
    sigma = noise_multiplier(epsilon, delta, rounds, rate)
    assert epsilon * (1 - 1e-5) < epsilon_of(sigma, delta, rounds, rate) <= epsilon
    assert delta_of(sigma, epsilon, rounds, rate) <= delta
    assert sigma < noise_multiplier(epsilon, delta, rounds), "sampling hides more"
    assert known is None or sigma == pytest.approx(known, rel=1e-3)


def test_both_directions_count() -> None:
    """Where the noise is small, adding and removing differ widely; the worse one is the answer at every epsilon."""
    found = losses.composed_losses(0.5, ((1.0, 10),), 0.1)
    remove, add = (float(one.get_delta_for_epsilon(1.0)) for one in (found.remove, found.add))
    assert remove > 2 * add
    assert delta_of(0.5, 1.0, 10, 0.1) == remove + found.slack
    swapped = losses.Losses(found.add, found.remove, found.slack)
    assert swapped.delta(1.0) == found.delta(1.0)
    assert swapped.epsilon(1e-5) == found.epsilon(1e-5)


def test_extreme_settings_stay_quiet_and_on_the_safe_side() -> None:
    """Warnings are errors here: nothing of dp-accounting's or numpy's reaches the screen."""
    assert epsilon_of(0.05, 1e-5, 3, 0.5) > 100
    assert epsilon_of(1e6, 1e-5, 3, 0.5) == 0.0
    assert 700 < epsilon_of(0.5, 1e-5, 500, 0.9) < math.inf
    assert epsilon_of(3.0, 1e-5, 10, 1e-6) < 1e-3


@pytest.mark.slow
def test_the_most_extreme_settings_stay_quiet_and_on_the_safe_side() -> None:
    assert epsilon_of(0.01, 1e-5, 3, 0.5) > 1000
    assert noise_multiplier(1000.0, 0.5, 1, 0.1) == 0.01
    assert noise_multiplier(1.0, 1e-5, 50, 1e-5) == pytest.approx(0.29306, rel=1e-3)


# --- schedules ---------------------------------------------------------------------------------------------


def test_a_schedule_composes_its_parts() -> None:
    schedule = ((1.0, 25), (0.5, 25))
    sigma = noise_multiplier(2.0, 1e-5, 50, schedule=schedule)
    assert mu_of(sigma, schedule) == pytest.approx(math.sqrt(25 / sigma**2 + 100 / sigma**2))
    assert mu_of(sigma, schedule) == pytest.approx(math.sqrt(50) / noise_multiplier(2.0, 1e-5, 50), rel=1e-6)
    assert epsilon_of(sigma, 1e-5, 50, schedule=schedule) <= 2.0
    assert epsilon_of(3.0, 1e-5, 50, schedule=((2.0, 50),)) == epsilon_of(6.0, 1e-5, 50)


def test_a_schedule_with_poisson_sampling_as_opacus_has_it() -> None:
    """``PRVAccountant`` of Opacus 1.6.0 with history [(6, 0.25, 50), (4, 0.25, 50)], delta 1e-5: 2.23606."""
    found = epsilon_of(4.0, 1e-5, 100, 0.25, ((1.5, 50), (1.0, 50)))
    assert 2.2360582 - 0.0025 < found < 2.2360582
    parted = epsilon_of(4.0, 1e-5, 100, 0.25, ((1.0, 25), (1.5, 50), (1.0, 25)))
    assert parted == found, "the order of rounds is nothing to the loss"
    sigma = noise_multiplier(2.0, 1e-5, 100, 0.25, ((1.5, 50), (1.0, 50)))
    assert 2.0 * (1 - 1e-5) < epsilon_of(sigma, 1e-5, 100, 0.25, ((1.5, 50), (1.0, 50))) <= 2.0


# --- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("epsilon", [0.0, -1.0, math.nan, math.inf, "2", True, 1001.0])
def test_an_impossible_epsilon(epsilon: Any) -> None:
    with pytest.raises(BudgetError, match="epsilon="):
        noise_multiplier(epsilon, 1e-5, 50)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan, None, True])
def test_an_impossible_delta(delta: Any) -> None:
    for call in (lambda: noise_multiplier(2.0, delta, 50), lambda: epsilon_of(5.0, delta, 50)):
        with pytest.raises(BudgetError, match="delta="):
            call()


def test_a_delta_below_what_transforms_resolve() -> None:
    assert noise_multiplier(2.0, 1e-30, 50) > noise_multiplier(2.0, 1e-11, 50), "closed form"
    for call in (lambda: noise_multiplier(2.0, 1e-12, 50, 0.5), lambda: epsilon_of(5.0, 1e-12, 50, 0.5)):
        with pytest.raises(BudgetError, match=r"delta=1e-12 to be >= 1\.1e-11"):
            call()


def test_a_budget_that_drowns_everything() -> None:
    with pytest.raises(BudgetError, match="more than 1e\\+06 times the clip norm"):
        noise_multiplier(1e-6, 1e-9, 1000)
    with pytest.raises(BudgetError, match="more than 1e\\+06 times the clip norm"):
        noise_multiplier(1e-9, 1e-9, 10_000, 0.99)


@pytest.mark.parametrize("sigma", [0.0, 0.009, 2e6, -1.0, math.nan, "3"])
def test_an_impossible_noise_multiplier(sigma: Any) -> None:
    for call in (lambda: epsilon_of(sigma, 1e-5, 50), lambda: delta_of(sigma, 2.0, 50)):
        with pytest.raises(BudgetError, match="sigma="):
            call()


@pytest.mark.parametrize("rounds", [0, -1, 2.0, True])
def test_an_impossible_number_of_rounds(rounds: Any) -> None:
    with pytest.raises(ConfigError, match="rounds="):
        noise_multiplier(2.0, 1e-5, rounds)


@pytest.mark.parametrize("rate", [0.0, -0.1, 1.01, math.nan, "1"])
def test_an_impossible_sampling_rate(rate: Any) -> None:
    with pytest.raises(ConfigError, match="sampling_rate="):
        epsilon_of(5.0, 1e-5, 50, rate)


@pytest.mark.parametrize(
    ("schedule", "told"),
    [(((1.0, 49),), "for 49 rounds, the budget for 50"), (((0.0, 50),), "noise_schedule=0.0"),
     (((1.0, 0), (2.0, 50)), "noise_schedule=0"), (((1.0, 25.0), (2.0, 25)), r"noise_schedule=25\.0"),
     (((math.nan, 50),), "noise_schedule=nan")],
)  # fmt: skip
def test_an_impossible_schedule(schedule: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        noise_multiplier(2.0, 1e-5, 50, schedule=schedule)


def test_many_levels_are_for_full_batches_alone() -> None:
    schedule: Noise = tuple((1 + k / 100, 1) for k in range(40))
    assert noise_multiplier(2.0, 1e-5, 40, schedule=schedule) > 0
    with pytest.raises(ConfigError, match="40 different values"):
        noise_multiplier(2.0, 1e-5, 40, 0.5, schedule)


def test_schedules_are_merged_and_sorted() -> None:
    assert parts(4, 1, ((2, 1), (0.5, 2), (2.0, 1))) == (((0.5, 2), (2.0, 2)), 1.0)


# --- what is needed ----------------------------------------------------------------------------------------


def test_full_batches_need_no_library_and_poisson_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    gaussian._noise_multiplier.cache_clear()
    losses.composed_losses.cache_clear()
    for name in [name for name in sys.modules if name.partition(".")[0] in ("dp_accounting", "scipy")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    monkeypatch.setitem(sys.modules, "scipy", None)
    assert noise_multiplier(2.0, 1e-5, 50) == 14.09839
    with pytest.raises(ConfigError, match="needs dp-accounting, which is not installed"):
        noise_multiplier(2.0, 1e-5, 50, 0.5)


def test_results_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    first = noise_multiplier(3.0, 1e-5, 10, 0.5)
    monkeypatch.setattr(gaussian, "composed_losses", None)
    assert noise_multiplier(3, 1e-5, 10, 0.5) == first
