"""What the README says is what the committed results say."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def load_script():
    spec = importlib.util.spec_from_file_location("fill_readme", ROOT / "scripts" / "fill_readme.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


FILES = load_script().FILES


@pytest.mark.parametrize("name", FILES)
def test_the_tables_are_those_of_the_results(name: str) -> None:
    text = (ROOT / name).read_text()
    assert FILES[name](text) == text


@pytest.mark.parametrize("name", FILES)
def test_every_table_is_filled(name: str) -> None:
    text = (ROOT / name).read_text()
    emptied = re.sub(r"(<!-- [a-z ]+: begin -->).*?(<!-- [a-z ]+: end -->)", r"\1\n\2", text, flags=re.DOTALL)
    assert emptied != text
    assert FILES[name](emptied) == text


def test_a_changed_number_would_be_noticed() -> None:
    text = (ROOT / "README.md").read_text()
    changed = re.sub(r"\d+\.\d ± \d+\.\d", "99.9 ± 0.0", text, count=1)
    assert changed != text
    assert load_script().filled(changed) == text


def test_every_local_link_of_the_documents_exists() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "reproduction").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
