"""A run folder: everything the contract names, the same bits after any interruption, and no private image."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from equipoise.data.loading import load
from equipoise.engine.draws import Draws
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.errors import CheckpointError, ConfigError, EquipoiseError, LedgerError, LimitError, StorageError
from equipoise.files import locked
from equipoise.ledger.ledger import verify
from equipoise.models.bundled import LeNetZhu
from equipoise.runs import run as runs
from equipoise.runs.checkpoint import load_checkpoint, save_checkpoint
from equipoise.runs.config import Config, SweepBlock, resolve
from equipoise.runs.entries import last_round
from equipoise.runs.run import Run
from equipoise.runs.snapshot import save_snapshot
from tests.helpers import contents, write_dataset

ROUNDS = 5
FEDERATIONS = [("pl-learn", 0.98), ("none", None), ("pl-learn", 0.99)]  # mechanisms mixed: the engine reorders them


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors: a second thread gains nothing, and waits where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "tiny")


@pytest.fixture(scope="module")
def config(tiny: Path) -> Config:
    settings = Settings(rounds=ROUNDS, evaluate_every=2, snapshots=[0, 3], steps=2, threads=1)
    data = [str(tiny)]
    return Config(
        settings,
        [
            SweepBlock(data, ["pl-learn"], [0.98]),
            SweepBlock(data, ["none"]),
            SweepBlock(data, ["pl-learn"], [0.99]),
        ],
    )


@pytest.fixture(scope="module")
def whole(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    Run(folder, config).execute()
    return folder


def changed(config: Config, **change: Any) -> Config:
    return replace(config, settings=replace(config.settings, **change))


def assert_same(folder: Path, other: Path, what: str = "") -> None:
    one, two = contents(folder), contents(other)
    assert set(one) == set(two), what
    assert [name for name in one if one[name] != two[name]] == [], what


def strict(text: str) -> Any:
    """Parsed as JSON proper, which has no NaN and no Infinity."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


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
    assert resolve(whole / "config.toml") == config


def test_the_result_has_the_documented_keys_and_is_what_execute_returned(config: Config, tmp_path: Path) -> None:
    returned = Run(tmp_path, config).execute()
    found = strict((tmp_path / "result.json").read_text())
    assert found == returned
    assert found["schema"] == 1
    assert found["experiment"] == "seeded"
    assert "No (epsilon, delta) is claimed" in found["claim"]
    assert {"equipoise", "python", "torch", "numpy", "system", "device", "threads"} <= set(found["environment"])
    assert [(row["mechanism"], row["budget"]) for row in found["federations"]] == FEDERATIONS
    for row in found["federations"]:
        assert {
            "dataset", "mechanism", "budget", "seed", "rounds", "eta", "server", "accuracy", "best_validation_round",
            "accuracy_at_best_validation", "mean_utility_loss", "final_intensity",
        } <= set(row)  # fmt: skip
        assert (row["rounds"], row["eta"], row["seed"]) == (ROUNDS, 0.1, 1)
        assert row["server"]["rule"] == "mean"
        assert 0 <= row["accuracy"] <= 1
        assert 0 <= row["accuracy_at_best_validation"] <= 1
        assert row["best_validation_round"] in (2, 4, 5)
        assert len(row["final_intensity"]) == config.settings.clients


def test_the_environment_names_neither_the_machine_nor_a_path(whole: Path) -> None:
    text = json.dumps(json.loads((whole / "result.json").read_text())["environment"])
    assert "/" not in text
    assert not platform.node() or platform.node() not in text


def test_metrics_have_a_line_per_federation_and_evaluated_round(whole: Path) -> None:
    rows = [strict(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert [(row["round"], row["mechanism"], row["budget"]) for row in rows] == [
        (when, *federation) for when in (2, 4, 5) for federation in FEDERATIONS
    ]
    for row in rows:
        assert row["experiment"] == "seeded"
        assert 0 <= row["accuracy"] <= 1
        assert row["rounds_averaged"] == (1 if row["round"] == 5 else 2)


def test_the_result_follows_from_the_metrics(whole: Path) -> None:
    rows = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    found = json.loads((whole / "result.json").read_text())["federations"]
    for place, result in enumerate(found):
        mine = rows[place :: len(FEDERATIONS)]
        best = max(mine, key=lambda row: row["validation_accuracy"])  # the first of equals
        assert result["accuracy"] == mine[-1]["accuracy"]
        assert result["best_validation_round"] == best["round"]
        assert result["accuracy_at_best_validation"] == best["accuracy"]
        assert result["final_intensity"] == mine[-1]["intensity_last"]
        mean = sum(row["utility_loss"] * row["rounds_averaged"] for row in mine) / ROUNDS
        assert result["mean_utility_loss"] == pytest.approx(mean, rel=1e-12, abs=1e-15)
    low = 7.99975 * (1 - 1e-4)
    assert all(low <= size <= 2 * 7.99975 * (1 + 1e-4) for size in found[0]["final_intensity"])
    assert found[1]["final_intensity"] == [0.0] * 4
    assert found[1]["mean_utility_loss"] == 0


def test_the_model_on_disk_has_the_accuracy_in_the_result(whole: Path, tiny: Path) -> None:
    tensors, test = load_file(whole / "model.safetensors"), load(tiny).test
    for place, row in enumerate(json.loads((whole / "result.json").read_text())["federations"]):
        model, prefix = LeNetZhu(), f"federation-{place}/"
        state = {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
        model.load_state_dict(state)  # strict: every tensor, under the module's own names and shapes
        right = (model(test.images).argmax(1) == test.labels).double().mean()
        assert float(right) == row["accuracy"]


def test_snapshots_are_the_global_models_of_their_rounds(whole: Path, config: Config) -> None:
    sweep = Sweep(config.settings, config.federations())
    for when in (0, 3, ROUNDS):
        sweep.train(when)
        path = whole / "snapshots" / f"round-{when:06d}.safetensors"
        stored = load_file(path)
        assert len(stored) == len(FEDERATIONS) * len(sweep.batched.layout.slots)
        for place in range(len(FEDERATIONS)):
            flat = sweep.state.params[sweep.order.index(place)]
            for name, tensor in sweep.batched.layout.unflatten(flat).items():
                assert torch.equal(stored[f"federation-{place}/{name}"], tensor), (when, place, name)
        with safe_open(path, "pt") as file:
            notes = json.loads(file.metadata()["equipoise"])
        assert (notes["round"], notes["model"]) == (str(when), "lenet-zhu")
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
    found = run.execute(on_start=calls.append, on_round=calls.append)
    assert run.resumed_from == ROUNDS
    assert calls == [ROUNDS], "on_start alone: no round was trained"
    assert found == json.loads(before["result.json"])
    assert contents(whole) == before


def interrupted_in(folder: Path, config: Config, when: int) -> None:
    def stop(at: int) -> None:
        if at == when:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run(folder, config).execute(on_round=stop)


@pytest.mark.parametrize(("when", "resumed"), [(1, 0), (2, 0), (3, 2), (4, 3), (5, 4)])
def test_interrupted_in_any_round_it_goes_on_to_the_same_bits(
    whole: Path, config: Config, tmp_path: Path, when: int, resumed: int
) -> None:
    interrupted_in(tmp_path, config, when)
    run, started = Run(tmp_path, config), []
    run.execute(on_start=started.append)
    assert started == [run.resumed_from] == [resumed]
    assert_same(tmp_path, whole)


def test_interrupted_again_and_again(whole: Path, config: Config, tmp_path: Path) -> None:
    for when in (1, 2, 2, 4, 5, 5):
        interrupted_in(tmp_path, config, when)
    Run(tmp_path, config).execute()
    assert_same(tmp_path, whole)


@pytest.mark.parametrize("when", range(2, ROUNDS + 1))
def test_between_evaluations_the_clock_makes_checkpoints(
    whole: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: int
) -> None:
    monkeypatch.setattr("equipoise.engine.sweep.LENGTH", 1)
    monkeypatch.setattr(runs, "CHECKPOINT_SECONDS", -1.0)
    interrupted_in(tmp_path, config, when)
    run = Run(tmp_path, config)
    run.execute()
    assert run.resumed_from == when - 1
    assert_same(tmp_path, whole)


def test_a_checkpoint_is_not_made_at_every_event(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.engine.sweep.LENGTH", 1)
    interrupted_in(tmp_path, changed(config, snapshots=[], evaluate_every=5), 5)
    assert load_checkpoint(tmp_path / "checkpoint") is None


class Death(BaseException):
    """The process is gone: nothing catches it, and nothing is cleaned up after it."""


class Mortal:
    """Counts every operation by which files change, and dies before the chosen one; from then on nothing works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dies_before: int = -1, torn: bool = False):
        self.count, self.dies_before, self.torn = 0, dies_before, torn
        self.seen: list[str] = []
        monkeypatch.setattr(os, "fsync", lambda handle: None)  # the machine itself stays on, and the test fast
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (Path, "open")):
            monkeypatch.setattr(owner, name, self._watch(name, getattr(owner, name)))

    def _watch(self, name: str, genuine: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *more: Any, **named: Any) -> Any:
            if name == "open" and (more[0] if more else named.get("mode", "r")).startswith("r"):
                return genuine(target, *more, **named)
            if self.count == self.dies_before:
                if self.torn and name == "fsync" and os.fstat(target).st_size > 5:
                    self._tear(target)
                self.torn = False
                raise Death(f"before {name} {target}")
            self.count += 1
            self.seen.append(f"{name} {target}")
            return genuine(target, *more, **named)

        return call

    @staticmethod
    def _tear(handle: int) -> None:
        """The last bytes never reached the disk."""
        try:
            os.ftruncate(handle, os.fstat(handle).st_size - 5)
        except OSError:  # a folder
            return


def shortened(config: Config) -> Config:
    """As few rounds as have every kind of write."""
    return replace(changed(config, rounds=3, snapshots=[0], steps=1), sweep=config.sweep[:2])


@pytest.mark.parametrize("torn", [False, True])
def test_killed_before_any_change_of_a_file_it_goes_on_to_the_same_bits(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, torn: bool
) -> None:
    short = shortened(config)
    with monkeypatch.context() as patch:
        counted = Mortal(patch)
        Run(tmp_path / "whole", short).execute()
    assert counted.count > 40
    for point in [i for i in range(counted.count) if not torn or counted.seen[i].startswith("fsync")]:
        folder = tmp_path / f"{point}"
        with monkeypatch.context() as patch:
            Mortal(patch, point, torn)
            with pytest.raises(Death) as death:
                Run(folder, short).execute()
        Run(folder, short).execute()
        assert_same(folder, tmp_path / "whole", f"killed at operation {point} of {counted.count}, {death.value}")


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


def test_how_many_clients_work_at_once_may_change_on_the_way(whole: Path, config: Config, tmp_path: Path) -> None:
    interrupted_in(tmp_path, config, 4)
    run = Run(tmp_path, changed(config, chunk=1))
    run.execute()
    assert run.resumed_from == 3
    one, two = contents(tmp_path), contents(whole)
    assert one.pop("config.toml") != two.pop("config.toml")
    assert one == two


# --- refusals ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "key"),
    [({"eta": 0.2}, "eta"), ({"rounds": 9}, "rounds"), ({"clip": None}, "clip"), ({"threads": 0}, "threads")],
)
def test_other_settings_in_the_same_folder_are_refused_by_name(
    whole: Path, config: Config, change: dict[str, Any], key: str
) -> None:
    before = contents(whole)
    with pytest.raises(CheckpointError, match=f"differs in: {key}\\.") as caught:
        Run(whole, changed(config, **change)).execute()
    assert "--fresh" in caught.value.remedy
    assert contents(whole) == before


def test_other_federations_in_the_same_folder_are_refused(whole: Path, config: Config) -> None:
    before = contents(whole)
    with pytest.raises(CheckpointError, match=r"differs in: eta, sweep\."):
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


def test_other_training_data_under_the_same_name_is_refused(tmp_path: Path, config: Config) -> None:
    data = write_dataset(tmp_path / "data")
    mine = replace(config, sweep=[SweepBlock([str(data)], ["none"])])
    interrupted_in(tmp_path / "run", mine, 5)
    write_dataset(data, seed=8)
    with pytest.raises(CheckpointError, match="training data has changed"):
        Run(tmp_path / "run", mine).execute()


def test_the_number_of_threads_is_kept_through_an_interruption(tmp_path: Path, config: Config) -> None:
    mine = changed(config, threads=0)
    interrupted_in(tmp_path, mine, 5)
    torch.set_num_threads(2)  # as on another machine
    found = Run(tmp_path, mine).execute()
    assert found["environment"]["threads"] == torch.get_num_threads() == 1


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
    run = Run(tmp_path, config, fresh=True)
    run.execute()
    assert run.resumed_from == 0
    assert contents(tmp_path) == {**contents(whole), **mine}


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_that_cannot_be_made_is_a_storage_error(config: Config, tmp_path: Path, fresh: bool) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match="Cannot write"):
        Run(tmp_path / "file" / "run", config, fresh).execute()


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
    found = load_checkpoint(tmp_path / "checkpoint")
    assert found is not None
    new_tensors, new_notes = {**found[0], **tensors}, {**found[1], **notes}
    kept = {name: tensor for name, tensor in new_tensors.items() if tensor is not None}
    own = {key: value for key, value in new_notes.items() if key not in ("schema", "file", "sha256")}
    save_checkpoint(tmp_path / "checkpoint", kept, {key: value for key, value in own.items() if value is not None})
    with pytest.raises(EquipoiseError):
        Run(tmp_path, config).execute()


# --- the ledger -------------------------------------------------------------------------------------------------


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [strict(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


def test_the_ledger_has_a_line_per_round_and_federation(whole: Path, config: Config) -> None:
    lines = lines_of(whole)
    assert lines[0]["experiment"] == "seeded"
    assert [(line["round"], line["federation"]) for line in lines[1:]] == [
        (when, federation) for when in range(1, ROUNDS + 1) for federation in range(len(FEDERATIONS))
    ]
    assert all(line["kind"] == "round" for line in lines[1:])
    for line in lines[1:]:
        name, budget = FEDERATIONS[line["federation"]]
        assert (line["mechanism"], line["budget"]) == (name, budget)
        assert line["norm"] == ("l2" if name == "pl-learn" else None)
        assert [row["client"] for row in line["releases"]] == ["0", "1", "2", "3"]
        low = {0.98: 7.99975, 0.99: 3.99975, None: 0.0}[budget]
        for row in line["releases"]:
            assert (row["lower"], row["upper"], row["accepted"]) == (low, 2 * low, True)
            assert low * (1 - 1e-4) <= row["intensity"] <= 2 * low * (1 + 1e-4)
    last = json.loads((whole / "result.json").read_text())["federations"]
    for line, result in zip(lines[-len(FEDERATIONS) :], last, strict=True):
        assert [row["intensity"] for row in line["releases"]] == pytest.approx(result["final_intensity"], rel=1e-6)


def test_the_result_names_the_head_of_the_ledger(whole: Path) -> None:
    note = json.loads((whole / "result.json").read_text())["ledger"]
    found = verify(whole / "ledger.jsonl", note["head"], note["entries"])
    assert (found.entries, found.beyond) == (1 + ROUNDS * len(FEDERATIONS), 0)
    assert {one.asked for one in found.counts.values()} == {ROUNDS}
    assert len(found.counts) == 4 * len(FEDERATIONS)


def test_drawn_noise_is_recorded_by_its_scale_and_a_guarantee_without_the_norm_of_its_noise(
    config: Config, tiny: Path, tmp_path: Path
) -> None:
    plan = {"rounds": [1, 2], "values": [80, [80, 100, 200, 400]]}
    data = [str(tiny)]
    blocks = [SweepBlock(data, ["ls-learn"], [plan]), SweepBlock(data, ["laplace-dp"], [1000.0])]
    Run(tmp_path, replace(changed(config, rounds=2, participants=3), sweep=blocks)).execute()
    lines = lines_of(tmp_path)[1:]
    assert [line["budget"] for line in lines] == [80.0, 1000.0, [80.0, 100.0, 200.0, 400.0], 1000.0]
    for line in lines:
        clients = [int(row["client"]) for row in line["releases"]]
        assert clients == sorted(set(clients))
        assert len(clients) == 3
        for row in line["releases"]:
            assert list(row) == ["client", "lower", "upper", "scale", "intensity", "accepted"]
            assert (row["lower"], row["upper"]) == (None, None)
            if line["mechanism"] == "laplace-dp":
                assert (row["scale"], row["intensity"]) == (0.025, None)
                continue
            budget = line["budget"] if line["round"] == 1 else line["budget"][int(row["client"])]
            assert row["scale"] == pytest.approx(10 / budget, rel=1e-6)
            assert 13000 * row["scale"] < row["intensity"] < 28000 * row["scale"]  # P = 13,426; up to twice the draw


def test_a_release_that_is_refused_is_in_the_ledger_with_its_reason(config: Config, tmp_path: Path) -> None:
    Run(tmp_path, changed(config, eta=1e38, rounds=2)).execute()
    rows = [(line["mechanism"], row) for line in lines_of(tmp_path)[1:] for row in line["releases"]]
    refused = [(name, row) for name, row in rows if not row["accepted"]]
    assert {name for name, _ in refused} == {"none", "pl-learn"}
    assert {row["reason"] for _, row in refused} <= {"not finite", "out of bounds"}
    assert all(row["reason"] == "not finite" for name, row in refused if name == "none")
    found = json.loads((tmp_path / "result.json").read_text())["federations"]
    assert sum(row["releases_refused"] for row in found) == len(refused)


def test_noise_that_was_lost_in_rounding_is_out_of_bounds(config: Config, tiny: Path, tmp_path: Path) -> None:
    blocks = [SweepBlock([str(tiny)], ["pl-identical"], [0.999])]
    Run(tmp_path, replace(changed(config, rounds=1, init_bound=1e9, model="mlp"), sweep=blocks)).execute()
    for row in lines_of(tmp_path)[1]["releases"]:
        assert (row["accepted"], row["reason"]) == (False, "out of bounds")
        assert row["intensity"] < row["lower"]


def test_without_a_ledger_the_run_is_the_same(whole: Path, config: Config, tmp_path: Path) -> None:
    found = Run(tmp_path, changed(config, ledger=False)).execute()
    assert "ledger" not in found
    one, two = contents(tmp_path), contents(whole)
    same = set(two) - {"ledger.jsonl", "config.toml", "result.json", "checkpoint/latest.json"}
    assert set(one) == set(two) - {"ledger.jsonl"}
    assert [name for name in same if one[name] != two[name]] == []


@pytest.mark.parametrize("first", [False, True])
def test_a_ledger_is_not_begun_or_ended_in_the_middle(config: Config, tmp_path: Path, first: bool) -> None:
    interrupted_in(tmp_path, changed(config, ledger=first), 5)
    with pytest.raises(CheckpointError, match=f"begun {'with' if first else 'without'} a ledger") as caught:
        Run(tmp_path, changed(config, ledger=not first)).execute()
    assert f"--set ledger={str(first).lower()}" in caught.value.remedy
    Run(tmp_path, changed(config, ledger=first)).execute()


@pytest.mark.parametrize("damage", ["deleted", "shortened", "edited", "written anew"])
def test_a_ledger_that_does_not_fit_the_checkpoint_is_an_error(config: Config, tmp_path: Path, damage: str) -> None:
    interrupted_in(tmp_path / "run", config, 5)
    path = tmp_path / "run" / "ledger.jsonl"
    content = path.read_bytes()
    if damage == "deleted":
        path.unlink()
    elif damage == "shortened":
        path.write_bytes(content[: -len(content) // 2])
    elif damage == "edited":
        path.write_bytes(content.replace(b'"round":2', b'"round":7', 1))
    else:  # a whole chain of the same length, of another experiment
        interrupted_in(tmp_path / "other", replace(config, sweep=[replace(b, seeds=[2]) for b in config.sweep]), 5)
        other = (tmp_path / "other" / "ledger.jsonl").read_bytes()
        path.write_bytes(other + b" " * (len(content) - len(other)))
    found = path.read_bytes() if damage in ("shortened", "edited") else None
    with pytest.raises(LedgerError):
        Run(tmp_path / "run", config).execute()
    assert found is None or path.read_bytes() == found, "it is left as it was found"


def test_the_limit_ends_the_run_before_the_round_that_would_pass_it(config: Config, tmp_path: Path) -> None:
    limited = changed(config, release_limit=3)
    with pytest.raises(LimitError) as caught:
        Run(tmp_path / "limited", limited).execute()
    assert caught.value.cause == (
        "Client 0 of federation 0 was asked for 3 release(s); round 4 would pass the limit of 3."
    )
    found = json.loads((tmp_path / "limited" / "result.json").read_text())
    assert found["stopped"] == {"round": 3, "of": ROUNDS, "release_limit": 3}
    assert [row["rounds"] for row in found["federations"]] == [3] * 3
    Run(tmp_path / "short", changed(config, rounds=3)).execute()
    one, two = contents(tmp_path / "limited"), contents(tmp_path / "short")
    assert set(one) == set(two)
    same = set(one) - {"config.toml", "result.json", "checkpoint/latest.json"}
    assert [name for name in same if one[name] != two[name]] == []

    trained: list[int] = []
    with pytest.raises(LimitError):  # again: the same, without training
        Run(tmp_path / "limited", limited).execute(on_round=trained.append)
    assert trained == []
    assert contents(tmp_path / "limited") == one


def test_a_higher_limit_goes_on_to_the_same_models_and_releases(whole: Path, config: Config, tmp_path: Path) -> None:
    with pytest.raises(LimitError):
        Run(tmp_path, changed(config, release_limit=3)).execute()
    run = Run(tmp_path, changed(config, release_limit=ROUNDS))
    assert "stopped" not in run.execute()
    assert run.resumed_from == 3
    one, two = contents(tmp_path), contents(whole)
    for name in ("model.safetensors", "ledger.jsonl", f"snapshots/round-{ROUNDS:06d}.safetensors"):
        assert one[name] == two[name]


def test_a_lower_limit_than_what_was_done_ends_it_at_once(config: Config, tmp_path: Path) -> None:
    late = changed(config, evaluate_every=5)
    interrupted_in(tmp_path, late, 5)
    with pytest.raises(LimitError, match=r"asked for 3 release\(s\); round 4 would pass the limit of 2"):
        Run(tmp_path, changed(late, release_limit=2)).execute()
    assert not (tmp_path / "result.json").exists(), "nothing was evaluated yet"
    Run(tmp_path, late).execute()


def test_releases_after_the_checkpoint_are_forgotten_and_repeated(
    whole: Path, config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("equipoise.engine.sweep.LENGTH", 1)
    interrupted_in(tmp_path, config, 2)
    assert len(lines_of(tmp_path)) == 1 + len(FEDERATIONS), "the first round, after the checkpoint of round 0"
    run = Run(tmp_path, config)
    run.execute()
    assert run.resumed_from == 0
    assert_same(tmp_path, whole)


def test_a_limit_that_is_just_enough_stops_nothing(whole: Path, config: Config, tmp_path: Path) -> None:
    Run(tmp_path, changed(config, release_limit=ROUNDS)).execute()
    one, two = contents(tmp_path), contents(whole)
    assert one.pop("config.toml") != two.pop("config.toml")
    assert one == two


def test_a_limited_run_that_is_interrupted_ends_with_the_same_bits(config: Config, tmp_path: Path) -> None:
    limited = changed(config, release_limit=2, participants=2)
    for name in ("whole", "interrupted"):
        if name == "interrupted":
            interrupted_in(tmp_path / name, limited, 2)
        with pytest.raises(LimitError):
            Run(tmp_path / name, limited).execute()
    assert_same(tmp_path / "interrupted", tmp_path / "whole")
    counts = verify(tmp_path / "whole" / "ledger.jsonl").counts
    assert max(one.asked for one in counts.values()) == 2


def test_a_limit_needs_a_ledger(config: Config, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the ledger counts the releases"):
        Run(tmp_path, changed(config, release_limit=3, ledger=False))


@pytest.mark.parametrize("participants", [None, 1, 2, 4])
@pytest.mark.parametrize("limit", [None, 1, 7, 20, 21])
def test_the_last_round_is_the_one_after_which_a_client_would_pass_the_limit(
    participants: int | None, limit: int | None
) -> None:
    draws = Draws([3, 8], 5, participants)
    counts, expected = torch.zeros(2, 5), 20
    for when in range(1, 21):
        for seed, clients in enumerate(draws.participants([when])[0]):
            counts[seed, clients] += 1
        if limit is not None and counts.max() > limit:
            expected = when - 1
            break
    assert last_round(draws, 20, limit) == expected


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
    marked = (dataset.pixels(dataset.train.images[:, 0]) * 255 - torch.from_numpy(marker)).abs().amax((1, 2)) < 0.01
    assert int(marked.sum()) == 2, "the marker is among the training images"

    # two clients with all their images in every mini-batch, so that the marker is used in every round
    size = len(dataset.train) // 2
    settings = Settings(
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

    planted = dataset.train.images[marked][:1]
    save_snapshot(folder / "planted.safetensors", {"image": planted}, {})
    (folder / "planted.bin").write_bytes(b"..." + marker[3].tobytes() + b"...")
    assert leaks(folder, pieces) == ["planted.bin", "planted.safetensors"], "the search itself works"


def _stop_at_three(when: int) -> None:
    if when == 3:
        raise KeyboardInterrupt


def test_a_folder_is_split_as_the_settings_say(tmp_path: Path) -> None:
    """Bundled data have fixed splits; a folder's fractions are settings, and so is its public part."""
    for name, count in (("train", 60), ("test", 20)):
        images = np.random.default_rng(0).integers(0, 256, (count, 28, 28), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(count) % 10)
    settings = Settings(validation_fraction=0.5, public_fraction=1 / 6)
    data = settings.load(str(tmp_path))
    assert (len(data.train), len(data.validation), len(data.public or ())) == (20, 30, 10)
    assert len(settings.load("mnist").train) == 4000
