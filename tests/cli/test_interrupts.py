"""Ctrl-C during an import ends the process; elsewhere it is a KeyboardInterrupt."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from equipoise.cli.interrupts import interruptible_imports

SWALLOWS = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    pass  # as some libraries do
"""


def test_a_library_cannot_swallow_ctrl_c_while_it_is_imported(tmp_path: Path) -> None:
    (tmp_path / "swallows.py").write_text(SWALLOWS)
    code = (
        "from equipoise.cli.interrupts import *\nwith interruptible_imports():\n    import swallows\nprint('went on')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


def test_elsewhere_it_is_an_exception_and_the_handler_is_given_back() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), interruptible_imports():
        os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


def test_other_threads_leave_the_handler_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def work() -> None:
        with interruptible_imports():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [before]
