"""From cells to marks: families, what stands for leakage, what is left out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from equipoise.choosing.frontier import committed, status
from equipoise.report.frontier_families import (
    DRAWN,
    FAMILIES,
    LEARNED,
    PUBLIC,
    RECOMMENDED,
    START,
    TITLES,
    panels,
    strength,
    within,
)
from equipoise.report.frontier_marks import Mark, Panel
from equipoise.report.frontier_picture import picture
from tests.choosing.frontier_parts import cell, scopes


def drawn(*rows: dict[str, Any], names: Sequence[str] = tuple(TITLES)) -> list[Panel]:
    return panels({"cells": rows, "unprotected": {"mnist": 0.95, "fmnist": 0.9}}, names)


def shown(*rows: dict[str, Any], name: str = "mnist") -> Panel:
    (panel,) = drawn(*rows, names=[name])
    return panel


def only(*rows: dict[str, Any]) -> Mark:
    (mark,) = shown(*rows).marks
    return mark


def test_a_mark_stands_at_the_most_that_any_attack_got() -> None:
    rows = scopes()
    rows[2] |= {"identification": 0.9, "identification_low": 0.85, "identification_high": 0.95}
    mark = only(*rows)
    assert (mark.family, mark.strength, mark.role) == (LEARNED, "PL 0.98", "paper")
    assert (mark.leakage, mark.leakage_interval) == (0.9, (0.85, 0.95))
    assert (mark.accuracy, mark.accuracy_interval) == (0.7, (0.69, 0.71))


def test_a_guarantee_stands_at_what_is_proved_over_the_run() -> None:
    rows = scopes(mechanism="gaussian-dp", budget=2, identification=0.9)
    rows[0] |= {"proved_identification": 0.006}
    mark = only(*rows)
    assert (mark.family, mark.strength, mark.role) == (RECOMMENDED, "ε 2", "recommended")
    assert (mark.leakage, mark.leakage_interval) == (0.03, None)


@pytest.mark.parametrize(
    ("proved", "stands"),
    [(0.0059601, 0.00597), (0.00597, 0.00597), (0.1, 0.1), (0.99901, 1.0), (1.0, 1.0), (5e-324, 1e-300), (0.0, 0.0)],
)
def test_a_limit_stands_where_its_three_digits_are_never_below(proved: float, stands: float) -> None:
    """As it is printed; one too small for three digits, too, stands where all below chance do."""
    panel = shown(*scopes(mechanism="gaussian-dp", budget=2, proved_identification=proved))
    assert panel.marks[0].leakage == stands >= proved
    picture([panel])


def test_a_guarantee_whose_limit_could_not_be_computed_has_no_mark() -> None:
    unknown = scopes(mechanism="gaussian-dp", budget=4, proved_identification=None)
    assert [mark.strength for mark in shown(*unknown, *scopes(mechanism="gaussian-dp", budget=2)).marks] == ["ε 2"]
    assert drawn(*unknown) == []


def test_what_was_not_attacked_over_the_run_has_no_mark() -> None:
    """It would look better than the others."""
    assert drawn(*scopes()[:-1]) == []
    assert drawn(*scopes(accuracy=None)) == []
    assert [panel.title for panel in drawn(*scopes())] == ["MNIST"]


@pytest.mark.parametrize("change", [{"clients": 32}, {"partition": "dirichlet 0.3"}, {"dataset": "fmnist"}])
def test_the_picture_is_of_the_usual_setting(change: dict[str, Any]) -> None:
    assert drawn(*scopes(**change), names=["mnist"]) == []


def test_public_records_have_a_mark_and_no_protection_a_line() -> None:
    rows = scopes(mechanism="none", model="scatter-linear", public=1000, clients=0, partition="none", budget=None)
    free = scopes(mechanism="none", model="scatter-linear", budget=None)
    panel = shown(*rows, *free)
    assert [(mark.family, mark.strength, mark.role) for mark in panel.marks] == [
        (PUBLIC, "1,000 images", "alternative")
    ]
    assert (panel.unprotected, panel.chance) == (0.95, 1 / 200)


def test_the_epsilon_to_begin_with_is_marked() -> None:
    rows = [row for epsilon in (1, START, 8) for row in scopes(mechanism="gaussian-dp", budget=epsilon)]
    assert [mark.chosen for mark in shown(*rows, *scopes()).marks] == [False, True, False, False]


def test_where_there_are_too_many_strengths_some_are_drawn() -> None:
    for mechanism, budgets in DRAWN.items():
        rows = [row for budget in (*budgets, 0.7) for row in scopes(mechanism=mechanism, budget=budget)]
        assert len(shown(*rows).marks) == len(budgets)
    assert len(shown(*scopes(budget=0.7)).marks) == 1


def test_strengths_of_one_family_are_in_order_and_apart() -> None:
    rows = [row for budget in (0.995, 0.96, 0.98) for row in scopes(budget=budget, accuracy=budget)]
    assert [(mark.strength, mark.accuracy) for mark in shown(*rows).marks] == [
        ("PL 0.96", 0.96), ("PL 0.98", 0.98), ("PL 0.995", 0.995),
    ]  # fmt: skip


def test_servers_and_batches_are_families_of_their_own() -> None:
    static: dict[str, Any] = {"mechanism": "pl-identical"}
    rows = [
        *scopes(**static), *scopes(**static, server="damped"), *scopes(**static, server="damped", batch=44),
        *scopes(**static, local_steps=11), *scopes(server="damped"), *scopes(),
    ]  # fmt: skip
    assert [mark.family for mark in shown(*rows).marks] == [
        LEARNED, "learned noise, damped server", "static noise", "static noise, damped server",
        "static noise on batches of 44, damped server",
    ]  # fmt: skip


def test_intervals_end_where_shares_end() -> None:
    assert within((-0.1, 1.2)) == (0.0, 1.0)
    mark = only(*scopes(accuracy_low=-0.1, accuracy_high=1.1))
    assert mark.accuracy_interval == (0.0, 1.0)
    assert only(*scopes(accuracy_low=None, accuracy_high=None)).accuracy_interval is None


def test_strengths_are_named_as_their_budgets_are() -> None:
    assert strength(cell(mechanism="gaussian-dp", budget=0.5)) == "ε 0.5"
    assert strength(cell(mechanism="pruning", budget=0.01)) == "0.01"
    assert strength(cell(mechanism="none", public=1000)) == "1,000 images"
    assert strength(cell()) == "PL 0.98"


def test_both_data_sets_are_shown_with_the_families_of_the_legend() -> None:
    result = panels(status(committed()))
    assert [panel.title for panel in result] == list(TITLES.values())
    names = [name for name, *_ in FAMILIES]
    for panel in result:
        found = list(dict.fromkeys(mark.family for mark in panel.marks))
        assert found == [name for name in names if name in found]
        assert {RECOMMENDED, LEARNED, "static noise", PUBLIC} <= set(found)
        assert all(0 < mark.leakage <= 1 for mark in panel.marks)
