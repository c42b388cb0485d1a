"""What an artefact must say of itself, and what it may leave out."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from pathlib import Path

import pytest

from equipoise.files import write_json
from equipoise.reproduction.artefacts.artefact import Artefact
from equipoise.reproduction.artefacts.registry import ARTEFACTS
from equipoise.reproduction.plan import SCHEMA, VERSION
from equipoise.reproduction.reproduce import MARK, write
from equipoise.reproduction.tables import Table
from tests.reproduction.synthetic import records_of

LEAST = Artefact(
    name="least", kind="figure", title="Least", claim="One cell.", rule="It agrees.",
    score=lambda records: {"cells": [{"agrees": True}]},
    tables=lambda found: [Table("Cells", ["count"], [[str(len(found["cells"]))]])],
)  # fmt: skip


def test_only_what_stands_beside_the_paper_has_no_verdict() -> None:
    assert LEAST.judged
    assert not replace(LEAST, kind="beside").judged
    assert [name for name, artefact in ARTEFACTS.items() if not artefact.judged] == ["configuration", "sweeps"]


def test_needs_a_figure_and_notes_may_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ARTEFACTS, "least", LEAST)
    write_json(tmp_path / MARK, {"schema": SCHEMA, "version": VERSION, "scale": "full"})
    write(["least"], records_of(), tmp_path)
    assert sorted(path.name for path in (tmp_path / "least").iterdir()) == ["README.md", "results.json"]
    text = (tmp_path / "least" / "README.md").read_text()
    assert "**Result.** 1 of 1 cells agree." in text
    assert "Nothing is computed for it." in text
    assert text.endswith("| 1 |\n"), "no notes"


def test_an_artefact_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        LEAST.title = "Most"  # type: ignore[misc]
