"""Flower takes the ids of a message from its process: here they are set for every test, and nobody calls home.

Every node has a policy that lets everything leave, unless its node config names another.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from flwr.supercore.task_identity import TaskIdentity

from equipoise.flower.policy import VARIABLE
from tests.flower.policies import written


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
