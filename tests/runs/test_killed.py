"""Killed before any change of a file, a run goes on to the same bits; and no write that fails is hidden."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.errors import StorageError
from equipoise.runs import run as runs
from equipoise.runs.config import Config
from equipoise.runs.run import Run
from tests.runs.mortal import Death, Mortal
from tests.runs.small_run import assert_same, changed


def shortened(config: Config) -> Config:
    """As few rounds as have every kind of write."""
    return replace(changed(config, rounds=3, snapshots=[0], steps=1), sweep=config.sweep[:2])


def replay_deaths(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool, every: int) -> None:
    """Die at every so many of the operations, run again, compare with a run that nothing stopped."""
    short = shortened(config)
    with monkeypatch.context() as patch:
        counted = Mortal(patch)
        Run(tmp_path / "whole", short).execute()
    assert counted.count > 40
    for point in [i for i in range(counted.count) if not torn or counted.seen[i].startswith("fsync")][::every]:
        folder = tmp_path / f"{point}"
        with monkeypatch.context() as patch:
            Mortal(patch, point, torn)
            with pytest.raises(Death) as death:
                Run(folder, short).execute()
        Run(folder, short).execute()
        assert_same(folder, tmp_path / "whole", f"killed at operation {point} of {counted.count}, {death.value}")


@pytest.mark.parametrize("torn", [False, True])
def test_killed_before_some_changes_of_files_it_goes_on_to_the_same_bits(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    replay_deaths(config, tmp_path, monkeypatch, torn, every=11)


@pytest.mark.slow
@pytest.mark.parametrize("torn", [False, True])
def test_killed_before_any_change_of_a_file_it_goes_on_to_the_same_bits(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    replay_deaths(config, tmp_path, monkeypatch, torn, every=1)


def test_killed_in_a_checkpoint_that_the_clock_made_and_never_makes_again(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it left has names that no later checkpoint uses."""
    short = shortened(config)
    Run(tmp_path / "whole", short).execute()

    def hurried(folder: Path, dies_before: int = -1) -> Mortal:
        with monkeypatch.context() as patch:
            patch.setattr("equipoise.engine.sweep.LENGTH", 1)
            patch.setattr(runs, "CHECKPOINT_SECONDS", -1.0)
            mortal = Mortal(patch, dies_before)
            try:
                Run(folder, short).execute()
            except Death:
                assert dies_before >= 0
        return mortal

    seen = hurried(tmp_path / "counted").seen
    first = next(i for i, what in enumerate(seen) if "state-00000001" in what)
    for point in range(first, first + 12):
        hurried(tmp_path / f"{point}", point)
        Run(tmp_path / f"{point}", short).execute()
        assert_same(tmp_path / f"{point}", tmp_path / "whole", f"killed before {seen[point]}")


@pytest.mark.parametrize("name", ["write_text", "save_snapshot", "save_checkpoint", "write_json"])
@pytest.mark.parametrize("nth", [1, 2])
def test_a_write_that_fails_is_passed_on_and_the_run_goes_on_afterwards(
    whole: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, nth: int
) -> None:
    genuine, count = getattr(runs, name), 0

    def failing(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == nth:
            raise StorageError("Cannot write it: No space left on device.")
        genuine(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(runs, name, failing)
        if nth == 2 and name in ("write_text", "write_json"):  # written once in a run: the second run fails
            Run(tmp_path, config).execute()
        with pytest.raises(StorageError, match="No space"):
            Run(tmp_path, config).execute()
    Run(tmp_path, config).execute()
    assert_same(tmp_path, whole)


def test_a_full_disk_while_metrics_are_appended(
    whole: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, metrics = os.fsync, tmp_path / "metrics.jsonl"

    def full(handle: int) -> None:
        if metrics.exists() and os.path.samestat(os.fstat(handle), metrics.stat()):
            os.ftruncate(handle, os.fstat(handle).st_size - 9)
            raise OSError(28, "No space left on device")
        fsync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"Cannot write metrics\.jsonl: No space left on device"):
        Run(tmp_path, config).execute()
    monkeypatch.undo()
    Run(tmp_path, config).execute()
    assert_same(tmp_path, whole)


def test_what_another_experiment_left_before_its_first_checkpoint_is_not_kept(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An audit would take its snapshot for one of this run."""
    with monkeypatch.context() as patch:
        patch.setattr(runs, "save_checkpoint", lambda *_: (_ for _ in ()).throw(Death()))
        with pytest.raises(Death):
            Run(tmp_path / "used", config).execute()
    assert (tmp_path / "used" / "snapshots" / "round-000000.safetensors").exists()
    other = changed(config, snapshots=[], eta=0.2)
    Run(tmp_path / "used", other).execute()
    Run(tmp_path / "new", other).execute()
    assert_same(tmp_path / "used", tmp_path / "new")
