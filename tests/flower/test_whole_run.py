"""A run whose budget is for all of it: what it asks to reserve, and the noise that the node derives from it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from equipoise.errors import ConfigError, PolicyError
from equipoise.flower.run_config import read_terms
from equipoise.flower.whole_run import asked_for, check_same, check_whole_run, noise_pairs, priced, release_settings
from equipoise.ledger.reservation import is_reservation
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.run_budget import GaussianSettings
from equipoise.privacy.gaussian import epsilon_of
from tests.flower.messages import WHOLE_RUN
from tests.flower.policies import easy
from tests.ledger.entries import reservation

BOUNDS = easy("gaussian-dp")["gaussian-dp"]


def test_a_run_asks_for_what_its_config_says_and_the_node_adds_its_own() -> None:
    terms = read_terms({**WHOLE_RUN, "equipoise.gaussian.sampling-rate": 0.5})
    asked = asked_for("gaussian-dp", terms.settings.gaussian, BOUNDS, 2, "11")
    assert asked == reservation("11", sampling_rate=0.5, sigma=0.0, divisor=7)
    assert not is_reservation(asked.entry()), "without its noise no ledger takes it"


def test_the_noise_is_the_nodes_own_and_meets_the_budget() -> None:
    result = priced(reservation("11", sigma=0.0, noise_schedule=((1.0, 1), (0.5, 2))))
    assert is_reservation(result.entry())
    epsilon = epsilon_of(result.sigma, 1e-5, 3, schedule=((1.0, 1), (0.5, 2)))
    assert 2 * 0.999 < epsilon <= 2.0
    assert result.sigma > priced(reservation("11")).sigma, "less noise in a round needs more in all"


@pytest.mark.parametrize(
    ("given", "rounds", "pairs"),
    [
        (1.0, 3, ((1.0, 3),)),
        ({"rounds": [1, 3], "values": [1.0, 0.5]}, 3, ((1.0, 2), (0.5, 1))),
        ({"rounds": [1, 3], "values": [1.0, 0.5]}, 2, ((1.0, 2),)),
        ({"rounds": [1, 2, 9], "values": [2, 1, 0.5]}, 9, ((2.0, 1), (1.0, 7), (0.5, 1))),
    ],
)
def test_a_noise_schedule_holds_for_all_rounds_of_the_run(given: Any, rounds: int, pairs: Any) -> None:
    assert noise_pairs(given, rounds) == pairs


@pytest.mark.parametrize(
    "given",
    [
        {"noise_schedule": 0.0}, {"noise_schedule": "[1.0, 2.0]"},
        {"noise_schedule": '{"rounds": [2], "values": [1.0]}'},
        {"rounds": 0}, {"rounds": 10**9}, {"rounds": True}, {"delta": 0.0}, {"delta": 1.0}, {"sampling_rate": 1.1},
        {"clip": 0.0},
    ],
)  # fmt: skip
def test_settings_out_of_range_are_refused_where_the_run_config_is_read(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"gaussian.{next(iter(given))}"):
        read_terms({**WHOLE_RUN, **{f"equipoise.gaussian.{key}": value for key, value in given.items()}})


@pytest.mark.parametrize(
    ("budget", "changed", "words"),
    [
        (2.0, {"rounds": None}, "does not say of how many rounds"),
        ({"rounds": [1], "values": [2.0]}, {}, "the epsilon of a whole run"),
        ([], {}, "the epsilon of a whole run"),
        (0, {}, "the epsilon of a whole run"),
        (float("inf"), {}, "the epsilon of a whole run"),
        (
            2.0,
            {"rounds": 101, "noise_schedule": {"rounds": [*range(1, 102)], "values": [1.0, 2.0] * 50 + [1.0]}},
            "parts",
        ),
    ],
)
def test_terms_of_a_run_that_make_no_sense(budget: Any, changed: dict[str, Any], words: str) -> None:
    check_whole_run("gaussian-dp", 2.0, GaussianSettings(rounds=3))
    check_whole_run("gaussian-dp", [1.0, 2.0], GaussianSettings(rounds=3))
    with pytest.raises(ConfigError, match=words):
        check_whole_run("gaussian-dp", budget, replace(GaussianSettings(rounds=3), **changed))


def test_a_run_keeps_to_its_terms() -> None:
    reserved = reservation("11")
    check_same(reserved, replace(reserved, sigma=0.0))
    with pytest.raises(PolicyError, match=r"changed its sampling rate .* 1\.0 is reserved, 0\.5 is asked for"):
        check_same(reserved, replace(reserved, sampling_rate=0.5))


def test_a_release_is_made_with_what_is_reserved_whatever_the_run_config_says() -> None:
    theirs = ProtectionSettings(gaussian=GaussianSettings(divisor=1, rounds=3, sigmas=[[2.0, 1e-9]]))
    result = release_settings(theirs, reservation("11", divisor=7)).gaussian
    assert (result.divisor, result.rounds, [list(pair) for pair in result.sigmas]) == (7, 3, [[2.0, 3.5]])
