"""The values of a TOML file, or of ``--set``, before anything is known of their meaning.

A run folder may be somebody else's: its file is read without following links, up to a size, and no value in it may be
such that Python cannot even print it.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError, StorageError, is_whole, printable
from ..files import read_plain

MOST_BYTES = 2**22
"""Of a run folder's config.toml."""
DEEPEST = 20
"""Tables and lists within one another; no setting needs more than four."""
QUOTED = re.compile(
    r'''"""(?:\\.|[^\\])*?"{3,5}|\'{3}.*?\'{3,5}|"(?:\\.|[^"\\\n])*+"|\'[^\'\n]*+\'|#[^\n]*+''', re.DOTALL
)
"""A string or a comment of TOML."""
LONG_KEY = re.compile(rf"(?<![\w-])(?:[\w-]++[ \t]*+\.[ \t]*+){{{DEEPEST}}}")
"""A dotted key that nests too deep: reading it takes the square of its length."""


def read_given(file: Path) -> dict[str, Any]:
    """The values of a file that the user named: it may be a link or a pipe."""
    try:
        return parsed(file.read_bytes(), str(file))
    except OSError as error:
        raise ConfigError(f"Cannot read {file}: {error.strerror}.", "Check the path.") from error


def read_kept(file: Path) -> dict[str, Any]:
    """The values of a run folder's own file: a plain one of a moderate size."""
    try:
        return parsed(read_plain(file, MOST_BYTES), file.name)
    except OSError as error:
        raise ConfigError(f"Cannot read {file.name}: {error.strerror}.", "Check the path.") from error
    except StorageError as error:
        raise ConfigError(f"Cannot use {file.name}: {error.cause}", error.remedy) from error


def parsed(content: bytes, name: str) -> dict[str, Any]:
    """The values of a text in TOML."""
    try:
        text = content.decode()
        if LONG_KEY.search(QUOTED.sub("s", text)):
            raise ConfigError(f"A key of {name} nests more than {DEEPEST} deep.", "Use the keys of the settings.")
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or more digits or brackets than Python takes
        raise ConfigError(f"{name} is not valid TOML: {error}.", "Correct that line.") from error
    refuse_strange(raw)
    return raw


def refuse_strange(raw: Mapping[str, Any]) -> None:
    """Refuse whole numbers beyond 64 bits, which TOML does not promise and Python may not print, and deep nesting.

    >>> refuse_strange({"gaussian": {"rounds": 2**63}})
    Traceback (most recent call last):
    equipoise.errors.ConfigError: Expected gaussian.rounds to be a whole number of at most 64 bits. Give a smaller one.
    """
    left: list[tuple[tuple[str, ...], Any]] = [((), raw)]
    while left:  # no recursion: a file may nest deeper than Python's stack
        path, value = left.pop()
        if len(path) > DEEPEST:
            raise ConfigError(f"{_name(path)} is nested more than {DEEPEST} deep.", "Use the keys of the settings.")
        if is_whole(value) and not -(2**63) <= value < 2**63:
            raise ConfigError(f"Expected {_name(path)} to be a whole number of at most 64 bits.", "Give a smaller one.")
        left += [((*path, key), item) for key, item in _items(value)]


def _name(path: tuple[str, ...]) -> str:
    return printable(".".join(path))


def _items(value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return value.items()
    return ((str(place), item) for place, item in enumerate(value)) if isinstance(value, list | tuple) else ()
