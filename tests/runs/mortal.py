"""A process that dies before a chosen change of a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


class Death(BaseException):
    """The process is gone: nothing catches it, and nothing is cleaned up after it."""


class Mortal:
    """Counts every operation by which files change, and dies before the chosen one; from then on nothing works."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, dies_before: int = -1, torn: bool = False):
        self.count, self.dies_before, self.torn = 0, dies_before, torn
        self.seen: list[str] = []
        monkeypatch.setattr(os, "fsync", lambda handle: None)  # the machine itself stays on, and the test fast
        for owner, name in ((os, "fsync"), (Path, "replace"), (Path, "unlink"), (os, "open")):
            monkeypatch.setattr(owner, name, self._watch(name, getattr(owner, name)))

    def _watch(self, name: str, genuine: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *more: Any, **named: Any) -> Any:
            if name == "open" and not (more[0] if more else named["flags"]) & (os.O_WRONLY | os.O_RDWR):
                return genuine(target, *more, **named)
            if self.count == self.dies_before:
                if self.torn and name == "fsync" and os.fstat(target).st_size > 5:
                    self._tear(target)
                self.torn = False
                raise Death(f"before {name} {target}")
            self.count += 1
            self.seen.append(f"{name} {target}")
            return genuine(target, *more, **named)

        return call

    @staticmethod
    def _tear(handle: int) -> None:
        """The last bytes never reached the disk."""
        try:
            os.ftruncate(handle, os.fstat(handle).st_size - 5)
        except OSError:  # a folder
            return
