"""A job of the reproduction in its own process, killed in the middle: it goes on and ends with the same records."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from equipoise.reproduction.artefacts.registry import needs
from equipoise.reproduction.plan import Scale, jobs, spec
from tests.helpers import single_threaded

pytestmark = pytest.mark.slow

TINY = Scale(
    name="full", seeds=(1,), rounds=120, evaluate_every=120, curve_every=60, gradient_every=60, full_every=60,
    iterations=3, attacked=1, pictured=2, inner_steps=(), inner_rates=(), baselines=False,
)  # fmt: skip


def records(out: Path) -> dict[str, object]:
    """All raw records without the time they took."""
    return {path.name: json.loads(path.read_text()) | {"seconds": None} for path in sorted(out.glob("*.json"))}


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two federations with curves, gradients and series of their own."""
    wanted = needs(["stepwise", "gradient-norm"], TINY)
    few = {fed: what for fed, what in wanted["paper"].items() if fed.dataset == "mnist" and fed.budget in (200, 600)}
    path = tmp_path_factory.mktemp("plan") / "spec.json"
    path.write_text(json.dumps(spec(jobs({"paper": few}, TINY, "cpu"))))
    return path


PATIENT = """
import sys
from equipoise.compute import main
from equipoise.reproduction import job
job.CHECKPOINT_SECONDS = 0.0
sys.exit(main(sys.argv[1:]))
"""


def compute(plan: Path, out: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PATIENT, str(plan), str(out)]
    return subprocess.Popen(command, env=single_threaded(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@pytest.mark.parametrize("rounds", [50, 100])
def test_a_job_killed_in_the_middle_goes_on_to_the_same_records(plan: Path, tmp_path: Path, rounds: int) -> None:
    whole = compute(plan, tmp_path / "whole")
    said = whole.communicate(timeout=120)[0]
    assert whole.returncode == 0, said
    name = json.loads(plan.read_text())["reproduction"]["jobs"][0]["name"]
    checkpoint = tmp_path / "killed" / f".{name}.npz"
    killed = compute(plan, tmp_path / "killed")
    until = time.monotonic() + 60
    while killed.poll() is None and time.monotonic() < until:
        if checkpoint.exists() and reached(checkpoint) >= rounds:
            killed.send_signal(signal.SIGKILL)
            break
        time.sleep(0.02)
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert rounds <= reached(checkpoint) < TINY.rounds
    again = compute(plan, tmp_path / "killed")
    said = again.communicate(timeout=120)[0]
    assert again.returncode == 0, said
    assert records(tmp_path / "killed") == records(tmp_path / "whole")
    assert not checkpoint.exists()


def reached(checkpoint: Path) -> int:
    with np.load(checkpoint, allow_pickle=False) as stored:
        return int(json.loads(str(stored["notes"]))["round"])
