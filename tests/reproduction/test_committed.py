"""The committed results are what the committed records say: every number, every text, every figure is there."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise.files import plain, write_text
from equipoise.reproduction import figures, reproduce
from equipoise.reproduction.artefacts.artefact import Artefact, Results
from equipoise.reproduction.artefacts.registry import ARTEFACTS
from equipoise.reproduction.records import Records
from equipoise.reproduction.reproduce import write
from tests.helpers import contents


def same(actual: Any, expected: Any, where: str) -> None:
    """Equal, up to the last bits of numbers, which another numpy may round otherwise."""
    if isinstance(expected, dict):
        assert isinstance(actual, dict), where
        assert list(actual) == list(expected), where
        for key in expected:
            same(actual[key], expected[key], f"{where}/{key}")
    elif isinstance(expected, list):
        assert isinstance(actual, list), where
        assert len(actual) == len(expected), where
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            same(one, other, f"{where}/{i}")
    elif isinstance(expected, float) or isinstance(actual, float):
        assert actual == pytest.approx(expected, rel=1e-9, abs=1e-12), where
    else:
        assert (type(actual), actual) == (type(expected), expected), where


@pytest.fixture(scope="module")
def regenerated(committed: Path, committed_records: Records, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Everything that follows from the committed records, written anew; figures are taken as committed."""
    out = tmp_path_factory.mktemp("again") / "reproduction"
    write_text(out / reproduce.MARK, (committed / reproduce.MARK).read_text())

    def drawn(artefact: Artefact, result: Results) -> str | None:
        path = committed / artefact.name / "figure.svg"
        return path.read_text() if path.is_file() else None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(figures, "svg", drawn)
        write(list(ARTEFACTS), committed_records, out)
    return out


@pytest.mark.parametrize("name", list(ARTEFACTS))
def test_committed_results_are_what_the_committed_records_say(regenerated: Path, committed: Path, name: str) -> None:
    actual, expected = (json.loads((folder / name / "results.json").read_text()) for folder in (committed, regenerated))
    same(actual, expected, name)


def test_committed_texts_are_what_the_committed_records_say(regenerated: Path, committed: Path) -> None:
    one, other = contents(committed), contents(regenerated)
    assert {name for name in one if not name.startswith("raw/")} == set(other)
    texts = [name for name in other if name.endswith((".md", ".html"))]
    assert len(texts) == len(ARTEFACTS) + 2
    assert [name for name in texts if one[name] != other[name]] == []


def test_every_artefact_but_the_configuration_has_a_committed_figure(committed: Path) -> None:
    drawn = {path.parent.name for path in committed.glob("*/figure.svg")}
    assert drawn == set(ARTEFACTS) - {"configuration"}
    for name in sorted(drawn):
        root = ElementTree.fromstring((committed / name / "figure.svg").read_text())
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert "QUICK" not in (committed / name / "figure.svg").read_text()


def test_a_hand_edited_number_would_be_noticed(regenerated: Path) -> None:
    expected = json.loads((regenerated / "accuracy-ls" / "results.json").read_text())
    edits: list[Callable[[dict[str, Any]], Any]] = [
        lambda cell: cell.update(mean=cell["mean"] + 1e-6),
        lambda cell: cell.update(agrees=not cell["agrees"]),
        lambda cell: cell.update(seeds=9),
        lambda cell: cell.pop("reach"),
        lambda cell: cell["values"].append(1.0),
    ]
    for edit in edits:
        actual = plain(json.loads(json.dumps(expected)))
        edit(actual["cells"][0])
        with pytest.raises(AssertionError):
            same(actual, expected, "accuracy-ls")
