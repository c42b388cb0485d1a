"""Loading what federations train on: bundled data as they are, folders split as the settings say, each once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from equipoise.data.dataset import Dataset
from equipoise.engine import datasets as module
from equipoise.engine.datasets import dataset_labels, dealt, load_dataset, load_datasets
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.errors import DataError
from tests.helpers import write_dataset


def test_a_folder_is_split_as_the_settings_say(tmp_path: Path) -> None:
    """Bundled data have fixed splits; a folder's fractions are settings, and so is its public part."""
    write_dataset(tmp_path, train=60, test=20)
    settings = Settings.flat(validation_fraction=0.5, public_fraction=1 / 6)
    data = load_dataset(settings, str(tmp_path))
    assert (len(data.train), len(data.validation), len(data.public or ()), len(data.test)) == (20, 30, 10, 20)
    assert len(load_dataset(settings, "mnist").train) == 4000


def test_each_dataset_is_loaded_once_in_the_order_of_its_first_name(
    few: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, seen = str(write_dataset(tmp_path)), []

    def load_with(name: str, **more: float) -> Dataset:
        seen.append((name, more))
        return few

    monkeypatch.setattr(module, "load_with", load_with)
    result = load_datasets(Settings(), ["mnist", folder, "mnist", folder])
    assert list(result) == ["mnist", folder]
    fractions = {"validation_fraction": 1 / 6, "public_fraction": 0.0}
    assert seen == [("mnist", fractions), (folder, fractions)]


def test_a_name_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError):
        load_datasets(Settings(), [str(tmp_path / "absent")])


def test_a_sweep_loads_what_it_was_not_given(few: Dataset, tmp_path: Path) -> None:
    folder = str(write_dataset(tmp_path, train=60))
    federations = [Federation("few", "none"), Federation(folder, "none")]
    sweep = Sweep(Settings.flat(rounds=1, validation_fraction=0.5), federations, {"few": few})
    assert sweep.datasets["few"] is few
    assert len(sweep.datasets[folder].validation) == 30


def test_a_folder_is_called_by_its_name_and_folders_of_one_name_are_numbered() -> None:
    assert dataset_labels(["mnist", "/a/scans", "few"]) == {"mnist": "mnist", "/a/scans": "scans", "few": "few"}
    assert dataset_labels(["/a/scans", "/b/scans", "c/scans/"]) == {
        "/a/scans": "scans", "/b/scans": "scans-2", "c/scans/": "scans-3",
    }  # fmt: skip
    assert dataset_labels(["."]) == {".": Path.cwd().name}


def test_a_label_is_safe_to_print_and_to_draw() -> None:
    """A folder of somebody else's may be called anything that a file system takes."""
    names = ["/a/d\x1b[2Jd\nNothing leaks", "/a/d\x1b[2Jd\rNothing leaks", "/b/\udcff"]
    assert list(dataset_labels(names).values()) == ["d?[2Jd?Nothing leaks", "d?[2Jd?Nothing leaks-2", "?"]
    assert Federation(names[0], "none").label() == "/a/d?[2Jd?Nothing leaks none (seed 1)"


def test_the_name_of_a_bundled_dataset_means_that_one_alone() -> None:
    assert dataset_labels(["/a/mnist", "mnist"]) == {"/a/mnist": "mnist-2", "mnist": "mnist"}
    assert dataset_labels(["/a/fmnist"]) == {"/a/fmnist": "fmnist-2"}


@pytest.mark.parametrize(
    "names", [["a/data", "data"], ["/a/x", "/b/x", "x-2", "x"], ["data-2", "a/data-2", "b/data", "data"]]
)
def test_a_label_is_its_own_label_and_no_two_are_equal(names: list[str]) -> None:
    """So that names in records of any version can be turned into labels."""
    labels = dataset_labels(names)
    assert len(set(labels.values())) == len(names)
    assert all(labels.get(label, label) == label for label in labels.values())


def test_many_clients_share_a_small_test_set_and_have_no_parts_of_it(few: Dataset) -> None:
    """A hundred clients of four rows each, and 40 rows to test on."""
    some = replace(few, test=few.test.take(torch.arange(40)), validation=few.validation.take(torch.arange(40)))
    settings = Settings.flat(clients=100, batch=1, rounds=1, participants=5)
    parts, held = dealt(settings, some)
    assert len(parts) == 100
    assert held == {"": [], "validation_": []}
    sweep = Sweep(settings, [Federation("few", "none")], {"few": some})
    (event,) = [event for event in sweep.run() if event.rows]
    assert event.rows[0]["client_accuracy"] == []
    assert 0 <= event.rows[0]["accuracy"] <= 1
    _, held = dealt(settings.replace(clients=40, participants=None), some)
    assert [len(rows) for rows in held[""]] == [1] * 40
