"""The command line as tests use it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from equipoise.data.dataset import Dataset
from tests.helpers import Command, Done, entry_point, write_dataset

CLAIMS = (
    r"(epsilon|ε|eps)\s*(=|:|of|≤|<=)\s*\d",
    r"(delta|δ)\s*(=|:|of|≤|<=)\s*\d",
    r"\(\s*\d+(\.\d+)?\s*,\s*(1e-\d+|10\^-\d+|0\.0\d*)\s*\)\s*-?\s*(dp|differential)",
)
"""No output may claim a privacy loss."""


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors: a second thread gains nothing, and waits where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(name="command")
def _command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run ``equipoise ARGUMENTS`` by its entry point, in a folder of its own. No output may claim a privacy loss."""
    equipoise = entry_point(tmp_path, monkeypatch, capfd, columns=80)

    def run(*arguments: str | Path) -> Done:
        done = equipoise(*arguments)
        for claim in CLAIMS:
            assert not re.search(claim, done.out + done.err, re.IGNORECASE), (claim, done.out + done.err)
        return done

    return run


@pytest.fixture
def small_mnist(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """``mnist`` is a few images of it, so that whole commands take a second."""
    monkeypatch.setattr("equipoise.engine.datasets.load_with", lambda name, **_: few)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "tiny")
