"""docs/reference is what the code says, its examples run, and documents import public names alone."""

from __future__ import annotations

import ast
import doctest
import io
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest
from flwr.supercore.task_identity import TaskIdentity

ROOT = Path(__file__).parents[1]

sys.path.insert(0, str(ROOT / "scripts"))
reference, public_names = import_module("reference"), import_module("public_names")
sys.path.pop(0)

NAMES = [(package, name) for package in public_names.PACKAGES for name in import_module(package).__all__]


@pytest.fixture(autouse=True)
def _identity(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages have the ids that a Flower process gives them."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)


@pytest.mark.parametrize("name", reference.PAGES)
def test_the_pages_are_what_the_code_says(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert text == reference.PAGES[name]() + "\n", "python scripts/reference.py writes the pages"


@pytest.mark.usefixtures("registries")
@pytest.mark.parametrize(("package", "name"), NAMES)
def test_every_public_name_has_an_example_that_runs(package: str, name: str) -> None:
    example = public_names.example(package, name)
    assert example, "write one in its docstring"
    text = example.removeprefix("```pycon\n").removesuffix("```")
    test, report = doctest.DocTestParser().get_doctest(text, {}, name, None, 0), io.StringIO()
    flags = doctest.ELLIPSIS
    failed, _ = doctest.DocTestRunner(optionflags=flags, verbose=False).run(test, out=report.write)
    assert failed == 0, report.getvalue()


def test_every_public_name_is_described() -> None:
    for package, name in NAMES:
        assert public_names.first_line(public_names.public(package, name)), f"{package}.{name} has no docstring"


def test_every_key_has_a_meaning() -> None:
    for line in (ROOT / "docs/reference/settings.md").read_text(encoding="utf-8").splitlines():
        if line.startswith("| `"):
            assert not line.endswith("|  |"), line


# -- nobody imports a private module -------------------------------------------------------------------------------


def sources() -> Iterator[tuple[str, str]]:
    """Python that readers copy: the blocks of README and docs, the examples, the Flower template."""
    for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for number, block in enumerate(re.findall(r"```(?:python|pycon)\n(.*?)```", page.read_text(), re.DOTALL)):
            code = "\n".join(line[4:] for line in block.splitlines() if line[:4] in (">>> ", "... "))
            yield f"{page.name} {number}", code or block
        for number, block in enumerate(re.findall(r"```diff\n(.*?)```", page.read_text(), re.DOTALL)):
            yield f"{page.name} diff {number}", "\n".join(re.findall(r"^\+((?:from|import) equipoise.*)", block, re.M))
    for folder in (ROOT / "examples", ROOT / "src" / "equipoise" / "flower" / "template"):
        for path in folder.rglob("*.py"):
            yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def imported(code: str) -> Iterator[tuple[str, str]]:
    """(module, name) of every import of this package."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "equipoise":
            yield from ((node.module or "", alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names if alias.name.partition(".")[0] == "equipoise")


def test_documents_and_examples_import_public_names_alone() -> None:
    private = {
        f"{where}: from {module} import {name}"
        for where, code in sources()
        for module, name in parsed(where, code)
        if module not in public_names.PACKAGES or (name and name not in import_module(module).__all__)
    }
    assert private == set()


def parsed(where: str, code: str) -> list[tuple[str, str]]:
    try:
        return list(imported(code))
    except SyntaxError:  # a signature of the index
        assert where.startswith("api.md"), f"{where} is not Python"
        return []


def test_a_private_import_would_be_found() -> None:
    assert list(imported("from equipoise.data.loading import load\nimport equipoise.runs\n")) == [
        ("equipoise.data.loading", "load"),
        ("equipoise.runs", ""),
    ]
