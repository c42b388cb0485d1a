"""Parts of the sentences of a verdict."""

from __future__ import annotations

from .comparison import Reading
from .summary import percent


def interval(one: Reading, before: str) -> list[str]:
    ends = one.metric.interval(one.own).removesuffix(" %")
    return [f"{before}{ends}"] if ends else []


def largest_of(cells: tuple[int, ...]) -> list[str]:
    """Said beside a number that was chosen: its interval does not know of the choice.

    >>> largest_of((1,)), largest_of((9,)), largest_of((3, 6))
    ([], ['the largest of 9 figures'], ['the largest of 3 to 6 figures'])
    """
    if max(cells, default=1) == 1:
        return []
    return [f"the largest of {' to '.join(map(str, sorted({min(cells), max(cells)})))} figures"]


def first_of(cases: list[str], most: int = 4) -> str:
    """
    >>> first_of(["a", "b"]), first_of(["a", "b", "c"], 1)
    ('a, b', 'a and 2 more')
    """
    return ", ".join(cases[:most]) + (f" and {len(cases) - most} more" if len(cases) > most else "")


def guess_name(name: str) -> str:
    """
    >>> guess_name("class_mean"), guess_name("another_image")
    ('the class mean', 'another image')
    """
    words = {"class_mean": "the class mean", "black": "a black image", "column_mean": "the mean of every column",
             "middle": "the middle of the range"}  # fmt: skip
    return words.get(name, name.replace("_", " "))


def false_alarms(one: Reading) -> list[str]:
    rate = one.own.get("membership_tpr") if one.metric.name == "membership_auc" else None
    return [] if rate is None else [f"{percent(rate)} of members at 1 % false alarms"]


def aside(parts: list[str]) -> str:
    return f" ({'; '.join(parts)})" if parts else ""


def all_of(parts: list[str]) -> str:
    """
    >>> all_of(["a"]), all_of(["a", "b", "c"])
    ('a', 'a, b and c')
    """
    return " and ".join([", ".join(parts[:-1]), parts[-1]] if len(parts) > 1 else parts)


def lowered(words: str) -> str:
    return words[0].lower() + words[1:]
