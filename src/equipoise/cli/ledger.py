"""The command ``ledger``: is a run's chain whole, and how many releases were asked for; ``cli.py`` registers it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import ConfigError, LedgerError
from ..ledger.ledger import FILE, Count, Summary, verify

EXAMPLES = (
    "Examples: equipoise ledger runs/a   |   equipoise ledger runs/a --json   |   equipoise ledger RUN --head HASH"
)
FORMAL = "laplace-dp"
"""The one mechanism whose budgets compose: each is the epsilon of one release."""


def ledger(
    run: Annotated[Path, typer.Argument(help="A run folder, or a ledger.jsonl.")],
    head: Annotated[str | None, typer.Option(help="A head noted elsewhere, to which the chain must lead.")] = None,
    delta: Annotated[float, typer.Option(help="For the composed epsilon of laplace-dp.")] = 1e-5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")] = False,
) -> None:
    """Verify a run's ledger of releases, and count them for every client."""
    found = report(run, head, delta)
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        _show(found)


def report(run: Path, head: str | None = None, delta: float = 1e-5) -> dict[str, Any]:
    """What a ledger shows: counts by federation and client, and what is proved, measured and not claimed."""
    if not 0 <= delta < 1:
        raise ConfigError(f"Expected delta={delta!r} to lie in [0, 1).", "For example 1e-5.")
    path = run / FILE if run.is_dir() else run
    noted = _noted(path.parent / "result.json")
    found = verify(path, *(noted or (None, None)))
    sources = {} if noted is None else {"result.json": found.beyond}
    if head is not None:
        sources["--head"] = verify(path, head).beyond
    rows = [
        {"federation": federation, "client": client, **_counted(one)} for (federation, client), one in _ordered(found)
    ]
    composed = _composed(found, delta)
    asked, accepted, refused = (sum(row[name] for row in rows) for name in ("releases", "accepted", "refused"))
    return {
        "schema": 1,
        "experiment": found.experiment,
        "entries": found.entries,
        "bytes": found.bytes,
        "torn_bytes": found.torn,
        "head": found.head,
        "clients": rows,
        "composed": composed,
        "claims": {
            "proved": _proved(found, sources),
            "measured": [
                f"{asked} releases were asked for, {accepted} accepted and {refused} refused.",
                f"Intensities as {'the clients reported' if found.experiment is None else 'the run recorded'} them.",
            ],
            "not claimed": _not_claimed(found, composed),
        },
    }


def _ordered(found: Summary) -> list[tuple[tuple[int, str], Count]]:
    """Federations in their order, numbered clients by number."""
    return sorted(found.counts.items(), key=lambda item: (item[0][0], len(item[0][1]), item[0][1]))


def _counted(one: Count) -> dict[str, Any]:
    return {
        "mechanisms": sorted({name for name, _ in one.given}),
        "budgets": sorted({budget for _, budget in one.given if budget is not None}),
        "releases": one.asked,
        "received": one.received,
        "accepted": one.accepted,
        "refused": one.refused,
        "intensity": [one.low, one.high],
    }


def _noted(path: Path) -> tuple[str, int] | None:
    """The head and the number of lines that a result names."""
    if not path.is_file():
        return None
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LedgerError(f"Cannot read {path.name}: {error}.", "Restore it, or move the ledger away.") from error
    note = result.get("ledger") if isinstance(result, dict) else None
    if note is None:
        return None
    if not isinstance(note, dict) or type(note.get("entries")) is not int or not isinstance(note.get("head"), str):
        raise LedgerError(f"{path.name} names no head of a ledger: {str(note)[:80]!r}.", "Restore it.")
    return note["head"], note["entries"]


def _composed(found: Summary, delta: float) -> list[dict[str, Any]]:
    """For clients that released by laplace-dp and nothing else: what all their releases come to together."""
    rows: list[dict[str, Any]] = []
    known: dict[Any, dict[str, Any]] = {}  # clients with the same releases are composed once
    for (federation, client), one in _ordered(found):
        if {name for name, _ in one.given} != {FORMAL}:
            continue
        budgets: dict[Any, int] = {budget: times for (_, budget), times in one.given.items()}
        key = frozenset(budgets.items())
        if key not in known:
            known[key] = _epsilons(budgets, delta)
        rows.append({"federation": federation, "client": client, "releases": one.asked, **known[key]})
    return rows


def _epsilons(budgets: dict[float, int], delta: float) -> dict[str, Any]:
    from ..privacy.accounting import basic_epsilon, composed_epsilon

    found: dict[str, Any] = {"sum": basic_epsilon(budgets), "delta": delta}
    try:
        return {**found, "epsilon": composed_epsilon(budgets, delta)}
    except ConfigError as error:  # the extra is missing; the sum needs nothing
        return {**found, "epsilon": None, "remedy": error.remedy}


def _proved(found: Summary, sources: dict[str, int]) -> list[str]:
    words = [f"The chain of {found.entries} lines is whole; its head is {found.head}."]
    for source, beyond in sources.items():
        words.append(f"It leads to the head of {source}" + (f", and {beyond} line(s) beyond it." if beyond else "."))
    if not sources:
        words.append("Nothing beside the ledger says what its head should be: compare it with one noted elsewhere.")
    if found.torn:
        words.append(f"A last line of {found.torn} bytes has no end: its write was interrupted, or is under way.")
    return words


def _not_claimed(found: Summary, composed: list[dict[str, Any]]) -> list[str]:
    words, used = [], [{name for name, _ in one.given} for one in found.counts.values()]
    names = sorted(set().union(*used))
    scored = [name for name in names if name not in ("none", FORMAL)]
    if scored:
        most = max(sum(n for (name, _), n in one.given.items() if name in scored) for one in found.counts.values())
        words.append(
            f"Budgets of {', '.join(map(_shown, scored))} are per release and do not compose: up to {most} releases of "
            "a client were asked for, and nothing here bounds what they tell together. No (epsilon, delta) is claimed."
        )
    if "none" in names:
        words.append("Releases of none were not distorted at all.")
    if any(FORMAL in mine and len(mine) > 1 for mine in used):
        words.append(f"An epsilon for clients that released by {FORMAL} and by other mechanisms too.")
    if composed and found.experiment is not None:
        words.append("An epsilon against those who know the seed: the noise of an experiment follows from it.")
    if found.experiment is None:
        words.append(
            "That a client is one machine: in a deployment it is a node id of Flower, and without SuperNode "
            "authentication a restarted node has a new one."
        )
    if composed:
        words.append("An epsilon for anything else that clients send, such as metrics of an evaluation.")
    if composed and len({federation for federation, _ in found.counts}) > 1:
        words.append("An epsilon over several federations: each is counted by itself.")
    return [*words, "That the ledger was not written anew as a whole: only a head kept elsewhere shows that."]


def _shown(text: str) -> str:
    """A name from a file, without anything that a terminal would obey."""
    return text if text.isprintable() and len(text) <= 40 else ascii(text[:40])


def _show(found: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from . import display

    title = "releases of a deployment" if found["experiment"] is None else "releases of a seeded experiment"
    table = Table(title=title, title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("run", "clients", "mechanism", "budget", "asked", "accepted", "refused", "intensity"):
        justify: Any = "left" if name in ("clients", "mechanism") else "right"
        table.add_column(name, justify=justify, overflow="fold", no_wrap=name != "clients")
    for rows in _alike(found["clients"]):
        row, names = rows[0], escape(", ".join(_shown(row["client"]) for row in rows))
        lows, highs = ([row["intensity"][i] for row in rows if row["intensity"][i] is not None] for i in (0, 1))
        table.add_row(
            str(row["federation"]), names, escape(", ".join(map(_shown, row["mechanisms"]))),
            ", ".join(f"{budget:g}" for budget in row["budgets"]) or "-", str(row["releases"]), str(row["accepted"]),
            str(row["refused"]), _range(min(lows), max(highs)) if lows else "-",
        )  # fmt: skip
    display.console.print(table)
    display.console.print("run: the federation's number; other numbers are those of each client", style="dim")
    for row in found["composed"]:
        epsilon = f"; not composed: {row.get('remedy')}"
        if row["epsilon"] is not None:
            epsilon = f", epsilon {row['epsilon']:.4g} at delta {row['delta']:g}"
        who = f"federation {row['federation']}, client {_shown(row['client'])}"
        told = f"{FORMAL}, {who}: {row['releases']} releases, epsilon {row['sum']:.6g} at delta 0{epsilon}"
        display.console.print(told, markup=False, highlight=False)
    for kind, words in found["claims"].items():
        display.console.print(f"{kind}: {' '.join(words)}", markup=False, highlight=False, style="dim")


def _alike(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Clients that follow each other and differ in nothing but their intensities, together."""
    found: list[list[dict[str, Any]]] = []
    for row in rows:
        same = found and all(row[name] == found[-1][0][name] for name in row if name not in ("client", "intensity"))
        found[-1].append(row) if same else found.append([row])
    return found


def _range(low: float, high: float) -> str:
    """
    >>> _range(7.99975, 7.99976), _range(8.0, 12.1425)
    ('8', '8 - 12.14')
    """
    small, large = f"{low:.4g}", f"{high:.4g}"
    return small if small == large else f"{small} - {large}"
