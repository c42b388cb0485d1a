"""Flower takes the ids of a message from its process: here they are set for every test, and nobody calls home.

Every node has a policy that lets everything leave, unless its node config names another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from flwr.supercore.task_identity import TaskIdentity

from equipoise.flower.policy import VARIABLE
from equipoise.ledger.account import Account
from equipoise.mechanism import protect as core
from tests.flower.policies import node, written
from tests.flower.whole_runs import NODE, bounds


@pytest.fixture(scope="session")
def easy_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("policy") / "policy.toml")


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch, easy_policy: Path) -> None:
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    monkeypatch.setenv(VARIABLE, str(easy_policy))
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.fixture
def own(tmp_path: Path) -> dict[str, Any]:
    """A node with a ledger, whose policy has room for two runs of epsilon 2."""
    Account.create(tmp_path / "l.jsonl", "a1b2")
    return node(tmp_path / "p.toml", mechanisms=bounds(most_total_epsilon=4.0), **NODE)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """How every release is made."""
    calls: list[dict[str, Any]] = []
    real = core.protected_step

    def noted(model: Any, received: Any, batch: Any, *rest: Any, **options: Any) -> core.Protected:
        calls.append({**options, "batch": batch})
        return real(model, received, batch, *rest, **options)

    monkeypatch.setattr(core, "protected_step", noted)
    return calls
