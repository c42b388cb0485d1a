"""Real processes, killed, interrupted, starved of disk or started twice: the folder ends with the same bits."""

from __future__ import annotations

import ctypes
import json
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from safetensors.torch import load_file

from equipoise.runs.checkpoint import load_checkpoint
from tests.helpers import COMMAND, contents, equipoise, single_threaded, write_dataset

pytestmark = pytest.mark.slow

EVERY = 5
PATIENCE = 60.0
"""Seconds after which something that should have happened counts as missing."""

LIMITED = """
import resource, sys
size = int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
from equipoise.cli.app import main
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
    return [line for line in text.splitlines() if line.strip() and not line.startswith("training: ")]


def finish(arguments: list[str], folder: Path, whole: dict[str, bytes]) -> str:
    """Run to the end; the folder is then that of an undisturbed run. Returns what was printed."""
    done = equipoise(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    result = contents(folder / "run")
    assert set(result) == set(whole)
    assert [name for name in result if result[name] != whole[name]] == []
    return done.stdout


# --- killed -----------------------------------------------------------------------------------------------------


KILLS = 20


def begun(arguments: list[str], folder: Path) -> subprocess.Popen[str]:
    """A process that has come as far as the lock: all that it imports is imported."""
    lock = folder / "run" / ".lock"
    lock.unlink(missing_ok=True)
    process = started(arguments, folder)
    wait_for(lock.exists, process)
    return process


def test_killed_at_twenty_random_moments_it_ends_with_the_same_bits(data: Path, tmp_path: Path) -> None:
    """The moments are drawn over the time that an undisturbed run takes, and all hit the same folder in turn.

    Should the run be faster than when its time was taken and come to its end, the other kills hit a new folder.
    """
    arguments, rng = train(data, rounds=100), random.Random(20240601)
    (tmp_path / "whole").mkdir()
    process, start = begun(arguments, tmp_path / "whole"), time.monotonic()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    duration, whole = time.monotonic() - start, contents(tmp_path / "whole" / "run")

    moments = sorted(rng.uniform(0, duration) for _ in range(KILLS))
    waits = [after - before for before, after in zip([0.0, *moments], moments, strict=False)]
    reached: list[int] = []  # the rounds that the kills left behind
    folder = tmp_path / "killed"
    folder.mkdir()
    while waits:
        process = begun(arguments, folder)
        try:
            _, err = process.communicate(timeout=waits[0])
        except subprocess.TimeoutExpired:
            assert stopped(process, signal.SIGKILL)[0] == -signal.SIGKILL
            waits.pop(0)
            result = load_checkpoint(folder / "run" / "checkpoint")  # whatever there is can be read
            reached.append(-1 if result is None else result[1]["round"])
        else:
            assert process.returncode == 0, err
            assert contents(folder / "run") == whole
            shutil.rmtree(folder / "run")
    assert len(reached) == KILLS
    assert len(set(reached)) >= 4, "it made progress between the kills"
    finish(arguments, folder, whole)


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
    [(400, "config.toml"), (2_000, "ledger.jsonl"), (60_000, "checkpoint/state-")],
    ids=["the configuration", "the ledger", "the checkpoint"],
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
    assert line.startswith(f"error: Cannot write run/{file}")
    assert "File too large" in line
    assert "goes on" in line

    after = contents(tmp_path / "run")
    assert checkpoint_round(tmp_path) == reached
    result = load_checkpoint(tmp_path / "run" / "checkpoint")
    assert result is not None
    kept = result[1]["metrics_bytes"]
    assert after["metrics.jsonl"][:kept] == before["metrics.jsonl"][:kept]
    assert [json.loads(row)["round"] for row in after["metrics.jsonl"][:kept].splitlines()][-1] <= reached
    assert load_file(tmp_path / "run" / "snapshots" / "round-000000.safetensors")
    assert f"resumed at round {reached}" in finish(train(data), tmp_path, whole)


def test_a_disk_that_is_full_from_the_start(data: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    done = limited(data, tmp_path, 10_000)  # room for the configuration, not for a snapshot
    assert done.returncode == 17
    assert "Cannot write run/snapshots/round-000000.safetensors: File too large" in done.stderr
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
    assert "Free some space" not in line
    assert "Traceback" not in done.stdout


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of half a megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = shutil.which("mount") is not None and _mount("-t", "tmpfs", "-o", "size=500k", "tmpfs", str(folder))
    if not mounted:
        pytest.skip("only root can mount a small disk; a limit on the size of files stands for it above")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def _mount(*arguments: str) -> bool:
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


def test_a_disk_that_fills_up_and_is_made_larger(data: Path, whole: dict[str, bytes], small_disk: Path) -> None:
    done = equipoise(*train(data), cwd=small_disk)
    assert done.returncode == 17, done.stderr
    (line,) = lines(done.stderr)
    assert line.startswith("error: Cannot write ")
    assert "No space left on device" in line
    reached = checkpoint_round(small_disk)
    assert reached >= EVERY
    result = load_checkpoint(small_disk / "run" / "checkpoint")
    assert result is not None
    kept = (small_disk / "run" / "metrics.jsonl").read_bytes()[: result[1]["metrics_bytes"]]
    assert [json.loads(row)["round"] for row in kept.splitlines()][-1] <= reached
    assert load_file(small_disk / "run" / "snapshots" / "round-000007.safetensors")
    assert _mount("-o", "remount,size=8m", str(small_disk))
    assert f"resumed at round {reached}" in finish(train(data), small_disk, whole)


def without_privilege() -> None:
    """Give up what lets root write where nobody may; others do not have it and may not give it up."""
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        ctypes.CDLL(None).prctl(24, capability, 0, 0, 0)  # PR_CAPBSET_DROP


@pytest.mark.skipif(sys.platform != "linux", reason="root's privileges are given up by a call of Linux")
@pytest.mark.parametrize("place", ["the folder above", "the run folder"])
def test_a_read_only_folder_is_one_line_and_17(data: Path, whole: dict[str, bytes], tmp_path: Path, place: str) -> None:
    above = tmp_path / "above"
    above.mkdir()
    if place == "the run folder":
        process = started(train(data), above)
        wait_for(lambda: checkpoint_round(above) >= 2 * EVERY, process)
        stopped(process, signal.SIGKILL)
    before = contents(above)
    folders = [above, *(path for path in above.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        for more in ([], ["--fresh"]):
            done = subprocess.run(
                [*COMMAND, *train(data, *more)], cwd=above, env=single_threaded(), preexec_fn=without_privilege,
                capture_output=True, text=True, timeout=PATIENCE, check=False,
            )  # fmt: skip
            assert done.returncode == 17, (done.returncode, done.stderr)
            (line,) = lines(done.stderr)
            assert line.startswith("error: Cannot write ")
            assert "Permission denied" in line
            assert "Traceback" not in done.stdout
            assert contents(above) == before
    finally:
        for folder in folders:
            folder.chmod(0o755)
    finish(train(data), above, whole)


# --- damaged ------------------------------------------------------------------------------------------------------


def test_a_flipped_byte_in_any_file_of_the_checkpoint_is_one_line_and_16(
    data: Path, whole: dict[str, bytes], tmp_path: Path
) -> None:
    """And in the ledger, whose head the checkpoint holds."""
    process = started(train(data), tmp_path)
    wait_for(lambda: checkpoint_round(tmp_path) >= 2 * EVERY, process)
    stopped(process, signal.SIGKILL)
    run, rng = tmp_path / "run", random.Random(7)
    latest = run / "checkpoint" / "latest.json"
    for path in (latest, latest.with_name(json.loads(latest.read_text())["file"]), run / "ledger.jsonl"):
        good = path.read_bytes()
        content = bytearray(good)
        number = re.search(rb'"round": \d+', good)
        if path == latest and number is not None:
            content[number.end() - 1] ^= 1  # another round, and all else as it was
        else:
            content[rng.randrange(len(content) // 2)] ^= 1 << rng.randrange(8)
        path.write_bytes(content)
        done = equipoise(*train(data), cwd=tmp_path)
        assert done.returncode == (19 if path.name == "ledger.jsonl" else 16), (path.name, done.stderr)
        (line,) = lines(done.stderr)
        assert line.startswith("error: ")
        path.write_bytes(good)
    finish(train(data), tmp_path, whole)


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
