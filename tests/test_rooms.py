"""The floor plan of the package, held: who may import whom, what needs torch and numpy alone, how large things get.

A room is a folder of ``src/equipoise``. Imports are read from the syntax trees, those inside functions too.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import equipoise

SOURCE = Path(equipoise.__file__).parent
TESTS = Path(__file__).parent

ROOMS = (
    "errors", "workers", "randomness", "files", "statistics", "environment",
    "data", "models", "privacy", "mechanism", "ledger", "server", "engine", "runs", "attack", "auditing", "bounds",
    "reproduction", "choosing", "flower", "report", "cli",
)  # fmt: skip
"""In the order of the data: a room imports only rooms listed before it."""
FREE = ("", "compute")
"""The package itself, which imports its public names lazily, and the entry that needs torch and numpy alone."""
PRIVATE = {"data", "ledger", "server", "engine", "runs"}
"""What holds clients' data or deals it out: no attack may reach it."""
ALONE = {"torch", "numpy", "equipoise", *sys.stdlib_module_names}
LAZY = {
    "statistics": {"scipy"}, "auditing.image_scores": {"scipy"}, "privacy.losses": {"dp_accounting"},
    "data.pictures": {"PIL"}, "data.contents": {"pyarrow"}, "data.parquet": {"pyarrow"},
    "data.hugging_face": {"pyarrow"},
}  # fmt: skip
"""What a module inside the fence may import within a function: for the rare case, or outside of ``compute``."""
THIRD_PARTY = (
    "scipy",
    "pydantic",
    "typer",
    "rich",
    "plotly",
    "safetensors",
    "flwr",
    "matplotlib",
    "dp_accounting",
    "PIL",
    "pyarrow",
)


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix("__init__").removesuffix(".")


MODULES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py")) if "template" not in path.parts}


def room(module: str) -> str:
    return module.partition(".")[0]


def target(module: str, node: ast.ImportFrom) -> str | None:
    """The module of this package that ``from <target> import`` names; None for another package's."""
    if node.level == 0:
        head, _, rest = (node.module or "").partition(".")
        return rest if head == "equipoise" else None
    package = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
    base = package[: len(package) - node.level + 1]
    return ".".join([*(part for part in base if part), *([node.module] if node.module else [])])


@cache
def imports(module: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Other packages imported at once, those imported inside functions, and modules of this package."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    inside = {
        id(node)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        for node in ast.walk(function)
    }
    eager, lazy, own = set(), set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = {alias.name.partition(".")[0] for alias in node.names}
            ours = {alias.name.partition(".")[2] for alias in node.names} if "equipoise" in names else set()
        elif isinstance(node, ast.ImportFrom):
            place = target(module, node)
            ours = set() if place is None else {place, *(f"{place}.{a.name}".strip(".") for a in node.names)}
            names = {(node.module or "").partition(".")[0]} if place is None else set()
        else:
            continue
        own |= {name for name in ours if name in MODULES and name}
        (lazy if id(node) in inside else eager).update(names)
    return frozenset(eager), frozenset(lazy), frozenset(own)


def reached(*modules: str) -> set[str]:
    """The given modules and all that they import, directly or not."""
    result: set[str] = set()
    waiting = list(modules)
    while waiting:
        module = waiting.pop()
        if module not in result:
            result.add(module)
            waiting += imports(module)[2]
    return result


# -- who may import whom -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [name for name in MODULES if room(name) not in FREE])
def test_a_room_imports_only_rooms_before_it(module: str) -> None:
    allowed = ROOMS[: ROOMS.index(room(module)) + 1]
    assert sorted(name for name in imports(module)[2] if room(name) not in allowed) == []


def test_every_room_is_listed() -> None:
    assert {room(name) for name in MODULES} <= {*ROOMS, *FREE}


@pytest.mark.parametrize("module", [name for name in MODULES if room(name) == "attack"])
def test_no_attack_reaches_private_data(module: str) -> None:
    assert sorted(name for name in reached(module) if room(name) in PRIVATE) == []


def test_the_search_for_private_data_can_find_it() -> None:
    assert {room(name) for name in reached("auditing.replay")} >= {"data", "engine"}


@pytest.mark.parametrize("module", sorted(reached("compute")))
def test_compute_needs_torch_and_numpy_alone(module: str) -> None:
    eager, lazy, _ = imports(module)
    assert eager - ALONE == set()
    assert lazy - ALONE - LAZY.get(module, set()) == set()


def test_compute_reaches_training_attacks_and_the_reproduction() -> None:
    assert {"engine.sweep", "attack.lti", "reproduction.job", "mechanism.distortion"} <= reached("compute")


def test_package_files_import_nothing_at_once() -> None:
    for module, path in MODULES.items():
        if path.name == "__init__.py":
            assert imports(module)[0] <= {"__future__", "importlib", "typing"}, module


def test_only_release_py_builds_a_release() -> None:
    builders = {module for module, path in MODULES.items() if set(called(path)) & {"Release", "Record"}}
    assert builders == {"mechanism.release"}


def called(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


# -- what is loaded ------------------------------------------------------------------------------------------------


def run(code: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(SOURCE.parent)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_compute_can_be_imported_where_nothing_else_is_installed() -> None:
    blocked = "".join(f"sys.modules[{name!r}] = None; " for name in THIRD_PARTY)
    run(f"import sys; {blocked}import equipoise.compute")


@pytest.mark.slow
def test_importing_the_attacks_loads_no_private_data() -> None:
    loaded = run("import sys, equipoise.attack.registry; print(*sorted(sys.modules))").split()
    assert "equipoise.attack.matched" in loaded
    assert not [name for name in loaded if name.startswith("equipoise.") and room(name[10:]) in PRIVATE]


def test_importing_the_package_imports_neither_torch_nor_numpy() -> None:
    loaded = run("import sys, equipoise; print(*sorted(sys.modules))").split()
    assert "equipoise" in loaded
    assert not {"torch", "numpy", *THIRD_PARTY} & set(loaded)


# -- how large things get ------------------------------------------------------------------------------------------


def test_few_modules_lie_outside_of_rooms() -> None:
    assert len(list(SOURCE.glob("*.py"))) <= 8


@pytest.mark.parametrize("module", MODULES)
def test_no_file_and_no_function_is_long(module: str) -> None:
    text = MODULES[module].read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400
    functions = [n for n in ast.walk(ast.parse(text)) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    assert [f.name for f in functions if length(f) >= 60] == []


def length(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines without those of the docstring."""
    first = function.body[0]
    told = first.end_lineno - first.lineno + 1 if ast.get_docstring(function) and first.end_lineno else 0
    return (function.end_lineno or 0) - function.lineno - told


def positional(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[str]:
    """The parameters that a function, or the constructor of a dataclass, takes by place."""
    if not isinstance(node, ast.ClassDef):
        return [a.arg for a in (*node.args.posonlyargs, *node.args.args) if a.arg not in ("self", "cls")]
    made = [ast.unparse(mark) for mark in node.decorator_list if ast.unparse(mark).startswith("dataclass")]
    if not made or "kw_only=True" in made[0] or "init=False" in made[0]:
        return []
    fields = [line for line in node.body if isinstance(line, ast.AnnAssign)]
    kinds = [ast.unparse(line.annotation) for line in fields]
    fields = fields[: kinds.index("KW_ONLY")] if "KW_ONLY" in kinds else fields
    return [ast.unparse(line.target) for line in fields if "ClassVar" not in ast.unparse(line.annotation)]


def test_positional_parameters_are_counted_in_functions_and_dataclasses() -> None:
    functions = ast.parse("def f(self, a, /, b, *c, d, **e): ...").body
    classes = ast.parse(
        "@dataclass\nclass A:\n a: int\n b: ClassVar[int]\n _: KW_ONLY\n c: int\n"
        "@dataclass(frozen=True, kw_only=True)\nclass B:\n a: int\n"
        "class C:\n a: int"
    ).body
    nodes = [node for node in (*functions, *classes) if isinstance(node, ast.FunctionDef | ast.ClassDef)]
    assert [positional(node) for node in nodes] == [["a", "b"], ["a"], [], []]


def test_nothing_takes_more_than_seven_positional_parameters() -> None:
    many = {
        f"{module}.{node.name}"
        for module, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and len(positional(node)) > 7
    }
    assert many == set()


@pytest.mark.parametrize("module", [name for name, path in MODULES.items() if not path.name.startswith("__")])
def test_every_module_has_its_test_file(module: str) -> None:
    *folders, stem = module.split(".")
    assert TESTS.joinpath(*folders, f"test_{stem}.py").is_file()
