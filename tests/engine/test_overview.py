"""What a run would make of a dataset: the same parts as training deals."""

from __future__ import annotations

from pathlib import Path

import torch

from equipoise.data.loading import load
from equipoise.engine.federation import Federation
from equipoise.engine.overview import overview
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from tests.data.folders import write_pictures
from tests.data.test_csv_files import write


def test_clients_are_those_of_a_sweep(tmp_path: Path) -> None:
    rows = [f"{n},{n // 2},{n % 2}" for n in range(90)]
    path = str(write(tmp_path / "people.csv", rows, "age,person,label"))
    settings = Settings.flat(clients=3, partition="dirichlet", group="person", model="mlp", rounds=1)
    found, sweep = overview(settings, path), Sweep(settings, [Federation(path, "none")])
    parts = sweep.parts[path]
    assert found["clients"]["rows"] == [len(part) for part in parts]
    assert found["clients"]["classes"] == [torch.bincount(sweep.labels[part], minlength=2).tolist() for part in parts]
    assert found["groups"] == len(torch.unique(sweep.datasets[path].train.groups))
    assert found["guessed"] == list(sweep.datasets[path].guessed)


def test_whether_a_column_may_say_whose_rows_they_are(tmp_path: Path) -> None:
    assert overview(Settings.flat(clients=2), str(write(tmp_path / "people.csv")))["group_column"] is True
    assert overview(Settings(), "breast-cancer")["group_column"] is False
    write_pictures(tmp_path / "pets", {"": {"cat": 24, "dog": 24}})
    assert overview(Settings.flat(clients=2), str(tmp_path / "pets"))["group_column"] is False


def test_a_bundled_set_has_nothing_to_guess() -> None:
    found = overview(Settings(), "generated-text")
    assert found["guessed"] == []
    assert (found["kind"], found["shape"], found["vocabulary"]) == ("tokens", [24], 400)
    assert found["classes"][3] == {"name": "topic 3", "train": 1000}
    assert found["rows"] == {"train": 4000, "validation": 800, "test": 1000, "public": 1500}
    assert overview(Settings(), "mnist")["mean"] == load("mnist").mean
