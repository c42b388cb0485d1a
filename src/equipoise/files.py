"""Files that are never half-written: a temporary name, flushed to the disk, then renamed; and locks.

Whoever can write into a folder can plant a link there, at the name of a lock, of a temporary file or of a file that
grows: nothing here writes, truncates or changes permissions through it.
"""

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
from typing import Any, BinaryIO

from .errors import CheckpointError, ConfigError, EquipoiseError, StorageError

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
DONE = "done.json"
"""Written last into the folder of a part of a SPEC: it is whole, and how long it took."""
MOST_JSON = 2**30
"""Bytes of a JSON file that are read."""
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
    shown = path if not path.is_absolute() else path.name or path  # whoever named it relatively sees what they typed
    return StorageError(f"Cannot {doing} {shown}: {cause}.", remedy)


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


def open_plain(path: Path, flags: int, mode: int = 0o666) -> int:
    """A handle of the plain file at ``path``; a link is refused, and so is a pipe, which would keep us waiting.

    What the system says of it otherwise is an ``OSError``, for ``storage_errors``.
    """
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, mode)
    except OSError:
        refuse_link(path)
        raise
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return handle
    os.close(handle)
    raise StorageError(f"{path.name} is no plain file.", "Move it away.")


def read_plain(path: Path, most: int) -> bytes:
    """The bytes of a plain file, if they are at most so many."""
    with open(open_plain(path, os.O_RDONLY), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > most:
            raise StorageError(f"{path.name} has {size} bytes, and may have {most}.", "Move it away.")
        return file.read(size)


@contextlib.contextmanager
def changing(path: Path, create: bool = False) -> Iterator[BinaryIO]:
    """A plain file that is changed in place: what is written is on the disk when this ends."""
    flags = os.O_RDWR | (os.O_CREAT if create else 0)
    with storage_errors(path), open(open_plain(path, flags), "r+b") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def write_bytes(path: Path, content: bytes, mode: int = 0o666) -> None:
    """Replace ``path`` by ``content`` as a whole or not at all.

    ``mode`` (less what the umask takes away) holds from the first moment, for the temporary file too; one that lies
    there already, from a process that was killed or as a link that somebody planted, is removed and never opened.
    """
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        try:
            partial.unlink(missing_ok=True)
            with open(partial, "xb", opener=lambda name, flags: os.open(name, flags | os.O_NOFOLLOW, mode)) as file:
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
        return json.loads(read_plain(path, MOST_JSON))
    except FileNotFoundError as error:
        raise CheckpointError(f"There is no {what} at {path.name}.", "Check the path.") from error
    except StorageError as error:
        raise CheckpointError(f"The {what} cannot be read: {error.cause}", remedy) from error
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"The {what} {path.name} cannot be read: {error}.", remedy) from error


def finished(folder: Path, part: Any) -> bool:
    """Whether the folder of a part of a SPEC holds its results; raise where it holds those of another part.

    Only a ``done.json`` that can be read and says of what it is counts: all else is computed again.
    """
    try:
        done = read_json(folder / DONE, "finished part")
    except CheckpointError:  # there is none, or one that says nothing
        return False
    if not isinstance(done, dict) or "spec" not in done:
        return False
    if done["spec"] == json.loads(json.dumps(plain(part))):  # as it was written
        return True
    raise ConfigError(
        f"The finished part {folder.name!r} was computed from another SPEC.", "Remove its folder, or use another OUT."
    )


@contextlib.contextmanager
def locked(folder: Path, wait: float = 0.0) -> Iterator[None]:
    """One process at a time in a run folder; the lock goes with the process, however it ends."""
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        handle = open_plain(folder / ".lock", os.O_RDWR | os.O_CREAT)
    busy = CheckpointError(
        f"Another process is using the run folder {folder.name}.", "Wait for it, or use another --out."
    )
    with held(handle, folder / ".lock", wait, busy):
        yield


@contextlib.contextmanager
def held(handle: int, path: Path, wait: float, busy: EquipoiseError) -> Iterator[None]:
    """Hold the lock on an open file, and close it in the end; raise ``busy`` if it is not free within ``wait`` seconds.

    It is given back by name: a process that was forked meanwhile, such as a data loader's, has the handle too, and
    would keep the lock for as long as it lives.
    """
    try:
        limit = time.monotonic() + wait
        while not _taken(handle, path):
            if time.monotonic() >= limit:
                raise busy
            time.sleep(0.05)
        try:
            yield
        finally:
            fcntl.flock(handle, fcntl.LOCK_UN)
    finally:
        os.close(handle)


def _taken(handle: int, path: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:  # such as a file system without locks
        raise storage_error(error, path, "lock") from error
    return True
