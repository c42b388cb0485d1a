"""Flower takes the ids of a message from its process: here they are set for every test, and nobody calls home."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

NEED_FLOWER = ["test_asked.py", "test_client.py", "test_replies.py", "test_server.py", "test_twin.py"]
collect_ignore = [] if find_spec("flwr") else NEED_FLOWER  # an extra: without it there is nothing to test here


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    if collect_ignore:
        return
    from flwr.supercore.task_identity import TaskIdentity

    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
