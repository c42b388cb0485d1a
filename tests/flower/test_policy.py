"""A policy says what may leave a node, whatever the run config makes of a budget."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Context, Message

from equipoise.errors import EquipoiseError, PolicyError
from equipoise.flower import policy as module
from equipoise.flower import protect, protected_step
from equipoise.flower.admission import admitted
from equipoise.flower.client_guard import REFUSED
from equipoise.flower.policy import VARIABLE, Evaluation, policy_of, read_policy
from equipoise.flower.run_config import read_terms
from equipoise.mechanism.registry import MECHANISMS, Mechanism
from tests.flower.messages import (
    LOWER,
    RUN,
    WHOLE_RUN,
    answered,
    asking,
    context,
    distance,
    honest,
    images,
    network,
    start,
)
from tests.flower.policies import easy, node, written
from tests.ledger.entries import reservation


def allow(name: str, **bounds: float) -> dict[str, Any]:
    """Tables of mechanisms with one of them bounded."""
    changed = {key.replace("_", "-"): value for key, value in bounds.items()}
    return {name: {**easy(name)[name], **changed}}


def permitted(path: Path, run: dict[str, Any], **changes: Any) -> None:
    policy, terms = read_policy(written(path, **changes)), read_terms(run)
    budget = terms.budget_of(1, 0)
    protection = terms.settings.at(terms.mechanism, budget, 1, 0)
    policy.permit(terms, protection, budget if terms.mechanism.formal else None)


BUFFERS = {**RUN, "equipoise.mechanism": "pl-identical", "equipoise.buffers": "noised"}


def test_fitted_buffers_leave_only_where_the_policy_says_so(tmp_path: Path) -> None:
    asked = {"mechanisms": easy("pl-identical")}
    permitted(tmp_path / "a.toml", {**BUFFERS, "equipoise.buffers": "refused"}, **asked)
    permitted(tmp_path / "b.toml", BUFFERS, buffers="noised", **asked)
    for policy in ({}, {"buffers": "received"}):
        with pytest.raises(PolicyError, match="keeps buffers, such as running statistics, as received"):
            permitted(tmp_path / "c.toml", BUFFERS, **policy, **asked)
    with pytest.raises(PolicyError, match="Expected buffers = 'sent'"):
        permitted(tmp_path / "d.toml", BUFFERS, buffers="sent", **asked)


# --- the run config against the policy ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("asked", "name", "bounds", "words"),
    [
        ({"leakage.D": 0.001}, "pl-learn", {"least_intensity": 7.99}, "least-intensity = 7.99 for 'pl-learn'"),
        ({"budget": 0.99}, "pl-learn", {"least_intensity": 7.99}, "the run asks for 3.99975"),
        ({"leakage.c_a": 1000.0}, "pl-identical", {"least_intensity": 7.99}, "least-intensity"),
        ({"budget": 200.0, "sensitivity": 1e-6}, "ls-static", {"least_scale": 0.04}, "the run asks for 5e-09"),
        ({"budget": 200.0, "sensitivity": 1e-6}, "gs-static", {"least_scale": 0.04}, "least-scale = 0.04"),
        ({"gamma": 1e6}, "pl-learn", {"most_gamma": 0.1}, "most-gamma = 0.1 for 'pl-learn'; the run asks for 1e+06"),
        ({"gamma": '{"rounds": [1], "values": [5.0]}'}, "pl-learn", {"most_gamma": 0.1}, "most-gamma"),
        ({"steps": 1000}, "pl-learn", {"most_steps": 10}, "most-steps = 10"),
        ({"factor": 1000.0}, "pl-learn", {"most_factor": 2.0}, "most-factor = 2"),
        ({"steps": 0}, "pl-learn", {}, "learns nothing"),
        ({"gamma": 0.0}, "pl-learn", {}, "learns nothing"),
        ({"factor": 1.0}, "pl-learn", {}, "learns nothing"),
        ({"budget": 3.0}, "laplace-dp", {"most_epsilon": 1.0}, "most-epsilon = 1 for 'laplace-dp'; the run asks for 3"),
    ],
)
def test_every_constant_that_gives_a_budget_its_meaning_is_bounded(
    asked: dict[str, Any], name: str, bounds: dict[str, float], words: str, tmp_path: Path
) -> None:
    usual = {"equipoise.mechanism": name, "equipoise.budget": {"laplace-dp": 1.0, "ls-static": 200.0}.get(name, 0.98)}
    if name.startswith("gs"):
        usual["equipoise.budget"] = 200.0
    changes = {"mechanisms": allow(name, **bounds), "weight": 1.0}
    permitted(tmp_path / "p.toml", usual, **changes)
    with pytest.raises(PolicyError) as caught:
        permitted(tmp_path / "p.toml", {**usual, **{f"equipoise.{k}": v for k, v in asked.items()}}, **changes)
    assert words in str(caught.value)
    assert caught.value.remedy


def test_a_mechanism_that_the_policy_does_not_name_is_refused_none_included(tmp_path: Path) -> None:
    run = {"equipoise.mechanism": "none"}
    with pytest.raises(PolicyError, match=r"does not allow the mechanism 'none'\. It allows: pl-learn\."):
        permitted(tmp_path / "p.toml", run, mechanisms=easy("pl-learn"))
    permitted(tmp_path / "p.toml", run, mechanisms=easy("none"))


def test_bounds_of_one_mechanism_do_not_serve_another_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code of the app comes with the run: it may register a learner under a name that the policy has."""
    bounds = {"mine": {"least-intensity": 1.0, "least-relative": 1.0, "most-releases": 5}}
    written(tmp_path / "p.toml", mechanisms=bounds)
    run = {"equipoise.mechanism": "mine", "equipoise.budget": 0.98}
    monkeypatch.setitem(MECHANISMS, "mine", Mechanism("mine", "leakage"))
    permitted(tmp_path / "p.toml", run, mechanisms=bounds)
    monkeypatch.setitem(MECHANISMS, "mine", Mechanism("mine", "leakage", learns=True))
    path = tmp_path / "p.toml"
    with pytest.raises(PolicyError, match=r"lacks mechanisms\.mine\.most-gamma"):
        permitted(path, run, mechanisms=bounds)
    policy = module.Policy(path=path, data="d", mechanisms={"mine": bounds["mine"]}, most_releases=5)
    terms = read_terms(run)
    with pytest.raises(PolicyError, match="another mechanism with this name"):
        policy.permit(terms, terms.settings.at(terms.mechanism, 0.98, 1, 0), None)


def test_metrics_need_the_policy_too(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="does not let the metric 'loss' leave"):
        permitted(tmp_path / "p.toml", RUN, metrics=[])
    permitted(tmp_path / "p.toml", RUN, metrics=["loss", "other"])


def test_a_formal_mechanism_needs_a_fixed_weight(tmp_path: Path) -> None:
    run = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 1.0}
    with pytest.raises(PolicyError, match='weight = "examples"'):
        permitted(tmp_path / "p.toml", run, mechanisms=easy("laplace-dp"), evaluation=None)
    permitted(tmp_path / "p.toml", run, weight=2.0)


@pytest.mark.parametrize(
    ("ever", "with_it", "spent", "words"),
    [
        (9, 4, 0.0, None), (10, 4, 0.0, "released 10 times in all"), (9, 5, 0.0, "released 5 times by laplace-dp"),
        (9, 4, 2.0, None), (9, 4, 0.1 + 0.2 + 1.7, None),
        (9, 4, 2.1, "epsilon 2.1 is spent or reserved; 1 more would pass most-total-epsilon = 3"),
    ],
)  # fmt: skip
def test_releases_and_epsilon_end_at_the_policys_limits(
    ever: int, with_it: int, spent: float, words: str | None, tmp_path: Path
) -> None:
    bounds = allow("laplace-dp", most_releases=5, most_total_epsilon=3.0)
    policy = read_policy(written(tmp_path / "p.toml", most_releases=10, mechanisms=bounds, weight=1))

    def permit() -> None:
        policy.permit_releases(MECHANISMS["laplace-dp"], ever, with_it)
        policy.permit_spending(MECHANISMS["laplace-dp"], (spent, 0.0), (1.0, 0.0))

    if words is None:
        permit()
        return
    with pytest.raises(PolicyError, match=words):
        permit()


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({}, None),
        ({"budget": 2.5}, "most-epsilon = 2 for 'gaussian-dp'; the run asks for 2.5"),
        ({"budget": "[1.0, 2.5]"}, None),
        ({"gaussian.delta": 1e-4}, "most-delta = 1e-05 for 'gaussian-dp'; the run asks for 0.0001"),
        ({"metrics": "loss"}, "no metrics may be sent"),
    ],
)
def test_a_whole_run_is_bounded_by_its_epsilon_and_delta(
    asked: dict[str, Any], words: str | None, tmp_path: Path
) -> None:
    bounds = allow("gaussian-dp", most_epsilon=2.0, most_delta=1e-5)
    run = {**WHOLE_RUN, **{f"equipoise.{key}": value for key, value in asked.items()}}
    about = context(run, node(tmp_path / "p.toml", mechanisms=bounds, weight=1))
    if words is None:
        admitted(asking(), about)
        return
    with pytest.raises(EquipoiseError, match=words):
        admitted(asking(), about)


@pytest.mark.parametrize(
    ("spent", "units", "words"),
    [
        ((6.0, 4e-5), {"record"}, None),
        ((0.1 + 0.2 + 5.7, 4e-5), set(), None),
        ((6.1, 0.0), set(), "epsilon 6.1 is spent or reserved; 2 more would pass most-total-epsilon = 8"),
        ((0.0, 4.5e-5), set(), "delta 4.5e-05 is spent or reserved; 1e-05 more would pass most-total-delta = 5e-05"),
        ((0.0, 0.0), {"group", "record"}, "guarantees of the unit 'group' are reserved"),
    ],
)
def test_runs_end_at_the_policys_totals(
    spent: tuple[float, float], units: set[str], words: str | None, tmp_path: Path
) -> None:
    bounds = allow("gaussian-dp", most_total_epsilon=8.0, most_total_delta=5e-5)
    policy = read_policy(written(tmp_path / "p.toml", mechanisms=bounds, weight=1))
    if words is None:
        policy.permit_run(reservation("7"), spent, units)
        return
    with pytest.raises(PolicyError, match=words):
        policy.permit_run(reservation("7"), spent, units)


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("unit", "person", "one of record, group"),
        ("unit", 1, "one of record, group"),
        ("most_delta", 1.0, "below 1"),
        ("most_total_delta", 0.0, "a finite number > 0"),
        ("divisor", 2.5, "a whole number >= 1"),
    ],
)
def test_bounds_of_a_whole_run_that_make_no_sense(key: str, value: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=words):
        read_policy(written(tmp_path / "p.toml", mechanisms=allow("gaussian-dp", **{key: value}), weight=1))


# --- on the node -------------------------------------------------------------------------------------------------


@pytest.fixture
def called() -> list[Message]:
    return []


@pytest.fixture
def train(called: list[Message]) -> Iterator[Any]:
    def run(msg: Message, context: Context) -> Message:
        called.append(msg)
        return honest(msg, context)

    return run


@pytest.mark.parametrize(
    ("run", "changes", "words"),
    [
        (
            {"equipoise.leakage.D": 0.001},
            {"mechanisms": allow("pl-identical", least_intensity=7.99)},
            "least-intensity",
        ),
        ({"equipoise.mechanism": "none", "equipoise.budget": ""}, {"mechanisms": easy("pl-learn")}, "'none'"),
        ({}, {"metrics": []}, "does not let the metric 'loss' leave"),
        ({}, {"version": 7}, "Expected version = 7"),
    ],
)
def test_what_contradicts_the_policy_is_refused_before_the_app_is_called(
    run: dict[str, Any], changes: dict[str, Any], words: str, train: Any, called: list[Message], tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    about = context({**RUN, **run}, node(tmp_path / "p.toml", **changes))
    reply = answered(train, about=about)
    assert not called, "nothing was computed"
    assert (reply.has_error(), reply.error.reason) == (True, REFUSED), "and the coordinator learns no more"
    assert words in caplog.text, "the node's own log says why"
    assert "equipoise" not in about.state, "nothing was counted"


def test_a_limit_that_is_reached_is_known_before_the_app_is_called(
    train: Any, called: list[Message], tmp_path: Path
) -> None:
    about = context(node=node(tmp_path / "p.toml", most_releases=1))
    assert not answered(train, about=about).has_error()
    assert answered(train, about=about).has_error()
    assert len(called) == 1


def test_a_node_without_a_policy_releases_nothing(
    train: Any, called: list[Message], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv(VARIABLE)
    for run in (RUN, {"equipoise.mechanism": "none"}):
        assert answered(train, about=context(run)).error.reason == REFUSED
    assert not called
    assert "This node has no policy: nothing leaves it" in caplog.text


def test_the_node_config_comes_before_the_environment(tmp_path: Path) -> None:
    strict = node(tmp_path / "p.toml", mechanisms=easy("none"))
    assert policy_of(strict).path == tmp_path / "p.toml"
    assert answered(honest, about=context(node=strict)).has_error()
    assert not answered(honest, about=context()).has_error()


@pytest.mark.parametrize("key", ["budget-at-most", "ledger", "polciy", "mechanisms"])
def test_a_key_that_the_node_config_does_not_have_is_no_reason_to_look_elsewhere(key: str) -> None:
    with pytest.raises(PolicyError, match=f"Unknown key 'equipoise.{key}' in the node config"):
        policy_of({f"equipoise.{key}": "x"})


@pytest.mark.parametrize("where", ["node config", "environment"])
def test_an_app_that_changes_its_folder_does_not_choose_the_policy(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apps come with a policy for simulated nodes, often of the same name."""
    written(tmp_path / "policy.toml")
    monkeypatch.chdir(tmp_path)
    config = {"equipoise.policy": "policy.toml"} if where == "node config" else {}
    monkeypatch.setenv(VARIABLE, "policy.toml")
    with pytest.raises(PolicyError, match="not absolute"):
        policy_of(config)


@pytest.mark.parametrize("named", ["", 0, True])
def test_a_policy_that_is_named_wrongly_is_none(named: Any) -> None:
    with pytest.raises(PolicyError, match="This node has no policy"):
        policy_of({"equipoise.policy": named})


@pytest.mark.parametrize("function", [protected_step, protect])
@pytest.mark.parametrize("mechanism", ["pl-identical", "pl-learn"])
def test_an_update_that_is_large_beside_its_noise_is_shortened(function: Any, mechanism: str, tmp_path: Path) -> None:
    """A run config with lr = 1e6, or eta = 1e4, would else send an update in which the noise drowns."""
    run = {**RUN, "equipoise.mechanism": mechanism, "equipoise.eta": 1e4}
    model = network()
    with torch.no_grad():
        model[1].weight.add_(1e4)  # what a training at such a rate reached
    about = context(run, node(tmp_path / "p.toml", mechanisms=allow(mechanism, least_relative=2.0)))
    sent = dict(function(model, images(), asking(), about).to_torch_state_dict())
    most = LOWER if mechanism == "pl-identical" else 2 * LOWER
    assert LOWER / 2 <= distance(sent, start()) <= (most + LOWER / 2) * (1 + 1e-5), "the noise, and half as much update"
    free = dict(function(model, images(), asking(), context(run)).to_torch_state_dict())
    assert distance(free, start()) > 100 * LOWER


# --- the file ----------------------------------------------------------------------------------------------------


def test_a_policy_is_read(tmp_path: Path) -> None:
    path = written(
        tmp_path / "p.toml", experiment=None, account="a1b2", ledger="l.jsonl", weight=3, metrics=["loss"],
        verbose_errors=True, evaluation={"metrics": ["accuracy"], "least-examples": 50}, mechanisms=easy("none"),
    )  # fmt: skip
    policy = read_policy(path)
    assert (policy.account, policy.ledger, policy.weight) == ("a1b2", tmp_path / "l.jsonl", 3.0)
    assert policy.evaluation == Evaluation(("accuracy",), 50)
    assert (policy.verbose_errors, policy.experiment, policy.metrics) == (True, False, ("loss",))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "Expected version = 2"),
        ({"version": None}, "lacks version"),
        ({"data": ""}, "Expected data = ''"),
        ({"data": None}, "lacks data"),
        ({"most_releases": None}, "lacks most-releases"),
        ({"most_releases": 0}, "to be a whole number >= 1"),
        ({"most_releases": 2.5}, "to be a whole number >= 1"),
        ({"weight": -1}, "Expected weight = -1"),
        ({"weight": "loss"}, "Expected weight = 'loss'"),
        ({"metrics": "loss"}, "to be a list of names"),
        ({"metrics": ["x" * 41]}, "to be a list of names"),
        ({"metrics": [""]}, "to be a list of names"),
        ({"mechanisms": easy("laplace-dp"), "weight": "examples"}, "allows 'laplace-dp' and evaluations"),
        ({"mechanisms": allow("pl-learn", most_gamma=-1.0)}, "to be a finite number > 0"),
        ({"experiment": "yes"}, "to be true or false"),
        ({"experiment": False}, "lacks account"),
        ({"experiment": False, "account": "a"}, "lacks ledger"),
        ({"evaluation": {"metrics": ["a"]}}, "lacks evaluation.least-examples"),
        ({"evaluation": {"metrics": ["a"], "least-examples": 1, "names": 1}}, "Unknown key 'evaluation.names'"),
        ({"mechanism": "pl-learn"}, "Did you mean 'mechanisms'"),
        ({"mechanisms": None}, "lacks mechanisms"),
        ({"mechanisms": {"pl-learn": {"least-intensity": 8.0}}}, "lacks mechanisms.pl-learn.most-gamma"),
        ({"mechanisms": {"mine": {"least-intensity": 8.0}}}, "lacks mechanisms.mine.least-relative"),
        ({"mechanisms": allow("pl-identical", least_intensity=0.0)}, "to be a finite number > 0"),
        ({"mechanisms": allow("pl-identical", least_intensity=float("nan"))}, "to be a finite number > 0"),
        ({"mechanisms": allow("pl-identical", budget_at_most=0.98)}, "Unknown key 'mechanisms.pl-identical.budget"),
        ({"mechanisms": allow("none", most_releases=-1)}, "to be a whole number >= 1"),
    ],
)
def test_a_wrong_policy_is_an_error_and_not_a_missing_bound(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(PolicyError) as caught:
        read_policy(written(tmp_path / "p.toml", **changes))
    assert words in str(caught.value)
    assert caught.value.remedy


def test_a_policy_of_another_user_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "p.toml")
    mine = os.stat(path)
    monkeypatch.setattr(os, "fstat", lambda handle: os.stat_result((*mine[:4], 4711, *mine[5:])))
    with pytest.raises(PolicyError, match="belongs to another user"):
        read_policy(path)


def test_a_policy_that_anybody_can_replace_is_none(tmp_path: Path) -> None:
    path = written(tmp_path / "open" / "p.toml")
    path.parent.chmod(0o777)
    with pytest.raises(PolicyError, match="Anybody can replace the policy"):
        read_policy(path)
    path.parent.chmod(0o1777)
    read_policy(path)


def test_a_policy_that_others_can_write_is_none(tmp_path: Path) -> None:
    path = written(tmp_path / "p.toml")
    for mode in (0o620, 0o602, 0o666):
        path.chmod(mode)
        with pytest.raises(PolicyError, match="can be written by others"):
            read_policy(path)
    path.chmod(0o644)
    read_policy(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version =", "is not TOML"), (b"\xff\xfe", "is not TOML"), (b"a = " + b"[" * 100_000, "is not TOML"),
        (b"#" * (1 << 21), "larger than 1 MiB"),
    ],
)  # fmt: skip
def test_a_policy_that_cannot_be_read_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "p.toml"
    path.write_bytes(content)
    path.chmod(0o600)
    with pytest.raises(PolicyError, match=words):
        read_policy(path)
    with pytest.raises(PolicyError, match="There is no policy"):
        read_policy(tmp_path / "other.toml")


def test_logs_of_a_refusal_are_errors(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    answered(honest, about=context(node=node(tmp_path / "p.toml", mechanisms=easy("none"))))
    assert [record.levelno for record in caplog.records if "Nothing is sent" in record.message] == [logging.ERROR]
