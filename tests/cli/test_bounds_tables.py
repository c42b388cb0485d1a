"""The tables and notes of ``equipoise bounds``."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from equipoise.bounds.options import BoundsOptions
from equipoise.bounds.rows import Row, assumption, compared, given, result_row
from equipoise.bounds.run import bounds_run
from equipoise.cli.bounds_tables import bounds_notes, bounds_tables
from tests.audit_helpers import train_run, write_pictures

OPTIONS = BoundsOptions(
    snapshots=[0, 3], subproblems=2, repeats=2, samples=2, examples=8, power=1, short=2, targets=2, iterations=2
)  # fmt: skip


def shown(result: dict[str, Any], width: int = 100) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    for table in bounds_tables(result):
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
    text = shown({"bounds": rows})
    assert line(text, "eta/2") == ["eta/2", "|grad", "F|^2", "as", "configured", "20..3000", "0.5", "yes", "applies"]
    assert "mnist pl-learn @ 0.98 (seed 1)" in text
    assert line(text, "one round") == ["one", "round"]


def test_a_bound_that_failed_somewhere_is_counted() -> None:
    rows = [row(0, 20.0, 30.0, False), row(2, 20.0, 0.5, True), row(3, None, 0.5, None, status="not checkable")]
    assert line(shown({"bounds": rows}), "eta/2")[-2:] == ["(1/2)", "differs"]
    none = [row(0, None, 0.5, None, status="not covered")]
    assert line(shown({"bounds": none}), "eta/2")[-5:] == ["-", "0.5", "-", "not", "covered"]


def test_assumptions_are_those_of_the_run_as_it_was() -> None:
    step = compared("eta <= 1/(4 L_F)", given(0.1), given(0.02), strict=False)
    small = compared("smaller", given(0.1), given(0.02), strict=False)
    noted = assumption("[bounded] variance", "not checkable", "measured at the snapshots only")
    convex = assumption("convex feasible set", "violated")
    text = shown({"bounds": [
        row(0, None, 1.0, None, assumptions=[step, noted]),
        row(0, 1.0, 1.0, True, assumptions=[small], setting="eta = 1/(8 L)"),
        row(0, None, 1.0, None, assumptions=[convex], result="convex_suboptimality"),
    ]})  # fmt: skip
    assert line(text, "eta <=")[-6:] == ["one", "round", "violated", "0.1", "against", "0.02"]
    assert "[bounded] variance" in text
    assert "measured at the snapshots only" in text
    assert "smaller" not in text
    assert "convex feasible set" not in text


def test_notes_name_every_reason_once() -> None:
    why = {"status": "not covered", "reason": "the L1 map is radial"}
    rows = [row(0, None, 1.0, None, **why), row(2, None, 1.0, None, **why), row(0, 1.0, 1.0, True)]
    rows[1]["mechanism"] = "ls-learn"
    notes = bounds_notes({"bounds": rows, "claims": {"proved": ["This.", "That."]}})
    assert notes.splitlines() == [
        "one round, not covered (pl-learn, ls-learn): the L1 map is radial",
        "proved: This. That.",
    ]


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder: Path = tmp_path_factory.mktemp("bounds")
    run = train_run(folder / "run", write_pictures(folder / "pictures"), ("pl-learn", "ls-learn"), init="uniform")
    return bounds_run(run, OPTIONS).content


def test_a_runs_tables_can_be_read_at_a_hundred_columns(result: dict[str, Any]) -> None:
    text = shown(result)
    assert "…" not in text
    for word in ("inner loop", "gamma < 1/L_alpha", "violated", "does not apply", "not covered", "pl-learn"):
        assert word in text
    assert "radial" in bounds_notes(result)
