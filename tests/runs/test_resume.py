"""A run that was interrupted goes on to the same bits, or says what does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.errors import CheckpointError, EquipoiseError
from equipoise.runs import run as runs
from equipoise.runs.checkpoint import load_checkpoint, save_checkpoint
from equipoise.runs.config import Config, SweepBlock
from equipoise.runs.run import Run
from tests.helpers import contents, write_dataset
from tests.runs.small_run import ROUNDS, assert_same, changed, interrupted_in


@pytest.mark.parametrize(("round_number", "resumed"), [(1, 0), (2, 0), (3, 2), (4, 3), (5, 4)])
def test_interrupted_in_any_round_it_goes_on_to_the_same_bits(
    whole: Path, config: Config, tmp_path: Path, round_number: int, resumed: int
) -> None:
    interrupted_in(tmp_path, config, round_number)
    run, started = Run(tmp_path, config), []
    run.execute(on_start=started.append)
    assert started == [run.resumed_from] == [resumed]
    assert_same(tmp_path, whole)


def test_interrupted_again_and_again(whole: Path, config: Config, tmp_path: Path) -> None:
    for round_number in (1, 2, 2, 4, 5, 5):
        interrupted_in(tmp_path, config, round_number)
    Run(tmp_path, config).execute()
    assert_same(tmp_path, whole)


@pytest.mark.parametrize("round_number", range(2, ROUNDS + 1))
def test_between_evaluations_the_clock_makes_checkpoints(
    whole: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, round_number: int
) -> None:
    monkeypatch.setattr("equipoise.engine.sweep.LENGTH", 1)
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", -1.0)
    interrupted_in(tmp_path, config, round_number)
    run = Run(tmp_path, config)
    run.execute()
    assert run.resumed_from == round_number - 1
    assert_same(tmp_path, whole)


def test_a_checkpoint_is_not_made_at_every_event(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.engine.sweep.LENGTH", 1)
    interrupted_in(tmp_path, changed(config, snapshots=[], evaluate_every=5), 5)
    assert load_checkpoint(tmp_path / "checkpoint") is None


def test_how_many_clients_work_at_once_may_change_on_the_way(whole: Path, config: Config, tmp_path: Path) -> None:
    interrupted_in(tmp_path, config, 4)
    run = Run(tmp_path, changed(config, chunk=1))
    run.execute()
    assert run.resumed_from == 3
    one, two = contents(tmp_path), contents(whole)
    assert one.pop("config.toml") != two.pop("config.toml")
    assert one == two


def test_the_number_of_threads_is_kept_through_an_interruption(tmp_path: Path, config: Config) -> None:
    mine = changed(config, threads=0)
    interrupted_in(tmp_path, mine, 5)
    torch.set_num_threads(2)  # as on another machine
    result = Run(tmp_path, mine).execute()
    assert result["environment"]["threads"] == torch.get_num_threads() == 1


def test_other_training_data_under_the_same_name_is_refused(tmp_path: Path, config: Config) -> None:
    data = write_dataset(tmp_path / "data")
    mine = replace(config, sweep=[SweepBlock([str(data)], ["none"])])
    interrupted_in(tmp_path / "run", mine, 5)
    write_dataset(data, seed=8)
    with pytest.raises(CheckpointError, match="training data has changed"):
        Run(tmp_path / "run", mine).execute()


def test_the_checkpoint_is_read_once(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupted_in(tmp_path, config, 5)
    read: list[Path] = []
    monkeypatch.setattr(runs, "load_checkpoint", lambda folder: read.append(folder) or load_checkpoint(folder))
    run = Run(tmp_path, config)
    run.execute()
    assert run.resumed_from == 4
    assert read == [tmp_path / "checkpoint"]


def test_a_checkpoint_of_an_earlier_version_names_its_data_by_a_path(
    whole: Path, config: Config, tiny: Path, tmp_path: Path
) -> None:
    interrupted_in(tmp_path, config, 5)
    result = load_checkpoint(tmp_path / "checkpoint")
    assert result is not None
    own = {key: value for key, value in result[1].items() if key not in ("schema", "file", "sha256")}
    save_checkpoint(tmp_path / "checkpoint", result[0], {**own, "data": {str(tiny): own["data"]["tiny"]}})
    Run(tmp_path, config).execute()
    assert_same(tmp_path, whole)


@pytest.mark.parametrize("damage", ["deleted", "shortened", "not JSON", "not UTF-8", "too deep", "a list"])
def test_metrics_that_do_not_fit_the_checkpoint_are_an_error(config: Config, tmp_path: Path, damage: str) -> None:
    interrupted_in(tmp_path, config, 5)
    metrics = tmp_path / "metrics.jsonl"
    content = metrics.read_bytes()
    if damage == "deleted":
        metrics.unlink()
    else:
        fill = {"not UTF-8": b"\xff", "too deep": b"[", "a list": b"[]\n"}.get(damage, b"x")
        metrics.write_bytes(content[:-20] if damage == "shortened" else (fill * len(content))[: len(content)])
    with pytest.raises(CheckpointError):
        Run(tmp_path, config).execute()


@pytest.mark.parametrize(
    ("tensors", "notes"),
    [
        ({"recent": None}, {}),
        ({"params": None}, {}),
        ({"recent": torch.zeros(1, 1)}, {}),
        ({"params": torch.zeros(3, 7)}, {}),
        ({"params": torch.zeros(13426)}, {}),
        ({"params": torch.zeros(3, 13426, dtype=torch.float64)}, {}),
        ({"total": torch.full((3, 3), torch.inf, dtype=torch.float64)}, {}),
        ({"rounds": torch.tensor([-5])}, {}),
        ({"total": torch.zeros(3, 3).to(torch.float8_e4m3fn)}, {}),
        ({}, {"metrics_bytes": None}),
        ({}, {"metrics_bytes": "many"}),
        ({}, {"metrics_bytes": -1}),
        ({}, {"ledger": None}),
        ({}, {"ledger": "whole"}),
        ({}, {"ledger": {}}),
        ({}, {"ledger": {"bytes": True}}),
        ({}, {"ledger": {"bytes": 1, "head": "", "entries": 1}}),
        ({}, {"digest": None}),
        ({}, {"device": "cuda"}),
        ({}, {"data": {}}),
    ],
    ids=str,
)
def test_a_checkpoint_with_other_content_is_a_typed_error(
    config: Config, tmp_path: Path, tensors: dict[str, Any], notes: dict[str, Any]
) -> None:
    interrupted_in(tmp_path, config, 5)
    result = load_checkpoint(tmp_path / "checkpoint")
    assert result is not None
    new_tensors, new_notes = {**result[0], **tensors}, {**result[1], **notes}
    kept = {name: tensor for name, tensor in new_tensors.items() if tensor is not None}
    own = {key: value for key, value in new_notes.items() if key not in ("schema", "file", "sha256")}
    save_checkpoint(tmp_path / "checkpoint", kept, {key: value for key, value in own.items() if value is not None})
    with pytest.raises(EquipoiseError):
        Run(tmp_path, config).execute()
