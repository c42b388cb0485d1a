"""Files that are never half-written: a temporary name, flushed to the disk, then renamed; and a lock on a folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from .errors import CheckpointError, StorageError


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the system says about a path into a typed error."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"Cannot write {path.name}: {error.strerror or error}.",
            "Free some space or choose another folder; earlier results are intact, and a run resumes from them.",
        ) from error


def write_bytes(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` as a whole or not at all."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        try:
            with partial.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)  # the new name must survive a power cut too
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def write_text(path: Path, content: str) -> None:
    write_bytes(path, content.encode())


def plain(value: Any) -> Any:
    """The value with null for numbers that JSON does not know: NaN and the infinities."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(plain(value), indent=1, allow_nan=False) + "\n")


def read_json(path: Path, what: str) -> Any:
    """JSON of our own making; anything else is a typed error."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no {what} at {path.name}.", "Check the path.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"The {what} {path.name} cannot be read: {error}.", "Use --fresh.") from error


@contextlib.contextmanager
def locked(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """One process at a time in a run folder; the lock goes with the process, however it ends."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = (folder / ".lock").open("w")
    try:
        limit = time.monotonic() + wait
        while not _taken(handle):
            if time.monotonic() >= limit:
                raise CheckpointError(
                    f"Another process is using the run folder {folder.name}.", "Wait for it, or use another --out."
                )
            time.sleep(0.05)
        yield
    finally:
        handle.close()


def _taken(handle: IO[str]) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
