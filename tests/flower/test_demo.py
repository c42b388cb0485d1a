"""What the demo does around its processes: folders, progress, the summary."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from equipoise.errors import ConfigError, FleetError, StorageError
from equipoise.flower import demo
from tests.helpers import contents


def test_an_earlier_demo_is_replaced_and_nothing_else(tmp_path: Path) -> None:
    out = tmp_path / "out"
    app, logs, run = demo.prepare(out)
    run.mkdir()
    (run / "ledger.jsonl").write_text("old")
    demo.prepare(out)
    assert not run.exists()
    assert (app / "pyproject.toml").exists()
    assert run.is_absolute()
    assert {app.parent, logs.parent, run.parent} == {out}
    (out / "thesis.md").write_text("mine")
    before = contents(out)
    with pytest.raises(StorageError, match="nothing was touched"):
        demo.prepare(out)
    assert contents(out) == before


@pytest.mark.parametrize("name", demo.PARTS)
def test_folders_that_no_demo_made_are_kept_whatever_their_names(tmp_path: Path, name: str) -> None:
    (tmp_path / "out" / name).mkdir(parents=True)
    (tmp_path / "out" / name / "results.txt").write_text("mine")
    with pytest.raises(StorageError, match="nothing was touched") as caught:
        demo.prepare(tmp_path / "out")
    assert "new or empty" in caught.value.remedy
    assert contents(tmp_path) == {f"out/{name}/results.txt": b"mine"}


def test_an_empty_folder_may_hold_a_demo(tmp_path: Path) -> None:
    assert demo.prepare(tmp_path)[0].is_dir()
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="holds other things"):
        demo.prepare(tmp_path / "file")


@pytest.mark.parametrize(("nodes", "rounds"), [(1, 3), (4, 0)])
def test_too_few_of_something(nodes: int, rounds: int, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Expected (rounds|nodes)=\d to be >= "):
        demo.demo(tmp_path / "out", nodes, rounds, print)
    assert not (tmp_path / "out").exists()


def test_progress_is_told_once_and_only_of_whole_lines(tmp_path: Path) -> None:
    path, said = tmp_path / "metrics.jsonl", []
    follower = demo.Follower(path, said.append)
    follower.look()
    assert said == []
    rows = [
        {"round": 0, "evaluation": {"accuracy": 0.1}},
        {"round": 1, "accepted": 3, "refused": {"7": "is empty"}, "equipoise.intensity": 8.125},
        {"round": 1, "evaluation": {"accuracy": 0.5}},
    ]
    lines = [json.dumps(row) + "\n" for row in rows]
    path.write_text("".join(lines)[:-5])
    follower.look()
    assert said == ["round 0: test accuracy 10.0% before training"]
    path.write_text("".join(lines))
    follower.look()
    follower.look()
    assert said[1:] == ["round 1: test accuracy 50.0%, 3 updates averaged, 1 refused, intensity 8.12"]


def test_a_run_without_a_result_is_no_success(tmp_path: Path) -> None:
    with pytest.raises(FleetError, match="without a result"):
        demo.outcome(tmp_path, tmp_path / "run.log")
