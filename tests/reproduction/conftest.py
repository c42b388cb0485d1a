"""What the tests of the reproduction share: a scale of seconds, small data, committed and synthetic results."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.data.dataset import Dataset, from_tensors
from equipoise.data.loading import load
from equipoise.environment import VERSION
from equipoise.files import write_json
from equipoise.reproduction.artefacts.registry import ARTEFACTS
from equipoise.reproduction.claims import Tables
from equipoise.reproduction.plan import FULL, SCHEMA
from equipoise.reproduction.records import Records, read
from equipoise.reproduction.reproduce import MARK, write
from tests.reproduction.synthetic import SCALE, records_of

ROOT = Path(__file__).resolve().parents[2]


Small = dict[str, Dataset]


@pytest.fixture(scope="session")
def small() -> Small:
    """A few images of either dataset, 20 for each client, so that a federation takes a moment."""
    counts = {"train": 80, "test": 40, "validation": 40, "public": 600}
    result = {}
    for name in ("mnist", "fmnist"):
        data = load(name)
        parts = {part: (getattr(data, part).inputs[:n], getattr(data, part).labels[:n]) for part, n in counts.items()}
        result[name] = from_tensors(**parts, classes=10, name=name, mean=data.mean, std=data.std)
    return result


@contextmanager
def small_data(small: Small) -> Iterator[None]:
    """Whatever names a dataset gets a few images of it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("equipoise.engine.datasets.load_with", lambda name, **_: small[name])
        yield


@pytest.fixture
def _small(small: Small) -> Iterator[None]:
    with small_data(small):
        yield


@pytest.fixture(scope="session")
def committed() -> Path:
    """The results that are committed beside the sources."""
    return ROOT / "reproduction"


@pytest.fixture(scope="session")
def committed_records(committed: Path) -> Records:
    return read([committed / "raw"], FULL)


@pytest.fixture(scope="session")
def synthetic() -> Tables:
    """The cells of every artefact from records in which all claims hold."""
    records = records_of()
    return {name: artefact.score(records) for name, artefact in ARTEFACTS.items()}


@pytest.fixture(scope="session")
def quick_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every artefact, drawn, from synthetic records of the quick scale."""
    out, scale = tmp_path_factory.mktemp("quick") / "reproduced-quick", replace(SCALE, name="quick")
    write_json(out / MARK, {"schema": SCHEMA, "version": VERSION, "scale": scale.name})
    write(list(ARTEFACTS), records_of(scale=scale), out)
    return out
