"""The claim of a run: every promise with its grounds, nothing for a seeded run, nothing that does not hold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from equipoise.errors import BudgetError, ConfigError
from equipoise.files import plain
from equipoise.privacy.claim import DRAW_ERROR, SEEDED, guarantee_claim
from equipoise.privacy.guarantee import guarantee

RUN: dict[str, Any] = {
    "epsilon": 2.0, "delta": 1e-5, "rounds": 50, "sigma": 14.09839, "clip": 0.5, "divisor": 1000, "coordinates": 39_700,
}  # fmt: skip


def test_what_a_claim_holds() -> None:
    claim = guarantee_claim(**RUN)
    assert list(claim) == [
        "schema", "holds", "reason", "mechanism", "unit", "relation", "epsilon", "delta", "sampling_rate", "sampling",
        "sigma", "rounds", "noise_schedule", "clip", "divisor", "coordinates", "arithmetic", "assumptions",
        "exclusions", "limits",
    ]  # fmt: skip
    assert (claim["holds"], claim["mechanism"], claim["relation"], claim["unit"]) == (
        True, "gaussian-dp", "add/remove", "record",
    )  # fmt: skip
    assert (claim["epsilon"], claim["delta"], claim["sigma"], claim["rounds"]) == (2.0, 1e-5, 14.09839, 50)
    assert (claim["clip"], claim["divisor"], claim["noise_schedule"]) == (0.5, 1000.0, [[1.0, 50]])
    assert json.loads(json.dumps(plain(claim), allow_nan=False)) == claim


def test_its_limits_are_those_of_the_guarantee() -> None:
    found = guarantee(epsilon=2.0, delta=1e-5, rounds=50).plain()
    limits = guarantee_claim(**RUN)["limits"]
    assert {key: limits[key] for key in ("identification", "membership_tpr", "advantage")} == {
        key: found[key] for key in ("identification", "membership_tpr", "advantage")
    }
    assert "with the record or without it" in limits["game"]


@pytest.mark.parametrize(
    "said",
    ["tuning on private data", "several records of one person", "size of the data set", "several clients", "timing",
     "evaluation metrics", "seeded experiments: they have no guarantee"],
)  # fmt: skip
def test_what_is_excluded_is_said(said: str) -> None:
    assert any(said in line for line in guarantee_claim(**RUN)["exclusions"])


@pytest.mark.parametrize("said", ["entropy", "public", "group column", "number of releases"])
def test_what_is_assumed_is_said(said: str) -> None:
    assert any(said in line for line in guarantee_claim(**RUN)["assumptions"])


def test_what_is_tried_and_not_proved_is_an_assumption() -> None:
    """Of a linear head it is proved that a record knows nothing of the others; of other models it is tried."""
    tried = "not proved"
    assert not any(tried in line for line in guarantee_claim(**RUN, linear=True)["assumptions"])
    assert any(tried in line for line in guarantee_claim(**RUN)["assumptions"])


def test_what_is_assumed_is_stated_as_a_fact_nowhere() -> None:
    """That a record knows nothing of the others is a statement for a linear head, and else points to the assumption."""
    linear, other = (guarantee_claim(**RUN, linear=kind)["arithmetic"]["statements"] for kind in (True, False))
    assert any("depends on that unit and public things alone, bit for bit" in line for line in linear)
    assert not any("bit for bit" in line for line in other)
    assert any("not proved for this model: see the assumption about the gradient of a record" in line for line in other)
    assert len(linear) == len(other)


def test_the_game_is_about_the_unit() -> None:
    assert guarantee_claim(**RUN, unit="group")["limits"]["game"].startswith("with the group or without it")


@pytest.mark.parametrize("epsilon", [600.0, 1000.0])
def test_an_epsilon_at_which_the_sampler_could_tell_has_no_claim(epsilon: float) -> None:
    with pytest.raises(BudgetError, match="nothing can be claimed"):
        guarantee_claim(**{**RUN, "epsilon": epsilon})


def test_a_seeded_run_has_none() -> None:
    claim = guarantee_claim(**RUN, seeded=True)
    assert (claim["holds"], claim["reason"]) == (False, SEEDED)
    assert SEEDED == "a seeded run has none; this is the epsilon of the mechanism"
    assert guarantee_claim(**RUN)["reason"] != SEEDED


def test_what_the_sampler_may_miss_is_added_to_delta() -> None:
    arithmetic = guarantee_claim(**RUN)["arithmetic"]
    assert arithmetic["draw_error"] == DRAW_ERROR < 1e-200
    expected = (1 + math.exp(2.0)) * 39_700 * 50 * DRAW_ERROR
    assert arithmetic["added_to_delta"] == pytest.approx(expected, rel=1e-12, abs=0)


def test_poisson_sampling_and_a_schedule() -> None:
    schedule = ((1.5, 50), (1.0, 50))
    run = {**RUN, "rounds": 100, "sigma": 4.0, "epsilon": 2.3, "sampling_rate": 0.25, "schedule": schedule}
    claim = guarantee_claim(**run, unit="group")
    assert (claim["sampling"], claim["unit"], claim["noise_schedule"]) == ("Poisson", "group", [[1.5, 50], [1.0, 50]])
    assert guarantee_claim(**RUN)["sampling"] == "all units in every release"


@pytest.mark.parametrize("less", [{"sigma": 14.098}, {"rounds": 51}, {"epsilon": 1.999}, {"delta": 9.9e-6}])
def test_nothing_is_claimed_that_does_not_hold(less: dict[str, Any]) -> None:
    with pytest.raises(BudgetError, match="more than"):
        guarantee_claim(**{**RUN, **less})


@pytest.mark.parametrize(
    "wrong", [{"clip": 0.0}, {"divisor": -1}, {"clip": math.nan}, {"coordinates": 0}, {"unit": "person"}]
)
def test_what_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"{next(iter(wrong))}="):
        guarantee_claim(**{**RUN, **wrong})
