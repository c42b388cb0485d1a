"""What the run config tells an auditor: read, left out, refused, and without a part in any release."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.errors import ConfigError
from equipoise.flower.audit_terms import AuditTerms, read_audit_terms
from equipoise.flower.run_config import read_terms
from equipoise.runs.config import stored
from equipoise.runs.deployment import Deployment
from tests.flower.messages import RUN


def told(**keys: Any) -> dict[str, Any]:
    return {**RUN, **{f"equipoise.audit.{name}": value for name, value in keys.items()}}


def test_nothing_said_is_the_default() -> None:
    assert read_audit_terms({}) == AuditTerms(batch=4, local_steps=1, snapshots=(0, 1), deployment=Deployment())
    assert read_terms(told(model="", classes=0, mean="", std="", snapshots="")).audit == AuditTerms()


def test_everything_said_is_read() -> None:
    given = {"model": "my_app.task:Net", "classes": 3, "batch": 8, "local-steps": 2, "mean": "[0.5, 0.4]"}
    result = read_terms(told(**given, std="[1, 2]", snapshots="[0, 10]")).audit
    assert (result.batch, result.local_steps, result.snapshots) == (8, 2, (0, 10))
    assert result.deployment == Deployment(model="my_app.task:Net", classes=3, mean=[0.5, 0.4], std=[1, 2])


def test_no_release_depends_on_it() -> None:
    assert read_terms(told(batch=32, local_steps=7)).settings == read_terms(RUN).settings


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"batch": 0}, "batch"),
        ({"batch": "many"}, "batch='many'"),
        ({"local_steps": 1.5}, r"local_steps=1\.5"),
        ({"snapshots": "5"}, "snapshots='5'"),
        ({"snapshots": "[0, -1]"}, "to be rounds"),
        ({"snapshots": "[0, 0.5]"}, "to be rounds"),
        ({"classes": "ten"}, "classes='ten'"),
        ({"mean": 0.5}, "together"),
        ({"model": 7}, "to be a name"),
        ({"modle": "x"}, "Did you mean 'audit.model'"),
    ],
)
def test_wrong_values_are_named_where_the_app_starts(keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read_terms(told(**keys))


@pytest.mark.parametrize(
    ("budget", "clients"),
    [(0.98, 4), ("[0.96, 0.98, 0.97]", 3), ('{"rounds": [1, 5], "values": [0.96, [0.9, 0.9, 0.8, 0.8]]}', 4)],
)
def test_the_configuration_reads_back_as_it_was_asked(tmp_path: Any, budget: Any, clients: int) -> None:
    terms = read_terms({**told(batch=8, model="mlp"), "equipoise.budget": budget, "equipoise.eta": 0.05})
    (tmp_path / "config.toml").write_text(terms.config(7, "float64").to_toml())
    result = stored(tmp_path / "config.toml")
    assert result == terms.config(7, "float64")
    assert (result.settings.training.rounds, result.settings.run.dtype) == (7, "float64")
    asked = result.settings.protection
    assert (asked.clients, asked.batch, asked.eta) == (clients, 8, 0.05)
    assert result.federations()[0].budget == terms.budget


def test_a_run_without_distortion_has_no_budget(tmp_path: Any) -> None:
    config = read_terms({"equipoise.mechanism": "none"}).config(1, "float32")
    (tmp_path / "config.toml").write_text(config.to_toml())
    assert stored(tmp_path / "config.toml").federations()[0].budget is None
