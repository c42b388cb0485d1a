"""Rows summed up for readers."""

from __future__ import annotations

import pytest
import torch

from equipoise.bounds.rows import Row, assumption, compared, for_each, given, result_row
from equipoise.bounds.run import Bounds
from equipoise.bounds.summary import asked_by, checks_by_round, federation_label, figures_text, grouped, short


def row(result: str, number: int | None, *checks: Row, setting: str = "as configured") -> Row:
    about = {"dataset": "a/b/mnist", "mechanism": "pl-learn", "budget": 0.98, "seed": 3, "round": number}
    return result_row(about, result, "quantity", setting, assumptions=checks)


def step(value: float, limit: float) -> Row:
    return compared("eta <= 1/(4 L_F)", given(value), given(limit), strict=False)


@pytest.mark.parametrize(
    ("budget", "label"),
    [
        (0.98, "mnist pl-learn @ 0.98 (seed 3)"), (None, "mnist pl-learn (seed 3)"),
        ([0.9, 0.8], "mnist pl-learn @ per client 0.9, 0.8 (seed 3)"),
    ],
)  # fmt: skip
def test_federations_are_told_apart_by_their_labels(budget: object, label: str) -> None:
    assert federation_label({**row("one_step", 0), "budget": budget}) == label


def test_groups_come_in_the_order_in_which_they_are_met() -> None:
    rows = [row("one_step", 2), row("converge_rate", 0), row("one_step", 1)]
    result = grouped(rows, lambda one: one["result"])
    assert list(result) == ["one_step", "converge_rate"]
    assert [one["round"] for one in result["one_step"]] == [2, 1]


def test_every_assumption_is_shown_once_a_round_as_it_stood_at_worst_there() -> None:
    checks = checks_by_round([
        row("one_step", 0, step(0.1, 0.5), assumption("a", "not checkable")),
        row("one_step", 2, step(0.1, 0.02), assumption("a", "held"), assumption("b", "not covered")),
        row("converge_rate", 2, step(0.1, 0.01), assumption("b", "held")),
        row("converge_rate", 2, step(0.1, 1e-9), setting="eta = 1/(8 L)"),  # not the run as it was
    ])  # fmt: skip
    result = {(check["name"], check["round"]): check for check in checks}
    assert list(result) == [("eta <= 1/(4 L_F)", 0), ("a", 0), ("eta <= 1/(4 L_F)", 2), ("a", 2), ("b", 2)]
    assert result["eta <= 1/(4 L_F)", 0]["status"] == "held"
    later = result["eta <= 1/(4 L_F)", 2]
    assert (later["status"], later["results"]) == ("violated", ["one_step", "converge_rate"])
    assert figures_text(later) == "0.1 against 0.01"
    assert (result["a", 2]["status"], result["b", 2]["status"]) == ("held", "not covered")
    assert asked_by(later) == "Lemma C.1, Theorem 5.2"


def test_figures_in_words() -> None:
    assert figures_text(step(0.1, 0.00573)) == "0.1 against 5.73e-3"
    named = assumption("a", "held", lower=given(8.0), upper=given(1600.4), unknown=given(None), none=None)
    assert figures_text(named) == "lower 8, upper 1600"
    assert figures_text(assumption("a", "held")) == ""
    steps = {"value": given(0.1), "limit": given(0.02)}
    assert figures_text(for_each("a", torch.tensor([True, False, False]), **steps)) == (
        "0.1 against 0.02, violated in 2 of 3 subproblems"
    )
    assert figures_text(for_each("a", torch.tensor([True]), **steps)) == "0.1 against 0.02"


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (-1234.5, 3, "-1234"), (9999.6, 3, "10000"), (10000.0, 3, "1e4"), (0.01, 3, "0.01"), (0.009999, 2, "1.0e-2"),
        (float("inf"), 3, "inf"), (1.0, 3, "1"), (99.96, 3, "100"),
    ],
)  # fmt: skip
def test_numbers_in_few_digits(value: float, digits: int, text: str) -> None:
    assert short(value, digits) == text


def test_the_checks_of_a_run(result: Bounds) -> None:
    rows = [r for r in result.rows if r["mechanism"] == "pl-learn"]
    shown = {(check["name"], check["round"]): check for check in checks_by_round(rows)}
    first = min(number for _, number in shown if number is not None)
    assert shown["beta >= threshold", first]["status"] == "held"  # with the run's constants, not with estimated ones
    assert shown["eta <= 1/(4 L_F)", first]["results"] == ["one_step"]
    assert shown["eta <= 1/(4 L_F)", None]["results"] == ["converge_rate"]
