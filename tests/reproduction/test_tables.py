"""How numbers are written in the tables of a page."""

from __future__ import annotations

import pytest

from equipoise.reproduction.agreement import spread
from equipoise.reproduction.tables import plus_minus, verdict, with_interval


@pytest.mark.parametrize(("digits", "text"), [(0, "-2 ± 1"), (1, "-2.0 ± 1.4"), (3, "-2.000 ± 1.414")])
def test_a_mean_with_its_standard_deviation(digits: int, text: str) -> None:
    assert plus_minus(spread([-1.0, -3.0]), digits) == text


def test_a_mean_with_its_interval() -> None:
    # Student's t of one degree of freedom at 97.5 %, 12.706, times the standard error, which is 1
    assert with_interval(spread([-1.0, -3.0]), 2) == "-2.00 (-14.71 to 10.71)"


def test_one_seed_has_its_value_alone() -> None:
    assert plus_minus(spread([7.25]), 2) == with_interval(spread([7.25]), 2) == "7.25"


def test_a_verdict_is_a_word() -> None:
    assert [verdict({"agrees": agrees}) for agrees in (True, False)] == ["agrees", "**differs**"]
