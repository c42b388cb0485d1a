"""Processes end with the one that started them, however it ends, and however they tried to leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from equipoise.errors import ConfigError, FleetError
from equipoise.flower import processes

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/environ").exists(), reason="stray processes are found by /proc, which Linux has"
)

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("up", flush=True)
time.sleep(60)
"""
DAEMON = f"""
import subprocess, time
subprocess.Popen({SLEEP!r}, start_new_session=True)
time.sleep(60)
"""
UNMARKED = f"""
import subprocess, time
subprocess.Popen({SLEEP!r}, env={{}})
time.sleep(60)
"""
PARENT = """
import os, sys, time
from pathlib import Path
from equipoise.flower import processes

home = Path(sys.argv[1])
home.mkdir()
(home / "key").write_text("secret")
watch = processes.spawn_watch(home)
processes.spawn([sys.executable, "-c", sys.argv[3]], home / "log", {**os.environ, processes.MARK: str(home)})
print("up", flush=True)
time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def home(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "home"
    processes.end_marked(tmp_path / "home", grace=0.0)


def marked_environment(home: Path) -> dict[str, str]:
    return {**os.environ, processes.MARK: str(home)}


def wait_for(condition: Callable[[], bool], patience: float = 20.0) -> bool:
    end = time.monotonic() + patience
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


def test_what_left_its_session_is_found_and_ended(home: Path, tmp_path: Path) -> None:
    process = processes.spawn([sys.executable, "-c", DAEMON], tmp_path / "log", marked_environment(home))
    assert wait_for(lambda: len(processes.marked(home)) == 2)
    processes.kill_group(process)  # the grandchild is an orphan now, in a session of its own
    assert len(processes.marked(home)) == 1
    assert processes.end_marked(home) == []
    assert processes.marked(home) == []


def test_a_descendant_without_the_mark_is_found(home: Path, tmp_path: Path) -> None:
    process = processes.spawn([sys.executable, "-c", UNMARKED], tmp_path / "log", marked_environment(home))
    assert wait_for(lambda: len(processes.marked(home)) == 2)
    assert processes.end_marked(home) == []
    process.wait(5)


def test_only_the_marked_are_touched(home: Path, tmp_path: Path) -> None:
    other = processes.spawn(SLEEP, tmp_path / "log", marked_environment(home.with_name("home2")))
    try:
        assert processes.end_marked(home) == []
        assert other.poll() is None
    finally:
        processes.kill_group(other)


@pytest.mark.parametrize("end", [processes.end_groups, None])
def test_one_that_ignores_the_request_is_killed(end: Callable[..., None] | None, home: Path, tmp_path: Path) -> None:
    process = processes.spawn([sys.executable, "-c", STUBBORN], tmp_path / "log", marked_environment(home))
    assert wait_for(lambda: "up" in (tmp_path / "log").read_text())
    if end is not None:
        end([process], grace=0.3)
    else:
        assert processes.end_marked(home, grace=0.3) == []
    assert process.wait(5) == -signal.SIGKILL


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, None])
def test_nothing_outlives_the_process_that_began_it(how: signal.Signals | None, home: Path) -> None:
    seconds = "60" if how else "0"
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT, str(home), seconds, DAEMON],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(
            signal.SIGINT, signal.default_int_handler
        ),  # a shell's background job ignores it
    )
    assert parent.stdout is not None
    assert parent.stdout.readline() == b"up\n"
    if how:
        assert wait_for(lambda: len(processes.marked(home)) == 2)
        parent.send_signal(how)
    parent.wait(10)
    assert wait_for(lambda: not processes.marked(home) and not home.exists())
    parent.stdout.close()


def test_what_is_not_ready_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "log"
    code = "import sys; print('first'); print('\\x1b[91mno such port\\x1b[0m'); sys.exit(3)"
    process = processes.spawn([sys.executable, "-c", code], log, os.environ)
    with pytest.raises(FleetError, match=r"(?s)link ended with code 3\..*log ends with:.*\| no such port"):
        processes.until(lambda: False, process, "link", log)
    monkeypatch.setattr(processes, "READY", 0.2)
    process = processes.spawn(SLEEP, log, os.environ)
    try:
        with pytest.raises(FleetError, match=r"not ready within 0\.2 s"):
            processes.until(lambda: False, process, "link", log)
    finally:
        processes.kill_group(process)


def test_flower_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(ConfigError, match=r"\.\[flower\]"):
        processes.program("flower-superlink")
