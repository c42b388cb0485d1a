"""What people see of every command: the console, progress with the time left, tables of one style."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Column, Table

console = Console()
errors = Console(stderr=True)


# -- tables --------------------------------------------------------------------------------------------------------


def table(title: str | None, columns: Sequence[str], *, numbers: Sequence[str] = ()) -> Table:
    """An empty table in the one style of all commands.

    Text is folded where the terminal is narrow, never cut. Columns named in ``numbers`` are right-aligned; they and
    names of mechanisms keep their lines.
    """
    result = Table(
        title=title and escape(title), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1),
        collapse_padding=True,
    )  # fmt: skip
    for name in columns:
        number, whole = name in numbers, name in (*numbers, "mechanism")
        result.add_column(
            escape(name), justify="right" if number else "left", overflow="fold", no_wrap=whole, vertical="top"
        )
    return result


def add_row(to: Table, *cells: str) -> None:
    """Append cells that are shown as they are: no part of them is markup."""
    to.add_row(*map(escape, cells))


def share_range(low: float | None, high: float | None) -> str:
    """An interval of a share; the parts of it that no share can take are left out.

    >>> share_range(-0.031, 0.2), share_range(None, None)
    ('0.0 to 20.0%', '-')
    """
    return "-" if low is None or high is None else f"{100 * max(0.0, low):.1f} to {min(1.0, high):.1%}"


def note(text: str) -> None:
    """Print what stands below a table: its words explained, claims."""
    console.print(text, markup=False, highlight=False, style="dim")


def claims(said: dict[str, Any]) -> None:
    """Print what is proved, measured and not claimed."""
    for kind, words in said.items():
        note(f"{kind}: {words if isinstance(words, str) else ' '.join(words)}")


# -- progress ------------------------------------------------------------------------------------------------------

EVERY = 10.0
"""Seconds between two lines where progress goes into a file."""
Tell = Callable[[str, float | None], None]


@contextmanager
def attack_progress(quiet: bool, doing: str = "attacking", first: str = "") -> Iterator[Any]:
    """What runs, for how long, without an end; yields a function of (what, amount).

    Its first call prints the line ``first``: what could be refused has been accepted by then.
    """
    if quiet:
        yield None
        return
    tell, bar = _lines(doing), None
    if errors.is_terminal:
        columns = (TextColumn(doing + ": {task.description}"), BarColumn(), TimeElapsedColumn())
        bar = Progress(*columns, console=errors, transient=True)
        task = bar.add_task("", total=None)

    def told(attack: str, amount: float) -> None:
        nonlocal first
        if first:
            console.print(first, markup=False, highlight=False)
            first = ""
        if bar is None:
            tell(attack, None)
        else:
            bar.start()  # does nothing from the second time on
            bar.update(task, description=attack, advance=amount)

    try:
        yield told
    finally:
        if bar is not None:
            bar.stop()


class AuditProgress:
    """An audit under way: what it will do, then a bar with the time left, or a line now and then in a pipe.

    ``planned`` is called first, with the seconds that all of it takes about; then every part that was done tells the
    seconds of the plan that it stood for. The time left begins as planned, and soon goes by the pace so far. A
    ``quiet`` one leaves standard output alone, and writes remarks and the lines of a pipe.
    """

    TRUST = 10.0
    """Seconds for which the plan counts as much as what was seen."""

    def __init__(self, quiet: bool = False) -> None:
        self.quiet = quiet
        self.total = self.done = 0.0
        self.began = time.monotonic()
        self.told = self.began
        self.bar: Progress | None = None

    def planned(self, text: str, seconds: float, remarks: Sequence[str] = ()) -> None:
        """Say what comes; ``remarks`` are the part of the text that a quiet one says too."""
        if not self.quiet:
            console.print(text, markup=False, highlight=False, soft_wrap=True)
        for remark in remarks if self.quiet else ():
            errors.print(remark, markup=False, highlight=False, soft_wrap=True)
        self.total, self.began = seconds, time.monotonic()
        self.told = self.began
        if errors.is_terminal and not self.quiet:
            label = TextColumn("{task.description}", table_column=Column(no_wrap=True, overflow="ellipsis", ratio=1))
            share, left = TextColumn("{task.percentage:>3.0f} %"), TextColumn("{task.fields[left]}")
            self.bar = Progress(
                share, BarColumn(bar_width=16), left, label, console=errors, transient=True, expand=True
            )
            self.bar.add_task("", total=1.0, left="")
            self.bar.start()

    def __call__(self, what: str, seconds: float) -> None:
        self.done += seconds
        share = min(1.0, self.done / self.total) if self.total else 0.0
        now = time.monotonic()
        left = f"{duration(self.left(now - self.began))} left" if share < 1 else "nearly done"
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], completed=share, description=escape(what), left=left)
        elif now - self.told >= EVERY:
            self.told = now
            text = f"{share:.0%} after {duration(now - self.began)}, {left}: {what}"
            errors.print(text, markup=False, highlight=False, soft_wrap=True)

    def left(self, elapsed: float) -> float:
        """Seconds, about: what is left of the plan at the pace so far."""
        return max(0.0, self.total - self.done) * (elapsed + self.TRUST) / (self.done + self.TRUST)

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.stop()


@contextmanager
def audit_progress(quiet: bool) -> Iterator[AuditProgress]:
    """Progress of an audit; where it is ``quiet``, on standard error alone."""
    progress = AuditProgress(quiet)
    try:
        yield progress
    finally:
        progress.stop()


@contextmanager
def job_progress(quiet: bool) -> Iterator[Any]:
    """Work of several parts; yields a function of (what, done, total)."""
    if quiet:
        yield None
        return
    if not errors.is_terminal:
        tell = _lines("")
        yield lambda what, done, total: tell(f"{what}, {done} of {total}", None)  # a part says nothing of the others
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
def progress(total: int, what: str, quiet: bool, unit: str = "round") -> Iterator[Any]:
    """Rounds, or another ``unit``, with the time left; yields a function of the current one, first called to begin."""
    if quiet:
        yield lambda round_number: None
        return
    if not errors.is_terminal:
        tell = _lines(what)
        yield lambda round_number: tell(f"{unit} {round_number} of {total}", round_number / total)
        return
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
    )  # fmt: skip
    bar = Progress(*columns, console=errors, transient=True)
    task = bar.add_task(what, total=total)

    def step(round_number: int) -> None:
        bar.start()  # does nothing from the second time on
        bar.update(task, completed=round_number)

    try:
        yield step
    finally:
        bar.stop()


def _lines(doing: str) -> Tell:
    """Plain lines on standard error where it is no terminal, one in ten seconds; nothing for what is done sooner."""
    began = told = time.monotonic()
    first: float | None = None  # the share that was done when this process began: a run may have been resumed

    def tell(what: str, share: float | None) -> None:
        nonlocal told, first
        now = time.monotonic()
        first = share if first is None else first
        if now - told < EVERY:
            return
        told = now
        left = ""
        if share is not None and first is not None and first < share < 1:
            left = f", about {duration((now - began) * (1 - share) / (share - first))} left"
        text = ": ".join(part for part in (doing, what) if part)
        errors.print(f"{text} after {duration(now - began)}{left}", markup=False, highlight=False, soft_wrap=True)

    return tell


def duration(seconds: float) -> str:
    """
    >>> duration(42.4), duration(600), duration(8000)
    ('42 s', '10 min', '2 h 13 min')
    """
    if seconds < 90:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"
