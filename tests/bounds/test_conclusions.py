"""What became of each result on a run, in a sentence; nothing is said to apply or to hold."""

from __future__ import annotations

import re
from typing import Any

import torch

from equipoise.bounds.conclusions import conclusions, headline, overview, verdict, violations
from equipoise.bounds.rows import Row, compared, for_each, given, result_row
from equipoise.bounds.run import Bounds
from equipoise.bounds.summary import CITATIONS, RESULTS, defence_label


def row(result: str = "one_step", mechanism: str = "pl-learn", number: int | None = 0, **more: Any) -> Row:
    about = {"dataset": "mnist", "mechanism": mechanism, "budget": 0.98, "seed": 1, "round": number}
    sides = {name: given(more.pop(name)) for name in ("bound", "measured") if name in more}
    return result_row(
        {**about, **more.pop("about", {})}, result, "quantity", more.pop("setting", "as configured"), **sides, **more
    )


def too_large(limit: float = 0.02) -> Row:
    return compared("eta <= 1/(4 L_F)", given(0.1), given(limit), strict=False)


def said(*rows: Row) -> str:
    (one,) = conclusions(list(rows))
    return one.sentence()


def test_every_result_has_its_number_and_its_subject() -> None:
    assert list(CITATIONS) == list(RESULTS)


def test_a_result_of_which_no_assumption_failed() -> None:
    rows = [row(bound=2.0, measured=1.0, holds=True), row(number=2, bound=2.0, measured=1.0, holds=True)]
    assert said(*rows) == (
        "Lemma C.1 (one round): no assumption was seen to fail for pl-learn @ 0.98; "
        "its inequality was not violated in any of 2 places."
    )
    failed = row(number=3, bound=1.0, measured=2.0, holds=False)
    assert said(*rows, failed).endswith("its inequality was violated in 1 of 3 places.")
    assert said(rows[0]).endswith("its inequality was not violated.")


def test_a_result_that_does_not_apply_says_why_and_what_a_smaller_step_gave() -> None:
    rows = [
        row(measured=1.0, assumptions=[too_large()]), row(mechanism="none", measured=1.0, assumptions=[too_large()]),
        row(setting="eta = 1/(8 L)", bound=2.0, measured=1.0, holds=True),
    ]  # fmt: skip
    assert said(*rows) == (
        "Lemma C.1 (one round): does not apply to pl-learn @ 0.98 and none @ 0.98 (violated: eta <= 1/(4 L_F)). "
        "With eta = 1/(8 L): its inequality was not violated."
    )
    assert "(violated in 1 of 2 places: eta <= 1/(4 L_F))" in said(rows[0], row(number=2, bound=2.0, holds=True))


def test_an_assumption_that_fails_with_a_smaller_step_too_is_named() -> None:
    kinked = compared("smooth", given(2.0), given(1.0), strict=True)
    other = row(setting="eta = 1/(8 L)", bound=2.0, measured=1.0, holds=True, assumptions=[kinked])
    assert said(row(measured=1.0, assumptions=[too_large()]), other).endswith(
        "With eta = 1/(8 L) (violated: smooth): its inequality was not violated."
    )


def split(number: int, covered: int, *, violated: int = 0, count: int = 8, **more: Any) -> list[Row]:
    """The two rows of Theorem 5.1 on ``count`` subproblems, ``covered`` of which have gamma < 1/L_alpha."""
    about = {"count": count, "covered": covered, "checked": covered, "violated": violated}
    status = "applies" if covered == count else "applies in part" if covered else "does not apply"
    check = for_each("gamma < 1/L_alpha", torch.arange(count) < covered, value=given(0.1), limit=given(0.02))
    sides = {"bound": 2.0, "holds": violated == 0} if covered else {}
    return [
        {
            **row("distortion_stationarity", number=number, measured=1.0, **sides, status=status, assumptions=[check],
                  subproblems=about, **more),
            "quantity": quantity,
        }
        for quantity in ("mean |R_m|^2", "mean s(alpha)^2")
    ]  # fmt: skip


def test_subproblems_are_counted_each_and_once() -> None:
    """One whose gamma is too large does not speak for the others, and two inequalities do not count it twice."""
    some = [*split(200, 7), *split(2000, 5)]
    assert said(*some) == (
        "Theorem 5.1 (inner loop): does not apply to some subproblems of pl-learn @ 0.98 (violated in 4 of 16 "
        "subproblems: gamma < 1/L_alpha); its inequality was not violated in any of 24 checks."
    )
    assert headline(conclusions(some)) == (
        "As this run was configured, assumptions of Theorem 5.1 were violated in some subproblems."
    )
    none = [*split(200, 0), *split(200, 8, setting="gamma <= 1/(2 L)")]
    assert said(*none) == (
        "Theorem 5.1 (inner loop): does not apply to pl-learn @ 0.98 (violated in all 8 subproblems: gamma < "
        "1/L_alpha). With gamma <= 1/(2 L): its inequality was not violated in any of 16 checks."
    )
    assert headline(conclusions(none)).endswith("assumptions of Theorem 5.1 were violated.")
    assert "no assumption was seen to fail for pl-learn @ 0.98" in said(*split(200, 8))
    assert "was violated in 2 of 14 checks" in said(*split(200, 7, violated=1))


def test_a_verdict_counts_subproblems_too() -> None:
    rows = [split(200, 7)[0], split(2000, 0)[0]]
    assert verdict(rows) == "does not apply in 9 of 16 subproblems; not violated"
    assert verdict(rows[1:]) == "does not apply"
    assert verdict([split(200, 7, violated=2)[0]]) == "does not apply in 1 of 8 subproblems; violated in 2 of 7"
    (one,) = violations(rows)
    assert (one["round"], one["violated"], one["subproblems"]) == (2000, 8, 8)


def test_what_is_not_stated_comes_last_with_its_reason() -> None:
    rows = [row(mechanism="none", status="not covered", reason="nothing is learned"), row(bound=1.0, holds=True)]
    assert said(*rows).startswith("Lemma C.1 (one round): no assumption was seen to fail for pl-learn @ 0.98; ")
    assert said(*rows).endswith("Not stated for none @ 0.98 (nothing is learned).")
    none = [row(status="not covered", reason="why"), row(mechanism="none", status="not covered", reason="why")]
    assert said(*none) == "Lemma C.1 (one round): not stated for any defence of this run (why)."


def test_what_was_not_checked_is_never_taken_for_what_passed() -> None:
    unchecked, uncovered = row(status="not checkable", reason="no attack"), row(status="not covered", reason="why")
    alone = "Lemma C.1 (one round): not checked for pl-learn @ 0.98 (no attack)."
    assert said(unchecked) == said(unchecked, uncovered) == said(uncovered, unchecked) == alone
    passed = row(number=2, bound=2.0, measured=1.0, holds=True)
    assert "(not checked in 1 of 2 places: no attack)" in said(unchecked, passed)


def test_the_headline_names_results_and_defences_by_what_became_of_them() -> None:
    rows = [
        row(bound=2.0, holds=True), row(mechanism="none", assumptions=[too_large()]),
        row("converge_rate", measured=1.0, assumptions=[too_large()]),
        row("privacy_leakage", status="not checkable", reason="no attack was asked for"),
        row("conditional_preservation", status="not checkable", reason="no attack was asked for"),
        row("convex_suboptimality", status="not covered", reason="why"),
    ]  # fmt: skip
    assert headline(conclusions(rows)) == (
        "As this run was configured, no assumption of Lemma C.1 (for pl-learn @ 0.98) was seen to fail; "
        "assumptions of Lemma C.1 (for none @ 0.98) and Theorem 5.2 were violated; "
        "Lemma D.1 and Remark 1 were not checked (no attack was asked for); "
        "the paper does not state Corollary 5.1 here."
    )
    assert headline(conclusions(rows[:1])) == (
        "As this run was configured, no assumption of Lemma C.1 (for pl-learn @ 0.98) was seen to fail."
    )


def test_a_bound_on_leakage_of_one_or_more_says_nothing() -> None:
    rows = [row("privacy_leakage", bound=bound, measured=0.7, holds=True) for bound in (1.2, 0.9)]
    assert "says nothing in 1 of 2 places" in said(*rows)
    assert "says nothing, since a bound of 1" in said(rows[0])
    assert "says nothing" not in said(rows[1])


def test_datasets_are_named_where_there_are_several() -> None:
    assert defence_label(row(), with_dataset=False) == "pl-learn @ 0.98"
    rows = [row(holds=True, bound=1.0), row(holds=True, bound=1.0, about={"dataset": "a/fmnist"})]
    assert "mnist pl-learn @ 0.98 and fmnist pl-learn @ 0.98" in said(*rows)


def test_the_overview_has_the_ends_of_both_sides_over_rounds_and_seeds() -> None:
    rows = [
        row(bound=2.0, measured=1.0, holds=True), row(number=2, bound=3.0, measured=4.0, holds=False),
        row(about={"seed": 2}, bound=2.5, measured=0.5, holds=True),
        row(setting="eta = 1/(8 L)", bound=100.0, measured=0.0, holds=True), row("converge_rate", status="not covered"),
    ]  # fmt: skip
    (one,) = overview(rows)
    assert (one["result"], one["defence"]) == ("one_step", "pl-learn @ 0.98")
    assert (one["bound"], one["measured"], one["verdict"]) == ((2.0, 3.0), (0.5, 4.0), "violated in 1 of 3")


def test_a_verdict_has_its_condition() -> None:
    passed = row(bound=2.0, measured=1.0, holds=True)
    broken = row(bound=2.0, measured=1.0, holds=True, assumptions=[too_large()])
    assert verdict([passed]) == "not violated"
    assert verdict([row(bound=1.0, measured=2.0, holds=False)]) == "violated"
    assert verdict([broken]) == "does not apply; not violated"
    assert verdict([broken, passed]) == "does not apply in 1 of 2; not violated"
    assert verdict([row(measured=1.0, assumptions=[too_large()])]) == "does not apply"
    assert verdict([row(status="not covered", bound=2.0, holds=True)]) == "not stated; not violated"
    assert verdict([row(status="not checkable")]) == "not checked"
    assert verdict([row(bound=2.0)]) == "-"


def test_a_violation_is_shown_at_the_round_where_it_was_worst() -> None:
    rows = [
        row(assumptions=[too_large(0.05)]), row(number=2, assumptions=[too_large(0.01)]),
        row("converge_rate", number=None, assumptions=[too_large(0.02)]), row(number=3, assumptions=[too_large(1.0)]),
    ]  # fmt: skip
    (one,) = violations(rows)
    assert (one["round"], one["results"]) == (2, ["one_step", "converge_rate"])
    assert one["figures"]["limit"]["value"] == 0.01


def test_the_conclusions_of_a_run(result: Bounds) -> None:
    found = conclusions(result.rows)
    assert [one.result for one in found] == list(RESULTS)
    assert all(one.sentence().endswith(".") for one in found)
    for one in found:
        assert not re.search(r"\b(applies|holds|held)\b", one.sentence())
