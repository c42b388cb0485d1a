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


@dataclass(frozen=True)
class Format:
    """A kind of files that a dataset may lie in.

    ``recognises(path)`` says whether a folder or file seems to be of this kind, ``files(path, "train")`` which files
    make up a part (``DataError`` with the one that is missing; none where the test part is to be split off). Then
    either ``read(files)`` gives images and labels, part by part, or ``contents`` gives all parts at once, for files
    of which one part cannot be read without the others. ``takes`` has the options of ``Reading`` that this kind
    understands.
    """

    recognises: Callable[[Path], bool]
    files: Callable[[Path, str], Files]
    read: Callable[[Files], tuple[Array, Array]] | None = None
    _: KW_ONLY
    contents: Callable[[dict[str, Files], Reading], Contents] | None = None
    takes: tuple[str, ...] = ()


def bytes_of(path: Path) -> bytes:
    """The content of a file, or ``DataError`` with the reason."""
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
    """Whether a path leads out of a folder by a link: what lies elsewhere was not named by the user."""
    return not path.resolve().is_relative_to(root.resolve())


def inside(file: Path, folder: Path) -> Path:
    """A file of a folder, which no link may lead out of it."""
    if outside(file, folder):
        raise DataError(f"{file} is a link that leads out of the folder.", "Put the file itself there, or name it.")
    return file


def pyarrow(what: str) -> Any:
    """The package, or an error that says how to install it."""
    try:
        import pyarrow as package
    except ImportError:
        raise missing_extra(f"Reading {what}", "data") from None
    return package


def several(names: tuple[str, ...] | list[str], most: int = 4) -> str:
    """
    >>> several(["a", "b", "c"], 2)
    "'a', 'b' and 1 more"
    """
    shown = ", ".join(repr(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
