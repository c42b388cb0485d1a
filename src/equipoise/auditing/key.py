"""A secret of the user's own, kept outside of every run folder: what it signed, this user's audits computed.

A run folder may come from somebody else, with results in it that nobody computed. Names and digests of such files can
be worked out by anybody; a signature with this key cannot.
"""

from __future__ import annotations

import os
import secrets
import stat
from pathlib import Path

from ..errors import StorageError
from ..files import locked, storage_error, write_bytes

NAME = "audit.key"
SIZE = 32


def user_key() -> bytes:
    """The key in the user's cache folder, made on first use; ``StorageError`` where there can be none."""
    path = cache_folder() / NAME
    if not os.path.lexists(path):
        with locked(path.parent, wait=10):
            if not os.path.lexists(path):
                write_bytes(path, secrets.token_bytes(SIZE), mode=0o600)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            about, content = os.fstat(file.fileno()), file.read(SIZE + 1)
    except OSError as error:
        raise storage_error(error, path, "read") from error
    own = stat.S_ISREG(about.st_mode) and about.st_uid == os.geteuid() and not about.st_mode & 0o077
    if not own or len(content) != SIZE:
        raise StorageError(f"{NAME} in the cache folder is not a key that you alone can read.", "Remove it.")
    return content


def cache_folder() -> Path:
    """``equipoise`` in ``XDG_CACHE_HOME``, or in ``.cache`` of the home folder."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        base = Path(given) if os.path.isabs(given) else Path.home() / ".cache"
    except RuntimeError:  # neither HOME nor an entry of this user
        base = Path()
    if not base.is_absolute():
        raise StorageError("There is no home folder to keep a key in.", "Set HOME or XDG_CACHE_HOME.")
    return base / "equipoise"
