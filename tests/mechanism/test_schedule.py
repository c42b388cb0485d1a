"""Schedules: what holds for whom in which round, and what is refused with which words."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import ConfigError
from equipoise.mechanism.schedule import Schedule, defence_label, schedule, schedule_starts, value_at


def test_a_number_holds_for_everyone_always() -> None:
    assert schedule(0.96, [1, 7, 5000], clients=3) == [[0.96] * 3] * 3
    assert schedule(80, [1], clients=2) == [[80.0, 80.0]]


@pytest.mark.parametrize(
    ("budget", "words"),
    [(None, "m"), (0.5, "m @ 0.5"), ([1, 2], "m @ per client 1, 2"),
     ({"rounds": [1, 5], "values": [0.97, 0.99]}, "m @ 0.97→0.99 (round 5)")],
)  # fmt: skip
def test_a_defence_is_a_mechanism_with_its_budget_if_any(budget: Any, words: str) -> None:
    assert defence_label("m", budget) == words


def test_one_number_per_client() -> None:
    assert schedule([0.1, 0.2], [1, 9], clients=2) == [[0.1, 0.2], [0.1, 0.2]]
    assert schedule((0.1, 0.2), [1], clients=2) == [[0.1, 0.2]]


def test_each_value_of_a_schedule_holds_from_its_round_on() -> None:
    plan = {"rounds": [1, 3, 10], "values": [1, [2, 3], 4.5]}
    rows = schedule(plan, [1, 2, 3, 9, 10, 11], clients=2)
    assert rows == [[1.0, 1.0], [1.0, 1.0], [2.0, 3.0], [2.0, 3.0], [4.5, 4.5], [4.5, 4.5]]
    assert schedule(plan, [10, 1], clients=2) == [[4.5, 4.5], [1.0, 1.0]], "any rounds, in any order"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ([0.1], "one for each of 2 clients"),
        ([0.1, 0.2, 0.3], "one for each of 2 clients"),
        ([], "one for each of 2 clients"),
        (math.nan, "finite number"),
        (math.inf, "finite number"),
        ([0.1, math.nan], "finite number"),
        ("ab", "finite number"),
        (["a", "b"], "finite number"),
        (None, "finite number"),
        (True, "finite number"),
        ([0.1, True], "finite number"),
        ({}, "'rounds' and 'values'"),
        ({"rounds": [1]}, "'rounds' and 'values'"),
        ({"rounds": [], "values": []}, "'rounds' and 'values'"),
        ({"rounds": [1, 2], "values": [0.1]}, "one length"),
        ({"rounds": [1], "values": [0.1], "extra": 1}, "'rounds' and 'values'"),
        ({"rounds": 1, "values": 0.1}, "'rounds' and 'values'"),
        ({"rounds": ["1"], "values": [0.1]}, "begin at 1"),
        ({"rounds": [1.0, 2.5], "values": [0.1, 0.2]}, "begin at 1"),
        ({"rounds": [2], "values": [0.1]}, "begin at 1"),
        ({"rounds": [1, 5, 3], "values": [0.1, 0.2, 0.3]}, "to rise"),
        ({"rounds": [1, 5, 5], "values": [0.1, 0.2, 0.3]}, "to rise"),
        ({"rounds": [1, 2], "values": [0.1, [0.2]]}, "one for each of 2 clients"),
    ],
)
def test_a_malformed_schedule_is_refused_by_name(value: Any, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        schedule(value, [1, 2], clients=2, name="gamma")
    assert words in caught.value.cause
    assert "gamma" in caught.value.cause


# --- rounds at which everything holds once ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "starts"),
    [
        (0.98, [1]),
        ([0.98, 0.99], [1]),
        (None, [1]),
        ({"rounds": [1, 10, 20], "values": [1, 2, 3]}, [1, 10, 20]),
        ({"rounds": (1, 10), "values": [1, 2]}, [1, 10]),
        ({"rounds": [], "values": []}, [1]),
        ({"rounds": ["1"], "values": [1]}, [1]),
        ({"rounds": 3}, [1]),
        ({}, [1]),
    ],
)
def test_every_part_of_a_schedule_holds_at_one_of_its_starts(value: Any, starts: list[int]) -> None:
    assert schedule_starts(value) == starts


# --- one client in one round -----------------------------------------------------------------------------------

PLAN = {"rounds": [1, 5], "values": [0.96, [0.98, 0.99]]}


@pytest.mark.parametrize(
    ("value", "round_number", "client", "expected"),
    [
        (0.3, 1, 0, 0.3),
        (0.3, 9, 7, 0.3),  # a single number serves any client
        ([0.1, 0.2], 3, 1, 0.2),
        ((0.1, 0.2), 3, 0, 0.1),
        ([0.1, 0.2, 0.4], 1, 2, 0.4),  # as long as it likes, if the client is among them
        (PLAN, 1, 1, 0.96),
        (PLAN, 4, 0, 0.96),
        (PLAN, 5, 0, 0.98),
        (PLAN, 99, 1, 0.99),
        (PLAN, 0, 1, 0.96),  # before the first round: never the last value
        ({"rounds": [1], "values": [0.5]}, 2, 8, 0.5),
    ],
)
def test_the_value_of_one_client_in_one_round(value: Schedule, round_number: int, client: int, expected: float) -> None:
    assert value_at(value, round_number, client, clients=2) == expected


@pytest.mark.parametrize(
    ("value", "client", "words"),
    [
        ([0.1, 0.2], 2, "gamma has 2 values, none for client 2"),
        (PLAN, 2, "one for each of 3 clients"),
        (math.nan, 0, "gamma to be one finite number"),
        ("fast", 0, "gamma to be one finite number"),
        (None, 0, "gamma to be one finite number"),
        ({"rounds": [1], "values": [[0.1]]}, 0, "one for each of 2 clients"),
        ({"rounds": [2], "values": [0.1]}, 0, "begin at 1"),
    ],
)
def test_a_client_without_a_value_is_told_so_by_name(value: Any, client: int, words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        value_at(value, 5, client, clients=2, name="gamma")
    assert words in caught.value.cause


@given(st.integers(1, 5), st.data())
def test_one_value_is_that_of_the_whole_table(clients: int, data: st.DataObject) -> None:
    number = st.floats(-9, 9)
    row = number | st.lists(number, min_size=clients, max_size=clients)
    starts = [1, *data.draw(st.lists(st.integers(2, 20), unique=True, max_size=3).map(sorted))]
    plan = {"rounds": starts, "values": data.draw(st.lists(row, min_size=len(starts), max_size=len(starts)))}
    value = data.draw(st.sampled_from([plan, plan["values"][0]]))
    rounds = list(range(1, 25))
    table = schedule(value, rounds, clients)
    assert table == [
        [value_at(value, round_number, client, clients) for client in range(clients)] for round_number in rounds
    ]
