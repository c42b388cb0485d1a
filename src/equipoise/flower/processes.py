"""Processes that do not outlive the one that started them, whatever ends it: an error, Ctrl-C, kill -9.

Flower starts processes of its own, some in sessions of their own, and these can be left behind. All of them inherit one
mark in their environment, ``FLWR_HOME``, and that is how they are found on Linux. Elsewhere only the process groups of
those that were started here are ended.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from ..errors import FleetError, missing_extra

MARK = "FLWR_HOME"
GRACE = 4.0
"""Seconds that a process has between being asked to end and being ended."""

READY = 90.0
"""Seconds that a SuperLink or a SuperNode has to come up."""

_WATCH = "import sys; from equipoise.flower.processes import watch; watch(sys.argv[1])"


def spawn(command: list[str], log: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """A process in a session of its own (Ctrl-C does not reach it), with all that it says in ``log``."""
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )


def spawn_watch(home: Path) -> subprocess.Popen[bytes]:
    """A process that waits for this one to end, however it ends, and then ends all that bear the mark ``home``.

    It also removes the folder ``home``, which may hold keys. The pipe to it closes with this process, because no other
    has that end of it.
    """
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    command, nothing = [sys.executable, "-c", _WATCH, str(home)], subprocess.DEVNULL
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=nothing, stderr=nothing, env=environment, start_new_session=True
    )


def end_watch(process: subprocess.Popen[bytes]) -> None:
    """Let that process do its work now."""
    if process.stdin is not None:
        process.stdin.close()
    process.wait(4 * GRACE)


def watch(home: str) -> None:
    """The body of that process."""
    sys.stdin.buffer.read()
    end_marked(Path(home))
    shutil.rmtree(home, ignore_errors=True)  # nobody is left to hear of an error


def marked(home: Path) -> list[int]:
    """Processes whose environment bears the mark, and their descendants; none where there is no /proc.

    >>> marked(Path("/nowhere"))
    []
    """
    wanted, parents, result = f"{MARK}={home}".encode(), {}, set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            if state == "Z":
                continue  # it has ended, and waits for its parent to notice
            parents[int(entry.name)] = int(parent)
            if wanted in (entry / "environ").read_bytes().split(b"\0"):
                result.add(int(entry.name))
        except OSError:  # it ended in between, or is another user's: not one of ours
            continue
    for pid in parents:  # Ray's workers overwrite their environment with a title
        line = [pid]
        while (above := parents.get(line[-1], 0)) > 1:
            line.append(above)
        if result & set(line[1:]):
            result.add(pid)
    return sorted(result - {os.getpid()})


def end_marked(home: Path, grace: float = GRACE) -> list[int]:
    """Ask all that bear the mark to end, then end them; returns those that are still there."""
    for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, grace)):
        limit = time.monotonic() + patience
        while (left := marked(home)) and time.monotonic() < limit:
            for pid in left:
                _signal(pid, number)
            time.sleep(0.1)
    return left


def end_groups(processes: Iterable[subprocess.Popen[bytes]], grace: float = GRACE) -> None:
    """End processes that ``spawn`` started, with those that stayed in their groups, and reap them."""
    processes = list(processes)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            _signal(-process.pid, number)
        limit = time.monotonic() + grace
        for process in processes:
            try:
                process.wait(max(0.0, limit - time.monotonic()))
            except subprocess.TimeoutExpired:
                continue  # the next round kills it


def kill_group(process: subprocess.Popen[bytes]) -> None:
    """End such a process at once."""
    _signal(-process.pid, signal.SIGKILL)
    process.wait(GRACE)


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return  # it has ended already; some systems say so in the second way


def until(ready: Callable[[], bool], process: subprocess.Popen[bytes], name: str, log: Path) -> None:
    """Wait for a process to become ready; one that ends, or takes too long, is an error."""
    limit = time.monotonic() + READY
    while not ready():
        if process.poll() is not None:
            raise FleetError(f"The {name} ended with code {process.returncode}.", tail(log))
        if time.monotonic() > limit:
            raise FleetError(f"The {name} was not ready within {READY:g} s.", tail(log))
        time.sleep(0.1)


def program(name: str) -> str:
    """One of Flower's programs, installed beside this Python."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise missing_extra(f"The program {name}", "flower")
    return str(path)


def free_port() -> int:
    """A port of the loopback that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def tail(log: Path, lines: int = 8) -> str:
    """The last lines of a log, for an error message."""
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    kept = [line for line in re.sub(r"\x1b\[\d*m", "", text).splitlines() if line.strip()][-lines:]  # without colours
    return "\n".join([f"{log} ends with:", *(f"  | {line}" for line in kept)])
