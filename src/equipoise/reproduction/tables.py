"""A table of a page, and how its numbers are written."""

from __future__ import annotations

from dataclasses import dataclass

from .agreement import Cell


@dataclass(frozen=True)
class Table:
    """Texts with a caption; every row is as long as the head.

    >>> Table("Accuracy in percent", ["mechanism", "ours"], [["pl-learn", "73.1 ± 1.9"]]).head
    ['mechanism', 'ours']
    """

    caption: str
    head: list[str]
    rows: list[list[str]]


def plus_minus(cell: Cell, digits: int = 1) -> str:
    """Mean ± standard deviation; the mean alone where there is one seed.

    >>> plus_minus({"mean": 91.25, "sd": 0.5}, 2)
    '91.25 ± 0.50'
    """
    if cell["sd"] is None:
        return f"{cell['mean']:.{digits}f}"
    return f"{cell['mean']:.{digits}f} ± {cell['sd']:.{digits}f}"


def with_interval(cell: Cell, digits: int = 1) -> str:
    """The mean with its 95 % interval; the mean alone where there is one seed.

    >>> with_interval({"mean": 7.0, "interval": (6.5, 7.5)})
    '7.0 (6.5 to 7.5)'
    """
    if cell["interval"] is None:
        return f"{cell['mean']:.{digits}f}"
    low, high = cell["interval"]
    return f"{cell['mean']:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def verdict(cell: Cell) -> str:
    """Whether a cell agrees with the paper, as a word; of one that an interval judges, also that it does neither."""
    if cell.get("state") == "not shown":
        return "*not shown*"
    return "agrees" if cell["agrees"] else "**differs**"
