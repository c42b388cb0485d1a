"""One limit, checked; and the epsilon that keeps a proved identification rate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.choosing.limit import epsilon_for, limit_of, proved
from equipoise.errors import BudgetError, ConfigError, EquipoiseError
from equipoise.mechanism.run_budget import GaussianSettings


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({}, ConfigError, "No limit was given"),
        ({"epsilon": 2, "accuracy": 0.9}, ConfigError, "got 2: --epsilon and --accuracy"),
        ({"epsilon": 0}, BudgetError, "epsilon=0"),
        ({"epsilon": -1.0}, BudgetError, "epsilon=-1.0"),
        ({"epsilon": 1e4}, BudgetError, "at most 1000"),
        ({"epsilon": float("nan")}, ConfigError, "finite"),
        ({"epsilon": "2"}, ConfigError, "finite number"),
        ({"epsilon": True}, ConfigError, "finite number"),
        ({"accuracy": 1.2}, ConfigError, "accuracy=1.2"),
        ({"accuracy": 0}, ConfigError, "accuracy=0"),
        ({"accuracy": float("inf")}, ConfigError, "finite"),
        ({"identification": 0.005}, ConfigError, "chance"),
        ({"identification": 0.004}, ConfigError, "chance"),
        ({"identification": 1}, ConfigError, "chance"),
    ],
    ids=str,
)
def test_what_cannot_be_a_limit_is_refused(asked: dict[str, Any], error: type[EquipoiseError], said: str) -> None:
    with pytest.raises(error, match=said) as found:
        limit_of(**asked)
    assert found.value.remedy


def test_a_percentage_is_taken_for_what_it_is() -> None:
    with pytest.raises(ConfigError) as found:
        limit_of(accuracy=90)
    assert "write 0.9 for 90%" in found.value.remedy


@given(st.floats(0.0051, 0.9))
def test_the_epsilon_of_a_rate_keeps_it_and_a_larger_one_does_not(rate: float) -> None:
    found = epsilon_for(rate, GaussianSettings(), [25, 100])
    assert found is not None
    for rounds in (25, 100):
        assert proved(found, GaussianSettings(), rounds) <= rate
    assert proved(found * 1.02, GaussianSettings(), 25) > rate


def test_sampling_and_schedules_count() -> None:
    sampled = GaussianSettings(sampling_rate=0.5, noise_schedule={"rounds": [1, 6], "values": [1.0, 0.5]})
    assert proved(2.0, sampled, 10) != proved(2.0, GaussianSettings(), 10)
    assert proved(2.0, sampled, 10) < 0.05
