"""Bundled files and folders: what loads, how it is split and normalised, and what is refused with which words."""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data.bundle import BUNDLED, BUNDLED_FOLDER, read_bundled
from equipoise.data.contents import Array
from equipoise.data.loading import load, load_public, load_with
from equipoise.data.splits import Split
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.errors import DataError
from tests.data.folders import small, write_idx, write_npz

SIZES = {"train": 4000, "validation": 5000, "test": 5000, "public": 6000}
BLOCK = {"train": 1000, "validation": 1250, "test": 1250}
KNOWN_SHA256 = {
    "mnist": "95cc05a96848032198b858e3eeb2ae4ec8a015d1a4910819fc78cde1dfbff10a",
    "fmnist": "3f17ba4ac0efc509a250bc87777ab7ad0460b51757168b6ea6aaf2f0ed8094f1",
}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module", params=["mnist", "fmnist"])
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def arrays(name: str) -> dict[str, Array]:
    return read_bundled(BUNDLED_FOLDER, name)


# --- bundled -----------------------------------------------------------------------------------------------


def test_bundled_files_have_the_known_hashes(name: str) -> None:
    content = (BUNDLED_FOLDER / BUNDLED[name].file).read_bytes()
    manifest = json.loads((BUNDLED_FOLDER / "manifest.json").read_text())["files"][BUNDLED[name].file]
    assert hashlib.sha256(content).hexdigest() == manifest["sha256"] == KNOWN_SHA256[name]
    assert manifest["splits"] == SIZES
    assert manifest["images"] == 20_000
    assert KNOWN_SHA256[name] in (ROOT / "NOTICE").read_text()


def test_bundled_splits_are_disjoint_by_original_row_and_by_content(arrays: dict[str, Array]) -> None:
    from_train = np.concatenate([arrays[f"{split}_index"] for split in ("train", "validation", "public")])
    assert len(np.unique(from_train)) == len(from_train) == 15_000
    assert len(np.unique(arrays["test_index"])) == 5000
    images = np.concatenate([arrays[f"{split}_images"] for split in SIZES])
    assert len({image.tobytes() for image in images}) == 20_000


def test_every_split_is_spread_over_the_whole_original_file(arrays: dict[str, Array]) -> None:
    for split in SIZES:
        length = 10_000 if split == "test" else 60_000
        for label in range(10):
            rows = np.sort(arrays[f"{split}_index"][arrays[f"{split}_labels"] == label]) / length
            assert abs(np.median(rows) - 0.5) < 0.05
            assert rows[0] < 0.05
            assert rows[-1] > 0.95


def test_bundled_labels_cycle_through_the_classes(name: str) -> None:
    dataset = load(name)
    for split, size in SIZES.items():
        labels = getattr(dataset, split).labels
        assert len(labels) == size
        assert torch.equal(labels, torch.arange(size) % 10)


@pytest.mark.parametrize("split", BLOCK)
def test_each_client_block_is_balanced(name: str, split: str) -> None:
    for block in getattr(load(name), split).labels.split(BLOCK[split]):
        assert torch.equal(torch.bincount(block), torch.full((10,), BLOCK[split] // 10))


def test_public_parts_are_the_public_split_in_order(name: str) -> None:
    dataset = load(name)
    parts = [dataset.public_attack, dataset.public_pool, dataset.public_tuning]
    assert [len(part) for part in parts] == [3000, 2500, 500]
    for part in parts:
        assert torch.equal(torch.bincount(part.labels), torch.full((10,), len(part) // 10))
    assert dataset.public is not None
    assert torch.equal(torch.cat([part.inputs for part in parts]), dataset.public.inputs)


def test_bundled_images_are_normalised_and_come_back(name: str, arrays: dict[str, Array]) -> None:
    dataset = load(name)
    assert dataset.shape == (1, 28, 28)
    assert dataset.classes == 10
    for split in SIZES:
        images = getattr(dataset, split).inputs
        assert images.dtype == torch.float32
        original = torch.from_numpy(arrays[f"{split}_images"]).float().unsqueeze(1) / 255
        torch.testing.assert_close(dataset.pixels(images), original, atol=1e-6, rtol=0)
        # 0.02: the subset's own mean and deviation are near the full set's constants, not equal to them.
        assert abs(float(images.mean())) < 0.02 / float(np.asarray(dataset.std))
        assert abs(float(images.std()) - 1) < 0.05


def test_load_reads_once() -> None:
    assert load("mnist") is load("mnist")


def test_printing_shows_no_pixels() -> None:
    assert "tensor" not in repr(load("mnist"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for file in ("mnist.npz", "manifest.json"):
        shutil.copy(BUNDLED_FOLDER / file, tmp_path / file)
    return tmp_path


def spoil(folder: Path) -> None:
    content = bytearray((folder / "mnist.npz").read_bytes())
    content[1_000_000] ^= 1
    (folder / "mnist.npz").write_bytes(content)


def shorten(folder: Path) -> None:
    (folder / "mnist.npz").write_bytes((folder / "mnist.npz").read_bytes()[:-10])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (spoil, "Expected SHA-256 95cc05"),
        (shorten, "truncated: 3279977 of 3279987 bytes"),
        (lambda folder: (folder / "mnist.npz").unlink(), "cannot be read: FileNotFoundError"),
        (lambda folder: (folder / "manifest.json").unlink(), "cannot be read: FileNotFoundError"),
        (lambda folder: (folder / "manifest.json").write_text("{"), "cannot be read: JSONDecodeError"),
        (lambda folder: (folder / "manifest.json").write_text('{"files": {}}'), "cannot be read: KeyError"),
    ],
)
def test_damaged_bundle_is_refused(copy: Path, damage: Callable[[Path], None], words: str) -> None:
    assert len(read_bundled(copy, "mnist")) == 12
    damage(copy)
    with pytest.raises(DataError, match=words) as caught:
        read_bundled(copy, "mnist")
    assert "scripts/build_data.py" in caught.value.remedy


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ("mnits", {}, "neither a bundled dataset nor a folder nor a file. Did you mean 'mnist'"),
        ("x" * 300, {}, "neither a bundled dataset nor a folder nor a file."),
        ("mnist", {"public_fraction": 0.1}, "takes no public_fraction"),
        (".", {"validation_fracton": 0.1}, "Did you mean 'validation_fraction'"),
    ],
)
def test_load_refuses_what_it_does_not_know(arguments: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        load(arguments, **options)


@pytest.mark.parametrize(
    ("option", "value"),
    [("mean", 0.0), ("std", 1.0), ("test_fraction", 0.3), ("name", "mine"), ("target", "y"), ("scale", 3.0)],
)
def test_bundled_data_refuse_what_they_would_ignore(option: str, value: Any) -> None:
    defaults: Any = {"mean": None, "test_fraction": 1 / 6, "text_length": 64, "public_fraction": 0.3}
    assert load_with("mnist", **defaults) is load("mnist")
    with pytest.raises(DataError, match=f"Bundled dataset 'mnist' takes no {option}"):
        load_with("mnist", **{option: value})  # type: ignore[misc]
    if option != "name":
        with pytest.raises(DataError, match=f"takes no {option}"):
            Sweep(Settings.flat(**{option: value}), [Federation("mnist", "none")])


@pytest.mark.parametrize(("options", "word"), [({"target": "y"}, "takes no target"), ({"scale": 3}, "takes no scale")])
def test_public_data_refuse_what_they_would_ignore(options: dict[str, Any], word: str) -> None:
    for source in ("mnist", (torch.rand(4, 3), torch.arange(4) % 2)):
        with pytest.raises(DataError, match=word):
            load_public(source, **options)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="Unknown option 'test_fraction'"):
        load_public("mnist", test_fraction=0.2)  # type: ignore[call-arg]


# --- folders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("separator", "zipped"), [("-", False), (".", False), ("-", True), (".", True)])
def test_idx_folder(tmp_path: Path, separator: str, zipped: bool) -> None:
    dataset = load(write_idx(tmp_path, separator, zipped), name="toy", public_fraction=1 / 3)
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [18, 6, 9]
    assert dataset.public is not None
    assert len(dataset.public) == 12
    images, labels = small(36, 1)  # 12 of each of 3 classes, in turn: 6 train, 4 public, 2 validation
    pieces = {"train": slice(0, 18), "public": slice(18, 30), "validation": slice(30, 36)}
    for split, rows in pieces.items():
        result: Split = getattr(dataset, split)
        original = torch.from_numpy(images[rows]).float().unsqueeze(1) / 255
        torch.testing.assert_close(dataset.pixels(result.inputs), original, atol=1e-6, rtol=0)
        assert torch.equal(result.labels, torch.from_numpy(labels[rows]).long())
    assert (dataset.name, dataset.classes, dataset.shape) == ("toy", 3, (1, 4, 4))


def test_npz_folder_equals_idx_folder(tmp_path: Path) -> None:
    one = load(write_idx(tmp_path / "idx"))
    two = load(write_npz(tmp_path / "npz"))
    assert one.name == "idx"
    assert one.public is None
    for split in ("train", "validation", "test"):
        assert torch.equal(getattr(one, split).inputs, getattr(two, split).inputs)


def test_moments_come_from_the_train_split_alone(tmp_path: Path) -> None:
    train = load(write_npz(tmp_path)).train.inputs.double()
    assert abs(float(train.mean())) < 1e-6
    assert abs(float(train.std(correction=0)) - 1) < 1e-6


@pytest.mark.parametrize(
    ("called", "expected"),
    [("mnist", (0.1307, 0.3081)), ("Fashion-MNIST", (0.2860, 0.3530)), ("fmnist", (0.286, 0.353))],
)
def test_usual_constants_by_name(tmp_path: Path, called: str, expected: tuple[float, float]) -> None:
    by_folder = load(write_npz(tmp_path / called))
    by_option = load(write_npz(tmp_path / "elsewhere"), name=called)
    assert (by_folder.mean, by_folder.std) == (by_option.mean, by_option.std) == expected


def test_a_folder_called_mnist_is_not_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path / "mnist")
    monkeypatch.chdir(tmp_path)
    assert len(load("./mnist").test) == len(load(Path("mnist")).test) == 9
    assert len(load("mnist").test) == 5000


def test_own_moments_and_colour(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((36, 3, 4, 4))
    folder = write_npz(tmp_path, images=images, labels=np.arange(36) % 3)
    measured = load(folder)
    assert isinstance(measured.mean, tuple)
    assert len(measured.mean) == 3
    config: Any = [0.1, 0.2, 0.3]  # a list, as a config file gives it
    given_ = load(folder, mean=config, std=0.5)
    assert given_.mean == (0.1, 0.2, 0.3)
    expected = (images[:30] - np.array([0.1, 0.2, 0.3])[:, None, None]) / 0.5
    np.testing.assert_allclose(given_.train.inputs.numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(given_.pixels(given_.train.inputs).numpy(), images[:30], atol=1e-6)


def test_a_folder_is_read_once_until_it_changes(tmp_path: Path) -> None:
    first = load(write_npz(tmp_path))
    assert load(tmp_path) is first
    images, labels = small(72, 3)
    np.savez(tmp_path / "train.npz", images=images, labels=labels)
    assert len(load(tmp_path).train) == 60


def test_images_of_a_folder_live_no_longer_than_their_dataset(tmp_path: Path) -> None:
    dataset = load(write_npz(tmp_path))
    images = weakref.ref(dataset.train.inputs)
    assert load(tmp_path) is dataset
    del dataset
    gc.collect()
    assert images() is None
    assert len(load(tmp_path).train) == 30


def test_the_public_rows_of_a_folder_are_mixed(tmp_path: Path) -> None:
    np.savez(write_npz(tmp_path) / "train.npz", images=small(36, 1)[0], labels=np.repeat([0, 1], 18))
    dataset = load(tmp_path, public_fraction=0.5)
    assert dataset.public is not None
    assert dataset.public.labels.tolist() == [0, 1] * 9


def test_other_options_are_another_dataset(tmp_path: Path) -> None:
    first = load(write_npz(tmp_path))
    other = load(tmp_path, validation_fraction=0.5)
    assert (len(first.train), len(other.train)) == (30, 18)
    assert load(tmp_path, name=tmp_path.name) is first


def test_fractions_are_for_folders_alone(tmp_path: Path) -> None:
    fractions = {"validation_fraction": 0.25, "public_fraction": 0.5}
    assert load_with("fmnist", **fractions) is load("fmnist")
    dataset = load_with(str(write_npz(tmp_path)), **fractions)
    assert dataset.public is not None
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.public)] == [9, 9, 18]
    with pytest.raises(DataError, match="'mnits' is neither a bundled dataset nor a folder"):
        load_with("mnits", **fractions)


FOLDER_PROBLEMS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"images": np.full((36, 4, 4), 7, np.uint8)}, {}, "std=0.0 to be > 0"),
    ({}, {"mean": 0.1}, "mean and std together"),
    ({}, {"mean": (0.1, 0.2), "std": 1.0}, "mean to be a finite number or 1 of them"),
    ({}, {"mean": 0.1, "std": float("nan")}, "std=nan to be a finite number"),
    ({}, {"validation_fraction": 0.0}, "got 0.0 and 0.0"),
    ({}, {"validation_fraction": 0.5, "public_fraction": 0.5}, "a sum < 1"),
    ({}, {"validation_fraction": 0.01}, "largest class has 12 images: 0.01 of that leaves none"),
    ({}, {"public_fraction": 0.01}, "public_fraction=0.01 leaves none"),
]


@pytest.mark.parametrize(("replace", "options", "words"), FOLDER_PROBLEMS)
def test_impossible_requests_are_refused(
    tmp_path: Path, replace: dict[str, Any], options: dict[str, Any], words: str
) -> None:
    images, labels = small(36, 1)
    np.savez(write_npz(tmp_path) / "train.npz", **({"images": images, "labels": labels} | replace))
    with pytest.raises(DataError, match=words):
        load(tmp_path, **options)


# --- public data that an auditor names ----------------------------------------------------------------------


def test_the_public_split_of_a_bundled_dataset_is_public() -> None:
    split, mean, std = load_public("mnist")
    data = load("mnist")
    assert (mean, std) == (data.mean, data.std)
    assert data.public is not None
    assert torch.allclose(split.inputs, data.public.inputs, atol=1e-5)
    assert split.inputs.data_ptr() != data.public.inputs.data_ptr(), "nobody else's images are changed"


def test_every_image_of_a_folder_or_file_is_public(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    for name, count in (("train", 6), ("test", 4)):
        images = rng.integers(0, 256, (count, 5, 5), dtype=np.uint8)
        np.savez(tmp_path / f"{name}.npz", images=images, labels=np.arange(count))
    split, mean, std = load_public(tmp_path)
    assert split.labels.tolist() == [*range(6), *range(4)]
    assert float(split.inputs.mean()) == pytest.approx(0.0, abs=1e-6)
    file, *_ = load_public(str(tmp_path / "test.npz"), mean, std)
    assert torch.equal(file.inputs, split.inputs[6:])
    other, low, high = load_public(tmp_path / "test.npz", 0.5, 0.25)
    assert (low, high) == (0.5, 0.25)
    assert torch.allclose(other.inputs * 0.25 + 0.5, file.inputs * float(std) + float(mean), atol=1e-5)  # type: ignore[arg-type]


def test_public_tensors_stay_as_they_are() -> None:
    images, labels = torch.linspace(-2, 6, 18).view(2, 1, 3, 3), torch.tensor([0, 1])
    split, mean, std = load_public((images, labels))
    assert torch.equal(split.inputs, images)
    assert (mean, std) == (0.25, 0.125)
    assert load_public((images, labels), 0.1, 0.2)[1:] == (0.1, 0.2)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("no/such/place", "neither a bundled dataset nor a folder nor a file"),
        ("mnits", "Did you mean 'mnist'"),
        ((torch.zeros(2, 1, 3, 3), torch.tensor([0, 1])), "all of one value"),
        ((torch.zeros(2), torch.tensor([0, 1])), r"inputs to have shape \[N, ...\]"),
    ],
)
def test_what_is_no_public_data_is_refused(source: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        load_public(source)


def test_a_public_file_that_is_no_npz_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.npz").write_text("no")
    with pytest.raises(DataError, match="is not an npz file"):
        load_public(tmp_path / "x.npz")


# -- groups --------------------------------------------------------------------------------------------------------


def test_groups_of_an_npz_file_keep_their_rows_together(tmp_path: Path) -> None:
    images, labels = small(36, 1)
    folder = write_npz(tmp_path / "photos")
    plain = load(folder)
    assert plain.train.groups is None
    groups = np.arange(36, dtype=np.uint64) // 4 + np.uint64(2**64 - 40)  # any integers will do
    np.savez(folder / "train.npz", images=images, labels=labels, groups=groups)
    data = load(folder, validation_fraction=0.34, public_fraction=0.34)
    found = [split.groups for split in (data.train, data.validation, data.public) if split is not None]
    assert [part is not None and part.dtype == torch.int64 for part in found] == [True] * 3
    assert data.test.groups is None
    owners = [set(part.tolist()) for part in found if part is not None]
    assert sum(len(part) for part in owners) == len(set.union(*owners)) == 9


def test_groups_of_a_test_file_are_not_asked_for(tmp_path: Path) -> None:
    folder = write_npz(tmp_path / "photos")
    images, labels = small(9, 2)
    np.savez(folder / "test.npz", images=images, labels=labels, groups=np.array("nobody's"))
    assert load(folder).test.groups is None


@pytest.mark.parametrize(
    ("groups", "words"),
    [
        (np.zeros(36), "Expected integer groups in .*train.npz, got float64. Store one number for each person"),
        (np.zeros(35, np.int8), "as many train groups as images, got 35 and 36"),
        (np.zeros((36, 1), np.int8), r"train groups to have shape \[N\], got \[36, 1\]"),
        (np.zeros(36, np.int8), "The largest class has 1 groups"),
        (np.array([{}] * 36), "pickled objects"),
    ],
)
def test_unusable_groups_are_refused(tmp_path: Path, groups: Array, words: str) -> None:
    images, labels = small(36, 1)
    folder = write_npz(tmp_path / "photos")
    np.savez(folder / "train.npz", images=images, labels=labels, groups=groups)
    with pytest.raises(DataError, match=words):
        load(folder)
