"""The settings of one release: what calibrates it, for which client and round, and every problem at once."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from equipoise.errors import ConfigError
from equipoise.mechanism.budget import GaussianBudget, LaplaceBudget, LeakageBudget
from equipoise.mechanism.protection import (
    MOST_CLIENTS,
    NO_PROTECTION,
    Leakage,
    Protection,
    ProtectionSettings,
    check_protection,
    range_problems,
    type_problems,
)
from equipoise.mechanism.registry import MECHANISMS, Mechanism

PLAN = {"rounds": [1, 3], "values": [0.96, [0.98, 0.995]]}


# --- calibration -------------------------------------------------------------------------------------------


def test_the_defaults_are_the_papers_and_the_fitted_ones() -> None:
    s = ProtectionSettings()
    assert (s.clients, s.batch, s.local_steps, s.eta) == (4, 4, 1, 0.1)
    assert (s.steps, s.gamma, s.negative_norm, s.factor) == (10, 0.1, 1e-5, 2.0)
    assert (s.sensitivity, s.clip, s.clip_norm) == (10.0, 500.0, "l2")
    assert s.leakage == Leakage(D=56.0, c_a=0.56, c_res=0.01, p=0.5, iterations=1600)
    check_protection(s)


def test_the_measure_follows_the_settings() -> None:
    s = ProtectionSettings(sensitivity=5.0, factor=3.0, leakage=Leakage(D=28.0))
    assert s.measure("none") is None
    assert s.measure("pl-learn") == LeakageBudget(D=28.0, factor=3.0)
    assert s.measure("ls-static") == LaplaceBudget(5.0, 3.0)
    assert s.measure("gs-learn") == GaussianBudget(5.0, 3.0)
    assert s.measure(MECHANISMS["pl-learn"]) == s.measure("pl-learn")


def test_scales_are_lower_bounds_or_noise_scales_per_round_and_client() -> None:
    s = ProtectionSettings(clients=2)
    assert s.scales("none", None, [1, 2]) == [[0.0, 0.0]] * 2
    assert s.scales("ls-static", [80, 800], [1]) == [[0.125, 0.0125]]
    result = s.scales("pl-learn", PLAN, [2, 3])
    assert result[0] == pytest.approx([15.99975] * 2)
    assert result[1] == pytest.approx([7.99975, 1.99975])


def test_the_derived_sensitivity_is_that_of_one_clipped_step() -> None:
    assert ProtectionSettings(eta=0.3, clip=2.0, batch=4).derived_sensitivity() == pytest.approx(0.3)
    for change in ({"clip": None}, {"local_steps": 2}):
        with pytest.raises(ConfigError, match="derived for one local step with a clip") as caught:
            ProtectionSettings(**change).derived_sensitivity()
        assert "laplace-dp" in caught.value.remedy


# --- one client in one round -------------------------------------------------------------------------------


def test_no_protection_is_the_mechanism_none() -> None:
    assert not NO_PROTECTION.mechanism.distorts
    assert ProtectionSettings().at("none", None, 1).mechanism is NO_PROTECTION.mechanism


@pytest.mark.parametrize(
    ("round_number", "client", "lower", "gamma", "negative_norm"),
    [(1, 0, 15.99975, 0.1, 0.5), (2, 1, 15.99975, 0.2, 0.5), (3, 0, 7.99975, 0.1, 0.0), (9, 1, 1.99975, 0.2, 0.0)],
)
def test_client_and_round_pick_from_the_schedules(
    round_number: int, client: int, lower: float, gamma: float, negative_norm: float
) -> None:
    s = ProtectionSettings(
        clients=2,
        gamma=[0.1, 0.2],
        negative_norm={"rounds": [1, 3], "values": [0.5, 0.0]},
        factor=3.0,
        steps=7,
        clip=40.0,
    )
    result = s.at("pl-learn", PLAN, round_number, client)
    assert result.scale == pytest.approx(lower)
    assert result == Protection(
        MECHANISMS["pl-learn"],
        result.scale,
        factor=3.0,
        steps=7,
        gamma=gamma,
        negative_norm=negative_norm,
        clip=40.0,
        batch=4,
    )


def test_it_is_what_the_tables_of_a_sweep_hold() -> None:
    s = ProtectionSettings(clients=2)
    for name, budget in (("pl-learn", PLAN), ("ls-static", [80, 800]), ("none", None)):
        rows = s.scales(name, budget, [1, 2, 3])
        result = [[s.at(name, budget, round_number, client).scale for client in range(2)] for round_number in (1, 2, 3)]
        assert result == rows


def test_a_client_that_has_no_value_is_refused_by_name() -> None:
    s = ProtectionSettings(clients=2)
    with pytest.raises(ConfigError, match="budget has 2 values, none for client 2"):
        s.at("ls-static", [80, 800], 1, client=2)
    with pytest.raises(ConfigError, match="gamma has 2 values, none for client 2"):
        ProtectionSettings(clients=2, gamma=[0.1, 0.2]).at("pl-learn", 0.98, 1, client=2)
    assert s.at("pl-learn", 0.98, 1, client=7).scale == pytest.approx(7.99975), "one number serves any client"


def test_rows_of_many_clients_are_passed_on_as_they_are() -> None:
    scale, gamma = torch.tensor([1.0, 2.0]), torch.tensor([0.1, 0.0])
    result = ProtectionSettings(clip=None, clip_norm="l1").of_rows("ls-learn", scale, gamma, 0.5)
    assert result.scale is scale
    assert result.gamma is gamma
    assert (result.negative_norm, result.clip, result.clip_norm, result.factor) == (0.5, None, "l1", 2.0)


def test_a_measure_of_the_users_own_brings_its_own_factor() -> None:
    mine = Mechanism("mine", LaplaceBudget(sensitivity=3.0, factor=5.0), norm="l1")
    result = ProtectionSettings(factor=2.0, sensitivity=10.0).at(mine, 6, 1)
    assert (result.factor, result.scale) == (5.0, 0.5)


# --- what can be wrong -------------------------------------------------------------------------------------

WRONG: list[tuple[dict[str, Any], str]] = [
    ({"clients": 0}, "Expected clients=0 to be >= 1."),
    ({"clients": True}, "Expected clients=True to be a whole number."),
    ({"clients": MOST_CLIENTS + 1}, f"Expected clients={MOST_CLIENTS + 1} to be at most {MOST_CLIENTS}."),
    ({"batch": 0}, "Expected batch=0 to be >= 1."),
    ({"batch": 10**400}, "to be a whole number."),
    ({"local_steps": 0}, "Expected local_steps=0 to be >= 1."),
    ({"steps": -1}, "Expected steps=-1 to be >= 0."),
    ({"eta": 0.0}, "Expected eta=0.0 to be a finite number > 0."),
    ({"eta": math.nan}, "Expected eta=nan to be a finite number > 0."),
    ({"eta": math.inf}, "Expected eta=inf to be a finite number > 0."),
    ({"eta": "0.1"}, "Expected eta='0.1' to be a number."),
    ({"clip": 0.0}, "Expected clip=0.0 to be a finite number > 0, or none."),
    ({"clip": math.inf}, "Expected clip=inf to be a finite number > 0, or none."),
    ({"clip": "500"}, "Expected clip='500' to be a number or none."),
    ({"clip_norm": "l3"}, "Expected clip_norm='l3' to be one of l1, l2."),
    ({"sensitivity": math.inf}, "Expected sensitivity=inf to be a finite number."),
    ({"factor": math.nan}, "Expected factor=nan to be a finite number."),
    ({"leakage": Leakage(D=math.inf)}, "Expected leakage.D=inf to be a finite number."),
    ({"gamma": -0.1}, "Expected gamma=-0.1 to be >= 0."),
    ({"gamma": [0.1, 0.2]}, "Expected gamma to be one finite number or one for each of 4 clients"),
    ({"negative_norm": [0.0, 0.0, -1.0, 0.0]}, "to be >= 0."),
    ({"negative_norm": math.nan}, "Expected negative_norm to be one finite number"),
    ({"gamma": {"rounds": [2], "values": [0.1]}}, "Expected the rounds of the schedule of gamma to begin at 1"),
    ({"gamma": {"rounds": [1, 10, 20], "values": [0.1, -0.1, 0.1]}}, "to be >= 0."),
]


@pytest.mark.parametrize(("change", "words"), WRONG, ids=lambda part: str(part)[:40])
def test_what_is_wrong_is_named_with_its_value_and_nothing_else_is(change: dict[str, Any], words: str) -> None:
    settings = ProtectionSettings(**change)
    with pytest.raises(ConfigError) as caught:
        check_protection(settings)
    assert len(str(caught.value).splitlines()) == 1
    assert words in caught.value.cause
    assert caught.value.remedy


def test_all_problems_come_at_once() -> None:
    result = list(range_problems(ProtectionSettings(steps=-1, eta=0.0, clip=-1.0, gamma=-1.0)))
    assert len(result) == 4
    with pytest.raises(ConfigError, match="4 problems"):
        check_protection(ProtectionSettings(steps=-1, eta=0.0, clip=-1.0, gamma=-1.0))


def test_of_settings_of_the_wrong_type_nothing_else_is_said() -> None:
    settings: Any = ProtectionSettings(eta="fast", clip=-1.0, steps=0.5)  # type: ignore[arg-type]
    assert len(list(type_problems(settings))) == 2
    with pytest.raises(ConfigError, match="2 problems"):
        check_protection(settings)
