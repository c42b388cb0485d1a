"""``python -m equipoise.compute`` as a process of its own, on a machine that has torch and numpy alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import equipoise
from equipoise.compute import CURVES, main
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, to_dict
from equipoise.engine.sweep import Sweep
from tests.helpers import single_threaded, write_dataset

BLOCKED = ("pydantic", "rich", "typer", "click", "safetensors", "scipy", "plotly", "skimage", "jinja2", "hypothesis")
BLOCKER = f"""
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {BLOCKED!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a Python to which nothing of ours but the sources is installed."""
    folder = tmp_path_factory.mktemp("bare")
    (folder / "sitecustomize.py").write_text(BLOCKER)
    sources = Path(equipoise.__file__).parents[1]
    return {**single_threaded(), "PYTHONPATH": f"{folder}:{sources}"}


def compute(bare: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "equipoise.compute", *map(str, arguments)]
    return subprocess.run(command, env=bare, capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", BLOCKED)
def test_the_blocker_itself_works(name: str, bare: dict[str, str]) -> None:
    code = (
        f"import importlib.util as u\ntry: print(u.find_spec({name!r}))\nexcept ModuleNotFoundError: print('blocked')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=bare, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "blocked\n"


@pytest.mark.slow
def test_a_sweep_runs_and_gives_the_engines_numbers(bare: dict[str, str], tmp_path: Path) -> None:
    data = str(write_dataset(tmp_path / "data"))
    settings = Settings.flat(rounds=4, evaluate_every=2, full_every=4, steps=2)
    federations = [Federation(data, "pl-learn", 0.98), Federation(data, "none"), Federation(data, "ls-static", 200)]
    spec = to_dict(settings, federations)
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    done = compute(bare, tmp_path / "spec.json", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "3 federations in" in done.stdout
    assert done.stderr == ""
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["curves.npz", "result.json"]

    actual = json.loads((tmp_path / "out" / "result.json").read_text())
    asked = {**spec, "federations": [{**fed, "dataset": "data"} for fed in spec["federations"]]}
    assert (actual["schema"], actual["experiment"], actual["spec"]) == (1, "seeded", asked)
    assert str(tmp_path) not in (tmp_path / "out" / "result.json").read_text()
    assert [row["full_records"] for row in actual["federations"]] == [2, 2, 2]
    history = [event.rows for event in Sweep(settings, federations).run() if event.rows]
    assert [row["accuracy"] for row in actual["federations"]] == [row["accuracy"] for row in history[-1]]
    with np.load(tmp_path / "out" / "curves.npz", allow_pickle=False) as curves:
        assert curves["rounds"].tolist() == [row[0]["round"] for row in history] == settings.evaluated()
        assert set(curves.files) == {*CURVES, "rounds"}
        for name in ("accuracy", "loss", "utility_loss", "intensity"):
            expected = np.array([[row[name] for row in rows] for rows in history]).T
            assert curves[name] == pytest.approx(expected, rel=1e-5, abs=1e-6), name


GOOD: dict[str, Any] = {"settings": {"rounds": 1}, "federations": [{"mechanism": "none"}]}


@pytest.mark.parametrize(
    ("spec", "code", "words"),
    [
        ("not JSON", 11, "spec.json: Expecting value"),
        ([1], 11, ""),
        ({**GOOD, "settings": {"rounds": 0, "eta": -1}}, 11, "2 problems"),
        ({**GOOD, "settings": {"rounds": "5"}}, 11, "rounds"),
        ({**GOOD, "settings": {"leakage": {"x": 1}}}, 11, "x"),
        ({**GOOD, "settings": [1]}, 11, ""),
        ({**GOOD, "federations": {"mechanism": "none"}}, 11, ""),
        ({**GOOD, "federations": ["none"]}, 11, ""),
        ({**GOOD, "federations": [{"mechanism": "nonne"}]}, 11, "Did you mean 'none'"),
        ({**GOOD, "federations": [{"mechanism": "none", "dataset": "nowhere"}]}, 12, "'nowhere'"),
    ],
    ids=str,
)
def test_a_bad_spec_is_one_line_and_an_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: Any, code: int, words: str
) -> None:
    text = spec if isinstance(spec, str) else json.dumps(spec)
    (tmp_path / "spec.json").write_text(text)
    assert main([str(tmp_path / "spec.json"), str(tmp_path / "out")]) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert words in err
    assert not (tmp_path / "out" / "result.json").exists()


def test_a_process_ends_with_that_code(bare: dict[str, str], tmp_path: Path) -> None:
    done = compute(bare, tmp_path / "absent.json", tmp_path / "out")
    assert (done.returncode, done.stdout) == (11, "")
    assert done.stderr.startswith(f"error: Cannot read the SPEC {tmp_path / 'absent.json'}")
    assert "Traceback" not in done.stderr


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "spec.json").write_text(json.dumps(GOOD))
    assert main([str(tmp_path / "spec.json"), str(tmp_path / "spec.json" / "out")]) == 17
    assert capsys.readouterr().err.startswith("error: Cannot write")
