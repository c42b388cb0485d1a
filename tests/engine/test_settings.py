"""Settings: the paper's defaults, every problem at once, and the plain form that JSON can hold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, check, check_settings, from_dict, problems, to_dict
from equipoise.errors import BudgetError, ConfigError
from equipoise.mechanism.protection import Leakage, ProtectionSettings

NONE = [Federation("mnist", "none")]


def said(settings: Settings, federations: list[Federation]) -> list[str]:
    return [str(problem) for problem in problems(settings, federations)]


def test_defaults_are_the_papers_and_the_fitted_ones() -> None:
    s = Settings()
    assert s.protection == ProtectionSettings()
    assert s.training.rounds == 5000
    assert (s.training.model, s.training.init, s.training.init_bound) == ("lenet-zhu", "uniform", 0.5)
    assert s.data.partition == "identical"
    assert (s.training.server_rate, s.training.sampling, s.run.device) == (1.0, "uniform", "cpu")
    assert not said(s, NONE)


def test_a_damped_server_divides_by_the_expected_norm_of_one_distortion() -> None:
    auto, plain = Settings.flat(server_rate="auto"), Settings.flat(server_rate=0.7)
    for name, budget, expected in (
        ("none", None, 1.0),
        ("pl-learn", 0.96, 1 / 15.99975),
        ("pl-identical", 0.999, 1.0),  # a lower bound of 0.4 needs no damping
        ("ls-static", 80, 1 / (0.125 * math.sqrt(2 * 100))),
        ("gs-learn", 80, 1 / (0.125 * math.sqrt(100))),
        ("pruning", 0.001, 1.0),
        ("outpost", 1e-6, 1.0),  # how large its noise is depends on the weights
    ):
        fed = Federation("mnist", name, budget)
        expected = min(1.0, expected)
        assert auto.server_rates(fed, [1, 2], parameters=100) == pytest.approx([expected] * 2)
        assert plain.server_rates(fed, [1, 2], parameters=100) == [0.7, 0.7]
    plan = {"rounds": [1, 2], "values": [0.96, [0.98, 0.98, 0.96, 0.96]]}
    actual = auto.server_rates(Federation("mnist", "pl-learn", plan), [1, 2], parameters=100)
    assert actual == pytest.approx([1 / 15.99975, 1 / 11.99975])


@pytest.mark.parametrize(
    ("every", "full", "rounds", "evaluated", "recorded"),
    [
        (250, 0, 1000, [250, 500, 750, 1000], []),
        (250, 0, 600, [250, 500, 600], []),
        (250, 0, 10, [10], []),
        (4, 4, 10, [1, 4, 8, 10], [1, 4, 8, 10]),
        (4, 3, 10, [1, 3, 4, 6, 8, 9, 10], [1, 3, 6, 9, 10]),
    ],
)
def test_rounds_that_are_evaluated(
    every: int, full: int, rounds: int, evaluated: list[int], recorded: list[int]
) -> None:
    s = Settings.flat(rounds=rounds, evaluate_every=every, full_every=full)
    assert s.evaluated() == evaluated
    assert s.fully_recorded() == recorded
    assert set(recorded) <= set(evaluated), "a full record is part of a row"


def test_snapshots_include_the_last_round_and_nothing_beyond() -> None:
    assert Settings.flat(rounds=300).snapshot_rounds() == [0, 200, 300]
    assert Settings.flat(rounds=5000).snapshot_rounds() == [0, 200, 2000, 5000]
    assert Settings.flat(rounds=10, snapshots=[]).snapshot_rounds() == [10]


# --- problems ----------------------------------------------------------------------------------------------

OUT_OF_RANGE: list[tuple[dict[str, Any], str]] = [
    ({"rounds": 0}, "Expected rounds=0 to be >= 1."),
    ({"min_clients": 0}, "Expected min_clients=0 to be >= 1."),
    ({"min_clients": 5}, "Expected min_clients=5 to be at most"),
    ({"evaluate_every": 0}, "Expected evaluate_every=0 to be >= 1."),
    ({"full_every": -1}, "Expected full_every=-1 to be >= 0."),
    ({"expected_draws": 1}, "Expected expected_draws=1 to be >= 2."),
    ({"chunk": -1}, "Expected chunk=-1 to be >= 0."),
    ({"server_rate": -1.0}, "Expected server_rate=-1.0 to be a finite number > 0."),
    ({"server_rate": "fast"}, "Expected server_rate='fast' to be"),
    ({"init_bound": 0.0}, "Expected init_bound=0.0 to be a finite number > 0."),
    ({"dirichlet": 0.0}, "Expected dirichlet=0.0 to be a finite number > 0."),
    ({"participants": 0}, "Expected participants=0 to be in 1..clients=4."),
    ({"participants": 5}, "Expected participants=5 to be in 1..clients=4."),
    ({"participants": 2, "min_clients": 3}, "Expected min_clients=3 to be at most"),
    ({"release_limit": 0}, "Expected release_limit=0 to be >= 1, or none."),
    ({"release_limit": 2.5}, "Expected release_limit=2.5 to be a whole number or none."),
    ({"release_limit": True}, "Expected release_limit=True to be a whole number or none."),
    ({"release_limit": 9, "ledger": False}, "Expected ledger=true with release_limit"),
    ({"ledger": 1}, "Expected ledger=1 to be true or false."),
    ({"sizes": [1.0, 2.0]}, "Expected sizes=[1.0, 2.0] to be one positive number for each of 4 clients."),
    ({"sizes": [1.0, 2.0, 0.0, 1.0]}, "to be one positive number for each of 4 clients."),
    ({"sizes": []}, "to be one positive number for each of 4 clients."),
    ({"sizes": [math.nan, 1.0, 1.0, 1.0]}, "to be one positive number for each of 4 clients."),
    ({"sampling": "passes", "participants": 2}, "Expected sampling='uniform' with participants"),
    ({"device": "tpu"}, "Expected device='tpu'"),
    ({"rounds": 2.5}, "Expected rounds=2.5 to be a whole number."),
    ({"partition": "equal"}, "Expected partition='equal' to be one of"),
    ({"model": "resnet"}, "Unknown model 'resnet'."),
    ({"model": 5}, "Expected model=5 to be a word."),
    ({"snapshots": [-1]}, "Expected snapshots=[-1] to be rounds >= 0."),
    ({"snapshots": 5}, "Expected snapshots=5 to be a list of rounds."),
    ({"sizes": ["1", 2, 3, 4]}, "to be a list of numbers or none."),
    ({"participants": "2"}, "Expected participants='2' to be a whole number or none."),
    ({"threads": 10_000}, "Expected threads=10000 to be at most the"),
    ({"eta": 0.0}, "Expected eta=0.0 to be a finite number > 0."),  # the rest of these: mechanism/test_protection.py
    ({"clip": "much"}, "Expected clip='much' to be a number or none."),
]


@pytest.mark.parametrize(("change", "words"), OUT_OF_RANGE, ids=lambda part: str(part)[:40])
def test_a_setting_out_of_range_is_named_with_its_value_and_nothing_else_is(change: dict[str, Any], words: str) -> None:
    (result,) = said(Settings.flat(**change), NONE)
    assert words in result
    with pytest.raises(ConfigError):
        check(Settings.flat(**change), NONE)


def test_settings_without_a_federation_are_checked_alike() -> None:
    check_settings(Settings())
    with pytest.raises(ConfigError, match="Expected rounds=0 to be >= 1"):
        check_settings(Settings.flat(rounds=0))


@pytest.mark.parametrize(
    ("federation", "words"),
    [
        (Federation("mnist", "none", 0.96), "The mechanism 'none' takes no budget, got 0.96."),
        (Federation("mnist", "pl-learn", None), "The mechanism 'pl-learn' needs a budget."),
        (Federation("mnist", "pl-lern", 0.96), "Did you mean 'pl-learn'?"),
        (Federation("mnist", "pl-learn", 1.2), "Expected budget=1.2 to be < 1."),
        (Federation("mnist", "ls-learn", 0), "to be > 0."),
        (Federation("mnist", "ls-learn", [80, 80]), "one for each of 4 clients"),
        (Federation("mnist", "pl-learn", {"rounds": [1], "values": []}), "'rounds' and 'values'"),
    ],
)
def test_a_problem_of_a_federation_is_named(federation: Federation, words: str) -> None:
    result = said(Settings(), [federation])
    assert len(result) == 1
    assert words in result[0]


def test_every_value_of_a_schedule_is_checked_not_only_the_first_and_the_last() -> None:
    plan = {"rounds": [1, 10, 20], "values": [0.96, 1.5, 0.98]}
    result = said(Settings.flat(rounds=100), [Federation("mnist", "pl-learn", plan)])
    assert any("Expected budget=1.5 to be < 1." in line for line in result), result
    for name in ("gamma", "negative_norm"):
        change = {name: {"rounds": [1, 10, 20], "values": [0.1, -0.1, 0.1]}}
        assert any(name in line and ">= 0" in line for line in said(Settings.flat(rounds=100, **change), NONE))


def test_constants_of_the_measures_are_checked_before_the_run() -> None:
    fed = [Federation("mnist", "pl-learn", 0.96), Federation("mnist", "ls-learn", 80)]
    assert any("factor=0.5" in line for line in said(Settings.flat(factor=0.5), fed))
    assert any("sensitivity=-1.0" in line for line in said(Settings.flat(sensitivity=-1.0), fed))
    assert any("p=1.5" in line for line in said(Settings.flat(leakage=Leakage(p=1.5)), fed))


def test_an_empty_sweep_and_a_repeated_federation_are_problems() -> None:
    assert any("empty" in line for line in said(Settings(), []))
    assert any("twice" in line for line in said(Settings(), NONE + NONE))
    assert not said(Settings(), [*NONE, Federation("mnist", "none", seed=2)])


def test_all_problems_come_at_once() -> None:
    settings = Settings.flat(rounds=0, eta=-1.0, clip=0.0, model="x", gamma=-1.0)
    federations = [Federation("mnist", "pl-learn", 2.0), Federation("mnist", "none", 1.0)]
    result = said(settings, federations)
    for words in ("rounds=0", "eta=-1.0", "clip=0.0", "'x'", "gamma=-1.0", "budget=2.0", "takes no budget"):
        assert any(words in line for line in result), words
    with pytest.raises(ConfigError) as caught:
        check(settings, federations)
    message = str(caught.value)
    assert message.startswith(f"{len(result)} problems in the settings:")
    assert all(line in message for line in result)


def test_a_problem_shared_by_several_federations_is_reported_once() -> None:
    federations = [Federation("mnist", "pl-learn", b) for b in (0.96, 0.97)]
    with pytest.raises(BudgetError) as caught:
        check(Settings.flat(factor=0.5), federations)
    assert "problems" not in str(caught.value)


@pytest.mark.parametrize(
    ("mechanism", "budget", "change", "words"),
    [
        ("gaussian-dp", 2.0, {"rounds": 0}, "Expected rounds=0 to be >= 1."),
        ("gaussian-dp", 2.0, {"gaussian": {"delta": 2.0}}, "Expected gaussian.delta=2.0 to be between"),
        ("gaussian-dp", 2.0, {"gaussian": {"sampling_rate": 2.0}}, "Expected gaussian.sampling_rate=2.0"),
        ("gaussian-dp", 2.0, {"gaussian": {"noise_schedule": -1}}, "Expected gaussian.noise_schedule=-1"),
        ("gaussian-dp", 2.0, {"gaussian": {"rounds": 0}}, "Expected gaussian.rounds=0"),
        ("pl-learn", 0.98, {"factor": float("nan")}, "Expected factor=nan"),
        ("ls-learn", 98.0, {"sensitivity": float("nan")}, "Expected sensitivity=nan"),
    ],
)
def test_a_setting_that_spoils_a_budget_is_reported_once(
    mechanism: str, budget: float, change: dict[str, Any], words: str
) -> None:
    (line,) = said(Settings.flat(**change), [Federation("mnist", mechanism, budget)])
    assert words in line
    assert "mnist" not in line, "it is the sweep's, not that federation's"


# --- the plain form ----------------------------------------------------------------------------------------


def full() -> tuple[Settings, list[Federation]]:
    settings = Settings.flat(
        rounds=7,
        participants=3,
        sizes=[1.0, 2.0, 3.0, 4.0],
        gamma=[0.1, 0.2, 0.3, 0.4],
        negative_norm={"rounds": [1, 5], "values": [1e-5, 0.0]},
        clip=None,
        leakage=Leakage(D=28.0, iterations=100),
        snapshots=[3],
        dtype="float64",
    )
    federations = [
        Federation("mnist", "none"),
        Federation("fmnist", "pl-learn", {"rounds": [1, 3], "values": [0.96, [0.98, 0.98, 0.99, 0.99]]}, 2),
        Federation("mnist", "ls-static", [80, 80, 200, 200], 3),
    ]
    return settings, federations


def test_the_plain_form_survives_json() -> None:
    text = json.dumps(to_dict(*full()), allow_nan=False)
    assert from_dict(json.loads(text)) == full()


def test_what_is_left_out_takes_its_default() -> None:
    settings, federations = from_dict({"settings": {"rounds": 3}, "federations": [{"mechanism": "none"}]})
    assert settings == Settings.flat(rounds=3)
    assert federations == [Federation("mnist", "none")]


@pytest.mark.parametrize(
    "spec",
    [
        {"settings": {"runds": 3}},
        {"settings": {"leakage": {"DD": 3.0}}},
        {"federations": [{"mechanism": "none", "sed": 1}]},
        {"setings": {"rounds": 3}},
    ],
    ids=["settings", "leakage", "federation", "top"],
)
def test_an_unknown_key_is_refused_by_name(spec: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        from_dict({"federations": [{"mechanism": "none"}], **spec})
    names = ("runds", "DD", "sed", "setings")
    assert any(name in str(caught.value) for name in names)


def test_the_plain_form_is_checked() -> None:
    with pytest.raises(ConfigError, match="rounds=0"):
        from_dict({"settings": {"rounds": 0}, "federations": [{"mechanism": "none"}]})
