"""What people see of a run: settings before it, results after it."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.cli.run_tables import group, not_claimed, refused_note


def test_rows_of_the_table_are_means_over_seeds_with_students_interval() -> None:
    def row(name: str, budget: Any, accuracy: float) -> dict[str, Any]:
        extra = {"accuracy_at_best_validation": accuracy + 0.01, "mean_utility_loss": -accuracy}
        return {"dataset": "mnist", "mechanism": name, "budget": budget, "accuracy": accuracy, **extra}

    one, two = group([row("a", 0.9, 0.5), row("b", None, 0.7), row("a", 0.9, 0.6), row("a", 0.9, 0.7)])
    assert (one["mechanism"], one["budget"], one["seeds"]) == ("a", 0.9, 3)
    assert one["accuracy"] == pytest.approx(0.6)
    assert one["best"] == pytest.approx(0.61)
    assert one["utility_loss"] == pytest.approx(-0.6)
    half = 4.302652729911275 * 0.1 / 3**0.5  # Student's quantile for 2 degrees of freedom
    assert one["interval"] == pytest.approx((0.6 - half, 0.6 + half))
    assert (two["seeds"], two["interval"]) == (1, None)


def test_a_refused_release_is_a_line_of_its_own() -> None:
    row = {"dataset": "mnist", "mechanism": "pl-learn", "budget": 0.98, "seed": 2}
    assert refused_note([{**row, "releases_refused": 0, "releases_accepted": 8}]) == ""
    bare = {**row, "mechanism": "none", "budget": None, "releases_refused": 3, "releases_accepted": 5}
    assert "None" not in refused_note([bare]), "there is no budget to print"
    assert "3 of 8 releases refused" in refused_note([{**row, "releases_refused": 3, "releases_accepted": 5}])


def test_what_is_not_claimed_follows_the_mechanisms() -> None:
    scored = not_claimed({"federations": [{"mechanism": "none"}, {"mechanism": "pl-learn"}]})
    assert "No (epsilon, delta) is claimed for it." in scored
    assert scored.splitlines()[-1].startswith("not claimed: protection")
    formal = not_claimed({"federations": [{"mechanism": "laplace-dp"}]})
    assert "the epsilon of one release" in formal
    assert "nothing against those who know the seed" in formal
    assert "attacker who knows the mechanism" not in formal
    assert "No (epsilon, delta)" not in formal
