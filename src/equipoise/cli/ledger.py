"""The command ``ledger``: is a run's chain whole, and how many releases were asked for; ``app.py`` registers it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from .arguments import Json, print_json

EXAMPLES = (
    "Examples: equipoise ledger runs/a   |   equipoise ledger runs/a --json   |   equipoise ledger RUN --head HASH"
)


def ledger(
    run: Annotated[Path, typer.Argument(help="A run folder, or a ledger.jsonl.")],
    *,
    head: Annotated[str | None, typer.Option(help="A head noted elsewhere, to which the chain must lead.")] = None,
    delta: Annotated[float, typer.Option(help="For the composed epsilon of laplace-dp.")] = 1e-5,
    as_json: Json = False,
) -> None:
    """Verify a run's ledger of releases, and count them for every client."""
    from ..ledger.report import report

    result = report(run, head, delta)
    if as_json:
        print_json(result)
    else:
        _show(result)


def _show(result: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from ..ledger.report import printable
    from . import display

    title = "releases of a deployment" if result["experiment"] is None else "releases of a seeded experiment"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("run", "clients", "mechanism", "budget", "asked", "accepted", "refused", "intensity"):
        justify: Any = "left" if name in ("clients", "mechanism") else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name != "clients")
    for rows in _alike(result["clients"]):
        row, names = rows[0], escape(", ".join(printable(row["client"]) for row in rows))
        lows, highs = ([row["intensity"][i] for row in rows if row["intensity"][i] is not None] for i in (0, 1))
        table.add_row(
            str(row["federation"]), names, escape(", ".join(map(printable, row["mechanisms"]))),
            ", ".join(f"{budget:g}" for budget in row["budgets"]) or "-", str(row["releases"]), str(row["accepted"]),
            str(row["refused"]), _range(min(lows), max(highs)) if lows else "-",
        )  # fmt: skip
    display.console.print(table)
    display.console.print("run: the federation's number; other numbers are those of each client", style="dim")
    mechanisms = {(row["federation"], row["client"]): row["mechanisms"] for row in result["clients"]}
    for row in result["composed"]:
        epsilon = f"; not composed: {row.get('remedy')}"
        if row["epsilon"] is not None:
            epsilon = f", epsilon {row['epsilon']:.4g} at delta {row['delta']:g}"
        how = ", ".join(map(printable, mechanisms[row["federation"], row["client"]]))
        who = f"federation {row['federation']}, client {printable(row['client'])}"
        told = f"{how}, {who}: {row['releases']} releases, epsilon {row['sum']:.6g} at delta 0{epsilon}"
        display.console.print(told, markup=False, highlight=False)
    for kind, words in result["claims"].items():
        display.console.print(f"{kind}: {' '.join(words)}", markup=False, highlight=False, style="dim")


def _alike(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Clients that follow each other and differ in nothing but their intensities, together."""
    results: list[list[dict[str, Any]]] = []
    for row in rows:
        same = results and all(row[name] == results[-1][0][name] for name in row if name not in ("client", "intensity"))
        results[-1].append(row) if same else results.append([row])
    return results


def _range(low: float, high: float) -> str:
    """
    >>> _range(7.99975, 7.99976), _range(8.0, 12.1425)
    ('8', '8 - 12.14')
    """
    small, large = f"{low:.4g}", f"{high:.4g}"
    return small if small == large else f"{small} - {large}"
