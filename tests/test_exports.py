"""What users need is importable from ``equipoise``, lazily, and known to type checkers."""

from __future__ import annotations

import ast
import importlib
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import equipoise
from equipoise import errors


def for_type_checkers() -> dict[str, str]:
    """Name -> module, as the block under ``TYPE_CHECKING`` has it."""
    tree = ast.parse(Path(equipoise.__file__).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    result = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.name == alias.asname, "anything else is no export for mypy"
            result[alias.name] = node.module or ""
    return result


@pytest.mark.parametrize("name", equipoise.__all__)
def test_every_exported_name_can_be_imported_and_says_what_it_is(name: str) -> None:
    value = getattr(equipoise, name)
    assert inspect.isclass(value) or inspect.isfunction(value)
    assert value.__doc__
    home = importlib.import_module(f"equipoise.{equipoise._HOMES[name]}")
    assert value is getattr(home, name)
    assert value.__module__ == home.__name__, "exported from where it is defined"


def test_type_checkers_know_the_same_names() -> None:
    assert for_type_checkers() == equipoise._HOMES
    assert equipoise.__all__ == sorted(equipoise._HOMES) == dir(equipoise)


@pytest.mark.parametrize(
    "needed",
    [
        "protect Protected ProtectionSettings Settings Federation Sweep",  # protecting and training
        "Config resolve Run RunFolder load from_tensors Dataset",  # runs and their data
        "audit audit_run Audit bounds_run Bounds BoundsOptions",  # looking at them
        "Intake Aggregate Ledger ledger_report basic_epsilon composed_epsilon",  # a server of one's own
        "Mechanism MeasureKind register get_mechanism NoiseFamily register_noise",  # a mechanism of one's own
        "Attack Option Server View Inversion register_attack",  # an attack of one's own
    ],
)
def test_what_a_user_needs_is_there(needed: str) -> None:
    assert set(needed.split()) <= set(equipoise.__all__)


def test_every_error_is_there() -> None:
    kinds = [name for name, kind in vars(errors).items() if inspect.isclass(kind) and issubclass(kind, Exception)]
    assert set(kinds) <= set(equipoise.__all__)


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    code = "import sys, equipoise; equipoise.EquipoiseError; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'protekt'"):
        equipoise.protekt  # noqa: B018
