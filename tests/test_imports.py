"""The computing part needs torch and numpy alone, and `import equipoise` not even these."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise

SOURCE = Path(equipoise.__file__).parent
CORE = (
    "data", "partition", "models", "gradients", "layers", "budget", "intensity", "distortion", "mechanisms",
    "release", "aggregate", "evaluate", "federation", "records", "settings", "compute",
)  # fmt: skip
ALLOWED = {"torch", "numpy", "equipoise", *sys.stdlib_module_names}
LAZY = {"data": {"datasets", "flwr_datasets"}}
"""Extras that a module may import inside a function, where the user asked for them."""
THIRD_PARTY = ("scipy", "skimage", "pydantic", "typer", "rich", "jinja2", "plotly", "safetensors", "flwr", "matplotlib")


def path_of(module: str) -> Path:
    flat = SOURCE / f"{module}.py"
    return flat if flat.exists() else SOURCE / module / "__init__.py"


def imports(module: str) -> tuple[set[str], set[str], set[str]]:
    """Top-level packages imported on import, those imported inside functions, and sibling modules."""
    tree = ast.parse(path_of(module).read_text(encoding="utf-8"))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    eager, lazy, siblings = set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            assert node.module is not None
            names = {node.module}
        elif isinstance(node, ast.ImportFrom):
            siblings |= {node.module.partition(".")[0]} if node.module else {alias.name for alias in node.names}
            continue
        else:
            continue
        siblings |= {name.split(".")[1] for name in names if name.startswith("equipoise.")}
        (lazy if id(node) in inside else eager).update(name.partition(".")[0] for name in names)
    return eager, lazy, {name for name in siblings if path_of(name).exists()}


def with_siblings() -> list[str]:
    """The core and every module of the package it reaches."""
    found, waiting = set(), list(CORE)
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += imports(module)[2]
    return sorted(found)


@pytest.mark.parametrize("module", with_siblings())
def test_the_core_needs_torch_and_numpy_alone(module: str) -> None:
    eager, lazy, _ = imports(module)
    assert eager - ALLOWED == set()
    assert lazy - ALLOWED - LAZY.get(module, set()) == set()


def test_the_search_reaches_further_than_the_list() -> None:
    assert {"randomness", "draws", "errors", "stretch"} <= set(with_siblings())


ENVIRONMENT = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}


def run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compute_runs_where_nothing_else_is_installed() -> None:
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in THIRD_PARTY)
    run(f"import sys; {blocked}import equipoise.compute")


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    loaded = run("import sys, equipoise; print(*sorted(sys.modules))").split()
    assert "equipoise" in loaded
    assert not {"torch", "numpy", *THIRD_PARTY} & set(loaded)
