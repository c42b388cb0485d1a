"""A marker planted in private data comes out nowhere: no file of a run folder, no output, no error message.

The private images hold random rows that occur nowhere else, one image of a single odd value, and labels in an odd
order. A leak is looked for in every form that a number can take in a file: bytes of several types, decimal text,
hexadecimal and base64, compressed or not; and a row of the marker is known again at any scale and offset, since the
correlation with it is 1. Folder names are looked for too. The dataset's path is a setting: ``config.toml`` and the
records keep it as the user wrote it, and no other form of it, such as the absolute path, may appear.
"""

from __future__ import annotations

import base64
import itertools
import json
import re
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from equipoise.auditing.svg import png
from equipoise.data.loading import load
from tests.audit_helpers import EFFORT
from tests.helpers import contents, equipoise

pytestmark = pytest.mark.slow

Numbers = npt.NDArray[np.float64]
WORD = "quokkaward"
ODD = 0.7368421053  # the value of every pixel of one private image
PER_CLASS, TEST = 40, 40
CHEAP = [word for key, value in EFFORT.items() for word in ("--set", f"{key}={value}")]


# --- private data -----------------------------------------------------------------------------------------------------


def marker_rows() -> Numbers:
    """Three rows of 28 pixels, in [0, 1], that no other image has."""
    return np.random.default_rng(20240703).random((3, 28)).round(3)


def write_private(folder: Path) -> Path:
    """Ten classes; of each the first images, which go to training, and those of the test file carry the marker."""
    rng = np.random.default_rng(11)
    folder.mkdir(parents=True)
    for name, count in (("train", 10 * PER_CLASS), ("test", TEST)):
        labels = np.arange(count) % 10
        rng.shuffle(labels)
        images = rng.random((count, 28, 28)).round(3)
        images[:, :, :14] /= 1 + labels[:, None, None] % 3
        seen = np.zeros(10, dtype=int)
        for row, label in enumerate(labels):
            place, seen[label] = seen[label], seen[label] + 1
            if place < 4 or name == "test":  # the last of each class become public
                images[row] = np.tile(marker_rows(), (10, 1))[:28]
            if place == 4 and label == 3 and name == "train":
                images[row] = ODD
        np.savez(folder / f"{name}.npz", images=images.astype(np.float32), labels=labels)
    return folder


# --- looking for it ---------------------------------------------------------------------------------------------------


def unpacked(content: bytes, depth: int = 0) -> Iterator[bytes]:
    """The content, and whatever is compressed or encoded in it."""
    yield content
    if depth == 3:
        return
    for run in re.findall(rb"[A-Za-z0-9+/]{60,}={0,2}", content):
        for skip in range(4):  # a marker need not begin where a group of four letters does
            part = run[skip:].rstrip(b"=")
            yield from unpacked(base64.b64decode(part[: len(part) // 4 * 4]), depth + 1)
    for run in re.findall(rb"[0-9a-fA-F]{80,}", content):
        for skip in range(2):
            part = run[skip:].decode()
            yield from unpacked(bytes.fromhex(part[: len(part) // 2 * 2]), depth + 1)
    for start in (match.start() for match in re.finditer(rb"\x78[\x01\x5e\x9c\xda]", content)):
        try:
            yield from unpacked(zlib.decompressobj().decompress(content[start:], 1 << 24), depth + 1)
        except zlib.error:
            continue  # two bytes that only look like the head of a compressed stream


def numbers(content: bytes) -> Iterator[Numbers]:
    """Everything the bytes could mean as a list of numbers."""
    for kind in ("u1", "<f2", "<f4", "<f8", "<i4", "<i8"):
        size = np.dtype(kind).itemsize
        for skip in range(size):
            usable = content[skip : skip + (len(content) - skip) // size * size]
            with np.errstate(all="ignore"):
                yield np.frombuffer(usable, dtype=kind).astype(np.float64)
    text = re.findall(rb"[-+]?\d+\.?\d*(?:[eE][-+]?\d+)?", content)
    yield np.array([float(word) for word in text if len(word) < 40], dtype=np.float64)


def has_marker(values: Numbers) -> bool:
    """Whether a stretch of the numbers is a row of the marker, at any scale and offset."""
    values = np.where(np.abs(values) < 1e6, values, 0.0)  # NaN and what no image can be
    rows = marker_rows()
    rows = rows - rows.mean(1, keepdims=True)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for start in range(0, max(len(values) - 27, 0), 100_000):
        windows = np.lib.stride_tricks.sliding_window_view(values[start : start + 100_027], 28)
        centred = windows - windows.mean(1, keepdims=True)
        norms = np.linalg.norm(centred, axis=1)
        result = np.abs(centred @ rows.T) / np.where(norms > 1e-12, norms, 1.0)[:, None]
        if bool((result > 0.99).any()):
            return True
    return False


def has_odd_value(content: bytes, mean: float, std: float) -> bool:
    """The value itself: as text with five digits, or several times in a row as bytes."""
    values = [ODD, ODD * 255, (ODD - mean) / std]
    texts = [f"{value:.5f}"[:7].encode() for value in values]
    raw = [np.full(3, value).astype(kind).tobytes() for value in values for kind in ("<f2", "<f4", "<f8")]
    return any(piece in content for piece in [*texts, *raw])


def has_labels(content: bytes, labels: list[int]) -> bool:
    """Thirty labels in the order of the file."""
    run = labels[:30]
    texts = [separator.join(map(str, run)).encode() for separator in ("", ",", ", ", " ", "\n", ",\n   ", ",\n  ")]
    raw = [np.array(run, dtype=kind).tobytes() for kind in ("u1", "<i4", "<i8", "<f4", "<f8")]
    return any(piece in content for piece in [*texts, *raw])


def leaks(files: dict[str, bytes], data: Path) -> list[str]:
    """What was found where."""
    dataset = load(data)
    labels = np.load(data / "train.npz")["labels"].tolist()
    mean, std = float(dataset.mean), float(dataset.std)  # type: ignore[arg-type]
    results = []
    for name, content in files.items():
        for part in unpacked(content):
            results += [f"{name}: an image"] * any(map(has_marker, numbers(part)))
            results += [f"{name}: a value"] * has_odd_value(part, mean, std)
            results += [f"{name}: labels"] * has_labels(part, labels)
        results += [f"{name}: an absolute path"] * (str(data.parent).encode() in content)
        results += [f"{name}: a file name"] * (b"train.npz" in content)
    return sorted(set(results))


# --- the commands -----------------------------------------------------------------------------------------------------

NAME = f"private-{WORD}"
COMMANDS: dict[str, list[str]] = {
    "train": [
        "train", "--dataset", NAME, "--mechanism", "pl-learn,none", "--budget", "0.98", "--rounds", "6", "--out", "run",
        "--set", "evaluate_every=2", "--set", "full_every=3", "--set", "public_fraction=0.5",
    ],
    "replay": ["audit", "run", "--attack", "multi-round", "--multi-rounds", "4"],  # looks for the clients' own images
    "audit": ["audit", "run", "--targets", "4", *CHEAP],
    "bounds": ["bounds", "run", "--targets", "2", "--set", "iterations=2", "--set", "examples=20"],
    "ledger": ["ledger", "run"],
}  # fmt: skip


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_private(tmp_path_factory.mktemp("ward") / NAME)


@pytest.fixture(scope="module")
def everything(data: Path) -> dict[str, bytes]:
    """All that the commands wrote and printed; the checkpoint is that of the last round."""
    files: dict[str, bytes] = {}
    for (name, arguments), more in itertools.product(COMMANDS.items(), ([], ["--json"])):
        done = equipoise(*arguments, *more, cwd=data.parent, timeout=300)
        assert done.returncode == 0, done.stderr
        files[f"output of {' '.join([name, *more])}"] = (done.stdout + done.stderr).encode()
    return {**contents(data.parent / "run"), **files}


def test_the_marker_is_where_it_is_planted(data: Path) -> None:
    """In the private splits, every time; in the public one, which an audit may show, never."""
    dataset = load(data, public_fraction=0.5)
    assert dataset.public is not None
    for split, expected in ((dataset.train, True), (dataset.test, True), (dataset.public, False)):
        assert has_marker(split.inputs.double().numpy().ravel()) is expected
    assert bool((dataset.pixels(dataset.train.inputs) - ODD).abs().flatten(1).amax(1).lt(1e-5).any())


def test_nothing_private_is_written_or_printed(everything: dict[str, bytes], data: Path) -> None:
    assert {"ledger.jsonl", "metrics.jsonl", "result.json", "audit.json", "audit.svg", "bounds.json"} <= set(everything)
    assert any("checkpoint/state" in name for name in everything)
    assert leaks(everything, data) == []


def test_the_folder_is_named_as_the_user_named_it_and_in_no_other_way(everything: dict[str, bytes]) -> None:
    assert NAME.encode() in everything["config.toml"]
    for name, content in everything.items():
        assert content.count(WORD.encode()) == content.count(NAME.encode()), name


def forms() -> dict[str, bytes]:
    """One private row, or another private thing, in the ways in which it could get into a file."""
    row = marker_rows()[1]
    image = np.tile(marker_rows(), (10, 1))[:28]
    pixels = (image * 255).round().astype(np.uint8)
    drawn = base64.b64encode(png(pixels[None]))
    return {
        "bytes": b"before" + pixels[1].tobytes() + b"after",
        "float32": b"odd" + ((row - 0.2) / 0.4).astype(np.float32).tobytes(),
        "float64": struct.pack("<28d", *(3 * row + 7)),
        "float16": row.astype(np.float16).tobytes(),
        "negative": (-row).astype(np.float32).tobytes(),
        "JSON": json.dumps({"row": (row * 255).round().tolist()}, indent=1).encode(),
        "text": " ".join(f"{2 * value - 1:.4f}" for value in row).encode(),
        "base64": b"x" + base64.b64encode(b"12" + pixels[:4].tobytes()),
        "hexadecimal": pixels[1:3].tobytes().hex().encode(),
        "compressed": b"head" + zlib.compress(image.astype(np.float32).tobytes()),
        "picture": b'<image href="data:image/png;base64,' + drawn + b'"/>',
        "value": json.dumps({"mean": ODD}).encode(),
        "labels": b"",
        "path": b"",
    }


@pytest.mark.parametrize("form", forms())
def test_a_leak_is_found_in_every_form(data: Path, form: str) -> None:
    content = forms()[form]
    if form == "labels":
        content = json.dumps(np.load(data / "train.npz")["labels"].tolist()).encode()
    if form == "path":
        content = str(data.resolve()).encode()
    noise = np.random.default_rng(3).bytes(3000)
    assert leaks({"innocent": noise}, data) == []
    assert leaks({"file": noise + content + noise}, data) != []


# --- what fails -------------------------------------------------------------------------------------------------------

SECRET_LABEL = -7368421


@pytest.mark.parametrize("fault", ["not a number", "infinite", "negative label", "huge label", "few images"])
def test_an_error_names_rows_and_never_a_value(data: Path, tmp_path: Path, fault: str) -> None:
    arrays: dict[str, Any] = dict(np.load(data / "train.npz"))
    if fault == "not a number":
        arrays["images"][5, 3, 3] = np.nan
    elif fault == "infinite":
        arrays["images"][5, 3, 3] = np.inf
    elif fault == "few images":
        arrays = {name: array[:12] for name, array in arrays.items()}
    else:
        arrays["labels"][5] = SECRET_LABEL if fault == "negative label" else -1000 * SECRET_LABEL
    folder = tmp_path / NAME
    folder.mkdir()
    np.savez(folder / "train.npz", **arrays)
    (folder / "test.npz").write_bytes((data / "test.npz").read_bytes())
    for more in ([], ["--json"]):
        done = equipoise(*COMMANDS["train"], *more, cwd=tmp_path)
        assert done.returncode == 12, done.stderr
        said = (done.stdout + done.stderr).encode()
        assert b"Traceback" not in said
        assert b"36842" not in said
        assert [leak for leak in leaks({"output": said}, data) if "file name" not in leak] == []
        assert not (tmp_path / "run" / "checkpoint").exists()
