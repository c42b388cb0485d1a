"""Proved limits: the closed form, other libraries' numbers, the likelihood ratio itself, and never below a test."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from equipoise.errors import BudgetError, ConfigError
from equipoise.privacy.limits import SCOPES, advantage, blind_success, limit

SIGMAS = {
    (0.25, 100): (9.475016, 5.149067, 2.889261, 1.711899),
    (1.0, 50): (26.37955, 14.09839, 7.644969, 4.244261),
}
"""Of epsilon 1, 2, 4 and 8 at delta 1e-5, by q and T."""
KNOWN = {
    (0.25, 100): {"run": (0.0105, 0.0187, 0.0468, 0.155), "release": (0.0054, 0.0059, 0.0070, 0.0096)},
    (1.0, 50): {"run": (0.0105, 0.0190, 0.0494, 0.181), "release": (0.0056, 0.0061, 0.0072, 0.0096)},
}
"""Identification among 200, for these: computed before this module was written."""

RISKCAL = [
    (9.475016, 0.25, 100, (0.002379, 0.010469, 0.019704, 0.154768), 0.105076),
    (5.149067, 0.25, 100, (0.004759, 0.018749, 0.033497, 0.214572), 0.192465),
    (2.889261, 0.25, 100, (0.014433, 0.046782, 0.076316, 0.345494), 0.338069),
    (1.711899, 0.25, 100, (0.065329, 0.155209, 0.219707, 0.593712), 0.547254),
    (1.0, 0.01, 1000, (0.004070, 0.016202, 0.029151, 0.194254), 0.161098),
    (14.09839, 1.0, 50, (0.004817, 0.019027, 0.034016, 0.217698), 0.198016),
    (4.244261, 1.0, 50, (0.077194, 0.181465, 0.254526, 0.649689), 0.595165),
]
"""sigma, q, T, true-positive rates at false ones of 0.001, 0.005, 0.01 and 0.1, advantage: riskcal 1.5.1,
``1 - get_beta_from_pld(pld, alpha=...)`` and ``get_advantage_from_pld(pld)`` of ``from_gaussian_mechanism(sigma,
sampling_prob=q, value_discretization_interval=1e-3).self_compose(T)``. (With finer cells its rounding takes over.)"""


@pytest.mark.parametrize(("rate", "rounds"), KNOWN)
@pytest.mark.parametrize("scope", ["run", "release"])
def test_the_known_table(rate: float, rounds: int, scope: Any) -> None:
    for sigma, known in zip(SIGMAS[rate, rounds], KNOWN[rate, rounds][scope], strict=True):
        assert limit(1 / 200, sigma, rounds, rate, scope) == pytest.approx(known, rel=0.01)


@pytest.mark.parametrize(("sigma", "rate", "rounds", "hits", "most"), RISKCAL)
def test_limits_of_riskcal(sigma: float, rate: float, rounds: int, hits: tuple[float, ...], most: float) -> None:
    for kappa, known in zip((0.001, 0.005, 0.01, 0.1), hits, strict=True):
        assert limit(kappa, sigma, rounds, rate) == pytest.approx(known, rel=5e-4)
    assert advantage(sigma, rounds, rate) == pytest.approx(most, rel=6e-4)


@given(st.floats(1e-9, 0.999), st.floats(0.5, 500), st.integers(1, 1000))
def test_full_batches_against_scipy(kappa: float, sigma: float, rounds: int) -> None:
    known = stats.norm.cdf(stats.norm.ppf(kappa) + math.sqrt(rounds) / sigma)
    found = limit(kappa, sigma, rounds)
    assert kappa <= found <= 1
    assert known <= found * (1 + 1e-13)
    assert found == pytest.approx(known, rel=1e-9)


def test_one_release_of_poisson_sampling() -> None:
    """The unit is in it with probability q: in the other cases nothing is learned."""
    known = limit(0.01, 2.0, 100, 0.25, "release_known")
    assert known == limit(0.01, 2.0, 1)
    assert limit(0.01, 2.0, 100, 0.25, "release") == pytest.approx(0.75 * 0.01 + 0.25 * known, rel=1e-12)
    assert limit(0.01, 2.0, 1, 0.25) == pytest.approx(limit(0.01, 2.0, 1, 0.25, "release"), rel=1e-3), "a run of one"


def test_of_several_releases_the_one_with_least_noise_counts() -> None:
    schedule = ((1.0, 5), (0.5, 5))
    assert limit(0.01, 2.0, 10, 1.0, "release", schedule) == limit(0.01, 1.0, 1)
    assert limit(0.01, 2.0, 10, schedule=schedule) == pytest.approx(limit(0.01, 2 / math.sqrt(5 + 20), 1), rel=1e-9)
    assert advantage(2.0, 10, schedule=schedule) == pytest.approx(advantage(2 / math.sqrt(5 + 20), 1), rel=1e-9)
    assert limit(0.01, 2.0, 10, 0.5, "run", schedule) > limit(0.01, 2.0, 10, 0.5)


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_limits_have_the_shape_of_a_trade_off(rate: float) -> None:
    """Rising and concave in kappa, never below kappa, and no scope tells more than a wider one."""
    kappas = [0.0, 1e-6, 1e-3, 0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0]
    found = [limit(kappa, 3.0, 100, rate) for kappa in kappas]
    assert found[0] == 0
    assert found[-1] == 1
    assert all(hit >= kappa for kappa, hit in zip(kappas, found, strict=True))
    slopes = [(b - a) / (more - less) for (less, a), (more, b) in pairwise(zip(kappas, found, strict=True))]
    assert all(later < earlier for earlier, later in pairwise(slopes))
    gaps = [hit - kappa for kappa, hit in zip(kappas, found, strict=True)]
    assert max(gaps) <= advantage(3.0, 100, rate) <= max(gaps) * 1.05
    for kappa in kappas:
        release, known, run = (limit(kappa, 3.0, 100, rate, scope) for scope in ("release", "release_known", "run"))
        assert release <= known * (1 + 1e-9)
        assert release <= run * (1 + 1e-9)


def test_negative_epsilons_are_needed() -> None:
    """At a large kappa the best epsilon is negative: without those the limit would be loose."""
    at_zero = 0.9 + advantage(2.0, 100, 0.25)
    assert limit(0.9, 2.0, 100, 0.25) < 0.999 < at_zero


def test_candidates() -> None:
    assert blind_success(200) == 1 / 200
    for wrong in (1, 2.0, True):
        with pytest.raises(ConfigError, match="Expected"):
            blind_success(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("kappa", [-0.1, 1.1, math.nan, None, True])
def test_an_impossible_kappa(kappa: Any) -> None:
    with pytest.raises(ConfigError, match="kappa="):
        limit(kappa, 2.0, 10)


def test_other_impossible_questions() -> None:
    for call in (lambda **other: limit(0.01, 2.0, 10, **other), lambda **other: advantage(2.0, 10, **other)):
        with pytest.raises(ConfigError, match="sampling_rate="):
            call(sampling_rate=0)
        with pytest.raises(ConfigError, match="the budget for 10"):
            call(schedule=((1.0, 9),))
    with pytest.raises(ConfigError, match=r"scope='runs' to be one of run, release, release_known"):
        limit(0.01, 2.0, 10, scope="runs")  # type: ignore[arg-type]
    for rounds in (0, 1.5):
        with pytest.raises(ConfigError, match="rounds="):
            limit(0.01, 2.0, rounds)  # type: ignore[arg-type]
    with pytest.raises(BudgetError, match="sigma="):
        advantage(0.0, 10)
    assert SCOPES == ("run", "release", "release_known")


# --- the best test there is --------------------------------------------------------------------------------


def log_ratios(rng: np.random.Generator, present: bool, sigma: float, rate: float, rounds: int, runs: int) -> Any:
    """Of runs with or without the unit: what the best attacker computes from the releases."""
    total = np.zeros(runs)
    for _ in range(rounds):
        release = rng.standard_normal(runs) * sigma
        if present:
            release += rng.random(runs) < rate
        total += np.log1p(rate * np.expm1((2 * release - 1) / (2 * sigma**2)))
    return total


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sigma", "rate", "rounds"), [(5.149067, 0.25, 100), (1.711899, 0.25, 100), (4.24426, 1.0, 50)]
)
def test_the_likelihood_ratio_reaches_the_limit_and_does_not_pass_it(sigma: float, rate: float, rounds: int) -> None:
    """400,000 runs a side, thresholds from half of those without; beyond 4 standard errors is wrong, either way."""
    rng, runs = np.random.default_rng(20), 400_000
    without, present = (log_ratios(rng, there, sigma, rate, rounds, runs) for there in (False, True))
    chosen, held = without[: runs // 2], without[runs // 2 :]
    for kappa in (0.005, 0.01, 0.1):
        threshold = np.quantile(chosen, 1 - kappa)
        false, hits = float((held > threshold).mean()), float((present > threshold).mean())
        error = 4 * math.sqrt(hits * (1 - hits) / runs)
        error += 4 * math.sqrt(false * (1 - false) * 2 / runs) * hits / false
        assert abs(hits - limit(false, sigma, rounds, rate)) < error
        assert hits > limit(false, 1.5 * sigma, rounds, rate) + error, "with less noise than stated it would show"
