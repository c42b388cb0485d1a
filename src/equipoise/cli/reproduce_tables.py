"""What ``reproduce --status`` shows: artefacts, then claims."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table


def status_tables(result: dict[str, Any]) -> list[Table]:
    """What ``reproduce --status`` shows: artefacts, then claims."""
    artefacts = Table(title="artefacts", title_justify="left", box=box.SIMPLE)
    for name in ("artefact", "kind", "cells", "agree"):
        artefacts.add_column(name)
    for row in result["artefacts"]:
        artefacts.add_row(row["name"], row["kind"], str(row["cells"]), str(row["agree"]))
    claims = Table(title="claims", title_justify="left", box=box.SIMPLE)
    for name in ("the paper's claim", "here", "figures"):
        claims.add_column(name)
    for row in result["claims"]:
        verdict = "[green]holds[/]" if row["holds"] else "[red]fails[/]"
        claims.add_row(escape(row["claim"]), verdict, escape(row["evidence"]))
    return [artefacts, claims]
