"""Files that are never half-written: a temporary name, flushed to the disk, then renamed; and a lock on a folder."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import CheckpointError, StorageError

try:
    import fcntl
except ImportError as error:
    raise StorageError(
        "This system has no fcntl, which locks run folders.", "Use Linux or macOS; on Windows, the Linux of WSL."
    ) from error


GO_ON = "earlier results are intact, and the same command goes on from them"
REMEDIES = {
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), f"Free some space; {GO_ON}."),
    errno.EFBIG: f"Raise the limit on the size of files (ulimit -f); {GO_ON}.",
    **dict.fromkeys((errno.EMFILE, errno.ENFILE), f"Raise the limit on open files (ulimit -n); {GO_ON}."),
    errno.EIO: f"Check the disk; {GO_ON}.",
    errno.EROFS: "Choose a folder on a file system that can be written to.",
    **dict.fromkeys((errno.EACCES, errno.EPERM), "Choose a folder that you may write to, or change its permissions."),
    errno.ENOENT: "Choose another folder: this one was removed, or its file system takes no new files.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
}
"""What helps, by what the system said."""
WRONG_KIND = (errno.ENOTDIR, errno.EEXIST, errno.EISDIR)
"""A file where a folder is needed, or the other way round."""


@contextlib.contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the system says about a path into a typed error, with the remedy for that cause."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, path) from error


def storage_error(error: OSError, path: Path, doing: str = "write") -> StorageError:
    """What the system said of a path, as a typed error."""
    cause, remedy = error.strerror or str(error), "Choose another folder."
    if error.errno in WRONG_KIND:
        cause, remedy = _wrong_kind(path), "Choose another name, or move it away."
    elif error.errno is not None:
        remedy = REMEDIES.get(error.errno, remedy)
    return StorageError(f"Cannot {doing} {path.name or path}: {cause}.", remedy)


def _wrong_kind(path: Path) -> str:
    """Which part of a path is a file where a folder is needed, or a folder where a file is."""
    for part in (*reversed(path.parents), path):
        with contextlib.suppress(OSError):
            if not stat.S_ISDIR(part.stat().st_mode):
                return f"{part.name} is a file, not a folder"
    return f"{path.name} is a folder, not a file"


def refuse_link(path: Path) -> None:
    """A folder may come from someone else: what it links to elsewhere is not ours to read, fill or overwrite."""
    if os.path.islink(path):
        raise StorageError(
            f"{path.name} in the folder {path.parent.resolve().name} is a link, and may lead anywhere.",
            "Remove the link, or put what it leads to in its place.",
        )


def write_bytes(path: Path, content: bytes, mode: int | None = None) -> None:
    """Replace ``path`` by ``content`` as a whole or not at all; with these permissions where some are given."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        try:
            partial.unlink(missing_ok=True)  # of a process that was killed; or a link, which is not followed
            with partial.open("xb") as file:
                if mode is not None:
                    os.fchmod(file.fileno(), mode)
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


def read_json(path: Path, what: str, remedy: str = "Use --fresh.") -> Any:
    """JSON of our own making; anything else is a typed error."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no {what} at {path.name}.", "Check the path.") from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"The {what} {path.name} cannot be read: {error}.", remedy) from error


@contextlib.contextmanager
def locked(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """One process at a time in a run folder; the lock goes with the process, however it ends."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        refuse_link(folder / ".lock")
        handle = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
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
        os.close(handle)


def _taken(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
