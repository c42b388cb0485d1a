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
        ({"subproblems": 1}, "subproblems=1 to be >= 2"), ({"repeats": 0}, "repeats=0 to be >= 2"),
        ({"samples": "many"}, "samples='many' to be a whole number"), ({"samples": 1}, "samples=1 to be >= 2"),
        ({"targets": 1}, "targets=1 to be 0 or a whole number >= 2"), ({"targets": -1}, "targets=-1 to be 0 or"),
        ({"targets": "all"}, "targets='all' to be 0 or"), ({"iterations": 1}, "iterations=1 to be >= 2"),
        ({"iterations": 2.0}, "iterations=2.0 to be a whole"), ({"examples": 0}, "examples=0 to be >= 1"),
        ({"snapshots": []}, "snapshots=[] to be a list"), ({"snapshots": 3}, "snapshots=3 to be a list"),
        ({"snapshots": [True]}, "snapshots=[True] to be"),
        ({"power": math.nan}, "power=nan"), ({"power": None}, "power=None to be a whole number"),
        ({"short": True}, "short=True to be a whole"), ({"seed": -1}, "seed=-1 to be >= 0"),
    ],
)  # fmt: skip
def test_impossible_options_are_refused(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        BoundsOptions(**change).check()
    assert words in str(refused.value)


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(ConfigError) as refused:
        BoundsOptions(subproblems=1, power=0, samples="many", targets=1).check()  # type: ignore[arg-type]
    for words in ("4 problems", "subproblems=1", "power=0", "samples='many'", "targets=1"):
        assert words in refused.value.cause


def test_the_least_that_can_be_measured_is_accepted() -> None:
    BoundsOptions().check()
    BoundsOptions(snapshots=[0], subproblems=2, repeats=2, samples=2, examples=1, power=1, short=1, targets=0).check()
    BoundsOptions(targets=2, iterations=2).check()
