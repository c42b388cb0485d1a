"""Measured rates beside proved limits: exact bounds, the correction, and who is accused."""

from __future__ import annotations

import json
from math import log, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from equipoise.auditing import limit_comparison
from equipoise.auditing.limit_comparison import RATES, compared, lower_bound, rows_of, upper_bound
from equipoise.auditing.results import Outcome
from equipoise.errors import ConfigError
from equipoise.statistics import Array

RUN = ["multi-round"]
TERMS = {"sigma": 9.0, "rounds": 50, "sampling_rate": 1.0, "scope": "run"}
GAUSS = NormalDist()


@pytest.mark.parametrize("trials", [1, 20, 500, 1999])
@pytest.mark.parametrize("share", [0.0, 0.004, 0.2, 0.9, 1.0])
@pytest.mark.parametrize("alpha", [0.025, 0.05 / 72])
def test_bounds_are_clopper_and_pearsons(trials: int, share: float, alpha: float) -> None:
    from scipy.stats import beta

    found = round(share * trials)
    low = 0.0 if found == 0 else beta.ppf(alpha, found, trials - found + 1)
    high = 1.0 if found == trials else beta.ppf(1 - alpha, found + 1, trials - found)
    assert lower_bound(found, trials, alpha) == pytest.approx(low, abs=1e-9)
    assert upper_bound(found, trials, alpha) == pytest.approx(high, abs=1e-9)


def played(identified: int, members: Array, others: Array, games: int = 500) -> Outcome:
    first = (np.arange(games) < identified).astype(float)
    chance = np.array([GAUSS.inv_cdf(1 - rate) for rate in RATES])
    values = {
        "identification": first, "log_rank": (1 - first) * log(100), "undistorted": np.ones(games),
        "members": members, "others": others, "strength": np.ones(games), "thresholds": np.tile(chance, (games, 1)),
    }  # fmt: skip
    about = {"dataset": "mnist", "mechanism": "gaussian-dp", "budget": 4.0, "seed": 0, "round": None}
    return Outcome(about, "multi-round", values, {"identification": first * 0}, notes={"candidates": 200})


def scores(shift: float, games: int = 500, seed: int = 0) -> tuple[Array, Array]:
    drawn = np.random.default_rng(seed).normal(size=(2, games))
    return drawn[0] + shift, drawn[1]


def rows_at(shift: float, identified: int = 5, seed: int = 0) -> dict[Any, dict[str, Any]]:
    found = compared(rows_of(played(identified, *scores(shift, seed=seed)), TERMS, RUN))
    return {(row["measure"], row.get("fpr")): row for row in found}


def test_a_row_has_what_was_measured_and_what_is_proved() -> None:
    rows = rows_at(sqrt(50) / 9.0)
    one = rows["identification", None]
    assert (one["found"], one["measured"], one["chance"], one["games"]) == (5, 0.01, 0.005, 500)
    assert one["low"] < 0.01 < one["high"]
    assert one["limit"] == pytest.approx(GAUSS.cdf(GAUSS.inv_cdf(0.005) + sqrt(50) / 9.0))
    assert one["relation"] == "add/remove"
    assert not one["above"]
    assert not one["control_failed"]
    assert rows["membership_tpr", 0.01]["limit"] == pytest.approx(GAUSS.cdf(GAUSS.inv_cdf(0.01) + sqrt(50) / 9.0))
    assert rows["membership_auc", None]["limit"] is None
    assert "above" not in rows["membership_auc", None]


def test_the_attacks_that_were_asked_for_have_rows() -> None:
    outcome, release = played(5, *scores(0.0)), {**TERMS, "scope": "release"}
    assert [row["attack"] for row in rows_of(outcome, release, ["matched", "lti"])] == ["matched"]
    assert {row["attack"] for row in rows_of(outcome, release, ["membership"])} == {"membership"}
    assert rows_of(outcome, release, ["lti", "labels", "multi-round"]) == []
    assert len(rows_of(outcome, TERMS, ["matched", "membership"])) == 0 < len(rows_of(outcome, TERMS, RUN))


def test_a_schedule_survives_json() -> None:
    schedule = ((0.8, 25), (1.0, 25))
    rows = rows_of(played(5, *scores(0.0)), {**TERMS, "schedule": schedule}, RUN)
    again, plain = compared(json.loads(json.dumps(rows))), rows_of(played(5, *scores(0.0)), TERMS, RUN)
    assert again[0]["limit"] == compared(rows)[0]["limit"] > compared(plain)[0]["limit"]


def test_only_what_exceeds_its_limit_beyond_chance_is_above_it() -> None:
    """Four comparisons share 5 %: each has 1.25 %."""
    limit = rows_at(0.0)["identification", None]["limit"]
    least = next(n for n in range(500) if lower_bound(n, 500, 0.0125) > limit)
    assert not rows_at(0.0, least - 1)["identification", None]["above"]
    row = rows_at(0.0, least)["identification", None]
    assert row["above"]
    assert row["noticed_from"] == least / 500
    assert row["error_rate"] == 0.0125


def test_an_attacker_at_the_limit_is_hardly_ever_accused() -> None:
    """The best attacker has exactly the limit's rates; a quarter of the noise is noticed every time."""

    def accused(factor: float, seed: int) -> bool:
        shift = factor * sqrt(50) / 9.0
        found = int((np.random.default_rng(seed).random(500) < GAUSS.cdf(GAUSS.inv_cdf(0.005) + shift)).sum())
        return any(row.get("above") for row in rows_at(shift, found, seed).values())

    assert sum(accused(1.0, seed) for seed in range(60)) <= 7  # at most 3 expected; 8 or more: one case in a hundred
    assert all(accused(4.0, seed) for seed in range(3))


def test_the_false_alarms_that_were_realised_count() -> None:
    """Twice the noise on all scores makes both rates high: that is no leak."""
    members, others = scores(0.1)
    rows = compared(rows_of(played(0, 3 * members, 3 * others), TERMS, RUN))
    one = next(row for row in rows if row.get("fpr") == 0.01)
    assert one["measured"] > 0.15 > one["limit"]
    assert one["fpr_upper"] > 0.15
    assert not one["above"]


def test_more_comparisons_make_each_of_them_stricter() -> None:
    outcome = played(5, *scores(0.0))
    few, many = (compared(rows_of(outcome, TERMS, RUN) * times) for times in (1, 10))
    assert few[0]["error_rate"] == pytest.approx(0.05 / 4)
    assert many[0]["error_rate"] == pytest.approx(0.05 / 40)
    assert many[0]["lower_bound"] < few[0]["lower_bound"]


def test_a_tie_counts_in_part_and_never_towards_an_accusation() -> None:
    outcome = played(0, *scores(0.0))
    outcome.values["identification"][:] = 0.5 / 500
    row = compared(rows_of(outcome, TERMS, RUN))[0]
    assert row["measured"] == pytest.approx(0.001)
    assert row["lower_bound"] == 0.0


def test_a_failed_control_is_marked() -> None:
    outcome = played(0, *scores(0.0))
    outcome.values["undistorted"][:] = 0.3
    outcome.values["strength"][:] = 0.0
    assert all(row["control_failed"] for row in rows_of(outcome, TERMS, RUN))


def test_a_limit_that_cannot_be_computed_is_said_and_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any, **__: Any) -> float:
        raise ConfigError("This needs dp-accounting.", "Install it.")

    monkeypatch.setattr(limit_comparison, "limit", refuses)
    rows = compared(rows_of(played(500, *scores(9.0)), TERMS, RUN))
    assert all(row["limit"] is None and "above" not in row for row in rows)
    assert rows[0]["no_limit"] == "This needs dp-accounting."
