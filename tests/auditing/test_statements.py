"""What the rows show, ranked, before it is put into words."""

from __future__ import annotations

from typing import Any

from equipoise.auditing.statements import (
    ALSO,
    BROKEN,
    COMBINED,
    CONTROL,
    LEARNED,
    NEXT,
    PIXELS,
    RANKING,
    STRONGEST,
    TALLY,
    TOO_FEW,
    UNPROTECTED,
    UNSCORED,
    VERIFIED,
    WORSE,
    Statement,
    found_in,
    statements,
)  # fmt: skip
from tests.auditing.findings import cell, combined, content, row, study


def kinds(found: list[Statement]) -> list[str]:
    return [one.kind for one in found]


def test_the_order_is_that_of_weight() -> None:
    assert kinds(statements(study())) == [LEARNED, TALLY, RANKING, ALSO, PIXELS, CONTROL, NEXT]
    few = {"targets": 4, "evidence": "insufficient evidence"}
    rows = [*cell("matched", 0.7, 0.4, 0.3, **few), *cell("matched", 0.6, 0.5, 0.6, budget=0.96, **few)]
    assert kinds(statements(content(*rows))) == [TOO_FEW, WORSE, LEARNED, TALLY, RANKING, NEXT]


def test_the_worst_example_of_learning_is_the_widest_gap() -> None:
    learned = statements(study())[0]
    assert [(one.own["budget"], one.round) for one in learned.readings[:2]] == [(0.98, 0), (0.96, 0)]
    assert all(one.against("static, equal lower bound") == "more" for one in learned.readings)


def test_worse_than_none_is_by_the_interval() -> None:
    touching = content(*cell("matched", 0.44, 0.4, mechanism="pl-identical"))
    assert WORSE not in kinds(statements(touching)), "intervals of 0.42 to 0.46 and 0.38 to 0.42"
    apart = content(*cell("matched", 0.45, 0.4, mechanism="pl-identical"))
    assert kinds(statements(apart))[0] == WORSE


def test_more_than_the_unprotected_run_is_not_worse_than_no_protection_and_not_first() -> None:
    def beside(round_number: int) -> list[str]:
        plain = row("matched", 0.3, mechanism="none", budget=None, round=round_number)
        return kinds(
            statements(content(plain, *cell("matched", 0.5, 0.9, mechanism="pl-identical", round=round_number)))
        )

    assert beside(60) == [STRONGEST, RANKING, UNPROTECTED, NEXT], "the unprotected run has other weights"
    assert UNPROTECTED not in beside(0), "there the weights are the same"


def test_the_worst_of_each_defence_is_ranked_once() -> None:
    ranking = next(one for one in statements(study()) if one.kind == RANKING)
    values = [one.value for one in ranking.readings]
    assert values == sorted(values, reverse=True)
    assert len({one.defence for one in ranking.readings}) == len(ranking.readings) == 7


def test_a_failed_control_voids_what_is_unclear_and_no_clear_difference() -> None:
    compared = {WORSE, LEARNED, TALLY}
    clear = kinds(statements(content(*cell("lti", 0.03, 0.02, 0.01, failed=True, half=0.001))))
    assert compared <= set(clear)
    unclear = kinds(statements(content(*cell("lti", 0.03, 0.02, 0.01, failed=True, half=0.02))))
    assert not compared & set(unclear)
    assert CONTROL in clear
    assert CONTROL in unclear


def test_it_is_counted_of_how_many_cells_the_largest_is() -> None:
    found = {one.kind: one for one in statements(study())}
    assert found[RANKING].cells == tuple(
        6 if one.own["mechanism"] == "pl-learn" else 3 for one in found[RANKING].readings
    ), "lti attacks only what learns"
    assert found[ALSO].cells == (18,), "two mechanisms, three budgets and three rounds"


def test_one_defence_has_no_ranking_and_nothing_scored_no_statement_but_that() -> None:
    assert kinds(statements(content(*cell("matched", 0.5, 1.0, mechanism="pl-identical")))) == [STRONGEST, NEXT]
    assert kinds(statements(content(targets="unknown"))) == [UNSCORED]
    assert statements(content()) == []


def test_scores_that_are_not_finite_are_no_comparison_and_are_said() -> None:
    found = statements(content(*cell("matched", 0.03, 1.0, 0.01, half=0.001, not_finite=5)))
    assert BROKEN in kinds(found)
    assert not {LEARNED, TALLY, CONTROL} & set(kinds(found))
    worse = statements(content(*cell("matched", 0.9, 0.1, mechanism="pl-identical", not_finite=5)))
    assert WORSE not in kinds(worse)


def test_many_rounds_come_before_the_strongest_single_release() -> None:
    rows = cell("matched", 0.05, 1.0, mechanism="pl-identical")
    assert kinds(statements(content(*rows, multi_round=[combined(0.9)]))) == [COMBINED, STRONGEST, NEXT]
    decoys = {"identification_schedule_known_decoy_high": 0.9, "identification_schedule_unknown_decoy_high": 0.9}
    for quiet in (combined(0.01), combined(0.01, failed=True), combined(0.9, low=0.02), combined(0.9, **decoys)):
        assert COMBINED not in kinds(statements(content(*rows, multi_round=[quiet])))
    assert kinds(statements(content(multi_round=[combined(0.01)]))) == [COMBINED], "nothing else was measured"


def test_of_many_rounds_the_worst_defence_is_said() -> None:
    bare = combined(1.0, mechanism="none", budget=None)
    rows = [bare, combined(0.5), combined(0.8, budget=0.995), combined(0.01, budget=0.96, failed=True)]
    found = statements(content(multi_round=rows))
    assert [one.combined for one in found] == [rows[2]]
    assert statements(content(multi_round=[bare]))[0].combined == bare
    assert found_in(bare) == ["schedule_known", "schedule_unknown"]
    assert found_in(combined(0.9, unknown=0.01)) == ["schedule_known"]


def test_a_failed_control_voids_no_rate_of_many_rounds_that_is_clear() -> None:
    clear = combined(0.05, unknown=0.77, failed=True)
    assert found_in(clear) == ["schedule_unknown"], "0.72 is above chance and above decoys, 0 is not"
    rows = cell("matched", 0.05, 1.0, mechanism="pl-identical")
    assert COMBINED in kinds(statements(content(*rows, multi_round=[clear])))
    unsure = {"identification_schedule_unknown_low": None, "identification_schedule_unknown_decoy_high": None}
    assert found_in({**clear, **unsure}) == [], "without an interval nothing is clear"


def checked(value: float = 1.0, role: str = "own", **more: Any) -> dict[str, Any]:
    """A row of ``verify``."""
    rates = {"verified": value, "verified_low": value - 0.02, "verified_high": value, "accepted": 1.0}
    about = {"mechanism": "pl-identical", "accepted_wrongly": 0.0012, **more}
    return {**row("verify", None, role, **about), **rates}


def test_guesses_that_were_checked_are_ranked_beside_no_attack() -> None:
    """Whoever is granted the rest of a batch is no stronger for it than one who is not."""
    found = statements(content(checked(), *cell("matched", 0.3, 0.9, mechanism="pl-identical")))
    assert kinds(found) == [STRONGEST, VERIFIED, NEXT]
    assert found[0].readings[0].attack == "matched"
    assert found[1].readings[0].attack == "verify"
    assert kinds(statements(content(checked()))) == [VERIFIED]


def test_the_defence_that_verifies_most_stands_for_all_and_no_noise_for_none() -> None:
    bare = checked(1.0, mechanism="none", budget=None)
    found = statements(content(bare, checked(0.9), checked(0.95, round=200)))
    assert [(one.readings[0].value, one.cells) for one in found if one.kind == VERIFIED] == [(0.95, (2,))]
    assert [one.readings[0].distorts for one in statements(content(bare)) if one.kind == VERIFIED] == [False]


def test_a_check_that_fails_without_noise_is_no_evidence() -> None:
    assert CONTROL in kinds(statements(content(checked(0.02, control_failed=True))))
