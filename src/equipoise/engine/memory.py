"""Freed memory is kept for the next round.

A round asks for the same few vectors ``[R, P]`` again and again. The C library gives such memory back to the system
when it is freed, and every page that is touched anew costs a fault: up to a third of a round's time where there are
many parameters and short mini-batches (``benchmarks/models.py``).
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import cache

TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3  # the names of glibc's mallopt
KEPT = 1 << 30
"""Freed memory that a process keeps at most."""
LARGEST = 32 << 20
"""The largest piece that is taken from it; glibc allows no more."""


@cache
def keep_freed_memory() -> bool:
    """Tell glibc to keep what is freed, once in a process; whether it did.

    Does nothing with another C library, or where the environment says how memory is to be handled.

    >>> keep_freed_memory() == keep_freed_memory()
    True
    """
    if sys.platform != "linux" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return False
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018  # others have a mallopt of another meaning
        return bool(library.mallopt(MMAP_THRESHOLD, LARGEST) and library.mallopt(TRIM_THRESHOLD, KEPT))
    except (OSError, AttributeError):
        return False
