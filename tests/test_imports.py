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
    "release", "aggregate", "evaluate", "federation", "records", "settings", "compute", "scores", "trial",
    "examination", "replay", "theory", "estimates", "reproduction", "reproduction.plan", "reproduction.work",
    "reproduction.measures", "accounting",
)  # fmt: skip
ATTACK = ("attack", *(f"attack.{path.stem}" for path in sorted(SOURCE.glob("attack/[!_]*.py"))))
PRIVATE = {"data", "partition", "federation", "settings", "draws", "stretch", "evaluate", "aggregate"}
"""What holds clients' data or deals it out: no attack may reach it."""
ALLOWED = {"torch", "numpy", "equipoise", *sys.stdlib_module_names}
LAZY = {"accounting": {"dp_accounting"}, "data": {"datasets", "flwr_datasets"}, "scores": {"scipy"}}
"""Extras that a module may import inside a function, where the user asked for them."""
THIRD_PARTY = ("scipy", "skimage", "pydantic", "typer", "rich", "jinja2", "plotly", "safetensors", "flwr", "matplotlib")


def path_of(module: str) -> Path:
    """The file of a module such as ``release`` or ``attack.view``; that of a package is its ``__init__.py``."""
    place = SOURCE.joinpath(*module.split("."))
    flat = place.with_suffix(".py")
    return flat if flat.exists() else place / "__init__.py"


def target_of(module: str, node: ast.ImportFrom) -> str:
    """What ``from <target> import ...`` names when ``module`` says it, below the package; "" is the package itself."""
    if node.level == 0:
        return (node.module or "").removeprefix("equipoise").removeprefix(".")
    parts = module.split(".")
    up = node.level - (path_of(module).name == "__init__.py")  # a package is its own first level
    return ".".join(parts[: len(parts) - up] + ([node.module] if node.module else []))


def with_parents(name: str) -> set[str]:
    """A module, and the packages that are imported on the way to it."""
    parts = name.split(".")
    return {".".join(parts[:count]) for count in range(1, len(parts) + 1)}


def imports(module: str) -> tuple[set[str], set[str], set[str]]:
    """Top-level packages imported on import, those imported inside functions, and modules of this package."""
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
            own = {name.removeprefix("equipoise.") for name in names if name.startswith("equipoise.")}
        elif isinstance(node, ast.ImportFrom):
            names = {node.module} if node.level == 0 and node.module else set()
            ours = node.level > 0 or (node.module or "").partition(".")[0] == "equipoise"
            target = target_of(module, node)
            below = {f"{target}.{alias.name}" if target else alias.name for alias in node.names}
            own = {target, *below} if ours else set()  # what is imported may itself be a module
        else:
            continue
        siblings |= {name for each in own if each for name in with_parents(each)}
        (lazy if id(node) in inside else eager).update(name.partition(".")[0] for name in names)
    return eager, lazy, {name for name in siblings if path_of(name).exists()}


def reached(*modules: str) -> set[str]:
    """The given modules and every module of the package that they reach."""
    found, waiting = set(), list(modules)
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += imports(module)[2]
    return found


def with_siblings() -> list[str]:
    """The core and every module of the package it reaches."""
    return sorted(reached(*CORE, *ATTACK))


@pytest.mark.parametrize("module", with_siblings())
def test_the_core_needs_torch_and_numpy_alone(module: str) -> None:
    eager, lazy, _ = imports(module)
    assert eager - ALLOWED == set()
    assert lazy - ALLOWED - LAZY.get(module, set()) == set()


def test_the_search_reaches_further_than_the_list() -> None:
    assert {"randomness", "draws", "errors", "stretch"} <= set(with_siblings())


def test_relative_imports_are_followed_from_inside_a_package() -> None:
    assert {"attack.descent", "attack.simulate", "attack.view"} <= set(ATTACK)
    assert imports("attack")[2] >= {"attack.descent", "attack.view"}
    assert imports("attack.view")[2] == {"errors", "gradients", "mechanisms", "release"}
    assert imports("attack.lti")[2] >= {"attack", "attack.descent", "attack.simulate", "errors"}
    assert imports("replay")[2] >= {"scores", "attack", "examination", "federation"}
    assert imports("trial")[2] >= {"scores", "attack", "attack.simulate"}


@pytest.mark.parametrize("module", ATTACK)
def test_no_attack_reaches_private_data(module: str) -> None:
    assert reached(module) & PRIVATE == set()


def test_the_search_for_private_data_can_find_it() -> None:
    assert "data" in imports("examination")[2]
    assert {"data", "settings"} <= reached("examination")
    assert reached("replay") >= PRIVATE  # by way of the federation: none of the names is out of date
    assert reached("records") & PRIVATE


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


def test_importing_the_attacks_loads_no_private_data() -> None:
    loaded = run("import sys, equipoise.attack; print(*sorted(sys.modules))").split()
    assert "equipoise.attack.multi_round" in loaded
    assert not {f"equipoise.{name}" for name in PRIVATE} & set(loaded)


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    loaded = run("import sys, equipoise; print(*sorted(sys.modules))").split()
    assert "equipoise" in loaded
    assert not {"torch", "numpy", *THIRD_PARTY} & set(loaded)
