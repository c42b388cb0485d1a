"""A small experiment with a dataset of its own, and the folder of its run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from equipoise.engine.settings import Settings
from equipoise.runs.config import Config, SweepBlock
from equipoise.runs.run import Run
from tests.helpers import write_dataset
from tests.runs.small_run import ROUNDS


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors: a second thread gains nothing, and waits where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("data") / "tiny")


@pytest.fixture(scope="session")
def config(tiny: Path) -> Config:
    settings = Settings.flat(rounds=ROUNDS, evaluate_every=2, snapshots=[0, 3], steps=2, threads=1)
    data = [str(tiny)]
    return Config(
        settings,
        [
            SweepBlock(data, ["pl-learn"], [0.98]),
            SweepBlock(data, ["none"]),
            SweepBlock(data, ["pl-learn"], [0.99]),
        ],
    )


@pytest.fixture(scope="session")
def whole(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    Run(folder, config).execute()
    return folder
