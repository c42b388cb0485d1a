"""The tables and notes of ``equipoise bounds``."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from equipoise.bounds.options import BoundsOptions
from equipoise.bounds.rows import Row, compared, given, result_row
from equipoise.bounds.run import bounds_run
from equipoise.cli import display
from equipoise.cli.bounds_tables import all_tables, compact_tables, show_bounds
from tests.audit_helpers import train_run, write_pictures

OPTIONS = BoundsOptions(
    snapshots=[0, 3], subproblems=2, repeats=2, samples=2, examples=8, power=1, short=2, targets=2, iterations=2
)  # fmt: skip


def shown(tables: list[Table], width: int = 80) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    for table in tables:
        console.print(table)
    return console.export_text()


def row(number: int, bound: float | None, measured: float, holds: bool | None, **more: Any) -> Row:
    about = {"dataset": "mnist", "mechanism": "pl-learn", "budget": 0.98, "seed": 1, "round": number}
    return result_row(
        about, more.pop("result", "one_step"), "eta/2 |grad F|^2", more.pop("setting", "as configured"),
        bound=None if bound is None else given(bound), measured=given(measured), holds=holds, **more,
    )  # fmt: skip


def line(text: str, start: str) -> list[str]:
    (result,) = [one for one in text.splitlines() if one.strip().startswith(start)]
    return result.split()


def test_values_are_ranges_over_the_rounds() -> None:
    rows = [row(0, 20.0, 0.5, True), row(2, 3000.0, 0.5, True)]
    text = shown(compact_tables(rows))
    assert line(text, "Lemma C.1")[2:] == ["eta/2", "|grad", "F|^2", "20", "to", "3000", "0.5", "not", "violated"]
    assert "pl-learn @ 0.98" in text


def test_a_bound_that_failed_somewhere_is_counted() -> None:
    rows = [row(0, 20.0, 30.0, False), row(2, 20.0, 0.5, True), row(3, None, 0.5, None, status="not checkable")]
    assert "violated in 1 of 2" in shown(compact_tables(rows), 120)
    assert shown(compact_tables([row(0, None, 0.5, None, status="not covered")])) == ""


def test_what_does_not_apply_is_never_said_to_hold() -> None:
    rows = [row(0, 20.0, 0.5, True, assumptions=[limit("eta <= 1/(4 L_F)", 0.02)])]
    for tables in (compact_tables, all_tables):
        text = shown(tables(rows), 120)
        assert "does not apply; not violated" in text
        assert "yes" not in text
        assert "holds" not in text


def test_violated_assumptions_are_those_of_the_run_as_it_was_with_their_round() -> None:
    rows = [
        row(0, None, 1.0, None, assumptions=[limit("[eta] <= 1/(4 L_F)", 0.05)]),
        row(2, None, 1.0, None, assumptions=[limit("[eta] <= 1/(4 L_F)", 0.02)]),
        row(0, 1.0, 1.0, True, assumptions=[limit("smaller", 0.02)], setting="eta = 1/(8 L)"),
    ]  # fmt: skip
    text = shown(compact_tables(rows))
    assert line(text, "[eta] <=")[-6:] == ["Lemma", "C.1", "2", "0.1", "against", "0.02"]
    assert "smaller" not in text


def test_all_tables_keep_the_rounds_apart() -> None:
    rows = [row(at, None, 1.0, None, assumptions=[limit("eta <= 1/(4 L_F)", 0.01 * (at + 1))]) for at in (0, 2)]
    text = shown(all_tables(rows))
    figures = [one.split()[-5:] for one in text.splitlines() if one.strip().startswith("eta <=")]
    assert figures == [["0", "violated", "0.1", "against", "0.01"], ["2", "violated", "0.1", "against", "0.03"]]
    assert line(text, "Lemma C.1") == ["Lemma", "C.1,", "as", "configured"]


def limit(name: str, value: float) -> Row:
    return compared(name, given(0.1), given(value), strict=False)


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("bounds")
    run = train_run(folder / "run", write_pictures(folder / "pictures"), ("pl-learn", "ls-learn"), init="uniform")
    return bounds_run(run, OPTIONS).content


@pytest.mark.parametrize("everything", [False, True])
def test_a_runs_tables_can_be_read_at_eighty_columns(
    result: dict[str, Any], everything: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    monkeypatch.setattr(display, "console", console)
    show_bounds(result, everything)
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    words = " ".join(text.split())
    for word in ("Theorem 5.1 (inner loop): does not apply to pl-learn", "violated", "radial", "not claimed:"):
        assert word in words
    assert words.index("Remark 1 (budget kept)") < words.index("Lemma C.1 eta/2" if not everything else "(seed 1)")
    assert everything or len(text.splitlines()) < 90
