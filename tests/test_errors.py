"""Typed errors: a cause with its value, a remedy, an exit code and a page for each; and what counts as a number."""

from __future__ import annotations

import math
import re
import sys
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise import errors
from equipoise.errors import (
    BudgetError,
    ConfigError,
    EquipoiseError,
    closest,
    expected,
    is_number,
    is_whole,
    place,
    raise_all,
    too_low,
)

PAGES = Path(__file__).parents[1] / "docs" / "errors"
CLASSES = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, EquipoiseError)]


# --- classes ---------------------------------------------------------------------------------------------------


def test_every_class_has_an_exit_code_of_its_own() -> None:
    codes = [kind.exit_code for kind in CLASSES]
    assert len(CLASSES) >= 12
    assert len(set(codes)) == len(codes)
    assert not {0, 1, 2, 130} & set(codes), "taken by success, Python, usage errors and Ctrl-C"


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_every_class_has_its_page(kind: type[EquipoiseError]) -> None:
    page = (PAGES / f"{kind.exit_code}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# Exit code {kind.exit_code}: {kind.__name__}\n")
    assert all(part in page for part in ("**Cause.**", "**Remedy.**", "**What is kept.**"))
    index = (PAGES / "README.md").read_text(encoding="utf-8")
    assert f"| [{kind.exit_code}]({kind.exit_code}.md) | {kind.__name__} |" in index
    assert kind.__doc__


def test_no_page_is_of_a_code_that_nothing_has() -> None:
    pages = {int(path.stem) for path in PAGES.glob("*.md") if path.stem != "README"}
    assert pages == {kind.exit_code for kind in CLASSES} | {1, 2, 130}


def test_an_error_says_what_is_wrong_and_then_what_to_do() -> None:
    error = BudgetError("Expected budget=1.2 to be < 1.", "Choose a smaller one.")
    assert (error.cause, error.remedy) == ("Expected budget=1.2 to be < 1.", "Choose a smaller one.")
    assert str(error) == "Expected budget=1.2 to be < 1. Choose a smaller one."
    assert str(BudgetError("It is broken.")) == "It is broken."


# --- words -----------------------------------------------------------------------------------------------------


def test_the_closest_word_is_offered_where_one_is_close() -> None:
    known = ["rounds", "clients", "batch"]
    assert closest("rouns", known) == " Did you mean 'rounds'?"
    assert closest("client", known) == " Did you mean 'clients'?"
    assert closest("zzz", known) == ""
    assert closest("rounds", []) == ""


# --- numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "number", "whole"),
    [
        (0, True, True),
        (-3, True, True),
        (2**1023, True, True),
        (int(sys.float_info.max), True, True),
        (int(sys.float_info.max) * 2, False, True),  # whole, but no float can hold it
        (-(10**400), False, True),
        (0.5, True, False),
        (3.0, True, False),
        (math.nan, True, False),  # a float; whether it is finite is asked elsewhere
        (-math.inf, True, False),
        (np.float64(0.5), True, False),  # a float too
        (np.float32(0.5), False, False),
        (np.int64(3), False, False),
        (True, False, False),
        (False, False, False),
        ("3", False, False),
        (None, False, False),
        ([3], False, False),
        (3j, False, False),
        (Decimal(3), False, False),
        (Fraction(3), False, False),
        (torch.tensor(3.0), False, False),
    ],
    ids=lambda value: repr(value)[:20],
)
def test_what_is_a_number_and_what_is_a_whole_one(value: Any, number: bool, whole: bool) -> None:
    assert is_number(value) is number
    assert is_whole(value) is whole


# --- all problems at once --------------------------------------------------------------------------------------


def test_all_problems_are_raised_together_each_once_in_their_order() -> None:
    raise_all([])
    with pytest.raises(ConfigError) as caught:
        raise_all([too_low("rounds", 0, 1), BudgetError("A budget.", "Another."), too_low("rounds", 0, 1)])
    assert caught.value.cause.splitlines() == [
        "2 problems in the settings:",
        "  - Expected rounds=0 to be >= 1. Give rounds 1 or more.",
        "  - A budget. Another.",
    ]
    assert str(caught.value).splitlines()[-1] == caught.value.remedy == "Correct each of them."


def test_one_problem_is_raised_with_its_own_cause_and_remedy() -> None:
    with pytest.raises(ConfigError) as caught:
        raise_all([expected("device", "My. Gpu", "a word")])
    assert caught.value.cause == "Expected device='My. Gpu' to be a word."
    assert caught.value.remedy == "Set device to such a value (on the command line: --set device=VALUE)."


# --- errors of other people's code --------------------------------------------------------------------------------


def caught(call: Any) -> BaseException:
    with pytest.raises(Exception) as result:
        call()
    return result.value


def test_the_place_of_an_error_is_the_callers_own_line_and_its_words_are_left_out() -> None:
    layer = torch.nn.Linear(2, 1)
    for call in (lambda: layer(torch.zeros(4, 4711)), lambda: int("4711x"), lambda: closest("4711", [4711])):  # type: ignore[list-item]
        words = place(caught(call))
        assert re.fullmatch(r"\w+Error at (test_errors|difflib)\.py:\d+", words)
        assert "4711" not in words


def test_an_error_that_was_never_raised_has_no_place() -> None:
    assert place(ValueError("4711")) == "ValueError"
