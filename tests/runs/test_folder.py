"""The one reader of run folders: what a run wrote comes back, and what is missing or damaged is named."""

from __future__ import annotations

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from equipoise.engine.sweep import Sweep
from equipoise.errors import CheckpointError, ConfigError, StorageError
from equipoise.runs.config import Config
from equipoise.runs.folder import RESULT, RunFolder
from equipoise.runs.metrics_file import METRICS
from equipoise.runs.snapshot import snapshot_path
from tests.helpers import contents
from tests.runs.small_run import FEDERATIONS, ROUNDS, interrupted_in


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """A copy of a finished run, to be damaged."""
    return Path(shutil.copytree(whole, tmp_path / "run"))


# --- what a run wrote ------------------------------------------------------------------------------------------


def test_a_finished_run_is_read_back_and_left_as_it_is(whole: Path, config: Config) -> None:
    before = contents(whole)
    run = RunFolder(str(whole))
    assert run.config == replace(config, settings=config.settings.replace(route="layers"))
    assert run.snapshots() == [0, 3, ROUNDS]
    assert [(row["round"], row["mechanism"]) for row in run.metrics()] == [
        (round_number, name) for round_number in (2, 4, 5) for name, _ in FEDERATIONS
    ]
    assert run.results() == json.loads(before[RESULT])["federations"]
    assert contents(whole) == before


def test_weights_are_the_global_models_in_the_order_of_the_configuration(whole: Path, config: Config) -> None:
    sweep = Sweep(config.settings, config.federations())
    run = RunFolder(whole)
    for round_number in run.snapshots():
        sweep.train(round_number)
        assert torch.equal(run.weights(round_number, sweep.batched.layout), sweep.models())


def test_a_run_that_is_under_way_has_no_results_yet(config: Config, tmp_path: Path) -> None:
    interrupted_in(tmp_path, config, 4)
    run = RunFolder(tmp_path)
    assert run.results() == []
    assert run.snapshots() == [0, 3]
    assert {row["round"] for row in run.metrics()} == {2}


# --- what is missing or damaged ----------------------------------------------------------------------------------


def test_a_folder_without_a_configuration_is_no_run_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(CheckpointError, match=f"{path.name} is not a run folder: it has no config.toml"):
            RunFolder(path)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=tmp_path.name):  # not "", the name of "."
        RunFolder(".")


def test_a_name_that_no_folder_can_have_is_no_run_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a run folder"):
        RunFolder(tmp_path / ("x" * 300))


def test_a_damaged_configuration_is_named(folder: Path) -> None:
    (folder / "config.toml").write_text("rounds = 0")
    run = RunFolder(folder)
    with pytest.raises(ConfigError, match="rounds=0"):
        _ = run.config


def test_a_run_without_snapshots_says_so(folder: Path) -> None:
    shutil.rmtree(folder / "snapshots")
    for look in (RunFolder(folder).snapshots, lambda: RunFolder(folder).chosen([0])):
        with pytest.raises(CheckpointError, match=r"run folder .*run has no snapshots"):
            look()


def test_snapshots_that_lie_elsewhere_are_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "snapshots").rename(tmp_path / "elsewhere")
    (folder / "snapshots").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match=r"snapshots in the folder .* is a link"):
        RunFolder(folder).snapshots()


def test_other_files_among_the_snapshots_are_not_taken_for_one(folder: Path) -> None:
    for name in ("round-x.safetensors", "round-.safetensors", ".round-000004.safetensors.partial", "notes.txt"):
        (folder / "snapshots" / name).write_bytes(b"")
    assert RunFolder(folder).snapshots() == [0, 3, ROUNDS]


@pytest.mark.parametrize(("rounds", "expected"), [(None, [0, 3, 5]), ([5, 0, 5], [0, 5]), ([3], [3]), ((5, 3), [3, 5])])
def test_rounds_can_be_chosen(whole: Path, rounds: Any, expected: list[int]) -> None:
    assert RunFolder(whole).chosen(rounds) == expected


@pytest.mark.parametrize(
    ("rounds", "missing"),
    [
        ([1], "There is no snapshot of round 1."),
        ([0, 2, 7], "There is no snapshot of round 2, 7."),
        ([], "No snapshot was named."),
    ],
)
def test_a_round_without_a_snapshot_is_refused_with_those_there_are(
    whole: Path, rounds: list[int], missing: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        RunFolder(whole).chosen(rounds)
    assert caught.value.cause == missing
    assert caught.value.remedy == "There are: 0, 3, 5."


def test_a_damaged_snapshot_is_named(folder: Path, config: Config) -> None:
    layout = Sweep(config.settings, config.federations()).batched.layout
    (folder / "snapshots" / "round-000003.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"round-000003\.safetensors cannot be read"):
        RunFolder(folder).weights(3, layout)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"[1, 2]\n", "Line 10 of metrics.jsonl is not a JSON object."),
        (b"{not JSON}\n", "Line 10 of metrics.jsonl is damaged"),
        (b'{"round": 5}\n', "Line 10 of metrics.jsonl has no valid 'dataset'."),
        (
            b'{"dataset": "a", "mechanism": "none", "budget": null, "seed": 1}\n',
            "Line 10 of metrics.jsonl has no valid",
        ),
    ],
    ids=["a list", "no JSON", "no federation", "no round"],
)
def test_a_line_that_is_no_record_is_named(folder: Path, line: bytes, words: str) -> None:
    with (folder / METRICS).open("ab") as file:
        file.write(line)
    with pytest.raises(CheckpointError) as caught:
        RunFolder(folder).metrics()
    assert words in caught.value.cause


def test_a_path_of_an_earlier_version_is_read_as_a_name(folder: Path, tiny: Path) -> None:
    path = folder / METRICS
    new = RunFolder(folder).metrics()
    assert {row["dataset"] for row in new} == {"tiny"}
    path.write_text(path.read_text().replace('"dataset": "tiny"', f'"dataset": "{tiny}"'))
    assert str(tiny) in path.read_text()
    assert RunFolder(folder).metrics() == new


@pytest.mark.parametrize("torn", [b'{"round": 6, "accur', b"[1, 2]", b'{"round": 6}'])
def test_a_last_line_without_its_end_is_left_for_later(folder: Path, torn: bytes) -> None:
    """Somebody may be writing it."""
    before = RunFolder(folder).metrics()
    with (folder / METRICS).open("ab") as file:
        file.write(torn)
    assert RunFolder(folder).metrics() == before


def test_rows_must_hold_the_numbers_that_are_needed(folder: Path) -> None:
    run = RunFolder(folder)
    assert len(run.metrics(["accuracy", "round"])) == 9
    for needed in (["absent"], ["accuracy", "mechanism"], ["client_accuracy"]):
        with pytest.raises(CheckpointError, match=r"Line 1 of metrics\.jsonl has no valid"):
            run.metrics(needed)


def test_before_the_first_evaluation_there_are_no_rows(folder: Path) -> None:
    (folder / METRICS).unlink()
    assert RunFolder(folder).metrics(["accuracy"]) == []


@pytest.mark.parametrize(
    "result",
    [
        [],
        {},
        {"federations": None},
        {"federations": {}},
        {"federations": 5},
        {"federations": "abc"},
        {"federations": []},
        {"federations": [{}, {}]},
        {"federations": [{}, {}, 3]},
        {"federations": [{}] * 4},
    ],
    ids=str,
)
def test_results_that_do_not_fit_the_configuration_are_none(folder: Path, result: Any) -> None:
    (folder / RESULT).write_text(json.dumps(result))
    assert RunFolder(folder).results() == []


def test_results_that_are_no_json_are_named(folder: Path) -> None:
    (folder / RESULT).write_text("{")
    with pytest.raises(CheckpointError, match=r"The result result\.json cannot be read"):
        RunFolder(folder).results()


def test_a_snapshot_of_a_round_after_the_last_is_refused(folder: Path) -> None:
    there = RunFolder(folder).snapshots()
    shutil.copy(snapshot_path(folder, there[0]), snapshot_path(folder, 10**9))
    assert RunFolder(folder).chosen(there) == there
    with pytest.raises(CheckpointError, match="snapshot of round 1000000000, and the run has"):
        RunFolder(folder).chosen(None)


def test_a_folder_from_a_larger_machine_is_read_with_what_there_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "config.toml"
    text = re.sub(r"(?m)^threads = .*$", "threads = 4096", path.read_text())
    path.write_text(re.sub(r"(?m)^device = .*$", 'device = "cuda"', text))
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    run = RunFolder(folder)
    assert (run.config.settings.run.device, run.config.settings.run.threads) == ("cpu", os.cpu_count())
    gpu, threads = run.notes
    assert gpu == "The run was trained on a GPU; this machine has none, and its CPU was used."
    assert threads.startswith("The run had 4096 CPU threads; this machine has")
