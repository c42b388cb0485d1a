"""What is claimed follows from the mechanisms, and an epsilon is named for a formal one alone."""

from __future__ import annotations

from equipoise.mechanism.budget import LaplaceBudget
from equipoise.mechanism.claims import NO_EPSILON, PROVED, of_budgets, sentence
from equipoise.mechanism.registry import MECHANISMS, Mechanism


def test_no_score_is_called_an_epsilon() -> None:
    for name, kind in MECHANISMS.items():
        assert ("is the epsilon of one release" in of_budgets([name])) == (kind.formal and not kind.whole_run)
        assert ("is the epsilon of a whole run, at its delta" in of_budgets([name])) == kind.whole_run
        assert ("No (epsilon, delta) is claimed" in of_budgets([name])) == (not kind.formal)


def test_both_kinds_in_one_run_are_told_apart() -> None:
    text = of_budgets(["laplace-dp", "none", "pl-learn", "laplace-dp"])
    assert text.count("laplace-dp") == 1
    assert text.endswith(
        "A budget of pl-learn calibrates the distortion of one release and does not compose. No (epsilon, delta) is "
        "claimed for it. Releases of none are not distorted."
    )
    assert of_budgets(["none"]) == "Nothing is distorted. No (epsilon, delta) is claimed."


def test_a_seeded_run_has_no_epsilon_against_those_who_know_the_seed() -> None:
    assert "nothing against those who know the seed" in of_budgets(["laplace-dp"], seeded=True)
    assert "seed" not in of_budgets(["laplace-dp"])


def test_an_epsilon_is_named_with_what_it_covers_and_composes_where_scores_do_not() -> None:
    formal = of_budgets(["laplace-dp"])
    assert "covers the parameters sent and nothing else" in formal
    assert "does not compose" not in formal
    assert "does not compose" in of_budgets(["ls-learn"])


def test_a_measure_that_cannot_be_hashed_is_no_obstacle() -> None:
    class Odd(LaplaceBudget):
        __hash__ = None  # type: ignore[assignment]

    assert "mine" in of_budgets([Mechanism("mine", Odd())])


def test_the_words_stand_alone_and_in_a_sentence() -> None:
    assert sentence(PROVED).startswith("Every accepted release is finite")
    assert "because one that fails this check is not accepted" in PROVED, "what is proved names its proof"
    assert sentence(PROVED).endswith(".")
    assert NO_EPSILON.startswith("(epsilon, delta)")
