"""Columns of a table to features, tokens, classes and groups: what each is, is said or guessed, and told.

The rules, in this order: ``target`` holds the classes, ``group`` whose each row is, ``text`` sentences; ``drop`` is
left out. Of the rest, a column of numbers is one feature, unless ``categorical`` names it; texts of at most 20
different values are categories, one feature for each value (or one in all, with ``categories="codes"``). Anything else
is refused. A missing value is refused with its place, never filled in, and no value is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, closest
from .contents import NAMED, Array, Contents, Reading, several
from .tokens import BUCKETS, tokenized, words

MOST_LEVELS = 20
"""Different texts up to which a column is one of categories."""
MISSING = {"", "NA", "N/A", "n/a", "NaN", "nan", "NULL", "null", "?"}
TARGETS = ("label", "labels", "target", "class", "y")
"""What a column of classes is usually called; without such a name it is the last."""
MOST_NAMED = 1000
"""Different values up to which a column that ``categorical`` names becomes features."""
MOST_CLASSES = 1000
"""Names of classes that a table may have, unless it has as many rows."""
OPTIONS = ("target", "group", "text", "drop", "categorical", "categories", "vocabulary", "text_length", "scale")
"""What a table can be read by."""

NUMBER = re.compile(r"\s*[+-]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?\s*")


@dataclass(frozen=True)
class Table:
    """The columns of a file, by name: numbers, or texts as Python strings in an array of objects."""

    file: Path
    columns: dict[str, Array]
    lines: Sequence[int] | None = None  # of each row in the file, where it has lines
    unread: tuple[str, ...] = ()  # columns that were to be dropped, of kinds that are not read

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def place(self, row: int, column: str) -> str:
        """Where a value lies, in words; rows are counted from 0, lines as editors do."""
        where = f"row {row}" if self.lines is None else f"line {self.lines[row]}"
        return f"{self.file}, {where}, column {column!r}"


def texts(values: Sequence[str]) -> Array:
    """Strings as a column: an array of objects, as numpy's own texts are all as long as the longest."""
    made = np.empty(len(values), dtype=object)
    made[:] = values
    return made


Tables = dict[str, Table]
"""By part: "train", and "test" where there is one."""


def contents_of_tables(tables: Tables, reading: Reading, names: tuple[str, ...] = ()) -> Contents:
    """Features or tokens, classes and groups of tables. ``names``: of the classes, where the file has them apart."""
    roles, guessed = assign(tables, reading)
    labels, class_names = classes_of(tables, roles.target, names)
    fitted: tuple[str, ...] = ()
    if roles.text is not None:
        inputs, vocabulary, more = _tokens(tables, roles, reading)
        fitted = () if reading.text else (f"that column {roles.text!r} is text (say text=)",)
    else:
        if unused := [name for name in ("vocabulary", "text_length") if name in reading.given()]:
            raise DataError(f"No column is read as text, so {unused[0]} plays no part.", "Say text=COLUMN.")
        (inputs, more, fitted), vocabulary = _features(tables, roles, reading), None
    parts = with_labels(inputs, labels, groups_of(tables, roles.group))
    return Contents(parts, vocabulary, class_names, tuple(guessed + more), fitted)


def with_labels(
    inputs: dict[str, Tensor], labels: dict[str, Tensor], groups: Tensor | None
) -> dict[str, tuple[Tensor, ...]]:
    """The parts of ``Contents``; groups go with train."""
    parts: dict[str, tuple[Tensor, ...]] = {what: (inputs[what], labels[what]) for what in inputs}
    return parts if groups is None else {**parts, "train": (*parts["train"], groups)}


# --- which column is what ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Roles:
    """What each column is for."""

    target: str
    group: str | None
    text: str | None
    features: list[str]


def assign(tables: Tables, reading: Reading) -> tuple[Roles, list[str]]:
    """Roles by the options, the others by guess; and what was guessed."""
    train = tables["train"]
    for table in tables.values():
        check_columns(table, train)
    known, left = list(train.columns), {*(reading.drop or ()), reading.group, reading.text}
    for option in ("target", "group", "text"):
        if (name := getattr(reading, option)) is not None and name not in known:
            raise _unknown(train, option, name)
    readable = {*known, *train.unread}
    for option in ("drop", "categorical"):
        for name in getattr(reading, option) or ():
            if name not in readable:
                raise _unknown(train, option, name)
    rest = [name for name in known if name not in left]
    guessed: list[str] = []
    target = reading.target
    if target is None:
        usual = [name for name in rest if name.lower() in TARGETS]
        if not rest:
            raise DataError(f"{train.file} has no column left for the classes.", "Say target=COLUMN.")
        target = usual[0] if usual else rest[-1]
        guessed.append(f"target: column {target!r}, {'by its name' if usual else 'the last'} (say target=)")
    if target in left:
        raise DataError(f"The target column {target!r} has a second role.", "Name it once.")
    features = [name for name in rest if name != target]
    if reading.text is None and not features:
        raise DataError(f"{train.file} has no column beside its target {target!r}.", "Say target=COLUMN, or add some.")
    text = reading.text
    if text is None and len(features) == 1 and _is_prose(train.columns[features[0]]):
        text = features[0]
        guessed.append(f"text: column {text!r}, the only one (say text=)")
    return Roles(target, reading.group, text, [name for name in features if name != text]), guessed


def check_columns(table: Table, train: Table) -> None:
    """Refuse a part without columns or rows, or with other columns than train."""
    if not table.columns:
        raise DataError(f"{table.file}: no column is left.", "Name fewer with drop=.")
    if len(table) == 0:
        raise DataError(f"{table.file} has no rows.", "Give some.")
    for one, other in ((train, table), (table, train)):
        if missing := [name for name in one.columns if name not in other.columns]:
            raise DataError(
                f"{other.file} has no column {missing[0]!r}, {one.file.name} has.", "Give all parts the same columns."
            )


def _unknown(table: Table, option: str, name: str) -> DataError:
    known = list(table.columns)
    return DataError(
        f"{table.file} has no column {name!r}, which {option} names.{closest(name, known)}",
        f"It has {several(known, 12)}.",
    )


def is_text(values: Array) -> bool:
    """Whether a column holds texts that are not all numbers."""
    return values.dtype == object and not all(NUMBER.fullmatch(value) for value in set(values.tolist()))


def _is_prose(values: Array) -> bool:
    """Whether a column holds texts that are neither categories nor numbers with a few that are not."""
    return is_text(values) and len(set(values)) > MOST_LEVELS and 2 * len(_no_numbers(values)) >= len(values)


def _no_numbers(values: Array) -> list[int]:
    """The rows that are not numbers."""
    return [row for row, number in enumerate(each(values, lambda text: NUMBER.fullmatch(str(text)))) if not number]


def each(values: Array, function: Callable[[Any], Any]) -> list[Any]:
    """A function of every value, computed once where many rows have the same one: it may be long.

    >>> each(texts(["a", "b", "a"]), str.upper)
    ['A', 'B', 'A']
    """
    made = {value: function(value) for value in set(values.tolist())}
    return [made[value] for value in values.tolist()]


def check_present(table: Table, name: str) -> None:
    """Refuse a missing value with its place."""
    values = table.columns[name]
    if values.dtype == object:
        gone = np.array(each(values, lambda text: text.strip() in MISSING), dtype=bool)
    else:
        gone = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), dtype=bool)
    if gone.any():
        raise missing(table.place(int(gone.argmax()), name))


def missing(place: str) -> DataError:
    """
    >>> str(missing("a.csv, line 3, column 'age'"))
    "a.csv, line 3, column 'age': the value is missing. Fill it in, remove the row, or leave the column out with drop=."
    """
    return DataError(
        f"{place}: the value is missing.", "Fill it in, remove the row, or leave the column out with drop=."
    )


# --- classes and groups -----------------------------------------------------------------------------------------------


def classes_of(tables: Tables, target: str, names: tuple[str, ...] = ()) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """The number of each row's class, and the names of the classes.

    Whole numbers 0, 1, ... are class numbers; other values are numbered in their order.
    """
    columns = {what: _class_values(table, target) for what, table in tables.items()}
    numbered = all(values.dtype != object for values in columns.values())
    if not numbered:  # whole numbers in one part and words in another are all words
        columns = {what: texts([str(value) for value in values]) for what, values in columns.items()}
    together = np.concatenate(list(columns.values()))
    levels = sorted(set(together.tolist()))
    if len(names) > max(MOST_CLASSES, len(together)):
        raise DataError(
            f"{tables['train'].file} names {len(names)} classes for {len(together)} rows: too many.",
            f"Keep those that rows have: at most {MOST_CLASSES}, or one for each row.",
        )
    if numbered and (names or (levels[0] == 0 and levels[-1] == len(levels) - 1)):
        labels = {what: torch.from_numpy(values.astype(np.int64)) for what, values in columns.items()}
        return labels, names or tuple(str(level) for level in levels)
    if 2 * len(levels) > len(together) or len(levels) > MOST_CLASSES:
        raise DataError(
            f"Column {target!r} of {tables['train'].file} has {len(levels)} different values in {len(together)} rows: "
            "too many for classes.",
            "Say target=COLUMN.",
        )
    number = {level: place for place, level in enumerate(levels)}
    labels = {what: torch.tensor([number[value] for value in column.tolist()]) for what, column in columns.items()}
    return labels, tuple(str(level) for level in levels)


def _class_values(table: Table, target: str) -> Array:
    """Whole numbers, or texts of which not all are whole numbers."""
    check_present(table, target)
    values = table.columns[target]
    if values.dtype == object:
        stripped = texts(each(values, str.strip))
        if all(re.fullmatch(r"[+-]?\d{1,18}", value) for value in set(stripped.tolist())):
            return np.array(each(stripped, int), dtype=np.int64)
        if is_text(stripped):
            return stripped
        values = np.array(each(stripped, float))
    if values.dtype.kind == "f":
        broken = ~np.isfinite(values) | (values != np.floor(values))
        if broken.any():
            raise DataError(
                f"{table.place(int(broken.argmax()), target)}: not a whole number.",
                "Name a column of classes with target=; amounts are not learned by this command.",
            )
    return values.astype(np.int64)


def groups_of(tables: Tables, group: str | None) -> Tensor | None:
    """Whose each training row is, by numbers; None where no column says."""
    if group is None:
        return None
    check_present(tables["train"], group)
    number: dict[object, int] = {}
    return torch.tensor([number.setdefault(value, len(number)) for value in tables["train"].columns[group].tolist()])


# --- features ---------------------------------------------------------------------------------------------------------


def _features(tables: Tables, roles: Roles, reading: Reading) -> tuple[dict[str, Tensor], list[str], tuple[str, ...]]:
    made: dict[str, list[Array]] = {what: [] for what in tables}
    fitted: list[str] = []
    for name in roles.features:
        for table in tables.values():
            check_present(table, name)
        levels = _levels(tables, name, name in (reading.categorical or ()))
        if levels is not None:
            fitted.append(f"categories of column {name!r} (store them as numbers)")
        for what, table in tables.items():
            if levels is None:
                made[what].append(_numbers(table, name)[:, None] / (reading.scale or 1))
                continue
            codes = np.array([levels[value] for value in table.columns[name].tolist()])
            made[what].append(
                codes[:, None] if reading.categories == "codes" else np.eye(1 + max(levels.values()))[codes]
            )
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
        inputs = {what: torch.from_numpy(np.concatenate(rows, 1).astype(np.float32)) for what, rows in made.items()}
    numbers = len(roles.features) - len(fitted)
    counted = [f"{n} {word}" for n, word in ((numbers, "of numbers"), (len(fitted), f"as {reading.categories}")) if n]
    return inputs, [f"columns: {', '.join(counted)} (say categorical=, categories=, drop=, text=)"], tuple(fitted)


def _levels(tables: Tables, name: str, categorical: bool) -> dict[Any, int] | None:
    """The different values of a column of categories, numbered in their order; None for a column of numbers.

    Where one part holds numbers and another texts, the numbers are the texts that they would be written as.
    """
    columns = [(table, table.columns[name]) for table in tables.values()]
    if not categorical and not any(is_text(values) for _, values in columns):
        return None
    found = set().union(*(values.tolist() for _, values in columns))
    numbers = all(values.dtype != object for _, values in columns)  # 1 and 1.0 are one number
    levels = sorted(found if numbers else {str(value) for value in found})
    if len(levels) <= (MOST_NAMED if categorical else MOST_LEVELS):
        place = {level: number for number, level in enumerate(levels)}
        return {value: place[value if numbers else str(value)] for value in found}
    table, values = columns[0]
    odd = _no_numbers(values)
    if odd and 2 * len(odd) < len(values):
        raise DataError(
            f"{table.place(odd[0], name)}: not a number, as most of the column are.", "Correct it, or remove the row."
        )
    raise DataError(
        f"Column {name!r} of {table.file} holds texts of {len(levels)} kinds: too many for categories.",
        f"Say what it is: group={name!r} (whose row it is), text={name!r}, categorical=[{name!r}] (up to {MOST_NAMED} "
        f"kinds), or drop=[{name!r}].",
    )


def _numbers(table: Table, name: str) -> Array:
    values = table.columns[name]
    made: Array = np.array(each(values, float)) if values.dtype == object else values.astype(np.float64)
    if not np.isfinite(made).all():
        place = table.place(int((~np.isfinite(made)).argmax()), name)
        raise DataError(f"{place}: not a finite number.", "Correct it, or remove the row.")
    return made


# --- text -------------------------------------------------------------------------------------------------------------


def _tokens(tables: Tables, roles: Roles, reading: Reading) -> tuple[dict[str, Tensor], int, list[str]]:
    assert roles.text is not None
    vocabulary, length = reading.vocabulary or BUCKETS, reading.text_length
    inputs, longest = {}, 0
    for what, table in tables.items():
        check_present(table, roles.text)
        said = [str(value) for value in table.columns[roles.text]]
        longest = max(longest, *(len(words(one)) for one in set(said)))
        inputs[what] = tokenized(said, vocabulary, length)
    told = [f"tokens: words hashed into {vocabulary - 1} numbers, {length} a row (say vocabulary=, text_length=)"]
    if longest > length:
        told.append(f"text_length: texts of up to {longest} words are cut to {length} (say text_length=)")
    if roles.features:
        told.append(f"drop: beside the text, {several(roles.features, NAMED)} are left out (say drop=)")
    return inputs, vocabulary, told
