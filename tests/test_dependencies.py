"""What is installed is what is imported: no dependency without code, no import without a dependency."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from equipoise.engine.doctor import EXTRAS
from tests.test_rooms import MODULES, imports

ROOT = Path(__file__).parents[1]
MODULE_OF = {"scikit-image": "skimage", "dp-accounting": "dp_accounting", "pillow": "PIL"}
"""Where the name of a package is not that of its module."""
TOOLS = {"dev"}
"""Extras for those who change the package; the others are imported by it."""


@pytest.fixture(scope="module")
def project() -> dict[str, Any]:
    result: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return result


def modules(requirements: list[str]) -> set[str]:
    names = [re.split(r"[\[<>=!~ ]", text)[0] for text in requirements]
    return {MODULE_OF.get(name, name) for name in names}


def imported() -> set[str]:
    """Packages of others that the sources import, anywhere."""
    every = set().union(*(eager | lazy for eager, lazy, _ in map(imports, MODULES)))
    return {name for name in every if name not in sys.stdlib_module_names and name not in ("equipoise", "")}


def test_every_dependency_is_imported_and_every_import_a_dependency(project: dict[str, Any]) -> None:
    extras = [texts for name, texts in project["optional-dependencies"].items() if name not in TOOLS]
    named = modules(project["dependencies"]).union(*map(modules, extras))
    assert imported() == named


def test_the_doctor_looks_for_the_extras_there_are(project: dict[str, Any]) -> None:
    extras = {name: texts for name, texts in project["optional-dependencies"].items() if name not in TOOLS}
    assert set(EXTRAS) == set(extras)
    assert all(modules(texts) == set(EXTRAS[name]) for name, texts in extras.items())


def test_every_dependency_has_a_version_and_a_reason(project: dict[str, Any]) -> None:
    pinned = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
    reasons = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8").split("## Dependencies")[1]
    for text in itertools.chain(project["dependencies"], *project["optional-dependencies"].values()):
        name = re.split(r"[\[<>=!~ ]", text)[0]
        assert f"\n{name}==" in pinned, name
        assert name in reasons, name


def test_the_systems_named_are_those_that_have_the_lock(project: dict[str, Any]) -> None:
    systems = {line for line in project["classifiers"] if line.startswith("Operating System")}
    assert systems == {"Operating System :: MacOS", "Operating System :: POSIX :: Linux"}


@pytest.mark.slow
def test_a_run_needs_no_package_of_the_tests(tmp_path: Path) -> None:
    """Nor a template language: torch brings one, and may stop to."""
    hidden = "import sys\nfor name in ('skimage', 'imageio', 'PIL', 'matplotlib', 'hypothesis', 'pytest'):\n"
    code = f"{hidden}    sys.modules[name] = None\nfrom equipoise.cli.app import main\nmain()\n"
    arguments = ["train", "--mechanism", "pl-learn", "--budget", "0.98", "--rounds", "1", "--out", "run", "--json"]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "result.json").is_file()
