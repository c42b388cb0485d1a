"""What ``audit`` shows: the verdict, a table per round, what its columns hold, baselines, evidence and claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..auditing.comparison import BESIDE, Defence, Sides, notes, side_by_side
from ..auditing.limit_words import COLUMNS as PROVED_COLUMNS
from ..auditing.limit_words import HEAD, limit_lines
from ..auditing.summary import FAILED, FAILED_WORDS, METRICS, Metric, wrapped
from . import display

NUMBERS = ("got", "95 %\ninterval", "static,\nlower", "static,\nnorm", "none", "chance")
COLUMNS = (
    "got: what the attack got from this defence. static: from static noise at the lower bound of the learned one, or "
    "of its final norm. none: from the same releases without distortion. chance: one candidate of all for "
    "identification, an even guess for labels, non-members against other non-members for membership, and else a decoy "
    "in the truth's place, the truth left out. "
    "AUC: how well members are told from others; TPR@1%: the share of members found at 1 % false alarms."
)


VERIFY = (
    "verify is granted the other examples of a batch and checks guesses at the last one: how often it picks the right "
    "one, and how often it accepts right and wrong ones."
)


def audit_tables(content: dict[str, Any]) -> list[Table]:
    """A table per round: learned, static of equal lower bound and static of equal final norm side by side."""
    return [_table(round_number, mine) for round_number, mine in side_by_side(content["attacks"]).items()]


def limits_table(rows: list[dict[str, Any]]) -> Table:
    """What was measured beside what is proved."""
    table = display.table("measured, and what no attacker exceeds on average", HEAD, numbers=HEAD[2:])
    for line in limit_lines(rows):
        if len(line) == 1:
            table.add_row(f"[bold]{escape(line[0])}[/]")
        else:
            display.add_row(table, *line)
    return table


def show_verdict(content: dict[str, Any]) -> None:
    """What leaks, to whom, and what to do next: before any table."""
    for line in content.get("verdict", []):
        display.console.print(wrapped(line, display.console.width), markup=False, highlight=False)
    display.console.print()


def show_audit(content: dict[str, Any]) -> None:
    """The verdict, the tables and all that has to be said beside them."""
    show_verdict(content)
    limits = content.get("limits", [])
    if limits:
        display.console.print(limits_table(limits))
        display.note(PROVED_COLUMNS)
    for table in audit_tables(content):
        display.console.print(table)
    rows = [*content["attacks"], *limits]
    failed = [f"{FAILED}: {FAILED_WORDS}"] if any(row.get("control_failed") for row in rows) else []
    verified = [VERIFY] if any("verified" in row for row in content["attacks"]) else []
    columns = [COLUMNS] if content["attacks"] else []
    display.note("\n".join([*columns, *verified, *failed, *notes(content)]))
    display.claims(content["claims"])


def _table(round_number: Any, defences: dict[Defence, dict[str, Sides]]) -> Table:
    title = "what the attacks got" + ("" if round_number is None else f" at the weights of round {round_number}")
    table = display.table(title, ("attack", *NUMBERS), numbers=NUMBERS)
    several = len({(defence.dataset, defence.seed) for defence in defences}) > 1
    for defence, attacks in defences.items():
        where = f", {Path(defence.dataset or '').name}, seed {defence.seed}" if several else ""
        table.add_row(f"[bold]{escape(defence.label)}[/]{escape(where)}")
        for attack, sides in attacks.items():
            for metric in METRICS:
                if sides.get("own", {}).get(metric.name) is not None:
                    display.add_row(table, f" {metric.after(attack)}", *_numbers(sides, metric))
    return table


def _numbers(sides: Sides, metric: Metric) -> list[str]:
    """What stands in the columns ``NUMBERS``."""
    own = sides["own"]
    others = [metric.plain(sides.get(role, {})) for role in BESIDE]
    chance = metric.chance(own, sides.get("negative"))
    return [metric.result(own), metric.interval(own) or "-", *others, chance or "-"]
