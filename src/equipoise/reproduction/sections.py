"""An artefact's results as a section: its verdict, its tables and its notes, ready for any page."""

from __future__ import annotations

from dataclasses import dataclass, field

from .artefacts.artefact import Artefact, Results
from .tables import Table


@dataclass(frozen=True)
class Section:
    """One artefact on a page."""

    artefact: Artefact
    verdict: str
    tables: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def section(artefact: Artefact, result: Results) -> Section:
    """An artefact's results, ready for a page."""
    verdict = "Beside the paper's artefacts; no verdict."
    if artefact.judged:
        agree = sum(cell["agrees"] for cell in result["cells"])
        verdict = f"{agree} of {len(result['cells'])} cells agree."
    if result["scale"] != "full":
        verdict = f"QUICK: fewer rounds and seeds than the paper's protocol; says nothing about the paper. {verdict}"
    return Section(artefact, verdict, artefact.tables(result), artefact.notes(result) if artefact.notes else [])
