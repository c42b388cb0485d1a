"""Progress and tables: quiet where asked, and counting to the end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from equipoise.cli import display


def rendered(table: object) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_a_quiet_command_shows_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    with display.progress(3, "training", quiet=True) as step:
        step(3)
    with display.attack_progress(quiet=True) as told, display.job_progress(quiet=True) as job:
        assert told is None
        assert job is None
    assert capfd.readouterr() == ("", "")


def test_progress_takes_rounds_attacks_and_jobs() -> None:
    with display.progress(3, "training", quiet=False) as step:
        step(1)
    with display.attack_progress(quiet=False) as told:
        told("lti", 0.5)
    with display.job_progress(quiet=False) as job:
        job("training", 1, 2)
        job("attacking", 3, 4)


@pytest.mark.parametrize(("budget", "text"), [(None, "-"), (0.98, "0.98"), (200.0, "200"), ([1, 2], "[1, 2]")])
def test_a_budget_as_people_write_it(budget: object, text: str) -> None:
    assert display.budget_text(budget) == text


def test_the_status_shows_verdicts() -> None:
    claims = [{"claim": "it [grows]", "holds": False, "evidence": "3 of 4"}]
    artefacts = [{"name": "cap", "kind": "summary", "cells": 8, "agree": 1}]
    shown = "".join(rendered(table) for table in display.status_tables({"artefacts": artefacts, "claims": claims}))
    assert "it [grows]" in shown, "what a claim says is no markup"
    assert "fails" in shown
    assert "cap" in shown
