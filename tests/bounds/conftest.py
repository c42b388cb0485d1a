"""Run folders that several test files read; nobody writes into them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.bounds.context import BoundsContext
from equipoise.bounds.run import Bounds, bounds_run, context_of
from equipoise.runs.folder import RunFolder
from tests.audit_helpers import train_run, write_pictures
from tests.bounds.runs import CHEAP, MECHANISMS


@pytest.fixture(scope="session")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_pictures(tmp_path_factory.mktemp("pictures"))


@pytest.fixture(scope="session")
def run(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smooth model, three rounds, settings of the paper otherwise: gamma and eta are too large for the theorems."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    return train_run(folder, pictures, MECHANISMS, model="lenet-zhu", init="uniform", full_every=1, snapshots=[0, 2])


@pytest.fixture(scope="session")
def result(run: Path) -> Bounds:
    return bounds_run(run, CHEAP)


@pytest.fixture
def context(run: Path) -> BoundsContext:
    return context_of(RunFolder(run), CHEAP)


@pytest.fixture(scope="session")
def gentle(pictures: Path, tmp_path_factory: pytest.TempPathFactory) -> Bounds:
    """Of a run in float64 whose steps the theorems cover."""
    change = {"model": "lenet-zhu", "init": "uniform", "gamma": 1e-3, "eta": 1e-4, "dtype": "float64", "snapshots": [3]}
    folder = tmp_path_factory.mktemp("runs") / "gentle"
    return bounds_run(train_run(folder, pictures, ("pl-learn",), **change), replace(CHEAP, targets=0))
