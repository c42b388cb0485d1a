"""Whether each result applies to a run, in a sentence."""

from __future__ import annotations

from typing import Any

from equipoise.bounds.conclusions import conclusions, defence_label, headline, overview, violations
from equipoise.bounds.rows import Row, compared, given, result_row
from equipoise.bounds.run import Bounds
from equipoise.bounds.summary import CITATIONS, RESULTS


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


def test_a_result_that_applies() -> None:
    rows = [row(bound=2.0, measured=1.0, holds=True), row(number=2, bound=2.0, measured=1.0, holds=True)]
    assert said(*rows) == "Lemma C.1 (one round): applies to pl-learn @ 0.98; its inequality held in both places."
    assert headline(conclusions(rows)) == "As this run was configured, Lemma C.1 applies."
    failed = row(number=3, bound=1.0, measured=2.0, holds=False)
    assert said(*rows, failed).endswith("its inequality failed in 1 of 3 places.")
    assert said(rows[0]).endswith("its inequality held.")


def test_a_result_that_does_not_apply_says_why_and_what_a_smaller_step_gave() -> None:
    rows = [
        row(measured=1.0, assumptions=[too_large()]), row(mechanism="none", measured=1.0, assumptions=[too_large()]),
        row(setting="eta = 1/(8 L)", bound=2.0, measured=1.0, holds=True),
    ]  # fmt: skip
    assert said(*rows) == (
        "Lemma C.1 (one round): does not apply to pl-learn @ 0.98 and none @ 0.98 (violated: eta <= 1/(4 L_F)). "
        "With eta = 1/(8 L): its inequality held."
    )
    assert headline(conclusions(rows)) == "No result of the paper applies to this run as it was configured."


def test_what_is_not_stated_comes_last_with_its_reason() -> None:
    rows = [row(mechanism="none", status="not covered", reason="nothing is learned"), row(bound=1.0, holds=True)]
    assert said(*rows).startswith("Lemma C.1 (one round): applies to pl-learn @ 0.98; ")
    assert said(*rows).endswith("Not stated for none @ 0.98 (nothing is learned).")
    none = [row(status="not covered", reason="why"), row(mechanism="none", status="not covered", reason="why")]
    assert said(*none) == "Lemma C.1 (one round): not stated for any defence of this run (why)."
    assert "not checkable for pl-learn @ 0.98 (no attack)" in said(row(status="not checkable", reason="no attack"))


def test_a_bound_on_leakage_of_one_or_more_says_nothing() -> None:
    rows = [row("privacy_leakage", bound=bound, measured=0.7, holds=True) for bound in (1.2, 0.9)]
    assert "says nothing in 1 of 2 places" in said(*rows)
    assert "says nothing, since a bound of 1" in said(rows[0])
    assert "says nothing" not in said(rows[1])


def test_results_that_apply_are_named_first() -> None:
    rows = [row(bound=2.0, holds=True), row("converge_rate", measured=1.0, assumptions=[too_large()])]
    assert headline(conclusions(rows)) == "As this run was configured, Lemma C.1 applies; the others do not apply."


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
    assert (one["bound"], one["measured"], one["holds"]) == ((2.0, 3.0), (0.5, 4.0), "no (1 of 3)")


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
    assert not any(one.applies for one in found if one.result == "convex_suboptimality")
