"""What several test files share: one hypothesis profile, two small datasets, registries as they were."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, settings

from equipoise.attack.registry import ATTACKS
from equipoise.data.dataset import Dataset, from_tensors
from equipoise.data.loading import load
from equipoise.mechanism import noise
from equipoise.mechanism.registry import MEASURES, MECHANISMS
from equipoise.reproduction.artefacts.registry import ARTEFACTS

# The same code gets the same verdict; `pytest --hypothesis-profile=explore` looks for new examples instead.
settings.register_profile("fixed", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=500)
settings.load_profile("fixed")

# The tensors here are small: a second thread gains nothing on an idle machine and costs minutes on a busy one.
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def cache_folder() -> Iterator[None]:
    """The key of whoever runs the tests stays out of them; programs that they start share this one."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", folder)
        yield


@pytest.fixture(scope="session")
def mnist() -> Dataset:
    return load("mnist")


@pytest.fixture(scope="session")
def few(mnist: Dataset) -> Dataset:
    """160 training images (40 for each of 4 clients), 80 to validate, 80 to test, 600 public: all costs little."""
    counts = {
        "train": 160,
        "validation": 80,
        "test": 80,
        "public": 600,
    }  # the bundled rows cycle through the ten classes
    picked = {name: (getattr(mnist, name).inputs[:n], getattr(mnist, name).labels[:n]) for name, n in counts.items()}
    return from_tensors(picked["train"], picked["test"], picked["validation"], picked["public"], classes=10, name="few")


@pytest.fixture
def registries() -> Iterator[None]:
    """Whatever a test or an example registers is forgotten again."""
    all_of_them: tuple[dict[str, Any], ...] = (MECHANISMS, MEASURES, ATTACKS, ARTEFACTS, noise._KNOWN)
    before = [dict(registry) for registry in all_of_them]
    yield
    for registry, known in zip(all_of_them, before, strict=True):
        registry.clear()
        registry.update(known)


@pytest.fixture
def generator() -> torch.Generator:
    """A seeded generator of one's own: no test touches torch's global random state."""
    return torch.Generator().manual_seed(20240229)
