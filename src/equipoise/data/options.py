"""What the options of ``load`` may be: the same for files, for settings and on the command line.

First types, then ranges, as a value of the wrong type has no range. Fractions and moments are held against the files
when these are read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypedDict

from ..errors import ConfigError, DataError, expected, is_finite, is_number, is_whole, too_low
from .normalisation import Moment

MOST_TOKENS = 10_000_000
"""One wrong token, or vocabulary, would otherwise ask for an embedding of terabytes."""
LONGEST = 65_536
"""Tokens that a row may have."""


class ReadingOptions(TypedDict, total=False):
    """The options of ``contents.Reading``, which has their defaults."""

    target: str | None
    group: str | None
    text: str | None
    drop: tuple[str, ...] | list[str] | None
    categorical: tuple[str, ...] | list[str] | None
    categories: str
    vocabulary: int | None
    text_length: int
    resize: int | tuple[int, int] | list[int] | None
    scale: float | None


class FolderOptions(ReadingOptions, total=False):
    """What ``load`` accepts beside a path. Defaults: the path's name, 1/6, 0, 1/6, and see ``load``."""

    name: str
    validation_fraction: float
    public_fraction: float
    test_fraction: float
    mean: Moment | None
    std: Moment | None


def refuse_wrong(options: Mapping[str, Any]) -> None:
    """Raise the first thing that is wrong with some options.

    >>> refuse_wrong({"scale": "255"})
    Traceback (most recent call last):
    equipoise.errors.DataError: Expected scale='255' to be a number or none. Set scale to such a value (on the comman...
    """
    for problem in [*type_problems(options)] or range_problems(options):
        raise DataError(problem.cause, problem.remedy)


def _several(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _is_word(value: Any) -> bool:
    return isinstance(value, str)


def _are_columns(value: Any) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_word, value))


def _are_finite(value: Any) -> bool:
    return all(map(is_finite, _several(value)))


CATEGORIES = ("one-hot", "codes")
NEEDED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "validation_fraction": (is_number, "a number"),
    "public_fraction": (is_number, "a number"),
    "test_fraction": (is_number, "a number"),
    "text_length": (is_whole, "a whole number"),
    "categories": (lambda value: value in CATEGORIES, f"one of {', '.join(CATEGORIES)}"),
}
OPTIONAL: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (_is_word, "a name"),
    **dict.fromkeys(("target", "group", "text"), (_is_word, "the name of a column, or none")),
    **dict.fromkeys(("drop", "categorical"), (_are_columns, "a list of columns, or none")),
    "vocabulary": (is_whole, "a whole number or none"),
    "resize": (lambda value: all(map(is_whole, _several(value))), "a whole number, two of them, or none"),
    "scale": (is_number, "a number or none"),
    **dict.fromkeys(("mean", "std"), (_are_finite, "a finite number, a list of them, or none")),
}
"""The type of each option, and its name in words; of the second kind there may be none."""


def type_problems(options: Mapping[str, Any]) -> Iterator[ConfigError]:
    """What is of the wrong type."""
    for kinds, may_be_none in ((NEEDED, False), (OPTIONAL, True)):
        for name, (right, words) in kinds.items():
            value = options.get(name)
            if name in options and not (right(value) or (may_be_none and value is None)):
                remedy = f'For example {name} = ["id"].' if right is _are_columns else None
                yield expected(name, value, words, remedy)


def range_problems(options: Mapping[str, Any]) -> Iterator[ConfigError]:
    """What is out of range, of options of the right types."""
    vocabulary, length, scale = options.get("vocabulary"), options.get("text_length", 1), options.get("scale")
    if vocabulary is not None and vocabulary < 2:
        yield expected("vocabulary", vocabulary, ">= 2: padding and a token")
    if vocabulary is not None and vocabulary > MOST_TOKENS:
        yield expected("vocabulary", vocabulary, f"at most {MOST_TOKENS:,}")
    if length < 1:
        yield too_low("text_length", length, 1)
    if length > LONGEST:
        yield expected("text_length", length, f"at most {LONGEST:,}")
    sides = _several(options.get("resize"))
    if sides != [None] and (len(sides) != (2 if sides is options["resize"] else 1) or min(sides) < 1):
        yield expected("resize", options["resize"], "one size >= 1, or height and width")
    if scale is not None and not 0 < scale < math.inf:
        yield expected("scale", scale, "finite and > 0")
