"""What people see of every command: the console, progress with the time left, tables of one style."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

console = Console()
errors = Console(stderr=True)


@contextmanager
def attack_progress(quiet: bool, doing: str = "attacking") -> Iterator[Any]:
    """A bar without an end: what runs, for how long; yields a function of (what, amount)."""
    if quiet:
        yield None
        return
    columns = (TextColumn(doing + ": {task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda attack, amount: bar.update(task, description=attack, advance=amount)


@contextmanager
def job_progress(quiet: bool) -> Iterator[Any]:
    """A bar for work of several parts; yields a function of (what, done, total)."""
    if quiet:
        yield None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=errors, transient=True) as bar:
        task, current = bar.add_task("", total=None), ""

        def report(what: str, done: int, total: int) -> None:
            nonlocal current
            if what != current:
                current = what
                bar.reset(task, description=what, total=total)
            bar.update(task, completed=done, total=total)

        yield report


@contextmanager
def progress(total: int, what: str, quiet: bool) -> Iterator[Any]:
    """A bar with the time left; yields a function of the current round."""
    if quiet:
        yield lambda round_number: None
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=errors, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda round_number: bar.update(task, completed=round_number)


def budget_text(budget: Any) -> str:
    """A budget as people write it; schedules and lists as they are."""
    if budget is None:
        return "-"
    return f"{budget:g}" if isinstance(budget, int | float) else str(budget)
