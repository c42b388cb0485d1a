"""Figures, assumptions and rows: what follows from what."""

from __future__ import annotations

import pytest
import torch

from equipoise.bounds.rows import (
    assumption,
    average,
    compared,
    for_each,
    given,
    largest,
    not_covered,
    result_row,
    smallest,
)

ABOUT = {"mechanism": "pl-learn", "round": 3}


def test_figures_say_what_they_were_made_from() -> None:
    values = torch.tensor([[3.0, 1.0], [2.0, 6.0]])
    assert {name: largest(values)[name] for name in ("value", "count", "kind")} == {
        "value": 6.0, "count": 4, "kind": "largest",
    }  # fmt: skip
    assert (smallest(values)["value"], smallest(values)["count"], smallest(values)["kind"]) == (1.0, 4, "smallest")
    assert (given(0.5)["value"], given(0.5)["count"], given(0.5)["error"]) == (0.5, 1, None)


def test_an_average_has_students_interval() -> None:
    result = average(torch.tensor([1.0, 2.0, 3.0]))
    assert (result["value"], result["count"], result["kind"]) == (2.0, 3, "mean")
    assert result["error"] == pytest.approx(3**-0.5)
    reach = 4.30265 * 3**-0.5  # Student's t with two degrees of freedom
    assert (result["low"], result["high"]) == (pytest.approx(2 - reach, abs=1e-4), pytest.approx(2 + reach, abs=1e-4))
    alone = average(torch.tensor([7.0]))
    assert (alone["value"], alone["error"], alone["low"], alone["high"]) == (7.0, None, None, None)


@pytest.mark.parametrize(
    ("value", "strict", "status"),
    [
        (1.0, True, "held"), (1.0, False, "held"), (2.0, True, "violated"), (2.0, False, "held"),
        (3.0, False, "violated"), (float("nan"), False, "violated"),
    ],
)  # fmt: skip
def test_a_number_is_compared_with_its_limit(value: float, strict: bool, status: str) -> None:
    check = compared("x < 2", given(value), given(2.0), strict, "why")
    assert (check["name"], check["status"], check["note"]) == ("x < 2", status, "why")
    assert check["figures"]["limit"]["value"] == 2.0


def test_an_assumption_on_each_subproblem_counts_those_that_violate_it() -> None:
    good, bad = (for_each("a", torch.tensor(held), "why", x=given(1.0)) for held in ([True] * 3, [True, False, False]))
    assert (good["status"], good["violated"], good["subproblems"], good["note"]) == ("held", 0, 3, "why")
    assert (bad["status"], bad["violated"], bad["subproblems"]) == ("violated", 2, 3)
    assert bad["figures"]["x"]["value"] == 1.0


def test_a_violated_assumption_makes_a_result_not_apply() -> None:
    held, broken = assumption("a", "held"), [assumption("b", "violated"), assumption("c", "violated")]
    unknown = assumption("d", "not checkable")
    good = result_row(ABOUT, "one_step", "quantity", "setting", assumptions=[held, unknown], note="more")
    assert (good["status"], good["reason"], good["note"]) == ("applies", "", "more")
    assert (good["mechanism"], good["round"], good["bound"], good["holds"]) == ("pl-learn", 3, None, None)
    bad = result_row(ABOUT, "one_step", "quantity", "setting", assumptions=[held, *broken])
    assert (bad["status"], bad["reason"]) == ("does not apply", "violated: b; c")
    said = result_row(ABOUT, "one_step", "quantity", "setting", status="not covered", reason="so", assumptions=broken)
    assert (said["status"], said["reason"]) == ("not covered", "so")


def test_what_is_not_covered_names_the_assumption_it_lacks() -> None:
    row = not_covered(ABOUT, "one_step", "quantity", "one local step", "there are two")
    assert (row["status"], row["reason"], row["setting"]) == ("not covered", "there are two", "as configured")
    assert [(check["name"], check["status"]) for check in row["assumptions"]] == [("one local step", "not covered")]
