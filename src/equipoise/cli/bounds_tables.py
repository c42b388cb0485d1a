"""The tables and notes of ``equipoise bounds`` for a terminal."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from ..bounds.rows import Row
from ..bounds.summary import RESULTS, asked_by, federation_label, figures_text, grouped, short, worst_checks

MARKS = {"violated": "[red]violated[/]", "held": "[green]held[/]"}


def bounds_tables(result: dict[str, Any]) -> list[Table]:
    """For every federation a table of results, over all its rounds, and one of assumptions."""
    tables = []
    for label, rows in grouped(result["bounds"], federation_label).items():
        tables += [_results(label, rows), _assumptions(rows)]
    return tables


def bounds_notes(outcome: dict[str, Any]) -> str:
    """Why results do not apply, and what is claimed; below the tables."""
    unchecked = [row for row in outcome["bounds"] if row["status"] in ("not covered", "not checkable")]
    lines = []
    for (result, reason), several in grouped(unchecked, lambda row: (row["result"], row["reason"])).items():
        names = ", ".join(dict.fromkeys(row["mechanism"] for row in several))
        lines.append(f"{RESULTS[result]}, {several[0]['status']} ({names}): {reason}")
    lines += [f"{kind}: {' '.join(words)}" for kind, words in outcome["claims"].items()]
    return "\n".join(lines)


def _table(title: str | None, *columns: str) -> Table:
    table = Table(
        title=title and escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1),
        collapse_padding=True,
    )  # fmt: skip
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in ("bound", "measured") else "left",
            no_wrap=name not in ("figures", "status", "with"),
        )
    return table


def _results(label: str, rows: list[Row]) -> Table:
    table = _table(label, "result", "with", "bound", "measured", "holds", "status")
    for result, own in grouped(rows, lambda row: row["result"]).items():
        table.add_row(f"[bold]{RESULTS[result]}[/]")
        for (quantity, setting), several in grouped(own, lambda row: (row["quantity"], row["setting"])).items():
            status = list(dict.fromkeys(row["status"] for row in several))
            table.add_row(
                f" {escape(quantity)}", escape(setting), _span(several, "bound"), _span(several, "measured"),
                _verdict(several), status[0] if len(status) == 1 else "differs",
            )  # fmt: skip
    return table


def _assumptions(rows: list[Row]) -> Table:
    table = _table(None, "assumption", "of", "status", "figures")
    for check in worst_checks(row for row in rows if row["result"] != "convex_suboptimality"):  # no run meets those
        mark = MARKS.get(check["status"], check["status"])
        table.add_row(escape(check["name"]), asked_by(check), mark, escape(figures_text(check) or check["note"]))
    return table


def _span(rows: list[Row], side: str) -> str:
    """The smallest and the largest value of one side, or the one value there is."""
    values = [row[side]["value"] for row in rows if row[side] is not None and row[side]["value"] is not None]
    if not values:
        return "-"
    low, high = short(min(values)), short(max(values))
    return low if low == high else f"{short(min(values), 2)}..{short(max(values), 2)}"


def _verdict(rows: list[Row]) -> str:
    known = [row["holds"] for row in rows if row["holds"] is not None]
    if not known:
        return "-"
    return "yes" if all(known) else f"no ({known.count(False)}/{len(known)})"
