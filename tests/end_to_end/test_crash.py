"""Real processes, killed, interrupted, starved of disk or started twice: the folder ends with the same bits."""

from __future__ import annotations

import json
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file

from equipoise.storage import load_checkpoint
from tests.helpers import COMMAND, contents, equipoise, single_threaded, write_dataset

pytestmark = pytest.mark.slow

EVERY = 5
PATIENCE = 60.0
"""Seconds after which something that should have happened counts as missing."""

LIMITED = """
import resource, sys
size = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
from equipoise.cli import main
main()
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "tiny")


def train(data: Path, *more: str, rounds: int = 60) -> list[str]:
    settings = ["--rounds", str(rounds), "--set", f"evaluate_every={EVERY}", "--set", "snapshots=[0, 7, 30]"]
    sweep = ["--dataset", str(data), "--mechanism", "pl-learn,none", "--budget", "0.98"]
    return ["train", *sweep, *settings, "--out", "run", *more]


@pytest.fixture(scope="module")
def whole(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What a run leaves that nothing disturbed."""
    return undisturbed(tmp_path_factory.mktemp("whole"), train(data))


def undisturbed(folder: Path, arguments: list[str]) -> dict[str, bytes]:
    done = equipoise(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    return contents(folder / "run")


def started(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*COMMAND, *arguments],
        cwd=folder,
        env=single_threaded(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # a shell's background jobs ignore Ctrl-C, and so would their children
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def checkpoint_round(folder: Path) -> int:
    try:
        return int(json.loads((folder / "run" / "checkpoint" / "latest.json").read_text())["round"])
    except FileNotFoundError:
        return -1


def wait_for(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "it did not come that far"
        time.sleep(0.002)


def stopped(process: subprocess.Popen[str], how: signal.Signals) -> tuple[int, str, str]:
    process.send_signal(how)
    out, err = process.communicate(timeout=PATIENCE)
    return process.returncode, out, err


def lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def finish(arguments: list[str], folder: Path, whole: dict[str, bytes]) -> str:
    """Run to the end; the folder is then that of an undisturbed run. Returns what was printed."""
    done = equipoise(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = contents(folder / "run")
    assert set(found) == set(whole)
    assert [name for name in found if found[name] != whole[name]] == []
    return done.stdout


# --- killed -----------------------------------------------------------------------------------------------------


def test_killed_at_eight_moments_it_ends_with_the_same_bits(data: Path, tmp_path: Path) -> None:
    arguments, folder = train(data, rounds=250), tmp_path / "killed"
    folder.mkdir()
    rng, reached = random.Random(20240601), [-1]
    for moment in range(8):
        process = started(arguments, folder)
        if moment % 2:  # soon after it has got further than the last time
            wait_for(lambda: checkpoint_round(folder) > reached[-1], process)
            end = time.monotonic() + rng.uniform(0, 0.15)
        else:  # at any time from the start of Python on
            end = time.monotonic() + rng.uniform(0.2, 3)
        while time.monotonic() < end and checkpoint_round(folder) < reached[-1] + 4 * EVERY:
            time.sleep(0.002)  # a fast machine must not come to the end before the eighth kill
        assert stopped(process, signal.SIGKILL)[0] == -signal.SIGKILL
        found = load_checkpoint(folder / "run" / "checkpoint")  # whatever there is can be read
        reached.append(-1 if found is None else found[1]["round"])
    assert reached == sorted(reached)
    assert len(set(reached)) >= 4, "it made progress between the kills"
    (tmp_path / "whole").mkdir()
    printed = finish(arguments, folder, undisturbed(tmp_path / "whole", arguments))
    assert f"resumed at round {reached[-1]}" in printed


def test_killed_right_after_each_of_the_first_writes(data: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    """The moments at which a folder exists and is not yet a whole run folder."""
    run = tmp_path / "run"
    for sign in (".lock", "config.toml", "snapshots/round-000000.safetensors", "checkpoint/latest.json"):
        process = started(train(data), tmp_path)
        wait_for(lambda sign=sign: (run / sign).exists(), process)  # type: ignore[misc]
        stopped(process, signal.SIGKILL)
    finish(train(data), tmp_path, whole)


# --- interrupted ------------------------------------------------------------------------------------------------


def test_ctrl_c_is_one_line_and_130_and_the_run_goes_on(data: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    process = started(train(data), tmp_path)
    wait_for(lambda: checkpoint_round(tmp_path) >= EVERY, process)
    code, out, err = stopped(process, signal.SIGINT)
    assert code == 130
    assert len(lines(err)) == 1, err
    assert re.search(r"interrupted at round \d+; run the same command again to go on", err)
    assert "Traceback" not in out + err
    assert not (tmp_path / "run" / "result.json").exists()
    reached = checkpoint_round(tmp_path)
    assert f"resumed at round {reached}" in finish(train(data), tmp_path, whole)


def test_ctrl_c_with_json_leaves_standard_output_empty(data: Path, tmp_path: Path) -> None:
    process = started(train(data, "--json"), tmp_path)
    wait_for(lambda: checkpoint_round(tmp_path) >= EVERY, process)
    code, out, err = stopped(process, signal.SIGINT)
    assert (code, out) == (130, "")
    assert len(lines(err)) == 1


# --- no space, no folder ------------------------------------------------------------------------------------------


def limited(data: Path, folder: Path, size: int) -> subprocess.CompletedProcess[str]:
    """The same command where no file can grow past ``size`` bytes, as on a disk that is full."""
    command = [sys.executable, "-c", LIMITED, str(size), *train(data)]
    return subprocess.run(
        command, cwd=folder, env=single_threaded(), capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize(
    ("size", "file"),
    [(400, "config.toml"), (2_000, "metrics.jsonl"), (60_000, "state-")],
    ids=["the configuration", "the metrics", "the checkpoint"],
)
def test_a_full_disk_is_one_line_and_17_and_earlier_results_stay(
    data: Path, whole: dict[str, bytes], tmp_path: Path, size: int, file: str
) -> None:
    process = started(train(data), tmp_path)
    wait_for(lambda: checkpoint_round(tmp_path) >= 2 * EVERY, process)
    stopped(process, signal.SIGKILL)
    before, reached = contents(tmp_path / "run"), checkpoint_round(tmp_path)

    done = limited(data, tmp_path, size)
    assert done.returncode == 17, done.stderr
    (line,) = lines(done.stderr)
    assert line.startswith(f"error: Cannot write {file}")
    assert "File too large" in line
    assert "resumes" in line

    after = contents(tmp_path / "run")
    assert checkpoint_round(tmp_path) == reached
    found = load_checkpoint(tmp_path / "run" / "checkpoint")
    assert found is not None
    kept = found[1]["metrics_bytes"]
    assert after["metrics.jsonl"][:kept] == before["metrics.jsonl"][:kept]
    assert [json.loads(row)["round"] for row in after["metrics.jsonl"][:kept].splitlines()][-1] <= reached
    assert load_file(tmp_path / "run" / "snapshots" / "round-000000.safetensors")
    assert f"resumed at round {reached}" in finish(train(data), tmp_path, whole)


def test_a_disk_that_is_full_from_the_start(data: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    done = limited(data, tmp_path, 10_000)  # room for the configuration, not for a snapshot
    assert done.returncode == 17
    assert "Cannot write round-000000.safetensors: File too large" in done.stderr
    finish(train(data), tmp_path, whole)


@pytest.mark.parametrize("out", ["file/run", "/proc/equipoise-run"])
@pytest.mark.parametrize("fresh", [[], ["--fresh"]])
def test_a_folder_that_cannot_be_written_is_one_line_and_17(
    data: Path, tmp_path: Path, out: str, fresh: list[str]
) -> None:
    (tmp_path / "file").write_text("x")
    done = equipoise(*train(data), "--out", out, *fresh, cwd=tmp_path)
    assert done.returncode == 17, done.stderr
    (line,) = lines(done.stderr)
    assert line.startswith("error: Cannot write")
    assert "Traceback" not in done.stdout


# --- two at once --------------------------------------------------------------------------------------------------


def test_a_second_process_is_refused_and_does_no_harm(data: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    first = started(train(data), tmp_path)
    wait_for(lambda: checkpoint_round(tmp_path) >= EVERY, first)
    first.send_signal(signal.SIGSTOP)  # so that it is there as long as the others need
    try:
        for more in ([], ["--fresh"], ["--json"]):
            second = equipoise(*train(data, *more), cwd=tmp_path)
            assert second.returncode == 16, second.stderr
            message = second.stdout if more == ["--json"] else second.stderr
            assert "Another process is using the run folder run" in message
    finally:
        first.send_signal(signal.SIGCONT)
    out, err = first.communicate(timeout=PATIENCE)
    assert first.returncode == 0, err
    assert contents(tmp_path / "run") == whole
    assert "resumed" not in out
