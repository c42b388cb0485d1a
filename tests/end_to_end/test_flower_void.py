"""A run in which every node refuses in every round is a failed run, for Flower too."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise.errors import FleetError
from equipoise.flower.fleet import Fleet
from equipoise.flower.new_app import new_app
from tests.flower.policies import PROTECT_APP

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not Path("/proc/self/environ").exists(), reason="stray processes are found by /proc, which Linux has"
    ),
]


def test_a_model_with_dropout_makes_a_failed_run(tmp_path: Path) -> None:
    """``protect`` takes no active dropout; the run ended as completed, with the initial model as its result."""
    new_app(tmp_path / "my-app", PROTECT_APP)
    task = tmp_path / "my-app" / "my_app" / "task.py"
    text = task.read_text(encoding="utf-8")
    assert text.count("act3=nn.ReLU(),") == 1
    task.write_text(text.replace("act3=nn.ReLU(),", "act3=nn.ReLU(), drop=nn.Dropout(0.5),"), encoding="utf-8")
    config = {"num-server-rounds": 2, "min-nodes": 2, "equipoise.out": str(tmp_path / "run")}
    with (
        Fleet(tmp_path / "logs", nodes=2, simulation=True) as fleet,
        pytest.raises(FleetError, match=r"ended as finished:failed: .*No round was accepted, of 2 that were asked for"),
    ):
        fleet.run(tmp_path / "my-app", config, timeout=300)
    (federation,) = json.loads((tmp_path / "run" / "result.json").read_text())["federations"]
    assert federation["failed"].startswith("No round was accepted, of 2 that were asked for")
    assert list(federation["refused"]) == ["1", "2"]
