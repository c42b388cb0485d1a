"""idx and npz files: what is read, and what is refused with which words."""

from __future__ import annotations

import contextlib
import gzip
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from equipoise.data import formats
from equipoise.data.formats import Array
from equipoise.data.loading import load
from equipoise.errors import DataError
from tests.data.folders import idx, small, write_idx, write_npz

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
        load(folder)


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
        load(tmp_path)


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
        load(tmp_path)


@pytest.mark.parametrize("compression", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_damaged_npz_of_any_compression_is_refused(tmp_path: Path, compression: int) -> None:
    path = tmp_path / "public.npz"
    with zipfile.ZipFile(path, "w", compression) as archive:
        for name in ("images.npy", "labels.npy"):
            archive.writestr(name, np.random.default_rng(1).bytes(1000))
    content = bytearray(path.read_bytes())
    content[44:61] = bytes(17)  # where the first of them begins
    with pytest.raises(DataError, match="is not a readable npz file"):
        formats.read_npz(path, bytes(content), ["images", "labels"])


def test_missing_npz_is_named(tmp_path: Path) -> None:
    (write_npz(tmp_path) / "test.npz").unlink()
    with pytest.raises(DataError, match=r"test\.npz is missing"):
        load(tmp_path)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.npz").mkdir()
    (tmp_path / "test.npz").mkdir()
    with pytest.raises(DataError, match=r"train\.npz cannot be read"):
        load(tmp_path)
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        formats.read_idx(tmp_path)


class Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return pytest.fail, ("the file was unpickled",)


def test_pickled_arrays_are_refused(tmp_path: Path) -> None:
    folder = write_npz(tmp_path)
    np.savez(folder / "train.npz", images=np.array([Trap()], dtype=object), labels=np.zeros(1, int))
    with pytest.raises(DataError, match="pickled objects, which can run code"):
        load(folder)
    (folder / "train.npz").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match="is not an npz file"):
        load(folder)


def test_damaged_npz_is_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path) / "train.npz"
    content = path.read_bytes()
    path.write_bytes(content[:-30])
    with pytest.raises(DataError, match="not an npz file, or only the beginning"):
        load(tmp_path)
    path.write_bytes(content[:200] + bytes([content[200] ^ 255]) + content[201:])
    with pytest.raises(DataError, match="not a readable npz file"):
        load(tmp_path)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", b"no array")
        archive.writestr("labels.npy", b"no array")
    with pytest.raises(DataError, match="'images' is not an array"):
        load(tmp_path)


def test_missing_array_is_named(tmp_path: Path) -> None:
    np.savez(write_npz(tmp_path) / "train.npz", x=np.zeros(1), labels=np.zeros(1, int))
    with pytest.raises(DataError, match=r"has no array 'images', only \['x', 'labels'\]"):
        load(tmp_path)


NPZ_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"images": np.zeros((36, 8, 8, 3), np.uint8)}, "channels seem to be last"),
    ({"images": np.zeros((36, 4), np.uint8)}, r"\[N, H, W\] or \[N, C, H, W\], got \[36, 4\]"),
    ({"images": np.zeros((36, 4, 4), np.int32)}, "uint8 or float images .* int32"),
    ({"images": np.full((36, 4, 4), 255.0)}, r"in \[0, 1\], 576 of 576 pixels are not"),
    ({"images": np.full((36, 4, 4), np.nan)}, "finite in float32, got nan in row 0"),
    ({"labels": np.zeros(36)}, "integer labels .* float64"),
]


@pytest.mark.parametrize(("replace", "words"), NPZ_PROBLEMS)
def test_unusable_npz_is_refused(tmp_path: Path, replace: dict[str, Any], words: str) -> None:
    images, labels = small(36, 1)
    np.savez(write_npz(tmp_path) / "train.npz", **({"images": images, "labels": labels} | replace))
    with pytest.raises(DataError, match=words):
        load(tmp_path)


# --- arrays ------------------------------------------------------------------------------------------------


def test_bytes_become_pixels_and_integers_classes() -> None:
    path = Path("any")
    pixels = formats.as_pixels(path, np.array([[[0, 51], [102, 255]]], np.uint8))
    assert torch.equal(pixels, torch.tensor([[[[0.0, 51 / 255], [102 / 255, 1.0]]]]))
    floats = np.random.default_rng(0).random((2, 3, 4, 5)).astype(">f8")
    assert np.array_equal(formats.as_pixels(path, floats).numpy(), floats.astype(np.float32))
    classes = formats.as_classes(path, np.array([3, 0], ">u4"))
    assert classes.dtype == torch.int64
    assert classes.tolist() == [3, 0]


# --- formats -----------------------------------------------------------------------------------------------


def test_npz_files_come_before_idx_files(tmp_path: Path) -> None:
    assert formats.format_of(tmp_path) is formats.FORMATS["idx"]
    write_idx(tmp_path)
    assert formats.format_of(tmp_path) is formats.FORMATS["idx"]
    (tmp_path / "test.npz").touch()
    assert formats.format_of(tmp_path) is formats.FORMATS["npz"]


def test_an_empty_folder_is_refused_with_the_files_that_would_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No train-images-idx3-ubyte in") as caught:
        load(tmp_path)
    assert "train-images.idx3-ubyte.gz" in caught.value.remedy
    assert "train.npz and test.npz" in caught.value.remedy


def test_another_format_is_one_entry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images and labels as two npy files for each split."""

    def read(files: tuple[Path, ...]) -> tuple[Array, Array]:
        return np.load(files[0]), np.load(files[1])

    npy = formats.Format(
        recognises=lambda folder: any(folder.glob("*.npy")),
        files=lambda folder, split: (folder / f"{split}-x.npy", folder / f"{split}-y.npy"),
        read=read,
    )
    monkeypatch.setattr(formats, "FORMATS", {"npy": npy, **formats.FORMATS})
    for split, count, seed in (("train", 36, 1), ("test", 9, 2)):
        for part, array in zip("xy", small(count, seed), strict=True):
            np.save(tmp_path / f"{split}-{part}.npy", array)
    expected = load(write_npz(tmp_path / "npz"))
    actual = load(tmp_path)
    for split in ("train", "validation", "test"):
        assert torch.equal(getattr(actual, split).inputs, getattr(expected, split).inputs)
        assert torch.equal(getattr(actual, split).labels, getattr(expected, split).labels)
