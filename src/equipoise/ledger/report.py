"""What a ledger shows: releases by client, what those of a formal mechanism compose to, and what is not claimed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError, LedgerError
from ..mechanism.registry import MECHANISMS
from ..privacy import accounting
from . import account_report
from .account import head_file, is_formal, is_whole_run, read_head
from .account_report import printable as printable
from .ledger import FILE, Count, Summary, verify

THIS_NODE = "this node"
"""Whom the releases of an account are counted for: its data set is one, whatever number the client had in a run."""


def ledger_report(
    run: Path, head: str | None = None, delta: float = 1e-5, policy: account_report.Bounds | None = None
) -> dict[str, Any]:
    """Verify the ledger of a run and say what it shows.

    Args:
        run: A run folder, or a ledger itself. It must lead to the head that the ``.head`` of a node's account names, or
            a ``result.json`` beside the ledger.
        head: A head noted elsewhere, to which the chain must lead too.
        delta: Of the composed epsilon of single releases.
        policy: What the policy of a node says of each mechanism, for what is left under it.

    Returns:
        Counts by federation and client, composed epsilons, what the account of a node reserved, and what is proved,
        measured and not claimed; fit for JSON.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from equipoise import Run, resolve
    >>> config = resolve(overrides={"rounds": 2}, sweep={"mechanisms": ["none"]})
    >>> with TemporaryDirectory() as folder:
    ...     _ = Run(Path(folder), config).execute()
    ...     ledger_report(Path(folder))["clients"][0]["releases"]
    2
    """
    if not 0 <= delta < 1:
        raise ConfigError(f"Expected delta={delta!r} to lie in [0, 1).", "For example 1e-5.")
    path = run / FILE if run.is_dir() else run
    if run.is_dir() and not path.is_file():
        raise LedgerError(f"The folder {run} has no {FILE}.", "Give a run folder that has one, or the file.")
    source, noted = _noted(path)
    result = verify(path, *(noted or (None, None)))
    sources = {} if noted is None else {source: result.beyond}
    if head is not None:
        sources["--head"] = verify(path, head).beyond
    if result.account is not None and result.counts:
        result.counts = {(0, THIS_NODE): result.total()}
    rows = [
        {"federation": federation, "client": client, **_counted(one)} for (federation, client), one in _ordered(result)
    ]
    composed = _composed(result, delta)
    own = {} if result.account is None else account_report.account_part(result, policy)
    return {
        "schema": 1,
        "experiment": result.experiment,
        "account": result.account,
        "entries": result.entries,
        "bytes": result.bytes,
        "torn_bytes": result.torn,
        "head": result.head,
        "clients": rows,
        "composed": composed,
        **own,
        "claims": {
            "proved": _proved(result, sources),
            "measured": _measured(result),
            "not claimed": _not_claimed(result, bool(composed)),
        },
    }


def alike(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Clients that follow each other and differ in nothing but their intensities, as one row each.

    >>> row = {"federation": 0, "releases": 3}
    >>> alike([{**row, "client": "0", "intensity": [8.0, 9.0]}, {**row, "client": "1", "intensity": [7.0, 8.0]}])
    [{'federation': 0, 'releases': 3, 'intensity': [7.0, 9.0], 'clients': ['0', '1']}]
    """
    groups: list[list[dict[str, Any]]] = []
    for row in rows:
        same = groups and all(row[name] == groups[-1][0][name] for name in row if name not in ("client", "intensity"))
        groups[-1].append(row) if same else groups.append([row])
    result = []
    for group in groups:
        lows, highs = ([row["intensity"][i] for row in group if row["intensity"][i] is not None] for i in (0, 1))
        common = {name: value for name, value in group[0].items() if name not in ("client", "intensity")}
        ends = [min(lows), max(highs)] if lows and highs else [None, None]
        result.append({**common, "intensity": ends, "clients": [row["client"] for row in group]})
    return result


# -- counts --------------------------------------------------------------------------------------------------------


def _noted(ledger: Path) -> tuple[str, tuple[str, int] | None]:
    """What lies beside a ledger and names a head and a number of lines; and these."""
    if head_file(ledger).is_file():
        entries, head = read_head(ledger)
        return head_file(ledger).name, (head, entries)
    return "result.json", _noted_by_result(ledger.parent / "result.json")


def _noted_by_result(path: Path) -> tuple[str, int] | None:
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
        raise LedgerError(f"{path.name} does not name the head of a ledger: {str(note)[:80]!r}.", "Restore it.")
    return note["head"], note["entries"]


def _ordered(summary: Summary) -> list[tuple[tuple[int, str], Count]]:
    """Federations in their order, numbered clients by number."""
    return sorted(summary.counts.items(), key=lambda item: (item[0][0], len(item[0][1]), item[0][1]))


def _mechanisms(one: Count) -> set[str]:
    return {name for name, _ in one.budgets}


def _counted(one: Count) -> dict[str, Any]:
    return {
        "mechanisms": sorted(_mechanisms(one)),
        "budgets": sorted({budget for _, budget in one.budgets if budget is not None}),
        "releases": one.asked,
        "received": one.received,
        "accepted": one.accepted,
        "refused": one.refused,
        "intensity": [one.low, one.high],
    }


# -- composition ---------------------------------------------------------------------------------------------------


def _all_formal(names: set[str]) -> bool:
    return bool(names) and all(map(is_formal, names))


def _distorts(name: str) -> bool:
    return name not in MECHANISMS or MECHANISMS[name].distorts


def _composed(summary: Summary, delta: float) -> list[dict[str, Any]]:
    """For clients whose releases all have an epsilon of their own: what they are worth together."""
    rows: list[dict[str, Any]] = []
    known: dict[Any, dict[str, Any]] = {}  # clients with the same releases are composed once
    for (federation, client), one in _ordered(summary):
        if not _all_formal(_mechanisms(one)) or any(map(is_whole_run, _mechanisms(one))):
            continue
        budgets: Counter[Any] = Counter()
        for (_, budget), times in one.budgets.items():
            budgets[budget] += times
        key = frozenset(budgets.items())
        if key not in known:
            known[key] = _epsilons(budgets, delta)
        rows.append({"federation": federation, "client": client, "releases": one.asked, **known[key]})
    return rows


def _epsilons(budgets: Mapping[float, int], delta: float) -> dict[str, Any]:
    result: dict[str, Any] = {"sum": accounting.basic_epsilon(budgets), "delta": delta}
    try:
        return {**result, "epsilon": accounting.composed_epsilon(budgets, delta)}
    except ConfigError as error:  # the extra is missing; the sum needs nothing
        return {**result, "epsilon": None, "remedy": error.remedy}


# -- claims --------------------------------------------------------------------------------------------------------


def _proved(summary: Summary, sources: dict[str, int]) -> list[str]:
    words = [f"The chain of {summary.entries} lines is whole; its head is {summary.head}."]
    for source, beyond in sources.items():
        words.append(f"It leads to the head of {source}" + (f", and {beyond} line(s) beyond it." if beyond else "."))
    if not sources:
        words.append("Nothing beside the ledger says what its head should be: compare it with one noted elsewhere.")
    if summary.torn:
        words.append(f"A last line of {summary.torn} bytes has no end: its write was interrupted, or is under way.")
    return words + account_report.proved(summary)


def _measured(summary: Summary) -> list[str]:
    counts = summary.counts.values()
    asked, accepted, refused = (sum(getattr(one, name) for one in counts) for name in ("asked", "accepted", "refused"))
    who = "the clients reported" if summary.experiment is None else "the run recorded"
    return [
        f"{asked} releases were asked for, {accepted} accepted and {refused} refused.",
        f"Intensities as {who if summary.account is None else 'the node recorded'} them.",
    ]


def _not_claimed(summary: Summary, composed: bool) -> list[str]:
    used = [_mechanisms(one) for one in summary.counts.values()]
    names = sorted(set().union(*used))
    words = _per_release(summary, [name for name in names if _distorts(name) and not is_formal(name)])
    undistorted = [name for name in names if not _distorts(name)]
    if undistorted:
        words.append(f"Releases of {_listed(undistorted)} were not distorted at all.")
    words += account_report.not_claimed(summary) if summary.account is not None else []
    whole = [name for name in names if is_whole_run(name)]
    if whole and summary.account is None:
        words.append(
            f"An epsilon here for {_listed(whole)}: its budget is that of a whole run, which every node reserves in "
            "its own account."
        )
    mixed = {name for mine in used if not _all_formal(mine) for name in mine if is_formal(name)}
    if mixed and summary.account is None:
        words.append(f"An epsilon for clients that released by {_listed(sorted(mixed))} and by other mechanisms too.")
    if composed and summary.experiment is not None:
        words.append("An epsilon against those who know the seed: the noise of an experiment follows from it.")
    if composed and summary.account is not None:
        words.append("An epsilon for experiments, if the policy allows any: their noise follows from a seed.")
    if summary.account is not None:
        words.append(
            "That ledger and .head were not both put back to an older state, or copied with the whole node: nothing on "
            "the node shows that."
        )
    elif summary.experiment is None:
        words.append(
            "That a client is one machine: in a deployment it is a node id of Flower, and without SuperNode "
            "authentication a restarted node has a new one."
        )
    if composed:
        words.append("An epsilon for anything else that clients send, such as metrics of an evaluation.")
    if composed and len({federation for federation, _ in summary.counts}) > 1:
        words.append("An epsilon over several federations: each is counted by itself.")
    return [*words, "That the ledger was not written anew as a whole: only a head kept elsewhere shows that."]


def _per_release(summary: Summary, names: list[str]) -> list[str]:
    """What is to be said of mechanisms whose budgets are scores of one release."""
    if not names:
        return []
    most = max(sum(n for (name, _), n in one.budgets.items() if name in names) for one in summary.counts.values())
    return [
        f"Budgets of {_listed(names)} are per release and do not compose: up to {most} releases of a client were asked "
        "for, and nothing here bounds what they tell together. No (epsilon, delta) is claimed."
    ]


def _listed(names: list[str]) -> str:
    return ", ".join(map(printable, names))
