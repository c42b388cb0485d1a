"""What people see of an audit, from a small ``audit.json``."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from equipoise.cli import display
from equipoise.cli.audit_tables import audit_tables, limits_table, show_audit

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
    "options": {"condition_on": "nothing", "pairs": 2},
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


def test_the_rate_at_one_percent_false_alarms_stands_beside_the_auc_and_a_failed_control_is_marked() -> None:
    rates = {"attack": "membership", "identification": None, "membership_tpr_low": 0.3, "membership_tpr_high": 0.5}
    rows = [
        row("own", None, 0.9, membership_auc=0.83, membership_tpr=0.4, control_failed=True, **rates),
        row("own", "negative", 0.01, membership_auc=0.56, membership_tpr=0.02, **rates),
        row("undistorted", "positive", 0.9, membership_auc=0.6, membership_tpr=0.05, **rates),
    ]  # fmt: skip
    content = {**FOUND, "attacks": rows}
    (table,) = audit_tables(content)
    console = Console(file=io.StringIO(), width=80)
    console.print(table)
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    auc = next(line for line in lines if "membership AUC" in line)
    assert auc.split()[2:] == ["0.83", "*", "-", "-", "-", "0.60", "0.56"]
    rate = next(line for line in lines if "30 to 50 %" in line)
    assert rate.split()[:2] == ["membership", "TPR@1%"], "one line"
    assert rate.split()[-4:] == ["5.0", "%", "2.0", "%"]


def test_the_verdict_opens_what_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=80)
    monkeypatch.setattr(display, "console", console)
    rows = [row("own", None, 0.9, control_failed=True)]
    show_audit({**FOUND, "attacks": rows, "verdict": [f"Leaks {'so much ' * 12}that 90 % is found."]})
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.startswith("Leaks so much so much")
    assert text.index("is found.") < text.index("what the attacks got")
    assert "control failed: the attack gets little without distortion too" in " ".join(text.split())
    assert max(map(len, text.splitlines())) <= 80


def test_the_notes_say_what_the_table_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), width=200)
    monkeypatch.setattr(display, "console", console)
    show_audit(FOUND)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert (
        "one candidate of all for identification, an even guess for labels, non-members against other non-members for "
        "membership, and else a decoy in the truth's place, the truth left out." in " ".join(text.split())
    )
    assert "black: MSE 1.18, score 0.46" in text
    assert "not claimed: (epsilon, delta) of any kind." in text


def test_who_verifies_is_said_to_be_granted_the_other_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(rows: list[dict[str, Any]]) -> str:
        console = Console(file=io.StringIO(), width=200)
        monkeypatch.setattr(display, "console", console)
        show_audit({**FOUND, "attacks": rows})
        return str(console.file.getvalue())  # type: ignore[attr-defined]

    rates = {"attack": "verify", "verified": 1.0, "accepted": 1.0, "accepted_wrongly": 0.0012, "chance": "1 in 100"}
    text = shown([row("own", None, 0.9, **{**rates, "identification": None})])
    assert "verify is granted the other examples of a batch" in text
    line = next(line for line in text.splitlines() if "verify wrong accepted" in line)
    assert "0.12 %" in line
    assert "verify is granted" not in shown([row("own", None, 0.9)])


def test_the_table_of_limits_fits_a_terminal() -> None:
    """80 columns, one line a row, with the longest names there are."""
    common = {
        "dataset": "mnist", "mechanism": "gaussian-dp", "budget": 2.0, "seed": 0, "round": None, "scope": "run",
        "attack": "multi-round", "rounds": 200, "games": 500, "candidates": 200, "low": 0.00025, "high": 0.054,
        "measured": 0.05, "limit": 0.0089, "noticed_from": 0.022, "above": True, "control_failed": False,
    }  # fmt: skip
    rows = [{**common, "measure": "identification"}, {**common, "measure": "membership_tpr", "fpr": 0.001}]
    console = Console(file=io.StringIO(), width=80)
    console.print(limits_table(rows))
    assert isinstance(console.file, io.StringIO)
    lines = [" ".join(line.split()) for line in console.file.getvalue().splitlines()]
    assert "multi-round identified 200 rounds 5 % ABOVE 0.025 to 5.4 % 0.89 % 2.2 %" in lines
    assert "multi-round 0.1 % FPR 200 rounds 5 % ABOVE 0.025 to 5.4 % 0.89 % 2.2 %" in lines
