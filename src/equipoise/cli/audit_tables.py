"""What ``audit`` shows: a table per round, then what its columns hold, baselines, evidence and claims."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..auditing.comparison import BESIDE, Defence, Sides, interval_of, notes, side_by_side
from . import display

METRICS = {
    "mse": ("MSE", "{:.2f}"),
    "ssim": ("SSIM", "{:.2f}"),
    "identification": ("identified", "{:.1%}"),
    "membership_auc": ("AUC", "{:.2f}"),
    "labels": ("labels right", "{:.1%}"),
    "leakage": ("leakage score", "{:.2f}"),
}
NUMBERS = ("got", "95 %\ninterval", "static,\nlower", "static,\nnorm", "none", "chance")
COLUMNS = (
    "got: what the attack got from this defence. static: from static noise at the lower bound of the learned one, or "
    "of its final norm. none: from the same releases without distortion. chance: the same result held against "
    "images of another release."
)


def audit_tables(content: dict[str, Any]) -> list[Table]:
    """A table per round: learned, static of equal lower bound and static of equal final norm side by side."""
    return [_table(round_number, mine) for round_number, mine in side_by_side(content["attacks"]).items()]


def show_audit(content: dict[str, Any]) -> None:
    """The tables and all that has to be said beside them."""
    for table in audit_tables(content):
        display.console.print(table)
    display.note("\n".join([COLUMNS, *notes(content)]))
    display.claims(content["claims"])


def _table(round_number: Any, defences: dict[Defence, dict[str, Sides]]) -> Table:
    title = "what the attacks got" + ("" if round_number is None else f" at the weights of round {round_number}")
    table = display.table(title, ("attack", *NUMBERS), numbers=NUMBERS)
    several = len({(defence.dataset, defence.seed) for defence in defences}) > 1
    for defence, attacks in defences.items():
        where = f", {Path(defence.dataset or '').name}, seed {defence.seed}" if several else ""
        table.add_row(f"[bold]{escape(defence.label())}[/]{escape(where)}")
        for attack, sides in attacks.items():
            for metric, (word, form) in METRICS.items():
                if sides.get("own", {}).get(metric) is not None:
                    numbers = (_number(sides, role, metric, form) for role in ("own", *BESIDE))
                    got, *others = numbers
                    name = word if word.startswith(attack) else f"{attack} {word}"
                    display.add_row(table, f" {name}", got, _interval(sides, metric, form), *others)
    return table


def _number(sides: Sides, role: str, metric: str, form: str) -> str:
    value = sides.get(role, {}).get(metric)
    return "-" if value is None else form.format(value)


def _interval(sides: Sides, metric: str, form: str) -> str:
    ends = interval_of(sides["own"], metric)
    return "-" if ends is None else f"{form.format(ends[0]).removesuffix('%')} to {form.format(ends[1])}"
