"""The script that builds the bundled files, ``scripts/build_data.py``."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from equipoise.data.bundle import BUNDLED, BUNDLED_FOLDER, read_bundled
from equipoise.data.formats import read_idx
from equipoise.errors import DataError
from tests.data.folders import idx, write_idx
from tests.helpers import load_script

SIZES = {"train": 4000, "validation": 5000, "test": 5000, "public": 6000}
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script(ROOT / "scripts" / "build_data.py")


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
    assert script.main([*command, str(BUNDLED_FOLDER), "--check"]) == 1
    assert "train-images-idx3-ubyte is not the original" in capsys.readouterr().out
    shutil.copy(tmp_path / "one" / "manifest.json", tmp_path / "one" / "mnist.npz")
    assert script.main([*command, str(tmp_path / "one"), "--check"]) == 1
    assert "not the one in its manifest" in capsys.readouterr().out


def test_the_script_selects_what_its_index_says(script: ModuleType, originals: Path, tmp_path: Path) -> None:
    script.main(["--mnist", str(originals), "--fmnist", str(originals), "--out", str(tmp_path)])
    arrays = read_bundled(tmp_path, "mnist")
    for split, size in SIZES.items():
        images, index = arrays[f"{split}_images"].astype(int), arrays[f"{split}_index"]
        assert len(index) == size
        assert np.array_equal(images[:, 0, 0] * 256 + images[:, 0, 1], index)
        assert np.array_equal(images[:, 1, 0], arrays[f"{split}_labels"])
    labels = read_idx(originals / "train-labels-idx1-ubyte")
    for label in range(10):
        actual = np.flatnonzero(labels == label)
        expected = actual[((np.arange(1500) + 0.5) * len(actual) / 1500).astype(int)]
        chosen = np.concatenate([arrays[f"{split}_index"][label::10] for split in ("train", "validation", "public")])
        assert np.array_equal(np.sort(chosen), expected)


def test_the_script_refuses_too_few_images(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least 1500 images of class 0, got 12"):
        script.main(["--mnist", str(write_idx(tmp_path)), "--fmnist", str(tmp_path), "--out", str(tmp_path)])


def test_the_script_builds_every_bundled_dataset(script: ModuleType) -> None:
    assert set(script.ABOUT) == {name for name, about in BUNDLED.items() if about.script == "scripts/build_data.py"}
