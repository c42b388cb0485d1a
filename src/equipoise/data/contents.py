"""What a kind of files is to the rest of the package: how it is recognised, read, and by which options.

A format gives the rows of each part as tensors; ``loading.py`` checks, splits and normalises them. Limits on what a
file may grow to are here, because every reader needs them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import DataError, missing_extra

Array = npt.NDArray[Any]
Files = tuple[Path, ...]

ROOM, EXPANSION = 1 << 26, 100
"""What a compressed file may grow to: 64 MiB, or a hundred times its size. Data never shrink that well; bombs do."""

REPLACE = "Replace it with an undamaged copy of the original."


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How files are read, where they leave a choice. None: guessed, which the dataset then says, or not needed."""

    target: str | None = None  # the column of the classes
    group: str | None = None  # the column that says whose each row is
    text: str | None = None  # a column of sentences, which become tokens
    drop: tuple[str, ...] | None = None  # columns to leave out
    categorical: tuple[str, ...] | None = None  # columns of numbers that are names, not amounts
    categories: Literal["one-hot", "codes"] = "one-hot"  # how names become numbers
    vocabulary: int | None = None  # token numbers, padding included; of text, how many words are hashed into
    text_length: int = 64  # tokens of a row: longer texts are cut, shorter ones padded
    resize: int | tuple[int, int] | None = None  # height and width that pictures get; None: they have one size
    scale: float | None = None  # by which values are divided before all else

    def given(self) -> list[str]:
        """The options that differ from their defaults."""
        return [part.name for part in fields(self) if getattr(self, part.name) != part.default]


@dataclass(frozen=True)
class Contents:
    """What files hold: rows that are neither checked nor normalised yet."""

    parts: dict[str, tuple[Tensor, ...]]  # "train", and "test" if there is one: inputs, labels, perhaps groups
    vocabulary: int | None = None
    class_names: tuple[str, ...] = ()
    guessed: tuple[str, ...] = ()  # what nobody said, each with the setting that says it
    fitted: tuple[str, ...] = ()  # what all rows decide together, each with what states it instead
    bounded: bool = False  # whether pictures are in [0, 1] by their type, whatever their values


@dataclass(frozen=True)
class Format:
    """A kind of files that a dataset may lie in.

    ``recognises(path)`` says whether a folder or file seems to be of this kind, ``files(path, "train")`` which files
    make up a part (``DataError`` with the one that is missing; none where the test part is to be split off).
    ``contents`` gives all parts at once, as of some files one part cannot be read without the others. ``takes`` has the
    options of ``Reading`` that this kind understands.
    """

    recognises: Callable[[Path], bool]
    files: Callable[[Path, str], Files]
    contents: Callable[[dict[str, Files], Reading], Contents]
    _: KW_ONLY
    takes: tuple[str, ...] = ()


def bytes_of(path: Path) -> bytes:
    """The content of a file, or ``DataError`` with the reason."""
    if path.exists() and not path.is_file() and not path.is_dir():  # a pipe would keep everybody waiting
        raise DataError(f"{path} is no plain file.", "Put the file itself there.")
    try:
        return path.read_bytes()
    except OSError as problem:
        raise unreadable(path, problem) from problem


def unreadable(path: Path, problem: OSError) -> DataError:
    """
    >>> str(unreadable(Path("a.csv"), PermissionError(13, "Permission denied")))
    'a.csv cannot be read: Permission denied. Check its permissions.'
    """
    return DataError(f"{path} cannot be read: {problem.strerror}.", "Check its permissions.")


def outside(path: Path, root: Path) -> bool:
    """Whether a path leads out of a folder by a link, or nowhere: what lies elsewhere was not named by the user."""
    try:
        return not path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # links in a circle, of which some versions of Python say the latter
        return True


def inside(file: Path, folder: Path) -> Path:
    """A file of a folder, which no link may lead out of it."""
    if outside(file, folder):
        raise DataError(
            f"{file} is a link that leads out of the folder, or in a circle.", "Put the file itself there, or name it."
        )
    return file


def pyarrow(what: str) -> Any:
    """The package, or an error that says how to install it."""
    try:
        import pyarrow as package
    except ImportError:
        raise missing_extra(f"Reading {what}", "data") from None
    return package


NAMED = 100
"""Columns that a line names where a user should see each of them; a file may have any number."""


def several(names: tuple[str, ...] | list[str], most: int = 4) -> str:
    """
    >>> several(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"


def numbered_as(known: tuple[str, ...], labels: Tensor, names: tuple[str, ...]) -> Tensor:
    """Labels by the numbers that ``known`` has for their ``names``; a file numbers only the classes that it holds.

    Where one side has no names, or the file numbers its classes itself and none of these is a name, they stay.

    >>> numbered_as(("cat", "dog", "owl"), torch.tensor([0, 1, 0]), ("dog", "owl"))
    tensor([1, 2, 1])
    """
    others = [name for name in names if name not in known]
    if not known or (len(others) == len(names) and all(name == str(place) for place, name in enumerate(names))):
        return labels
    if others:
        raise DataError(
            f"The public data have the classes {several(others)}, which the clients' data have not: these have "
            f"{several(known)}.",
            "Give public data whose classes have the same names; of a table, check which column is the target.",
        )
    if len(labels) and int(labels.max()) >= len(names):
        raise DataError(f"The public data name {len(names)} classes and have more.", "Correct their names.")
    return torch.tensor([known.index(name) for name in names])[labels]
