"""What is claimed follows from the mechanisms, and an epsilon is named for a formal one alone."""

from __future__ import annotations

from equipoise.mechanism.claims import NO_EPSILON, PROVED, of_budgets, sentence
from equipoise.mechanism.registry import MECHANISMS


def test_no_score_is_called_an_epsilon() -> None:
    for name, kind in MECHANISMS.items():
        assert ("is the epsilon of one release" in of_budgets([name])) == kind.formal
        assert ("No (epsilon, delta) is claimed" in of_budgets([name])) == (not kind.formal)


def test_both_kinds_in_one_run_are_told_apart() -> None:
    text = of_budgets(["laplace-dp", "pl-learn", "laplace-dp"])
    assert text.count("laplace-dp") == 1
    assert text.endswith("A budget of the others calibrates the distortion of one release. No (epsilon, delta) is "
                         "claimed for it.")  # fmt: skip


def test_the_words_stand_alone_and_in_a_sentence() -> None:
    assert sentence(PROVED).startswith("Every accepted release is finite")
    assert sentence(PROVED).endswith(".")
    assert NO_EPSILON.startswith("(epsilon, delta)")
