"""What ``reproduce --status`` shows: artefacts, then claims."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from . import display

COLOURS = {"holds": "green", "fails": "red", "not shown": "yellow"}


def status_tables(result: dict[str, Any]) -> list[Table]:
    """What ``reproduce --status`` shows: artefacts, then claims."""
    artefacts = display.table("artefacts", ("artefact", "kind", "cells", "agree"), numbers=("cells", "agree"))
    for row in result["artefacts"]:
        display.add_row(artefacts, row["name"], row["kind"], str(row["cells"]), str(row["agree"]))
    claims = display.table("claims", ("the paper's claim", "here", "figures"))
    for row in result["claims"]:
        verdict = row["verdict"]
        claims.add_row(escape(row["claim"]), f"[{COLOURS[verdict]}]{verdict}[/]", escape(row["evidence"]))
    return [artefacts, claims]
