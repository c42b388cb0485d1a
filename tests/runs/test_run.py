"""A run folder: everything the contract names, nothing of anybody else's touched, and no private image."""

from __future__ import annotations

import json
import platform
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from equipoise.data.loading import load
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.errors import CheckpointError, StorageError
from equipoise.files import locked
from equipoise.models.bundled import LeNetZhu
from equipoise.runs.config import Config, SweepBlock, resolve
from equipoise.runs.run import Run
from equipoise.runs.snapshot import save_snapshot
from tests.helpers import contents, write_dataset
from tests.runs.small_run import FEDERATIONS, ROUNDS, assert_same, changed, interrupted_in, strict

# --- the contract ---------------------------------------------------------------------------------------------


def test_the_folder_holds_what_the_contract_names(whole: Path) -> None:
    assert set(contents(whole)) == {
        "config.toml",
        "metrics.jsonl",
        "ledger.jsonl",
        "result.json",
        "model.safetensors",
        "checkpoint/latest.json",
        f"checkpoint/state-{ROUNDS:08d}.safetensors",
        "snapshots/round-000000.safetensors",
        "snapshots/round-000003.safetensors",
        f"snapshots/round-{ROUNDS:06d}.safetensors",
    }


def test_config_toml_is_the_whole_configuration(whole: Path, config: Config) -> None:
    taken = config.settings.replace(route="layers")
    assert resolve(whole / "config.toml") == replace(config, settings=taken)


def test_a_resumed_run_takes_the_route_that_it_took(config: Config, tmp_path: Path) -> None:
    by_vmap = replace(config, settings=config.settings.replace(route="vmap"))
    whole = Run(tmp_path / "whole", by_vmap).execute()
    interrupted_in(tmp_path / "cut", by_vmap, 4)
    assert Run(tmp_path / "cut", config).sweep.batched.route == "vmap"
    with pytest.raises(CheckpointError, match=r"takes the route 'vmap', not 'loop'"):
        Run(tmp_path / "cut", replace(config, settings=config.settings.replace(route="loop"))).execute()
    resumed = Run(tmp_path / "cut", config).execute()
    assert resumed["federations"] == whole["federations"]


def test_the_result_has_the_documented_keys_and_is_what_execute_returned(config: Config, tmp_path: Path) -> None:
    returned = Run(tmp_path, config).execute()
    result = strict((tmp_path / "result.json").read_text())
    assert result == returned
    assert result["schema"] == 1
    assert result["experiment"] == "seeded"
    assert "No (epsilon, delta) is claimed" in result["claim"]
    assert {"equipoise", "python", "torch", "numpy", "system", "device", "threads"} <= set(result["environment"])
    assert [(row["mechanism"], row["budget"]) for row in result["federations"]] == FEDERATIONS
    for row in result["federations"]:
        assert {
            "dataset", "mechanism", "budget", "seed", "rounds", "eta", "server", "accuracy", "best_validation_round",
            "accuracy_at_best_validation", "mean_utility_loss", "final_intensity",
        } <= set(row)  # fmt: skip
        assert (row["rounds"], row["eta"], row["seed"]) == (ROUNDS, 0.1, 1)
        assert row["server"]["rule"] == "mean"
        assert 0 <= row["accuracy"] <= 1
        assert 0 <= row["accuracy_at_best_validation"] <= 1
        assert row["best_validation_round"] in (2, 4, 5)
        assert len(row["final_intensity"]) == config.settings.protection.clients


def test_the_environment_names_neither_the_machine_nor_a_path(whole: Path) -> None:
    text = json.dumps(json.loads((whole / "result.json").read_text())["environment"])
    assert "/" not in text
    assert not platform.node() or platform.node() not in text


def test_no_file_but_the_configuration_names_a_path(whole: Path, tiny: Path) -> None:
    texts = {name: content for name, content in contents(whole).items() if str(tiny).encode() in content}
    assert set(texts) == {"config.toml"}, "what a run needs to go on"
    outcome = json.loads((whole / "result.json").read_text())
    assert {row["dataset"] for row in outcome["federations"]} == {"tiny"}


def test_folders_of_one_name_are_told_apart(config: Config, tmp_path: Path) -> None:
    folders = [str(write_dataset(tmp_path / name / "data", seed=seed)) for seed, name in enumerate("ab")]
    run = Run(tmp_path / "run", replace(changed(config, rounds=1), sweep=[SweepBlock(folders, ["none"])]))
    outcome = run.execute()
    assert [row["dataset"] for row in outcome["federations"]] == ["data", "data-2"]
    rows = [strict(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["dataset"] for row in rows] == ["data", "data-2"]
    latest = json.loads((tmp_path / "run" / "checkpoint" / "latest.json").read_text())
    assert list(latest["data"]) == ["data", "data-2"]
    assert len(set(latest["data"].values())) == 2


def test_full_records_reach_the_result_also_after_an_interruption(config: Config, tmp_path: Path) -> None:
    mine = changed(config, full_every=2)
    once = Run(tmp_path / "once", mine).execute()["federations"]
    assert [row["full_records"] for row in once] == [4, 4, 4]
    assert once[0]["mean_full_utility_loss"] != once[0]["mean_utility_loss"]
    interrupted_in(tmp_path / "twice", mine, 5)
    assert Run(tmp_path / "twice", mine).execute()["federations"] == once


def test_metrics_have_a_line_per_federation_and_evaluated_round(whole: Path) -> None:
    rows = [strict(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [(row["round"], row["mechanism"], row["budget"]) for row in rows] == [
        (round_number, *federation) for round_number in (2, 4, 5) for federation in FEDERATIONS
    ]
    for row in rows:
        assert row["experiment"] == "seeded"
        assert 0 <= row["accuracy"] <= 1
        assert row["rounds_averaged"] == (1 if row["round"] == 5 else 2)


def test_the_result_follows_from_the_metrics(whole: Path) -> None:
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    outcome = json.loads((whole / "result.json").read_text())["federations"]
    for place, result in enumerate(outcome):
        mine = rows[place :: len(FEDERATIONS)]
        best = max(mine, key=lambda row: row["validation_accuracy"])  # the first of equals
        assert result["accuracy"] == mine[-1]["accuracy"]
        assert result["best_validation_round"] == best["round"]
        assert result["accuracy_at_best_validation"] == best["accuracy"]
        assert result["final_intensity"] == mine[-1]["intensity_last"]
        mean = sum(row["utility_loss"] * row["rounds_averaged"] for row in mine) / ROUNDS
        assert result["mean_utility_loss"] == pytest.approx(mean, rel=1e-12, abs=1e-15)
    low = 7.99975 * (1 - 1e-4)
    assert all(low <= size <= 2 * 7.99975 * (1 + 1e-4) for size in outcome[0]["final_intensity"])
    assert outcome[1]["final_intensity"] == [0.0] * 4
    assert outcome[1]["mean_utility_loss"] == 0


def test_the_model_on_disk_has_the_accuracy_in_the_result(whole: Path, tiny: Path) -> None:
    tensors, test = load_file(whole / "model.safetensors"), load(tiny).test
    for place, row in enumerate(json.loads((whole / "result.json").read_text())["federations"]):
        model, prefix = LeNetZhu(), f"federation-{place}/"
        state = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        model.load_state_dict(state)  # strict: every tensor, under the module's own names and shapes
        right = (model(test.inputs).argmax(1) == test.labels).double().mean()
        assert float(right) == row["accuracy"]


def test_snapshots_are_the_global_models_of_their_rounds(whole: Path, config: Config) -> None:
    sweep = Sweep(config.settings, config.federations())
    for round_number in (0, 3, ROUNDS):
        sweep.train(round_number)
        path = whole / "snapshots" / f"round-{round_number:06d}.safetensors"
        stored = load_file(path)
        assert len(stored) == len(FEDERATIONS) * len(sweep.batched.layout.slots)
        for place in range(len(FEDERATIONS)):
            flat = sweep.state.params[sweep.order.index(place)]
            for name, tensor in sweep.batched.layout.unflatten(flat).items():
                assert torch.equal(stored[f"federation-{place}/{name}"], tensor), (round_number, place, name)
        with safe_open(path, "pt") as file:
            notes = json.loads(file.metadata()["equipoise"])
        assert (notes["round"], notes["model"]) == (str(round_number), "lenet-zhu")
    last, model = load_file(whole / "snapshots" / f"round-{ROUNDS:06d}.safetensors"), whole / "model.safetensors"
    assert all(torch.equal(last[name], tensor) for name, tensor in load_file(model).items())


def test_a_diverged_run_still_writes_strict_json(config: Config, tmp_path: Path) -> None:
    Run(tmp_path, changed(config, eta=1e38, rounds=2)).execute()
    strict((tmp_path / "result.json").read_text())
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        strict(line)


# --- going on -------------------------------------------------------------------------------------------------


def test_two_runs_give_the_same_bits(whole: Path, config: Config, tmp_path: Path) -> None:
    Run(tmp_path, config).execute()
    assert_same(tmp_path, whole)


def test_running_a_finished_run_again_changes_nothing(whole: Path, config: Config) -> None:
    before, calls = contents(whole), []
    run = Run(whole, config)
    result = run.execute(on_start=calls.append, on_round=calls.append)
    assert run.resumed_from == ROUNDS
    assert calls == [ROUNDS], "on_start alone: no round was trained"
    assert result == json.loads(before["result.json"])
    assert contents(whole) == before


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "key"),
    [({"eta": 0.2}, "eta"), ({"rounds": 9}, "rounds"), ({"clip": None}, "clip"), ({"threads": 0}, "threads")],
)
def test_other_settings_in_the_same_folder_are_refused_by_name(
    whole: Path, config: Config, change: dict[str, Any], key: str
) -> None:
    before = contents(whole)
    with pytest.raises(CheckpointError, match=rf"other settings \({key}: \S+ there, \S+ here\)\.") as caught:
        Run(whole, changed(config, **change)).execute()
    assert "--fresh" in caught.value.remedy
    assert contents(whole) == before


def test_other_federations_in_the_same_folder_are_refused(whole: Path, config: Config) -> None:
    before = contents(whole)
    with pytest.raises(CheckpointError, match=r"\(budget: also 0\.99 there; eta: 0\.1 there, 0\.2 here\)\."):
        Run(whole, replace(changed(config, eta=0.2), sweep=config.sweep[:2])).execute()
    assert contents(whole) == before


def test_results_without_a_checkpoint_are_not_overwritten(tmp_path: Path, config: Config) -> None:
    Run(tmp_path, config).execute()
    (tmp_path / "checkpoint" / "latest.json").unlink()
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="results without a checkpoint"):
        Run(tmp_path, config).execute()
    assert contents(tmp_path) == before


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_of_something_else_is_never_written_into(tmp_path: Path, config: Config, fresh: bool) -> None:
    theirs = {"config.toml": b"title = 'a site'", "result.json": b"{}", "checkpoint/latest.json": b"{}"}
    for name, content in theirs.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    with pytest.raises(CheckpointError, match="not empty and not a run folder"):
        Run(tmp_path, config, fresh).execute()
    assert contents(tmp_path) == theirs
    assert not (tmp_path / ".lock").exists()


@pytest.mark.parametrize("name", ["checkpoint", "snapshots", "audit"])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_that_a_run_links_to_is_neither_filled_nor_emptied(
    whole: Path, config: Config, tmp_path: Path, name: str, fresh: bool
) -> None:
    elsewhere = tmp_path / "elsewhere"
    for part in ("checkpoint/latest.json", "snapshots/round-000001.safetensors", "audit/x.npz"):
        (elsewhere / part).parent.mkdir(parents=True)
        (elsewhere / part).write_text("of another run")
    before = contents(elsewhere)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_bytes((whole / "config.toml").read_bytes())
    (tmp_path / "run" / name).symlink_to(elsewhere / name)
    with pytest.raises(StorageError, match=f"{name} in the folder run is a link"):
        Run(tmp_path / "run", config, fresh=fresh).execute()
    assert contents(elsewhere) == before


def test_the_second_process_is_refused(config: Config, tmp_path: Path) -> None:
    with locked(tmp_path), pytest.raises(CheckpointError, match="Another process"):
        Run(tmp_path, config).execute()
    assert contents(tmp_path) == {}


def test_fresh_does_not_touch_a_folder_that_another_process_uses(config: Config, tmp_path: Path) -> None:
    Run(tmp_path, config).execute()
    before = contents(tmp_path)
    with locked(tmp_path), pytest.raises(CheckpointError, match="Another process"):
        Run(tmp_path, config, fresh=True).execute()
    assert contents(tmp_path) == before


def test_fresh_replaces_our_own_files_and_nothing_else(whole: Path, config: Config, tmp_path: Path) -> None:
    Run(tmp_path, changed(config, eta=0.2, snapshots=[0, 1, 2, 3])).execute()
    mine = {"notes.txt": b"mine", "report.html": b"<p>", "figures/a.png": b"png", ".hidden": b"h"}
    for name, content in mine.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(content)
    for name in ("audit.json", "audit-1.json", "audit-1.svg", "audit/0123.npz"):  # of the weights that are replaced
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"old")
    run = Run(tmp_path, config, fresh=True)
    run.execute()
    assert run.resumed_from == 0
    assert contents(tmp_path) == {**contents(whole), **mine}


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_that_cannot_be_made_is_a_storage_error(config: Config, tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="Cannot write run: file is a file, not a folder"):
        Run(tmp_path / "file" / "run", config, fresh).execute()
    with pytest.raises(StorageError, match="Cannot write file: file is a file, not a folder"):
        Run(tmp_path / "file", config, fresh).execute()
    with pytest.raises(StorageError, match="Choose a shorter name"):
        Run(tmp_path / ("x" * 300), config, fresh).execute()
    assert contents(tmp_path) == {"file": b"x"}


# --- privacy of the folder ----------------------------------------------------------------------------------------


def fragments(image: np.ndarray, mean: float, std: float) -> list[bytes]:
    """Every row of the image in each form in which it could have been written."""
    pixels = image.astype(np.float64) / 255
    forms = [image] + [
        values.astype(kind) for values in (pixels, (pixels - mean) / std) for kind in (np.float16, np.float32, "f8")
    ]
    forms.append(torch.from_numpy(image).float().div(255).sub(mean).div(std).numpy())  # with torch's own rounding
    rows = [row.tobytes() for form in forms for row in form]
    text = [sep.join(map(str, row.tolist())).encode() for row in image for sep in (", ", ",", " ")]
    return rows + text


def leaks(folder: Path, pieces: list[bytes]) -> list[str]:
    return [name for name, content in contents(folder).items() if any(piece in content for piece in pieces)]


def test_no_private_image_is_in_the_folder(tmp_path: Path) -> None:
    data = write_dataset(tmp_path / "data", train=60)
    stored = dict(np.load(data / "train.npz"))
    marker = np.random.default_rng(5).integers(0, 256, (28, 28), dtype=np.uint8)
    stored["images"][:2] = marker
    np.savez(data / "train.npz", **stored)
    dataset = load(data)
    pieces = fragments(marker, float(dataset.mean), float(dataset.std))
    marked = (dataset.pixels(dataset.train.inputs[:, 0]) * 255 - torch.from_numpy(marker)).abs().amax((1, 2)) < 0.01
    assert int(marked.sum()) == 2, "the marker is among the training images"

    # two clients with all their images in every mini-batch, so that the marker is used in every round
    size = len(dataset.train) // 2
    settings = Settings.flat(
        rounds=4, clients=2, batch=size, partition="iid", evaluate_every=2, full_every=2, model="mlp", steps=2
    )
    blocks = [SweepBlock([str(data)], ["none", "pl-learn"], [0.98]), SweepBlock([str(data)], ["ls-static"], [200])]
    folder = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        Run(folder, Config(settings, blocks)).execute(on_round=_stop_at_three)
    assert leaks(folder, pieces) == []
    Run(folder, Config(settings, blocks)).execute()
    assert len(contents(folder)) >= 7
    assert leaks(folder, pieces) == []

    planted = dataset.train.inputs[marked][:1]
    save_snapshot(folder / "planted.safetensors", {"image": planted}, {})
    (folder / "planted.bin").write_bytes(b"..." + marker[3].tobytes() + b"...")
    assert leaks(folder, pieces) == ["planted.bin", "planted.safetensors"], "the search itself works"


def _stop_at_three(round_number: int) -> None:
    if round_number == 3:
        raise KeyboardInterrupt


def test_whose_rows_they_are_is_part_of_the_data(config: Config, tiny: Path, tmp_path: Path) -> None:
    folder = tmp_path / "grouped"
    folder.mkdir()
    (folder / "test.npz").write_bytes((tiny / "test.npz").read_bytes())
    with np.load(tiny / "train.npz") as archive:
        arrays = dict(archive)
    seen = []
    for groups in (None, np.arange(len(arrays["labels"])), np.arange(len(arrays["labels"])) + 1):
        np.savez(folder / "train.npz", **arrays, **({} if groups is None else {"groups": groups}))
        blocks = [SweepBlock([str(folder)], ["none"])]
        seen += Run(tmp_path / "run", replace(config, sweep=blocks))._fingerprints.values()
    assert len(set(seen)) == 3
