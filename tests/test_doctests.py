"""Every example in a docstring does what it says."""

from __future__ import annotations

import doctest
import importlib
import io
from pathlib import Path

import pytest
import torch

import equipoise

SOURCE = Path(equipoise.__file__).parent
FLAGS = doctest.ELLIPSIS
EXTRAS = {"flwr", "matplotlib"}
"""What only an extra installs; a module that needs one on import is left to the tests of that extra."""

MODULES = sorted(
    ".".join(("equipoise", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if path.stem != "__main__"
)


def examples(name: str) -> list[doctest.DocTest]:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as missing:
        if str(missing.name).partition(".")[0] not in EXTRAS:
            raise
        return []
    result = doctest.DocTestFinder().find(module, name, extraglobs={"torch": torch})
    return [test for test in result if test.examples]


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    for test in examples(name):
        report = io.StringIO()
        failed, _ = doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=report.write)
        assert failed == 0, report.getvalue()


CORE = (
    "randomness", "statistics", "environment", "errors", "data.dataset", "data.partition", "models.batched",
    "mechanism.budget", "mechanism.schedule", "mechanism.registry", "mechanism.intensity", "mechanism.clipping",
    "mechanism.distortion", "mechanism.protection", "mechanism.protect", "server.aggregate", "engine.federation",
    "engine.settings", "engine.sweep", "runs.config", "bounds.theory", "bounds.estimates", "reproduction.plan",
)  # fmt: skip


@pytest.mark.parametrize("name", CORE)
def test_the_core_has_examples(name: str) -> None:
    assert examples(f"equipoise.{name}")
