"""What ``BoundsOptions`` refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest

from equipoise.bounds.options import BoundsOptions
from equipoise.errors import ConfigError


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"subproblems": 1}, "subproblems=1 (at least 2)"), ({"repeats": 0}, "repeats=0 (at least 2)"),
        ({"samples": "many"}, "samples='many' (a whole number)"), ({"samples": 1}, "samples=1 (at least 2)"),
        ({"targets": 1}, "targets=1 (0, or at least 2"), ({"targets": -1}, "targets=-1 (at least 0)"),
        ({"iterations": 1}, "iterations=1 (at least 2)"), ({"examples": 0}, "examples=0 (at least 1)"),
        ({"snapshots": []}, "snapshots=[] (a list"), ({"snapshots": 3}, "snapshots=3 (a list"),
        ({"snapshots": [True]}, "snapshots=["),
        ({"power": math.nan}, "power=nan"), ({"power": None}, "power=None (a whole number)"),
        ({"short": True}, "short=True (a whole"), ({"seed": -1}, "seed=-1 (at least 0)"),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BoundsOptions(**change).check()
    assert words in str(refused.value)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError, match=r"subproblems=1 .*, power=0 .*, targets=1"):
        BoundsOptions(subproblems=1, power=0, targets=1).check()


def test_the_least_that_can_be_measured_is_accepted() -> None:
    BoundsOptions().check()
    BoundsOptions(snapshots=[0], subproblems=2, repeats=2, samples=2, examples=1, power=1, short=1, targets=0).check()
    BoundsOptions(targets=2, iterations=2).check()
