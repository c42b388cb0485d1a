"""The script that builds the bundled table and text, ``scripts/build_small_data.py``."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from equipoise.data.bundle import BUNDLED, BUNDLED_FOLDER, SMALL_MANIFEST, read_bundled
from equipoise.errors import DataError
from tests.helpers import load_script

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture(scope="module")
def script() -> Iterator[ModuleType]:
    sys.path.insert(0, str(SCRIPTS))
    yield load_script(SCRIPTS / "build_small_data.py")
    sys.path.remove(str(SCRIPTS))


@pytest.fixture
def original(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file of the same form: the row number in every column."""
    lines = ["569,30,malignant,benign", *(",".join([str(n)] * 30 + [str(int(n >= 212))]) for n in range(569))]
    path = tmp_path / "breast_cancer.csv"
    path.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(script, "CSV_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def test_the_script_repeats_itself_and_checks(
    script: ModuleType, original: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["--csv", str(original), "--out", str(tmp_path / "out")]
    assert script.main(command) == 0
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == [
        "breast-cancer.npz", "generated-text.npz", SMALL_MANIFEST,
    ]  # fmt: skip
    assert script.main([*command, "--check"]) == 0
    capsys.readouterr()
    assert script.main(["--csv", str(original), "--check"]) == 1
    out = capsys.readouterr().out
    assert "breast-cancer.npz: other data" in out
    assert "generated-text.npz: same data\n" in out, "the bundled text is what the script generates"
    (tmp_path / "out" / "breast-cancer.npz").write_bytes(b"x")
    assert script.main([*command, "--check"]) == 1
    assert "not the file of its manifest" in capsys.readouterr().out


def test_the_table_holds_what_its_index_says(script: ModuleType, original: Path, tmp_path: Path) -> None:
    script.main(["--csv", str(original), "--out", str(tmp_path)])
    arrays = read_bundled(tmp_path, "breast-cancer")
    for split in script.ROWS:
        index = arrays[f"{split}_index"]
        assert np.array_equal(arrays[f"{split}_features"], np.repeat(index[:, None], 30, 1))
        assert np.array_equal(arrays[f"{split}_labels"], index >= 212)
    np.testing.assert_allclose(arrays["mean"], arrays["public_index"].mean(), rtol=1e-6)
    np.testing.assert_allclose(arrays["std"], arrays["public_index"].std(), rtol=1e-6)
    bundled = read_bundled(BUNDLED_FOLDER, "breast-cancer")
    assert len(bundled["train_index"]) == len(arrays["train_index"])


def test_another_file_is_refused(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("1,2\n")
    with pytest.raises(DataError, match=r"Expected SHA-256 .* of breast_cancer\.csv"):
        script.main(["--csv", str(tmp_path / "a.csv"), "--out", str(tmp_path)])


def test_the_script_builds_every_small_dataset(script: ModuleType) -> None:
    named = {name for name, about in BUNDLED.items() if about.script == "scripts/build_small_data.py"}
    assert set(script.ABOUT) == named
