"""Means over seeds, and what a run claims."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.mechanism.claims import FINITE
from equipoise.report.run_report import means_over_seeds, run_claims


def row(name: str, budget: Any, accuracy: float) -> dict[str, Any]:
    extra = {"accuracy_at_best_validation": accuracy + 0.01, "mean_utility_loss": -accuracy}
    return {"dataset": "mnist", "mechanism": name, "budget": budget, "accuracy": accuracy, **extra}


def test_rows_are_means_over_seeds_with_students_interval() -> None:
    one, two = means_over_seeds([row("a", 0.9, 0.5), row("b", None, 0.7), row("a", 0.9, 0.6), row("a", 0.9, 0.7)])
    assert (one["mechanism"], one["budget"], one["seeds"]) == ("a", 0.9, 3)
    assert one["accuracy"] == pytest.approx(0.6)
    assert one["accuracy_at_best_validation"] == pytest.approx(0.61)
    assert one["utility_loss"] == pytest.approx(-0.6)
    half = 4.302652729911275 * 0.1 / 3**0.5  # Student's quantile for 2 degrees of freedom
    assert one["interval"] == pytest.approx((0.6 - half, 0.6 + half))
    assert (two["seeds"], two["interval"]) == (1, None)


def test_what_is_not_claimed_follows_the_mechanisms() -> None:
    scored = run_claims([{"mechanism": "none"}, {"mechanism": "pl-learn"}])
    assert "No (epsilon, delta) is claimed for it." in scored["budgets"]
    assert scored["not claimed"] == "protection against an attacker who knows the mechanism"
    formal = run_claims([{"mechanism": "laplace-dp"}])
    assert "the epsilon of one release" in formal["budgets"]
    assert "No (epsilon, delta)" not in formal["budgets"]
    assert formal["not claimed"] == "protection against an attacker who knows the seed"
    assert formal["proved"] == "the epsilon of the mechanism, in the arithmetic of this machine", "no guarantee.json"


def test_what_is_proved_of_which_mechanism_is_said_where_it_differs() -> None:
    both = run_claims([{"mechanism": name} for name in ("none", "gaussian-dp", "pl-learn", "none")])
    assert "proved" not in both
    assert both["proved of pl-learn"].startswith("every accepted release is finite")
    assert not any(kind.startswith("proved") for kind in run_claims([{"mechanism": "none"}]))
    assert both["proved of gaussian-dp"].endswith("see `guarantee.json`")
    assert both["not claimed"].endswith("an attacker who knows the mechanism, or the seed of gaussian-dp")
    assert run_claims([{"mechanism": "gaussian-dp"}])["proved"] == both["proved of gaussian-dp"]
    shaped = run_claims([{"mechanism": name} for name in ("pl-learn", "pruning", "outpost")])
    assert "within its bounds" in shaped["proved of pl-learn"]
    assert shaped["proved of pruning, outpost"] == FINITE, "there are no bounds to lie within"
