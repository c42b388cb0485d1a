"""The command ``ledger``: is a run's chain whole, and how many releases were asked for; ``app.py`` registers it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from ..errors import ConfigError
from ..privacy import CANDIDATES
from .arguments import Json, print_json

if TYPE_CHECKING:
    from rich.table import Table

    from ..flower.policy import Policy

EXAMPLES = (
    "Examples: equipoise ledger runs/a   |   equipoise ledger RUN --head HASH   |   equipoise ledger node/ledger.jsonl "
    "--policy node/policy.toml"
)


def ledger(
    run: Annotated[Path, typer.Argument(help="A run folder, or a ledger.jsonl.")],
    *,
    policy: Annotated[
        Path | None, typer.Option(help="The policy of a node: what is left under it is shown too.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="Let the sums of a node's account begin again; this is recorded for ever.")
    ] = False,
    reason: Annotated[str | None, typer.Option(help="Why, for --reset.")] = None,
    head: Annotated[str | None, typer.Option(help="A head noted elsewhere, to which the chain must lead.")] = None,
    guarantee: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="Print guarantee.json of this run of a node (an id that is listed), no more."),
    ] = None,
    delta: Annotated[float, typer.Option(help="For the composed epsilon of laplace-dp.")] = 1e-5,
    as_json: Json = False,
) -> None:
    """Verify a run's ledger of releases, and count them for every client."""
    from ..ledger.account import reset_account
    from ..ledger.account_report import claim_of
    from ..ledger.report import ledger_report

    if reset or reason is not None:
        if not reset or reason is None:
            raise ConfigError("--reset and --reason belong together.", 'Give both: --reset --reason "...".')
        reset_account(run, reason)
    own = None if policy is None else _policy(policy)
    result = ledger_report(run, head, delta, None if own is None else own.mechanisms)
    if guarantee is not None:
        print_json(claim_of(result.get("reserved", {}).get("runs", []), guarantee))
        return
    if own is not None:
        if result["account"] != own.account:
            raise ConfigError(
                f"The policy {policy} names another account than the ledger.", "Name the ledger beside it."
            )
        result["data"] = own.data
    if as_json:
        print_json(result)
    else:
        _show(result)


def _policy(path: Path) -> Policy:
    from ..flower.policy import read_policy

    return read_policy(path)


def _show(result: dict[str, Any]) -> None:
    from ..ledger.report import alike, printable
    from . import display

    title = "releases of a deployment" if result["experiment"] is None else "releases of a seeded experiment"
    if result["account"] is not None:
        of = f"of the data set {printable(result['data'])!r}, " if "data" in result else "of a node, "
        title = f"releases {of}account {printable(result['account'])}"
    if result["clients"]:
        display.console.print(title, markup=False, highlight=False, soft_wrap=True, style="italic")
        display.console.print(_releases(alike(result["clients"])))
        display.note(
            "asked, accepted, refused: releases of each client. intensity: least and largest of them. --json has all "
            "clients by name."
        )
    else:
        display.console.print(f"{title}: no release yet", markup=False, highlight=False, soft_wrap=True)
    mechanisms = {(row["federation"], row["client"]): row["mechanisms"] for row in result["clients"]}
    for row in result["composed"]:
        epsilon = f"; not composed: {row.get('remedy')}"
        if row["epsilon"] is not None:
            epsilon = f", epsilon {row['epsilon']:.4g} at delta {row['delta']:g}"
        how = ", ".join(map(printable, mechanisms[row["federation"], row["client"]]))
        who = f"federation {row['federation']}, client {printable(row['client'])}"
        told = f"{how}, {who}: {row['releases']} releases, epsilon {row['sum']:.6g} at delta 0{epsilon}"
        display.console.print(told, markup=False, highlight=False)
    if result["account"] is not None:
        _show_account(result)
    display.claims(result["claims"])


def _releases(rows: list[dict[str, Any]]) -> Table:
    """Counts by client, below a line for each federation, mechanism and budget."""
    from ..ledger.report import printable
    from . import display

    numbers = ("asked", "accepted", "refused", "intensity")
    table = display.table(None, ("client", *numbers), numbers=numbers)
    several, above = len({row["federation"] for row in rows}) > 1, ""
    for row in rows:
        label = ", ".join(map(printable, row["mechanisms"]))
        label += f" @ {', '.join(f'{budget:g}' for budget in row['budgets'])}" if row["budgets"] else ""
        label = f"federation {row['federation']}, {label}" if several else label
        if label != above:
            table.add_row(f"[bold]{escape(label)}[/]")
        above = label
        who = row["clients"]
        display.add_row(
            table, f" {printable(who[0]) if len(who) == 1 else f'{len(who)} clients'}",
            str(row["releases"]), str(row["accepted"]), str(row["refused"]), _range(*row["intensity"]),
        )  # fmt: skip
    return table


def _reserved(runs: list[dict[str, Any]]) -> Table:
    """A line for each run; what all have in common stands above the table."""
    from ..ledger.report import printable
    from ..privacy.guarantee import percent_up
    from . import display

    named = {name: list(dict.fromkeys(run[name] for run in runs)) for name in ("mechanism", "unit")}
    common = [f"{name}: {printable(values[0])}" for name, values in named.items() if len(values) == 1]
    other = [name for name, values in named.items() if len(values) > 1]
    numbers = ("epsilon", "delta", "sigma", "rate", "used", "so far", "limit")
    title = f"reserved, by run ({', '.join(['add/remove', *common])})"
    table = display.table(title, ("run", *other, *numbers), numbers=numbers)
    for run in runs:
        found = run["limits"].get("identification")
        display.add_row(
            table, printable(run["run"]), *(printable(run[name]) for name in other), f"{run['epsilon']:g}",
            f"{run['delta']:g}", f"{run['sigma']:.4g}", f"{run['sampling_rate']:g}",
            f"{run['used']} of {run['rounds']}", _so_far(run["spent_so_far"]),
            "-" if found is None else percent_up(found["run"]),
        )  # fmt: skip
    return table


def _show_account(result: dict[str, Any]) -> None:
    """What is reserved for each run, and what is left."""
    from ..ledger.report import printable
    from ..privacy.guarantee import percent_up
    from . import display

    runs = result["reserved"]["runs"]
    if runs:
        display.console.print(_reserved(runs))
        display.note(
            "epsilon, delta: reserved, used or not. used: rounds. so far: the epsilon of these, a progress figure that "
            "frees nothing. limit: the most that any attacker who sees the whole run identifies among "
            f"{CANDIDATES}; blindly {percent_up(1 / CANDIDATES)}. The guarantee of a run as JSON: "
            f"--guarantee {printable(runs[-1]['run'])}"
        )
    for name, left in (result["left"] or {}).items():
        delta = f", delta {left['delta']:g}" if "delta" in left else ""
        told = f"left under the policy for {printable(name)}: epsilon {left['epsilon']:g}{delta}"
        display.console.print(told, markup=False, highlight=False)


def _so_far(epsilon: float | None) -> str:
    return "-" if epsilon is None else f"{epsilon:.3g}"


def _range(low: float | None, high: float | None) -> str:
    """
    >>> _range(7.99975, 7.99976), _range(8.0, 12.1425), _range(None, None)
    ('8', '8 to 12.14', '-')
    """
    if low is None or high is None:
        return "-"
    small, large = f"{low:.4g}", f"{high:.4g}"
    return small if small == large else f"{small} to {large}"
