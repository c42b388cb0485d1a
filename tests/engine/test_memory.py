"""Freed memory is kept, where the C library can be told so, and nobody else has a say in it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from equipoise.engine import memory
from equipoise.engine.memory import keep_freed_memory

ROOT = Path(__file__).parents[2]
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


TAKEN = """
import json, sys
from functools import partial
sys.path.insert(0, "benchmarks")
import models
models.torch.set_num_threads(1)
case = {"model": sys.argv[1], "mechanism": sys.argv[2], "batch": 32, "clients": 4}
sides = partial(models.ours, chunk=1), models.plain
print(json.dumps([models.apart(partial(models.memory, dict(case), "cpu", side))[0] for side in sides]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("mechanism", ["pl-identical", "pl-learn"])
@pytest.mark.parametrize("model", ["lenet-zhu", "resnet-gn", "transformer"])
def test_one_client_at_a_time_takes_at_most_twice_the_memory_of_a_plain_loop(model: str, mechanism: str) -> None:
    command = [sys.executable, "-c", TAKEN, model, mechanism]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    ours, plain = json.loads(done.stdout)
    assert plain > 10, "MiB: else the test would be empty"
    assert ours <= 2 * plain
