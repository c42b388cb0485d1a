"""A section counts the cells that agree, says when it is no result, and holds the artefact's tables and notes."""

from __future__ import annotations

from equipoise.reproduction.artefacts.registry import ARTEFACTS
from equipoise.reproduction.claims import Tables
from equipoise.reproduction.sections import section


def test_a_section_counts_the_cells_that_agree(synthetic: Tables) -> None:
    for name in ("cap", "accuracy-ls", "layers"):
        artefact, cells = ARTEFACTS[name], synthetic[name]["cells"]
        agree = sum(cell["agrees"] for cell in cells)
        assert agree > 0
        assert (
            section(artefact, {**synthetic[name], "scale": "full"}).verdict == f"{agree} of {len(cells)} cells agree."
        )
        quick = section(artefact, {**synthetic[name], "scale": "quick"}).verdict
        assert quick.startswith("QUICK")
        assert quick.endswith(f"{agree} of {len(cells)} cells agree.")


def test_what_stands_beside_the_paper_has_no_verdict(synthetic: Tables) -> None:
    for name in ("sweeps", "configuration"):
        assert "no verdict" in section(ARTEFACTS[name], {**synthetic[name], "scale": "full"}).verdict


def test_a_section_holds_what_the_artefact_shows(synthetic: Tables) -> None:
    for name, artefact in ARTEFACTS.items():
        result = {**synthetic[name], "scale": "full"}
        shown = section(artefact, result)
        assert shown.artefact is artefact
        assert shown.tables == artefact.tables(result)
        assert shown.notes == (artefact.notes(result) if artefact.notes else [])
        assert all(len(row) == len(table.head) for table in shown.tables for row in table.rows), name
