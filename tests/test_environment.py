"""Where a result came from: what a reader needs, and nothing that names a person or a machine."""

from __future__ import annotations

import json
import platform
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch

from equipoise.environment import VERSION, environment


def test_the_version_is_that_of_the_package() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8")
    assert f'\nversion = "{VERSION}"\n' in project
    assert version("equipoise") == VERSION


def test_versions_and_threads_are_those_in_use() -> None:
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert environment() == {
                "equipoise": VERSION,
                "python": platform.python_version(),
                "torch": torch.__version__,
                "numpy": np.__version__,
                "system": f"{platform.system()} {platform.machine()}",
                "device": "cpu",
                "threads": threads,
            }
    finally:
        torch.set_num_threads(before)


def test_it_is_plain_json_and_names_neither_the_machine_nor_a_path() -> None:
    text = json.dumps(environment())
    assert json.loads(text) == environment()
    assert "/" not in text
    assert str(Path.home()) not in text
    assert not platform.node() or platform.node() not in text


@pytest.mark.parametrize("device", ["cuda", "cuda:1", torch.device("cuda", 1)])
def test_a_gpu_is_named_by_its_kind(monkeypatch: pytest.MonkeyPatch, device: str | torch.device) -> None:
    asked: list[torch.device] = []

    def name(which: torch.device) -> str:
        asked.append(which)
        return "NVIDIA H100"

    monkeypatch.setattr(torch.cuda, "get_device_name", name)
    assert environment(device)["device"] == "NVIDIA H100"
    assert asked == [torch.device(device)]
