"""What people see of an audit, from a small ``audit.json``."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from equipoise.auditing.summary import summary_text
from equipoise.cli import display
from equipoise.cli.audit_tables import audit_tables, show_audit

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


@pytest.mark.parametrize("width", [80, 110])
def test_a_defence_stands_beside_its_twins_and_controls(width: int) -> None:
    (table,) = audit_tables(FOUND)
    console = Console(file=io.StringIO(), width=width)
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    line = next(line for line in text.splitlines() if "matched identified" in line)
    assert line.split()[2:] == ["90", "%", "80", "to", "100", "%", "30", "%", "-", "100", "%", "1.0", "%"]
    assert "…" not in text


def test_chance_is_what_the_summary_of_the_same_file_says() -> None:
    """The AUC is the best of several scores, and so is its control; the chance to identify is one in the candidates."""
    auc = {"attack": "membership", "membership_score": "last"}
    rows = [
        row("own", None, 0.9, chance="1 in 50"), row("own", "negative", 0.01, chance="1 in 50"),
        row("own", None, 0.9, identification=None, membership_auc=0.83, **auc),
        row("own", "negative", 0.01, identification=None, membership_auc=0.56, **auc),
    ]  # fmt: skip
    content = {**FOUND, "attacks": rows}
    (table,) = audit_tables(content)
    console = Console(file=io.StringIO(), width=110)
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    summary = " ".join(summary_text(content).split())
    for name, chance in (("matched identified", "1 in 50"), ("membership AUC", "0.56")):
        assert next(line for line in text.splitlines() if name in line).rstrip().endswith(chance)
        assert f"by chance {chance}" in summary


def test_the_notes_say_what_the_table_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(display, "console", console)
    show_audit(FOUND)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert (
        "one candidate of all for identification, random guesses for labels, and else the same result held against "
        "images of another release" in " ".join(text.split())
    )
    assert "black: MSE 1.18, score 0.46" in text
    assert "not claimed: (epsilon, delta) of any kind." in text
