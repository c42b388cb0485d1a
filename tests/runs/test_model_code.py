"""A run whose model's code changed says so, and goes on."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType

import pytest
from torch import nn

from equipoise.errors import CheckpointError
from equipoise.runs.checkpoint import load_checkpoint, save_checkpoint
from equipoise.runs.config import Config, SweepBlock
from equipoise.runs.model_code import changed, digests
from equipoise.runs.run import Run
from tests.runs.small_run import changed as with_settings

PARTS = "from torch import nn\nclass Scaled(nn.Module):\n    def forward(self, x):\n        return x * 1.0\n"
NET = "from torch import nn\nfrom parts_of_test import Scaled\ndef make():\n    return nn.Sequential({})\n"


def written(folder: Path, parts: str = PARTS, layers: str = "nn.Flatten(), Scaled(), nn.Linear(784, 10)") -> ModuleType:
    """The module of the model, imported anew."""
    (folder / "parts_of_test.py").write_text(parts)
    (folder / "net_of_test.py").write_text(NET.format(layers))
    for name in ("parts_of_test", "net_of_test"):
        sys.modules.pop(name, None)
    importlib.invalidate_caches()
    return importlib.import_module("net_of_test")


@pytest.fixture
def mine(tmp_path: Path, config: Config, monkeypatch: pytest.MonkeyPatch) -> Config:
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    settings = with_settings(config, model="net_of_test:make", init="torch")
    return replace(settings, sweep=[SweepBlock(config.sweep[0].datasets, ["none"])])


def stopped(folder: Path, config: Config, module: ModuleType) -> None:
    def stop(at: int) -> None:
        if at == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Run(folder / "run", config, model=module.make).execute(on_round=stop)


def test_changed_code_is_named_and_the_run_goes_on(tmp_path: Path, mine: Config) -> None:
    stopped(tmp_path, mine, written(tmp_path))
    run = Run(tmp_path / "run", mine, model=written(tmp_path, PARTS.replace("1.0", "2.0")).make)
    run.execute()
    assert run.resumed_from > 0
    assert run.warnings == ["the model's code, parts_of_test.py, has changed since the checkpoint; --fresh begins anew"]


def test_the_same_code_is_no_matter(tmp_path: Path, mine: Config) -> None:
    stopped(tmp_path, mine, written(tmp_path))
    run = Run(tmp_path / "run", mine, model=written(tmp_path).make)
    run.execute()
    assert (run.resumed_from > 0, run.warnings) == (True, [])


def test_another_number_of_parameters_is_told_as_such(tmp_path: Path, mine: Config) -> None:
    stopped(tmp_path, mine, written(tmp_path))
    wider = written(tmp_path, layers="nn.Flatten(), nn.Linear(784, 9), nn.Linear(9, 10)")
    with pytest.raises(CheckpointError, match="its model has 7,850 parameters, and this one 7,165") as caught:
        Run(tmp_path / "run", mine, model=wider.make).execute()
    assert caught.value.remedy == "Change the model back, or use --fresh or another --out."


def test_without_its_model_a_run_asks_for_it(tmp_path: Path, mine: Config) -> None:
    stopped(tmp_path, mine, written(tmp_path))
    other = with_settings(mine, model="lenet-zhu", init="uniform")
    with pytest.raises(CheckpointError) as caught:
        Run(tmp_path / "run", other).execute()
    assert caught.value.remedy.startswith("To go on with it, add --model net_of_test:make. Else use --fresh")


def test_other_threads_are_told(tmp_path: Path, config: Config) -> None:
    one = replace(with_settings(config, threads=0), sweep=[SweepBlock(config.sweep[0].datasets, ["none"])])
    with pytest.raises(KeyboardInterrupt):
        Run(tmp_path, one).execute(on_round=lambda at: exec("raise KeyboardInterrupt") if at == 4 else None)
    kept = load_checkpoint(tmp_path / "checkpoint")
    assert kept is not None
    own = {key: value for key, value in kept[1].items() if key not in ("schema", "file", "sha256")}
    save_checkpoint(tmp_path / "checkpoint", kept[0], {**own, "threads": 4096})
    run = Run(tmp_path, one)
    run.execute()
    (warning,) = run.warnings
    assert warning.startswith("the run had 4096 CPU threads and goes on with 1: its bits may differ")


def test_only_files_of_the_user_count(tmp_path: Path, mine: Config) -> None:
    module = written(tmp_path)
    both = digests(module.make, module.make())
    assert set(both) == {"net_of_test", "parts_of_test"}
    assert digests(partial(module.make), module.make()) == digests(module.make(), module.make()) | {
        "net_of_test": both["net_of_test"]
    }
    assert digests(None, module.make()) == {}
    typed = type("Typed", (nn.Flatten,), {"__module__": "typed_of_test"})
    assert digests(typed, typed()) == {}


def test_what_a_checkpoint_says_of_code_may_be_anything() -> None:
    assert changed(["net"], {"net": "1"}) == changed("net", {}) == []
    assert changed({"a.b": "1"}, {"c": "2"}) == ["a/b.py", "c.py"]
    assert changed({"a\x1b": 1}, {}) == ["a?.py"]
