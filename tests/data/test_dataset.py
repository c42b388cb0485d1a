"""Bundled files, folders, tensors: what loads, and what is refused with which words."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import importlib.util
import json
import pickle
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from equipoise.data import dataset as data
from equipoise.data import formats
from equipoise.errors import DataError

SIZES = {"train": 4000, "validation": 5000, "test": 5000, "public": 6000}
BLOCK = {"train": 1000, "validation": 1250, "test": 1250}
KNOWN_SHA256 = {
    "mnist": "95cc05a96848032198b858e3eeb2ae4ec8a015d1a4910819fc78cde1dfbff10a",
    "fmnist": "3f17ba4ac0efc509a250bc87777ab7ad0460b51757168b6ea6aaf2f0ed8094f1",
}
ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module", params=data.BUNDLED)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def arrays(name: str) -> dict[str, data.Array]:
    return data.read_bundled(data.BUNDLED_FOLDER, name)


def idx(array: Any) -> bytes:
    content: data.Array = np.asarray(array, np.uint8)
    return bytes([0, 0, 8, content.ndim]) + np.array(content.shape, ">u4").tobytes() + content.tobytes()


def small(count: int, seed: int, side: int = 4) -> tuple[data.Array, data.Array]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, side, side), np.uint8), (np.arange(count) % 3).astype(np.uint8)


def write_idx(folder: Path, separator: str = "-", zipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for side, (images, labels) in {"train": small(36, 1), "t10k": small(9, 2)}.items():
        for kind, array in (("images", images), ("labels", labels)):
            path = folder / f"{side}-{kind}{separator}idx{array.ndim}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
    return folder


def write_npz(folder: Path, **replace: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for side, (images, labels) in {"train": small(36, 1), "test": small(9, 2)}.items():
        np.savez_compressed(folder / f"{side}.npz", **({"images": images, "labels": labels} | replace))
    return folder


# --- bundled -----------------------------------------------------------------------------------------------


def test_bundled_files_have_the_known_hashes(name: str) -> None:
    content = (data.BUNDLED_FOLDER / f"{name}.npz").read_bytes()
    manifest = json.loads((data.BUNDLED_FOLDER / "manifest.json").read_text())["files"][f"{name}.npz"]
    assert hashlib.sha256(content).hexdigest() == manifest["sha256"] == KNOWN_SHA256[name]
    assert manifest["splits"] == SIZES
    assert manifest["images"] == 20_000
    assert KNOWN_SHA256[name] in (ROOT / "NOTICE").read_text()


def test_bundled_splits_are_disjoint_by_original_row_and_by_content(arrays: dict[str, data.Array]) -> None:
    from_train = np.concatenate([arrays[f"{split}_index"] for split in ("train", "validation", "public")])
    assert len(np.unique(from_train)) == len(from_train) == 15_000
    assert len(np.unique(arrays["test_index"])) == 5000
    images = np.concatenate([arrays[f"{split}_images"] for split in SIZES])
    assert len({image.tobytes() for image in images}) == 20_000


def test_every_split_is_spread_over_the_whole_original_file(arrays: dict[str, data.Array]) -> None:
    for split in SIZES:
        length = 10_000 if split == "test" else 60_000
        for label in range(10):
            rows = np.sort(arrays[f"{split}_index"][arrays[f"{split}_labels"] == label]) / length
            assert abs(np.median(rows) - 0.5) < 0.05
            assert rows[0] < 0.05
            assert rows[-1] > 0.95


def test_bundled_labels_cycle_through_the_classes(name: str) -> None:
    dataset = data.load(name)
    for split, size in SIZES.items():
        labels = getattr(dataset, split).labels
        assert len(labels) == size
        assert torch.equal(labels, torch.arange(size) % 10)


@pytest.mark.parametrize("split", BLOCK)
def test_each_client_block_is_balanced(name: str, split: str) -> None:
    for block in getattr(data.load(name), split).labels.split(BLOCK[split]):
        assert torch.equal(torch.bincount(block), torch.full((10,), BLOCK[split] // 10))


def test_public_parts_are_the_public_split_in_order(name: str) -> None:
    dataset = data.load(name)
    parts = [dataset.public_attack, dataset.public_candidates, dataset.public_targets, dataset.public_tuning]
    assert [len(part) for part in parts] == [3000, 2000, 500, 500]
    for part in parts:
        assert torch.equal(torch.bincount(part.labels), torch.full((10,), len(part) // 10))
    assert dataset.public is not None
    assert torch.equal(torch.cat([part.images for part in parts]), dataset.public.images)


def test_bundled_images_are_normalised_and_come_back(name: str, arrays: dict[str, data.Array]) -> None:
    dataset = data.load(name)
    assert dataset.shape == (1, 28, 28)
    assert dataset.classes == 10
    for split in SIZES:
        images = getattr(dataset, split).images
        assert images.dtype == torch.float32
        original = torch.from_numpy(arrays[f"{split}_images"]).float().unsqueeze(1) / 255
        torch.testing.assert_close(dataset.pixels(images), original, atol=1e-6, rtol=0)
        # 0.02: the subset's own mean and deviation are near the full set's constants, not equal to them.
        assert abs(float(images.mean())) < 0.02 / float(np.asarray(dataset.std))
        assert abs(float(images.std()) - 1) < 0.05


def test_load_reads_once() -> None:
    assert data.load("mnist") is data.load("mnist")


def test_printing_shows_no_pixels() -> None:
    assert "tensor" not in repr(data.load("mnist"))


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for file in ("mnist.npz", "manifest.json"):
        shutil.copy(data.BUNDLED_FOLDER / file, tmp_path / file)
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
    assert len(data.read_bundled(copy, "mnist")) == 12
    damage(copy)
    with pytest.raises(DataError, match=words) as caught:
        data.read_bundled(copy, "mnist")
    assert "scripts/build_data.py" in caught.value.remedy


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ("mnits", {}, "neither a bundled dataset nor a folder. Did you mean 'mnist'"),
        ("mnist", {"public_fraction": 0.1}, "takes no public_fraction"),
        (".", {"validation_fracton": 0.1}, "Did you mean 'validation_fraction'"),
    ],
)
def test_load_refuses_what_it_does_not_know(arguments: str, options: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        data.load(arguments, **options)


# --- folders -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("separator", "zipped"), [("-", False), (".", False), ("-", True), (".", True)])
def test_idx_folder(tmp_path: Path, separator: str, zipped: bool) -> None:
    dataset = data.load(write_idx(tmp_path, separator, zipped), name="toy", public_fraction=1 / 3)
    assert [len(split) for split in (dataset.train, dataset.validation, dataset.test)] == [18, 6, 9]
    assert dataset.public is not None
    assert len(dataset.public) == 12
    images, labels = small(36, 1)  # 12 of each of 3 classes, in turn: 6 train, 4 public, 2 validation
    pieces = {"train": slice(0, 18), "public": slice(18, 30), "validation": slice(30, 36)}
    for split, rows in pieces.items():
        found: data.Split = getattr(dataset, split)
        original = torch.from_numpy(images[rows]).float().unsqueeze(1) / 255
        torch.testing.assert_close(dataset.pixels(found.images), original, atol=1e-6, rtol=0)
        assert torch.equal(found.labels, torch.from_numpy(labels[rows]).long())
    assert (dataset.name, dataset.classes, dataset.shape) == ("toy", 3, (1, 4, 4))


def test_npz_folder_equals_idx_folder(tmp_path: Path) -> None:
    one = data.load(write_idx(tmp_path / "idx"))
    two = data.load(write_npz(tmp_path / "npz"))
    assert one.name == "idx"
    assert one.public is None
    for split in ("train", "validation", "test"):
        assert torch.equal(getattr(one, split).images, getattr(two, split).images)


def test_moments_come_from_the_train_split_alone(tmp_path: Path) -> None:
    train = data.load(write_npz(tmp_path)).train.images.double()
    assert abs(float(train.mean())) < 1e-6
    assert abs(float(train.std(correction=0)) - 1) < 1e-6


@pytest.mark.parametrize(
    ("called", "expected"),
    [("mnist", (0.1307, 0.3081)), ("Fashion-MNIST", (0.2860, 0.3530)), ("fmnist", (0.286, 0.353))],
)
def test_usual_constants_by_name(tmp_path: Path, called: str, expected: tuple[float, float]) -> None:
    by_folder = data.load(write_npz(tmp_path / called))
    by_option = data.load(write_npz(tmp_path / "elsewhere"), name=called)
    assert (by_folder.mean, by_folder.std) == (by_option.mean, by_option.std) == expected


def test_a_folder_called_mnist_is_not_the_bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_npz(tmp_path / "mnist")
    monkeypatch.chdir(tmp_path)
    assert len(data.load("./mnist").test) == len(data.load(Path("mnist")).test) == 9
    assert len(data.load("mnist").test) == 5000


def test_own_moments_and_colour(tmp_path: Path) -> None:
    images = np.random.default_rng(0).random((36, 3, 4, 4))
    folder = write_npz(tmp_path, images=images, labels=np.arange(36) % 3)
    measured = data.load(folder)
    assert isinstance(measured.mean, tuple)
    assert len(measured.mean) == 3
    config: Any = [0.1, 0.2, 0.3]  # a list, as a config file gives it
    given_ = data.load(folder, mean=config, std=0.5)
    assert given_.mean == (0.1, 0.2, 0.3)
    expected = (images[:30] - np.array([0.1, 0.2, 0.3])[:, None, None]) / 0.5
    np.testing.assert_allclose(given_.train.images.numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(given_.pixels(given_.train.images).numpy(), images[:30], atol=1e-6)


def test_a_folder_is_read_once_until_it_changes(tmp_path: Path) -> None:
    first = data.load(write_npz(tmp_path))
    assert data.load(tmp_path) is first
    images, labels = small(72, 3)
    np.savez(tmp_path / "train.npz", images=images, labels=labels)
    assert len(data.load(tmp_path).train) == 60


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(2, 60), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
@example([1], 49, 1)  # 49 * (1 / 49) < 1 in floating point
@example([7001], 6, 1)
def test_hold_out_takes_the_floor_of_each_class(sizes: list[int], parts: int, public: int) -> None:
    counts = [size * parts for size in sizes]
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    images = torch.arange(len(labels), dtype=torch.float32)[:, None, None, None]
    share = min(public, parts - 2) / parts
    splits = data._held_out(data.Split(images, labels), 1 / parts, share)
    for label, size in enumerate(sizes):
        train, validation, given_ = (int((split.labels == label).sum()) for split in splits)
        assert validation == size
        assert given_ == size * min(public, parts - 2)
        assert train == counts[label] - validation - given_ > 0
    rows = torch.cat([split.images.flatten() for split in splits])
    assert torch.equal(rows.sort().values, images.flatten())


def test_public_of_unequal_classes_has_every_class_in_every_part() -> None:
    labels = torch.tensor([0] * 480 + [1] * 120)
    images = torch.zeros(600, 1, 2, 2)
    dataset = data.from_tensors((images, labels), (images, labels), public=(images, labels))
    for part in (dataset.public_attack, dataset.public_candidates, dataset.public_targets, dataset.public_tuning):
        assert int((part.labels == 1).sum()) == len(part) // 5


IDX_DAMAGE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "type": (lambda content: content[:2] + b"\x0d" + content[3:], "begin with 00 00 08 and a rank, got 00 00 0d 01"),
    "zeros": (lambda content: b"\x1f\x8b" + content[2:], "begin with 00 00 08"),
    "nothing": (lambda content: b"", "got no bytes"),
    "header": (lambda content: content[:6], "truncated inside its header"),
    "truncated": (lambda content: content[:-1], r"truncated: its header \[36\] means 36 bytes, got 35"),
    "trailing": (lambda content: content + b"\0", "trailing bytes"),
    "empty": (lambda content: idx(np.zeros(0)), "is empty"),
    "terabytes": (lambda content: content[:4] + b"\xff" * 4 + content[8:], "truncated: its header .* 4294967295 bytes"),
    "rank": (lambda content: idx(small(36, 1)[0]), r"train labels to have shape \[N\], got \[36, 4, 4\]"),
    "length": (lambda content: idx(np.zeros(35)), "as many train labels as images, got 35 and 36"),
}


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize("damage", IDX_DAMAGE)
def test_damaged_idx_is_refused(tmp_path: Path, damage: str, zipped: bool) -> None:
    change, words = IDX_DAMAGE[damage]
    folder = write_idx(tmp_path, zipped=zipped)
    path = folder / f"train-labels-idx1-ubyte{'.gz' if zipped else ''}"
    content = change(gzip.decompress(path.read_bytes()) if zipped else path.read_bytes())
    path.write_bytes(gzip.compress(content) if zipped else content)
    with pytest.raises(DataError, match=words):
        data.load(folder)


@pytest.mark.parametrize(
    "change",
    [
        lambda content: b"plain" + content,
        lambda content: content[:-9],  # cut inside the data or the checksum
        lambda content: content[:-8] + bytes([content[-8] ^ 1]) + content[-7:],  # wrong checksum
        lambda content: content[:12] + bytes([content[12] ^ 255]) + content[13:],
    ],
)
def test_damaged_gzip_is_refused(tmp_path: Path, change: Callable[[bytes], bytes]) -> None:
    path = write_idx(tmp_path, zipped=True) / "train-images-idx3-ubyte.gz"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte\.gz is not a complete gzip file"):
        data.load(tmp_path)


@given(st.binary(max_size=40))
@settings(max_examples=100, deadline=None)
def test_any_bytes_are_an_array_or_a_data_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any-idx1-ubyte"
    path.write_bytes(b"\0\0\x08" + content)
    with contextlib.suppress(DataError):
        assert idx(formats.read_idx(path)) == b"\0\0\x08" + content


@pytest.mark.parametrize("missing", ["train-images-idx3-ubyte", "t10k-labels-idx1-ubyte"])
def test_missing_idx_is_named(tmp_path: Path, missing: str) -> None:
    (write_idx(tmp_path) / missing).unlink()
    with pytest.raises(DataError, match=f"No {missing} in"):
        data.load(tmp_path)


def test_missing_npz_is_named(tmp_path: Path) -> None:
    (write_npz(tmp_path) / "test.npz").unlink()
    with pytest.raises(DataError, match=r"test\.npz is missing"):
        data.load(tmp_path)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.npz").mkdir()
    (tmp_path / "test.npz").mkdir()
    with pytest.raises(DataError, match=r"train\.npz cannot be read"):
        data.load(tmp_path)
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        formats.read_idx(tmp_path)


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("the file was unpickled",)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    folder = write_npz(tmp_path)
    np.savez(folder / "train.npz", images=np.array([Trap()], dtype=object), labels=np.zeros(1, int))
    with pytest.raises(DataError, match="pickled objects, which can run code"):
        data.load(folder)
    (folder / "train.npz").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match="is not an npz file"):
        data.load(folder)


def test_damaged_npz_is_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path) / "train.npz"
    content = path.read_bytes()
    path.write_bytes(content[:-30])
    with pytest.raises(DataError, match="not an npz file, or only the beginning"):
        data.load(tmp_path)
    path.write_bytes(content[:200] + bytes([content[200] ^ 255]) + content[201:])
    with pytest.raises(DataError, match="not a readable npz file"):
        data.load(tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", b"no array")
        archive.writestr("labels.npy", b"no array")
    with pytest.raises(DataError, match="'images' is no array"):
        data.load(tmp_path)


NPZ_PROBLEMS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"images": np.zeros((36, 8, 8, 3), np.uint8)}, {}, "channels seem to be last"),
    ({"images": np.zeros((36, 4), np.uint8)}, {}, r"\[N, H, W\] or \[N, C, H, W\], got \[36, 4\]"),
    ({"images": np.zeros((36, 4, 4), np.int32)}, {}, "uint8 or float images .* int32"),
    ({"images": np.full((36, 4, 4), 255.0)}, {}, r"in \[0, 1\], 576 of 576 pixels are not"),
    ({"images": np.full((36, 4, 4), np.nan)}, {}, "finite in float32, got nan in row 0"),
    ({"images": np.full((36, 4, 4), 7, np.uint8)}, {}, "std=0.0 to be > 0"),
    ({"labels": np.zeros(36)}, {}, "integer labels .* float64"),
    ({}, {"mean": 0.1}, "mean and std together"),
    ({}, {"mean": (0.1, 0.2), "std": 1.0}, "mean to be a finite number or 1 of them"),
    ({}, {"mean": 0.1, "std": float("nan")}, "std to be a finite number"),
    ({}, {"validation_fraction": 0.0}, "got 0.0 and 0.0"),
    ({}, {"validation_fraction": 0.5, "public_fraction": 0.5}, "a sum < 1"),
    ({}, {"validation_fraction": 0.01}, "largest class has 12 images: 0.01 of that leaves none"),
    ({}, {"public_fraction": 0.01}, "public_fraction=0.01 leaves none"),
]


@pytest.mark.parametrize(("replace", "options", "words"), NPZ_PROBLEMS)
def test_unusable_npz_is_refused(tmp_path: Path, replace: dict[str, Any], options: dict[str, Any], words: str) -> None:
    images, labels = small(36, 1)
    np.savez(write_npz(tmp_path) / "train.npz", **({"images": images, "labels": labels} | replace))
    with pytest.raises(DataError, match=words):
        data.load(tmp_path, **options)


def test_missing_array_is_named(tmp_path: Path) -> None:
    np.savez(write_npz(tmp_path) / "train.npz", x=np.zeros(1), labels=np.zeros(1, int))
    with pytest.raises(DataError, match=r"has no array 'images', only \['x', 'labels'\]"):
        data.load(tmp_path)


# --- tensors -----------------------------------------------------------------------------------------------


def pair(count: int = 12, channels: int = 1) -> data.Pair:
    return torch.rand(count, channels, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 2


def test_tensors_stay_as_they_are() -> None:
    train, test, validation, public = pair(12), pair(6), pair(8), pair(24)
    dataset = data.from_tensors(train, test, validation, public, classes=5)
    assert dataset.train.images.data_ptr() == train[0].data_ptr()
    for split, given_ in (("train", train), ("test", test), ("validation", validation), ("public", public)):
        assert torch.equal(getattr(dataset, split).images, given_[0])
        assert torch.equal(getattr(dataset, split).labels, given_[1])
    assert (dataset.classes, dataset.name) == (5, "user")
    assert torch.equal(dataset.pixels(train[0]), train[0])


def test_other_dtypes_are_converted_and_graphs_cut() -> None:
    images, labels = pair()
    dataset = data.from_tensors((images.double().requires_grad_(), labels.to(torch.uint8)), pair())
    assert dataset.train.images.dtype == torch.float32
    assert not dataset.train.images.requires_grad
    assert dataset.train.labels.dtype == torch.int64


def test_stated_normalisation_is_undone() -> None:
    images, labels = pair(channels=2)
    mean, std = (0.1, 0.2), (0.5, 0.25)
    shifted = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    dataset = data.from_tensors((shifted, labels), (shifted, labels), mean=mean, std=std)
    torch.testing.assert_close(dataset.pixels(dataset.test.images), images)


def with_value(value: float, dtype: torch.dtype = torch.float32) -> data.Pair:
    images, labels = pair()
    images = images.to(dtype)
    images[7, 0, 1, 2] = value
    return images, labels


TENSOR_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"train": pair()[0]}, r"train to be a pair \(images, labels\), got Tensor"),
    ({"train": (pair()[0].numpy(), pair()[1])}, "train images to be a torch tensor, got ndarray"),
    ({"test": (pair()[0], [0, 1])}, "test labels to be a torch tensor, got list"),
    ({"train": (pair()[0][:, 0], pair()[1])}, r"train images .* \[N, C, H, W\], got \[12, 4, 4\].*unsqueeze"),
    ({"train": (pair()[0].byte(), pair()[1])}, r"train images to be float, got torch\.uint8"),
    ({"test": (pair()[0][:0], pair()[1][:0])}, "at least one test image"),
    ({"validation": with_value(float("nan"))}, "validation images to be finite in float32, got nan in row 7"),
    ({"public": with_value(float("inf"))}, "public images to be finite in float32, got inf in row 7"),
    ({"train": with_value(1e300, torch.float64)}, "train images to be finite in float32, got inf in row 7"),
    ({"train": (pair()[0], pair()[1][:, None])}, r"train labels to have shape \[N\], got \[12, 1\]"),
    ({"train": (pair()[0], pair()[1].float())}, r"train labels to be integers, got torch\.float32"),
    ({"train": (pair()[0], pair()[1].bool())}, r"train labels to be integers, got torch\.bool"),
    ({"test": (pair()[0], pair()[1] - 1)}, "test labels to be >= 0, row 0 has another"),
    ({"train": (pair()[0], pair()[1][:-1])}, "as many train labels as images, got 11 and 12"),
    ({"test": (pair()[0], pair()[1] + 1), "classes": 2}, "test labels to be < classes=2, row 1 has another"),
    ({"test": (pair()[0], pair()[1] + 1000)}, "test labels name more than 1000 classes"),
    ({"test": pair(channels=3)}, r"test images to have shape \[1, 4, 4\] like the train images, got \[3, 4, 4\]"),
    ({"train": pair(4)}, "largest class has 2 images.*Give validation images"),
    ({"std": 0.0}, "std=0.0 to be > 0"),
    ({"mean": "0"}, "mean to be a finite number"),
]


@pytest.mark.parametrize(("arguments", "words"), TENSOR_PROBLEMS)
def test_unusable_tensors_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        data.from_tensors(**({"train": pair(), "test": pair()} | arguments))


def test_public_parts_need_public_images() -> None:
    with pytest.raises(DataError, match="'user' has no public images, so no public_targets"):
        _ = data.from_tensors(pair(), pair()).public_targets
    with pytest.raises(DataError, match="only 6 public images: public_targets would be empty"):
        _ = data.from_tensors(pair(), pair(), public=pair(6)).public_targets


# --- the script that builds the bundle ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_data", ROOT / "scripts" / "build_data.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tiny images, as many as the full sets need: the row number in two of the four pixels."""
    folder = tmp_path_factory.mktemp("originals")
    for side, count in (("train", 17_000), ("t10k", 6_000)):
        labels = np.random.default_rng(count).permutation(np.arange(count) % 10)
        rows = np.arange(count)
        images = np.stack([rows >> 8, rows & 255, labels, labels], axis=1).reshape(count, 2, 2)
        (folder / f"{side}-images-idx3-ubyte").write_bytes(idx(images))
        (folder / f"{side}-labels-idx1-ubyte").write_bytes(idx(labels))
    return folder


def test_the_script_repeats_itself_byte_for_byte_and_checks(
    script: ModuleType, originals: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--mnist", str(originals), "--fmnist", str(originals), "--out"]
    assert script.main([*command, str(tmp_path / "one")]) == 0
    assert script.main([*command, str(tmp_path / "two")]) == 0
    names = sorted(file.name for file in (tmp_path / "one").iterdir())
    assert names == ["fmnist.npz", "manifest.json", "mnist.npz"]
    for file in names:
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    assert script.main([*command, str(tmp_path / "one"), "--check"]) == 0
    assert "mnist.npz: identical" in capsys.readouterr().out
    assert script.main([*command, str(data.BUNDLED_FOLDER), "--check"]) == 1
    assert "train-images-idx3-ubyte is not the original" in capsys.readouterr().out
    shutil.copy(tmp_path / "one" / "manifest.json", tmp_path / "one" / "mnist.npz")
    assert script.main([*command, str(tmp_path / "one"), "--check"]) == 1
    assert "not the one in its manifest" in capsys.readouterr().out


def test_the_script_selects_what_its_index_says(script: ModuleType, originals: Path, tmp_path: Path) -> None:
    script.main(["--mnist", str(originals), "--fmnist", str(originals), "--out", str(tmp_path)])
    arrays = data.read_bundled(tmp_path, "mnist")
    for split, size in SIZES.items():
        images, index = arrays[f"{split}_images"].astype(int), arrays[f"{split}_index"]
        assert len(index) == size
        assert np.array_equal(images[:, 0, 0] * 256 + images[:, 0, 1], index)
        assert np.array_equal(images[:, 1, 0], arrays[f"{split}_labels"])
    labels = formats.read_idx(originals / "train-labels-idx1-ubyte")
    for label in range(10):
        found = np.flatnonzero(labels == label)
        expected = found[((np.arange(1500) + 0.5) * len(found) / 1500).astype(int)]
        chosen = np.concatenate([arrays[f"{split}_index"][label::10] for split in ("train", "validation", "public")])
        assert np.array_equal(np.sort(chosen), expected)


def test_the_script_refuses_too_few_images(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least 1500 images of class 0, got 12"):
        script.main(["--mnist", str(write_idx(tmp_path)), "--fmnist", str(tmp_path), "--out", str(tmp_path)])
