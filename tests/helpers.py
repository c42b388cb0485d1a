"""What the tests of run folders and commands share: a tiny dataset on disk, folder contents, the command itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from equipoise.cli import app as cli
from equipoise.cli import display

COMMAND = [sys.executable, "-m", "equipoise.cli"]


def write_dataset(folder: Path, train: int = 64, test: int = 40, seed: int = 7) -> Path:
    """A folder of npz files that ``load`` reads: random 28x28 images, brighter on one side for half of ten classes.

    Evaluating on 40 images costs nothing, so that tests of the shell around the engine are fast.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("test", test)):
        labels = np.arange(count) % 10
        images = rng.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        images[labels < 5, :, :14] //= 4
        np.savez(folder / f"{name}.npz", images=images, labels=labels)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a run folder with its bytes. The lock file has none and is left out."""
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".lock")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def single_threaded() -> dict[str, str]:
    """The environment of a subprocess: one thread each, so that two of them do not wait for one another."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "1"}


def equipoise(*arguments: str | Path, cwd: Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, to its end."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        cwd=cwd,
        env=single_threaded(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


class Done(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


Command = Callable[..., Done]


def entry_point(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], columns: int = 120
) -> Command:
    """Runs ``equipoise ARGUMENTS`` by its entry point, in ``folder``, in a terminal of so many columns."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(columns))
    for console in (display.console, display.errors):  # they took the width of the terminal when they were imported
        monkeypatch.setattr(console, "width", columns)

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["equipoise", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capfd.readouterr()
        return Done(int(left.value.code or 0), out, err)

    return run
