"""What the tests of run folders and commands share: a tiny dataset on disk, folder contents, the command itself."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from rich.console import Console

from equipoise.cli import app as cli
from equipoise.cli import display

COMMAND = [sys.executable, "-m", "equipoise.cli"]


def write_dataset(
    folder: Path, train: int = 64, test: int = 40, seed: int = 7, side: int = 28, classes: int = 10
) -> Path:
    """A folder of npz files that ``load`` reads: random images, brighter on one side for half of the classes.

    Evaluating on 40 images costs nothing, so that tests of the shell around the engine are fast.
    """
    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", train), ("test", test)):
        labels = np.arange(count) % classes
        images = rng.integers(0, 256, (count, side, side), dtype=np.uint8)
        images[labels < classes // 2, :, : side // 2] //= 4
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
    """Runs ``equipoise ARGUMENTS`` by its entry point, in ``folder``, as if into a file of so many columns.

    The consoles are new ones: those of the module have the width of whatever test imported it first.
    """
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ("console", "errors"):
        new = Console(width=columns, force_terminal=False, color_system=None, stderr=name == "errors")
        monkeypatch.setattr(display, name, new)

    def run(*arguments: str | Path) -> Done:
        monkeypatch.setattr(sys, "argv", ["equipoise", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as left:
            cli.main()
        out, err = capfd.readouterr()
        return Done(int(left.value.code or 0), out, err)

    return run


def document(done: Done) -> Any:
    """The one JSON document on standard output; nothing on standard error."""
    assert done.err == ""
    return json.loads(done.out)


def tiny_train(data: Path, *more: str) -> list[str]:
    """Arguments of a training of three rounds."""
    return ["train", "--dataset", str(data), "--rounds", "3", "--set", "evaluate_every=2", "--out", "run", *more]


@cache
def load_script(path: Path) -> ModuleType:
    """A script outside the package, as a module."""
    name = "_".join(path.with_suffix("").parts[-3:])
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module
