"""What people see of an audit, from a small ``audit.json``."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from equipoise.cli.audit_tables import audit_notes, audit_tables

CELL = {"dataset": "mnist", "mechanism": "pl-learn", "budget": 0.98, "seed": 1, "round": 0, "attack": "matched"}


def row(role: str, control: str | None, share: float, **more: Any) -> dict[str, Any]:
    number = {"identification": share, "identification_low": share - 0.1, "identification_high": share + 0.1}
    return {
        **CELL,
        "role": role,
        "control": control,
        "targets": 8,
        "evidence": "insufficient evidence",
        **number,
        **more,
    }


FOUND = {
    "attacks": [
        row("own", None, 0.9), row("own", "negative", 0.01), row("static, equal lower bound", None, 0.3),
        row("undistorted", "positive", 1.0), row("undistorted", "negative", 0.5),
    ],
    "baselines": {"mnist": {"black": {"mse": 1.18, "leakage": 0.46}}},
    "options": {"condition_on": "nothing"},
    "claims": {"not claimed": ["(epsilon, delta) of any kind."]},
    "complete": False,
}  # fmt: skip


def test_a_defence_stands_beside_its_twins_and_controls() -> None:
    (table,) = audit_tables(FOUND)
    console = Console(file=io.StringIO(), width=120)
    console.print(table)
    line = next(line for line in console.file.getvalue().splitlines() if "matched found" in line)  # type: ignore[attr-defined]
    assert line.split()[2:] == ["90.0%", "80.0-100.0%", "30.0%", "-", "100.0%", "1.0%"]


def test_the_notes_say_what_the_table_cannot() -> None:
    notes = audit_notes(FOUND)
    assert "black: MSE 1.18, score 0.46" in notes
    assert "matched conditioned its responses on nothing" in notes
    assert "interrupted: these are the cells that were finished" in notes
    assert "insufficient evidence: 8 release(s) are fewer than 20" in notes
    assert "not claimed: (epsilon, delta) of any kind." in notes


def test_examples_that_never_took_part_have_no_rate_to_print() -> None:
    row = {"mechanism": "none", "budget": None, "rounds": 1, "targets": 4, "candidates": 5}
    row |= {"identification_schedule_known": None, "identification_schedule_unknown": 0.25}
    text = audit_notes({"baselines": {}, "multi_round": [row], "attacks": [], "claims": {}})
    assert "25%" in text
    assert "none, 1 releases combined" in text, "a mechanism without a budget has none to print"
