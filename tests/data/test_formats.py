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
from equipoise.data.contents import Array, Contents, Reading
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


@pytest.mark.parametrize(
    ("write", "name"), [(write_npz, "train.npz"), (write_npz, "test.npz"), (write_idx, "train-images-idx3-ubyte")]
)
def test_a_link_out_of_the_folder_is_not_followed(tmp_path: Path, write: Callable[..., Path], name: str) -> None:
    folder = write(tmp_path / "data")
    (folder / name).rename(tmp_path / "elsewhere")
    (folder / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=f"{name} is a link that leads out of the folder"):
        load(folder)


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
    ({"images": np.full((36, 4, 4), np.nan)}, "finite in float32, got nan in row 0"),
    ({"labels": np.zeros(36)}, "integer labels .* float64"),
    ({"images": np.full((36, 4, 4), "x")}, "uint8 or float images .* <U1"),
    ({"tokens": np.ones((36, 2), int)}, "has arrays 'images' and 'tokens'"),
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

    def read(files: dict[str, tuple[Path, ...]], reading: Reading) -> Contents:
        parts = {what: (np.load(images), np.load(labels)) for what, (images, labels) in files.items()}
        return Contents(
            {what: (torch.from_numpy(x / 255)[:, None], torch.from_numpy(y).long()) for what, (x, y) in parts.items()}
        )

    npy = formats.Format(
        recognises=lambda folder: any(folder.glob("*.npy")),
        files=lambda folder, split: (folder / f"{split}-x.npy", folder / f"{split}-y.npy"),
        contents=read,
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


# --- tables, tokens and values of any range in npz ----------------------------------------------------------


def write_arrays(folder: Path, **arrays: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for side in ("train", "test"):
        np.savez(folder / f"{side}.npz", labels=np.arange(36) % 3, **arrays)
    return folder


VALUES = np.random.default_rng(5).random((36, 4, 4))


def test_features_and_tokens_are_read(tmp_path: Path) -> None:
    table = load(write_arrays(tmp_path / "table", features=np.arange(72).reshape(36, 2)))
    assert (table.kind, table.shape) == ("table", (2,))
    tokens = load(write_arrays(tmp_path / "tokens", tokens=np.arange(72, dtype=np.uint8).reshape(36, 2)))
    assert (tokens.kind, tokens.vocabulary) == ("tokens", 72)
    assert "vocabulary: the largest token plus one (say vocabulary=)" in tokens.guessed
    said = load(tmp_path / "tokens", vocabulary=100)
    assert (said.vocabulary, said.guessed) == (100, ())


def test_one_npz_file_is_split(tmp_path: Path) -> None:
    write_arrays(tmp_path, features=np.arange(72.0).reshape(36, 2))
    data = load(tmp_path / "train.npz")
    assert (data.name, len(data.test), len(data.train)) == ("train.npz", 6, 27)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=r"notes\.txt is no file of a known kind"):
        load(tmp_path / "notes.txt")


@pytest.mark.parametrize(
    ("images", "told", "low", "high"),
    [
        (np.round(VALUES * 255), "0 is black, 255 white", 0.0, 255.0),
        (VALUES * 8 - 2, "is black, ", None, None),
    ],
)
def test_values_outside_the_unit_range_are_brought_to_it_and_told(
    tmp_path: Path, images: Array, told: str, low: float | None, high: float | None
) -> None:
    data = load(write_arrays(tmp_path, images=images))
    assert told in data.guessed[0]
    assert data.guessed[0].startswith("pixel range: ")
    low, high = images.min() if low is None else low, images.max() if high is None else high
    expected = (images[:30].astype(np.float32) - low) / (high - low)
    np.testing.assert_allclose(data.pixels(data.train.inputs)[:, 0].numpy(), expected, atol=1e-5)


def test_a_stated_normalisation_is_for_the_values_as_they_are(tmp_path: Path) -> None:
    images = VALUES * 4000
    folder = write_arrays(tmp_path, images=images)
    scaled = load(folder, scale=4095.0)
    np.testing.assert_allclose(scaled.pixels(scaled.train.inputs)[:, 0].numpy(), images[:30] / 4095, atol=1e-5)
    assert not any("range" in guess for guess in scaled.guessed)
    stated = load(folder, mean=1000.0, std=300.0)
    np.testing.assert_allclose(stated.train.inputs[:, 0].numpy(), (images[:30] - 1000) / 300, atol=1e-4)
    pixels = stated.pixels(stated.train.inputs)
    assert -1e-5 <= float(pixels.min()) < float(pixels.max()) <= 1 + 1e-5


def test_wide_integers_need_a_scale(tmp_path: Path) -> None:
    folder = write_arrays(tmp_path, images=(VALUES * 65535).astype(np.uint16))
    with pytest.raises(DataError, match=r"uint16.*scale=65535"):
        load(folder)
    assert float(load(folder, scale=65535.0, mean=0.0, std=1.0).train.inputs.max()) <= 1


@pytest.mark.parametrize(
    ("arrays", "options", "words"),
    [
        ({"tokens": np.ones((36, 2))}, {}, "integer tokens in .*, got float64"),
        ({"tokens": np.ones(36, int)}, {}, r"tokens in .* to be \[N, L\], got \[36\].*Pad"),
        ({"tokens": np.ones((36, 2), int)}, {"scale": 2.0}, "holds tokens, which have no scale"),
        ({"tokens": np.ones((36, 2), int)}, {"mean": 0.0, "std": 1.0}, "Tokens have no mean and std"),
        ({"features": np.ones(36)}, {}, r"features in .* to be \[N, F\], got \[36\]"),
        ({"features": np.full((36, 2), "x")}, {}, "Expected numbers for features in .*, got <U1"),
        ({"features": np.ones((36, 2))}, {"vocabulary": 9}, "holds no tokens, so vocabulary plays no part"),
        ({"features": np.ones((36, 2))}, {"target": "y"}, "is read as 'npz', which takes no target"),
    ],
)
def test_unusable_features_and_tokens_are_refused(tmp_path: Path, arrays: Any, options: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        load(write_arrays(tmp_path, **arrays), **options)
