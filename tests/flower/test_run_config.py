"""What a run asks for, what a node allows: every key checked, suggestions for misspelt ones, nothing by default."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import BudgetError, ConfigError, EquipoiseError
from equipoise.flower.run_config import OF_A_RELEASE, read_terms
from equipoise.mechanism.protection import ProtectionSettings

RUN = {"equipoise.mechanism": "pl-learn", "equipoise.budget": 0.98}


def with_(**changed: Any) -> dict[str, Any]:
    """The run config with ``_`` for ``-`` and for the dot of a part."""
    return {**RUN, **{f"equipoise.{key}": value for key, value in changed.items()}}


# --- the run config -----------------------------------------------------------------------------------------


def test_the_least_a_run_config_can_say() -> None:
    result = read_terms({**RUN, "num-server-rounds": 3, "lr": 0.1, "equipoisemechanism": "x"})
    assert (result.mechanism.name, result.budget) == ("pl-learn", 0.98)
    assert (result.metrics, result.release_limit, result.out) == ((), None, None)
    assert result.settings == ProtectionSettings()


def test_every_setting_of_a_release_can_be_set() -> None:
    config = {
        "eta": 0.5, "steps": 3, "gamma": 0.2, "negative-norm": 0.01, "factor": 3.0, "sensitivity": 2.0, "clip": 7.0,
        "clip-norm": "l1", "clients": 2, "leakage.D": 28.0, "leakage.c_a": 0.5,
    }  # fmt: skip
    result = read_terms({**RUN, **{f"equipoise.{key}": value for key, value in config.items()}}).settings
    for key, value in config.items():
        part = result.leakage if key.startswith("leakage.") else result
        assert getattr(part, key.removeprefix("leakage.").replace("-", "_")) == value


def test_no_setting_becomes_the_servers_to_set_unnoticed() -> None:
    assert set(OF_A_RELEASE) == {
        "eta", "steps", "gamma", "negative_norm", "factor", "sensitivity", "clip", "clip_norm", "clients",
        "buffers",
    }  # fmt: skip


def test_of_a_whole_run_the_run_config_sets_the_terms_and_not_the_noise() -> None:
    config = {"delta": 1e-6, "clip": 0.5, "sampling_rate": 0.25, "rounds": 50}
    run = {"equipoise.mechanism": "gaussian-dp", "equipoise.budget": 2.0}
    given = {f"equipoise.gaussian.{key.replace('_', '-')}": value for key, value in config.items()}
    schedule = '{"rounds": [1, 26], "values": [1.0, 0.8]}'
    result = read_terms({**run, **given, "equipoise.gaussian.noise-schedule": schedule}).settings.gaussian
    assert {key: getattr(result, key) for key in config} == config
    assert result.noise_schedule == {"rounds": [1, 26], "values": [1.0, 0.8]}
    for key in ("gaussian.divisor", "gaussian.sigmas", "gaussian.sigma", "gaussian"):
        with pytest.raises(ConfigError, match=f"Unknown key 'equipoise.{key}'"):
            read_terms({**run, **given, f"equipoise.{key}": 1})
    with pytest.raises(ConfigError, match="does not say of how many rounds"):
        read_terms(run)


def test_buffers_that_a_mechanism_cannot_have_are_refused_where_the_app_starts() -> None:
    noised = {**RUN, "equipoise.buffers": "noised"}
    result = read_terms({**noised, "equipoise.mechanism": "pl-identical"})
    assert result.settings.buffers == "noised"
    assert result.config(3, "float32").settings.protection.buffers == "received"
    with pytest.raises(ConfigError, match="where the loss does not look"):
        read_terms({**noised, "equipoise.mechanism": "pl-learn"})
    with pytest.raises(ConfigError, match="parameters alone, got buffers='noised'"):
        read_terms({**noised, "equipoise.mechanism": "laplace-dp", "equipoise.budget": 1.0})


def test_dashes_and_underlines_are_the_same() -> None:
    assert read_terms(with_(negative_norm=0.5)) == read_terms({**RUN, "equipoise.negative-norm": 0.5})


def test_none_is_written_as_a_word() -> None:
    assert read_terms(with_(clip="none")).settings.clip is None
    assert read_terms({"equipoise.mechanism": "none"}).budget is None
    assert read_terms({"equipoise.mechanism": "none", "equipoise.budget": "none"}).budget is None
    assert read_terms({"equipoise.mechanism": "none", "equipoise.budget": ""}).budget is None


def test_the_rest_of_the_run_config() -> None:
    result = read_terms(with_(metrics=" loss, accuracy,", release_limit=7, out="runs/a"))
    assert result.metrics == ("loss", "accuracy")
    assert (result.release_limit, result.out) == (7, Path("runs/a"))
    assert read_terms(with_(release_limit=0, out="", metrics="")) == read_terms(RUN)


@pytest.mark.parametrize("config", [{}, {"mechanism": "pl-learn"}, {"equipoise.mechanism": ""}])
def test_no_mechanism_is_silent(config: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="names no mechanism"):
        read_terms(config)


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("budgte", "budget"),
        ("mechanisms", "mechanism"),
        ("release_limits", "release_limit"),
        ("leakage.c_b", "leakage.c_a"),
    ],
)
def test_a_misspelt_key_is_an_error_with_a_suggestion(key: str, suggestion: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_terms({**RUN, f"equipoise.{key}": 1})
    assert f"Unknown key 'equipoise.{key}' in the run config. Did you mean '{suggestion}'" in str(caught.value)


@pytest.mark.parametrize(
    "key", ["experiment-seed", "experiment_seed", "seed", "rounds", "dtype", "leakage", "leakage.E"]
)
def test_the_run_config_cannot_make_the_noise_reproducible_nor_set_what_is_not_of_a_release(key: str) -> None:
    with pytest.raises(ConfigError, match="Unknown key"):
        read_terms({**RUN, f"equipoise.{key}": 1})


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"mechanism": "pl-lern"}, "Did you mean 'pl-learn'"),
        ({"mechanism": 3}, "to be a name"),
        ({"eta": -1.0}, "Expected eta=-1.0"),
        ({"eta": "fast"}, "Expected eta='fast' to be a number"),
        ({"steps": 2.5}, "Expected steps=2.5 to be a whole number"),
        ({"steps": True}, "Expected steps=True to be a whole number"),
        ({"release_limit": -1}, "release-limit=-1"),
        ({"release_limit": 1.5}, "release-limit=1.5"),
        ({"release_limit": True}, "release-limit=True"),
        ({"release_limit": "many"}, "release-limit='many'"),
        ({"budget": "[0.96, "}, "to be JSON"),
        ({"budget": "{'rounds': [1]}"}, "to be JSON"),
        ({"budget": "[" * 100_000}, "to be JSON"),
        ({"gamma": "[0.1, 0.2]", "clients": 4}, "gamma"),
        ({"out": 1}, "equipoise.out=1"),
        ({"out": True}, "equipoise.out=True"),
    ],
)
def test_wrong_values_are_named(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_terms(with_(**changed))
    assert words in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    "budget",
    [
        "high",
        True,
        False,
        1.5,
        -1.0,
        math.nan,
        "[0.96, 2]",
        '{"rounds": [1, 5], "values": [0.96]}',
        "[]",
        "{}",
        '["a"]',
    ],
    ids=str,
)
def test_an_impossible_budget_is_refused_at_once(budget: Any) -> None:
    """Where the app starts, on the server: not in the middle of the first round on every client."""
    with pytest.raises((ConfigError, BudgetError)):
        read_terms(with_(budget=budget))


def test_a_budget_must_fit_its_mechanism() -> None:
    with pytest.raises(ConfigError, match="needs a budget"):
        read_terms({"equipoise.mechanism": "pl-learn"})
    with pytest.raises(ConfigError, match="takes no budget"):
        read_terms({"equipoise.mechanism": "none", "equipoise.budget": 0.98})
    with pytest.raises(ConfigError, match="takes no budget, got 0"):
        read_terms({"equipoise.mechanism": "none", "equipoise.budget": 0})
    assert read_terms(with_(budget=0.0)).budget == 0.0, "a budget like any other, and the strictest"


scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.sampled_from(["[1]", "{}"])
keys = st.sampled_from(["eta", "steps", "gamma", "clip", "clients", "budget", "mechanism", "metrics", "out", "zz"])


@given(st.dictionaries(keys, scalars, max_size=4))
def test_any_config_is_read_or_refused_by_a_typed_error(changed: dict[str, Any]) -> None:
    try:
        result = read_terms(with_(**changed))
    except EquipoiseError:
        return
    assert result.mechanism.name


def test_beside_a_formal_guarantee_no_metric_is_sent() -> None:
    run = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 200.0}
    with pytest.raises(ConfigError, match="With 'laplace-dp' no metrics may be sent"):
        read_terms({**run, "equipoise.metrics": "loss"})
    assert read_terms(run).metrics == ()


@pytest.mark.parametrize("name", ["experiment", "round", "accepted", "refused", "void", "evaluation", "num-examples"])
def test_a_metric_cannot_take_a_name_of_the_servers_own_rows(name: str) -> None:
    with pytest.raises(ConfigError, match=f"The metric '{name}' has a meaning of its own"):
        read_terms(with_(metrics=f"loss, {name}"))


def test_the_weight_is_no_metric_beside_itself() -> None:
    with pytest.raises(ConfigError, match="The metric 'num-examples' has a meaning of its own"):
        read_terms(with_(metrics="num-examples"))


def test_a_few_words_do_not_keep_a_node_busy() -> None:
    table = {"rounds": list(range(1, 11)), "values": [0.9, 0.91] * 5}
    with pytest.raises(ConfigError, match="10 parts of a schedule and 1000000 clients are too many"):
        read_terms(with_(budget=json.dumps(table), clients=1_000_000))


def test_the_run_config_does_not_choose_what_weighs_a_reply() -> None:
    """A training loss in its place would be sent."""
    with pytest.raises(ConfigError, match=r"Unknown key 'equipoise\.weight'"):
        read_terms(with_(weight="train_loss"))


# --- budgets of clients and rounds --------------------------------------------------------------------------


def test_one_budget_serves_all() -> None:
    result = read_terms(RUN)
    assert result.budgets(7) == [0.98] * 4
    assert result.budget_of(7, 2) == result.budget_of(7, 99) == 0.98


def test_a_list_gives_every_client_its_own() -> None:
    result = read_terms(with_(budget="[0.96, 0.98, 0.97]"))
    assert result.budget == [0.96, 0.98, 0.97]
    assert [result.budget_of(1, client) for client in range(3)] == [0.96, 0.98, 0.97]
    assert result.budget_of(1, 3) == 0.98, "the loosest, where a client has no number of its own"


def test_a_schedule_changes_with_the_rounds() -> None:
    table = {"rounds": [1, 5], "values": [0.96, [0.95, 0.98]]}
    result = read_terms(with_(budget=json.dumps(table), clients=2))
    assert result.budgets(4) == [0.96, 0.96]
    assert result.budgets(5) == result.budgets(500) == [0.95, 0.98]


def test_without_distortion_there_is_no_budget() -> None:
    result = read_terms({"equipoise.mechanism": "none"})
    assert result.budgets(1) == []
    assert result.budget_of(1, 0) is None
