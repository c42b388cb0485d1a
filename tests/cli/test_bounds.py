"""``equipoise bounds``: what it shows, writes and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.audit_helpers import train_run, write_pictures
from tests.helpers import Command, document, entry_point

CHEAP = [
    part
    for option in ("subproblems=2", "repeats=2", "samples=2", "examples=8", "power=1", "short=1")
    for part in ("--set", option)
]


@pytest.fixture
def bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run ``equipoise bounds ARGUMENTS`` by its entry point, in an empty folder."""
    equipoise = entry_point(tmp_path, monkeypatch, capfd)
    return lambda *arguments: equipoise("bounds", *arguments)


def test_the_bounds_of_a_run_are_shown_and_written(bounds: Command, tmp_path: Path) -> None:
    train_run(tmp_path / "run", write_pictures(tmp_path / "pictures"), ("pl-learn",), snapshots=[0, 3])
    done = bounds("run", "--snapshots", "3", "--targets", "0", *CHEAP)
    assert done.code == 0
    for words in ("bounds of run", "Theorem 5.1 (inner loop): does not", "no attack was asked for", "not claimed:"):
        assert words in " ".join(done.out.split())
    assert "gamma < 1/L_alpha" in bounds("run", "--snapshots", "3", "--targets", "0", "--all", *CHEAP).out
    assert "written: run/bounds.json, run/bounds.html" in done.out
    written = json.loads((tmp_path / "run" / "bounds.json").read_text())
    assert written["rounds"] == [3]
    assert {name: written["options"][name] for name in ("targets", "power", "seed")} == {
        "targets": 0, "power": 1, "seed": 0,
    }  # fmt: skip
    again = bounds("run", "--snapshots", "3", "--targets", "0", *CHEAP, "--json")
    assert document(again) == written


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--set", "repeat=3"], "Did you mean 'repeats'?"),
        (["--set", "targets=3"], "Unknown option 'targets'"),
        (["--set", "samples"], "Expected --set key=value, got 'samples'"),
        (["--set", "samples=1"], "Expected samples=1 to be >= 2. Give samples 2 or more."),
        (["--targets", "1"], "targets=1"),
        (["--snapshots", "x"], "Expected --snapshots x to be whole numbers"),
        ([], "There is no folder nowhere."),
    ],
)
def test_impossible_bounds_are_refused(bounds: Command, tmp_path: Path, arguments: list[str], words: str) -> None:
    done = bounds("nowhere", *arguments)
    assert done.code == 11
    assert words in " ".join(done.err.split())
    assert list(tmp_path.iterdir()) == []
