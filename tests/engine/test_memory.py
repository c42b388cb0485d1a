"""Freed memory is kept, where the C library can be told so, and nobody else has a say in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from equipoise.engine import memory
from equipoise.engine.memory import keep_freed_memory

FAULTS = """
import ctypes, json, resource, sys, torch
from equipoise.engine.memory import MMAP_THRESHOLD, TRIM_THRESHOLD, keep_freed_memory
for name in (MMAP_THRESHOLD, TRIM_THRESHOLD):  # as glibc begins
    ctypes.CDLL(None).mallopt(name, 128 << 10)
kept = keep_freed_memory() if sys.argv[1] == "keep" else None
def rounds(count):
    for _ in range(count):
        parts = [torch.ones(1 << 20) for _ in range(6)]
        del parts
rounds(3)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
rounds(20)
print(json.dumps([kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before]))
"""


def faults(how: str, **environment: str) -> tuple[bool | None, int]:
    command = [sys.executable, "-c", FAULTS, how]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    kept, count = json.loads(done.stdout)
    return kept, count


@pytest.mark.skipif(not hasattr(memory.ctypes.CDLL(None), "gnu_get_libc_version"), reason="not glibc")
def test_pages_are_touched_once_and_not_in_every_round() -> None:
    kept, few = faults("keep")
    _, many = faults("leave")
    assert kept
    assert few < many / 10


def test_what_the_environment_says_stands() -> None:
    assert faults("keep", MALLOC_ARENA_MAX="2")[0] is False


def test_another_c_library_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for change in ({"platform": "darwin"}, {"platform": "linux"}):
        monkeypatch.setattr(memory.sys, "platform", change["platform"])
        monkeypatch.setattr(memory.ctypes, "CDLL", lambda name: object())
        assert keep_freed_memory.__wrapped__() is False
