"""``metrics.jsonl`` of a run folder: appended to, cut back to a checkpoint, and read without believing any line."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from ..files import changing, plain

METRICS = "metrics.jsonl"
REMEDY = "Restore the file, or train again."


def append_rows(path: Path, rows: Iterable[Mapping[str, Any]], experiment: str | None) -> None:
    """Add a line for every row, on the disk before this returns."""
    lines = [json.dumps(plain({"experiment": experiment, **row}), allow_nan=False) + "\n" for row in rows]
    with changing(path, create=True) as file:
        file.seek(0, os.SEEK_END)
        file.write("".join(lines).encode())


def size_of(path: Path) -> int:
    """The bytes of the file; 0 where there is none."""
    return path.stat().st_size if path.exists() else 0


def cut(path: Path, size: int) -> None:
    """Drop what was written after a checkpoint that covers ``size`` bytes: it is written again."""
    if size_of(path) < size:
        raise CheckpointError(
            f"{path.name} is shorter than the checkpoint says.", "Restore it, or begin in another folder."
        )
    if path.exists():
        with changing(path) as file:
            file.truncate(size)


def read_rows(path: Path, numbers: Collection[str] = (), keys: Collection[str] = ()) -> list[dict[str, Any]]:
    """The whole lines of the file, each an object that has ``keys``, and numbers under the keys ``numbers``.

    A last line without its end is left for later: somebody may be writing it. No file means no rows.
    """
    if not path.is_file():
        return []
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error.strerror}.", "Restore it.") from error
    rows = [_object(line, f"Line {number} of {path.name}") for number, line in enumerate(lines, 1)]
    for number, row in enumerate(rows, 1):
        lacking = [key for key in keys if key not in row]
        lacking += [key for key in numbers if not isinstance(row.get(key), int | float)]
        if lacking:
            raise CheckpointError(f"Line {number} of {path.name} has no valid {lacking[0]!r}.", REMEDY)
    return rows


def _object(line: bytes, place: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode())
    except (ValueError, RecursionError) as error:  # no UTF-8 or no JSON
        raise CheckpointError(f"{place} is damaged: {error}.", REMEDY) from error
    if not isinstance(row, dict):
        raise CheckpointError(f"{place} is not a JSON object.", REMEDY)
    return row
