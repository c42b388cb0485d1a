"""What ``equipoise bounds`` shows: conclusions first, then a compact table, or all rows."""

from __future__ import annotations

from typing import Any

from rich.markup import escape
from rich.table import Table

from ..bounds.conclusions import conclusions, headline, overview, verdict, violations
from ..bounds.rows import Row
from ..bounds.summary import CITATIONS, asked_by, checks_by_round, federation_label, figures_text, grouped, short
from . import display

MARKS = {"violated": "[red]violated[/]", "held": "[green]held[/]"}
SIDES = ("bound", "measured")


def show_bounds(content: dict[str, Any], everything: bool = False) -> None:
    """Sentences on every result, the tables, and what is claimed."""
    rows = content["bounds"]
    said = conclusions(rows)
    display.console.print(f"[bold]{escape(headline(said))}[/]")
    for one in said:
        display.console.print(f"- {one.sentence()}", markup=False, highlight=False)
    display.console.print()
    for table in all_tables(rows) if everything else compact_tables(rows):
        display.console.print(table)
    display.claims(content["claims"])


def compact_tables(rows: list[Row]) -> list[Table]:
    """Both sides of every result over all rounds and seeds, then the assumptions that were violated."""
    results = display.table("bounds and measurements as configured", ("result", "of", *SIDES, "verdict"), numbers=SIDES)
    for label, mine in grouped(overview(rows), lambda row: row["defence"]).items():
        results.add_row(f"[bold]{escape(label)}[/]")
        for row in mine:
            display.add_row(
                results,
                f" {CITATIONS[row['result']]}",
                row["quantity"],
                *(_span(row[side]) for side in SIDES),
                row["verdict"],
            )
    broken = display.table("assumptions violated, at their worst round", ("assumption", "of", "round", "figures"))
    for label, checks in grouped(violations(rows), lambda check: check["defence"]).items():
        broken.add_row(f"[bold]{escape(label)}[/]")
        for check in checks:
            display.add_row(broken, f" {check['name']}", asked_by(check), _round(check), _figures(check))
    return [table for table in (results, broken) if table.row_count]


def all_tables(rows: list[Row]) -> list[Table]:
    """For every federation a table of results and one of assumptions, round by round."""
    tables = []
    for label, mine in grouped(rows, federation_label).items():
        results = display.table(label, ("of", "round", *SIDES, "verdict"), numbers=SIDES)
        for (result, setting), several in grouped(mine, lambda row: (row["result"], row["setting"])).items():
            results.add_row(f"[bold]{CITATIONS[result]}[/], {escape(setting)}")
            for row in several:
                sides = (_value(row[side]) for side in SIDES)
                display.add_row(results, f" {row['quantity']}", _round(row), *sides, verdict([row]))
        checks = display.table(None, ("assumption", "of", "round", "status", "figures"))
        for check in checks_by_round(mine):
            mark = MARKS.get(check["status"], check["status"])
            words = (check["name"], asked_by(check), _round(check))
            checks.add_row(*map(escape, words), mark, escape(_figures(check)))
        tables += [results, checks]
    return tables


def _round(row: Row) -> str:
    return "all" if row["round"] is None else str(row["round"])


def _figures(check: Row) -> str:
    return figures_text(check) or str(check["note"])


def _value(side: Row | None) -> str:
    return "-" if side is None or side["value"] is None else short(side["value"])


def _span(ends: tuple[float, float] | None) -> str:
    """The smallest and the largest value of one side, or the one value there is."""
    if ends is None:
        return "-"
    low, high = (short(value, 2) for value in ends)
    return short(ends[0]) if low == high else f"{low} to {high}"
