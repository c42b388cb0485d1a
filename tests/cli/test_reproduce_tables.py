"""What people see of a reproduction: verdicts, and text that is no markup."""

from __future__ import annotations

import io
import re

from rich.console import Console

from equipoise.cli.reproduce_tables import status_tables


def rendered(table: object) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_the_status_shows_verdicts() -> None:
    claims = [
        {"claim": "it [grows]", "verdict": "fails", "evidence": "3 of 4"},
        {"claim": "it falls", "verdict": "not shown", "evidence": "-1 to 1"},
    ]
    artefacts = [{"name": "cap", "kind": "summary", "cells": 8, "agree": 1}]
    shown = "".join(rendered(table) for table in status_tables({"artefacts": artefacts, "claims": claims}))
    assert "it [grows]" in shown, "what a claim says is no markup"
    assert re.search(r"it \[grows\]\s+fails\s", shown)
    assert re.search(r"it falls\s+not shown\s", shown)
    assert "cap" in shown
