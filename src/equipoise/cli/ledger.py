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
    from ..ledger.report import ledger_report

    result = ledger_report(run, head, delta)
    if as_json:
        print_json(result)
    else:
        _show(result)


def _show(result: dict[str, Any]) -> None:
    from ..ledger.report import alike, printable
    from . import display

    title = "releases of a deployment" if result["experiment"] is None else "releases of a seeded experiment"
    if result["account"] is not None:
        title = f"releases of a node, account {printable(result['account'])}"
    numbers = ("asked", "accepted", "refused", "intensity")
    table = display.table(title, ("federation", "clients", "mechanism", "budget", *numbers), numbers=numbers)
    for row in alike(result["clients"]):
        display.add_row(
            table, str(row["federation"]), ", ".join(map(printable, row["clients"])),
            ", ".join(map(printable, row["mechanisms"])), ", ".join(f"{budget:g}" for budget in row["budgets"]) or "-",
            str(row["releases"]), str(row["accepted"]), str(row["refused"]), _range(*row["intensity"]),
        )  # fmt: skip
    display.console.print(table)
    display.note(
        "federation: its number, as configured. asked, accepted, refused: releases of each client. intensity: least "
        "and largest of them."
    )
    mechanisms = {(row["federation"], row["client"]): row["mechanisms"] for row in result["clients"]}
    for row in result["composed"]:
        epsilon = f"; not composed: {row.get('remedy')}"
        if row["epsilon"] is not None:
            epsilon = f", epsilon {row['epsilon']:.4g} at delta {row['delta']:g}"
        how = ", ".join(map(printable, mechanisms[row["federation"], row["client"]]))
        who = f"federation {row['federation']}, client {printable(row['client'])}"
        told = f"{how}, {who}: {row['releases']} releases, epsilon {row['sum']:.6g} at delta 0{epsilon}"
        display.console.print(told, markup=False, highlight=False)
    display.claims(result["claims"])


def _range(low: float | None, high: float | None) -> str:
    """
    >>> _range(7.99975, 7.99976), _range(8.0, 12.1425), _range(None, None)
    ('8', '8 to 12.14', '-')
    """
    if low is None or high is None:
        return "-"
    small, large = f"{low:.4g}", f"{high:.4g}"
    return small if small == large else f"{small} to {large}"
