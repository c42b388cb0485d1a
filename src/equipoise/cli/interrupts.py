"""Ctrl-C while libraries are being imported: some of them swallow it, others turn it into a crash."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def interruptible_imports() -> Iterator[None]:
    """Within the block, Ctrl-C during an import ends the process at once, with one line and exit code 130.

    Elsewhere it raises KeyboardInterrupt, as ever. During an import nothing is half-written that could be lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set a handler, and only it gets the signal
        return
    before = signal.signal(signal.SIGINT, _interrupted)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _interrupted(number: int, frame: FrameType | None) -> None:
    if importing(frame):
        sys.stderr.write("interrupted\n")
        sys.stderr.flush()
        os._exit(130)
    raise KeyboardInterrupt


def importing(frame: FrameType | None) -> bool:
    """Whether an import is under way in this frame or around it.

    >>> importing(sys._getframe())
    False
    """
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False
