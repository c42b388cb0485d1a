"""What is reserved for a run: its terms are checked before anything is counted, and add up over runs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from equipoise.ledger.reservation import Reservation, Reserved, is_reservation, sums
from tests.ledger.entries import reservation


def test_a_reservation_survives_its_line() -> None:
    terms = reservation("7", noise_schedule=((1.0, 2), (0.5, 1)), rounds=3)
    line = json.loads(json.dumps(terms.entry()))
    assert is_reservation(line)
    assert Reservation.of(line) == terms


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("run", ""), ("run", "7" * 65), ("run", 7), ("mechanism", None), ("relation", "replace"), ("unit", "person"),
        ("epsilon", 0.0), ("epsilon", -1.0), ("epsilon", 2), ("epsilon", True), ("epsilon", "2"), ("delta", 1.0),
        ("delta", 0.0), ("sampling_rate", 1.5), ("sampling_rate", 0.0), ("sigma", 0.0), ("sigma", None),
        ("rounds", 0), ("rounds", 3.0), ("rounds", 4), ("divisor", 0), ("divisor", True), ("noise_schedule", []),
        ("noise_schedule", 1.0), ("noise_schedule", [[1.0, 2]]), ("noise_schedule", [[1, 3]]),
        ("noise_schedule", [[0.0, 3]]), ("noise_schedule", [[-1.0, 3]]), ("noise_schedule", [[1.0, 3.0]]),
        ("noise_schedule", [[1.0, 3, 1]]), ("noise_schedule", [[1.0, 4], [1.0, -1]]),
    ],
)  # fmt: skip
def test_terms_that_make_no_sense_are_none(name: str, value: Any) -> None:
    line = reservation("7").entry()
    assert is_reservation(line)
    assert not is_reservation({**line, name: value})


def test_every_term_but_the_noise_that_follows_from_them_makes_a_difference() -> None:
    terms = reservation("7")
    others = {
        "run": "8", "mechanism": "other", "epsilon": 2.5, "delta": 1e-6, "relation": "replace", "unit": "group",
        "sampling_rate": 0.5, "rounds": 4, "noise_schedule": ((1.0, 1), (0.5, 2)), "divisor": 10,
    }  # fmt: skip
    for name, value in others.items():
        assert terms.differences(replace(terms, **{name: value})) == [name]
    assert terms.differences(replace(terms, sigma=1.0)) == []
    assert {*others, "sigma"} == set(terms.entry()) - {"kind"}, "all terms are here"


def test_runs_add_up_simply_used_or_not() -> None:
    runs = [Reserved(reservation("1"), "now", used=3), Reserved(reservation("2", epsilon=1.5, delta=2e-6), "now")]
    assert sums(runs) == pytest.approx((3.5, 1.2e-5))
    assert sums([]) == (0.0, 0.0)
