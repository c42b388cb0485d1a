"""The content of ``result.json``: means over what was accepted, the first best round, what is claimed."""

from __future__ import annotations

import json

import pytest

from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.engine.result import federation_results, full_utility_loss, result
from tests.engine.sweeps import rows_of, small, sweep_of


def test_the_best_validation_round_is_the_first_best_one(few: Dataset) -> None:
    federations = [Federation("few", "none", seed=s) for s in (1, 2, 3)]
    sweep = sweep_of(few, federations, rounds=40, evaluate_every=4, model=None, init="torch")
    history = rows_of(sweep)
    final = federation_results(sweep, history[-1])
    for i, outcome in enumerate(final):
        rows = [step[i] for step in history]
        best = max(row["validation_accuracy"] for row in rows)
        first = next(row for row in rows if row["validation_accuracy"] == best)
        assert outcome["best_validation_round"] == first["round"]
        assert outcome["accuracy_at_best_validation"] == first["accuracy"]
        assert outcome["accuracy"] == rows[-1]["accuracy"]
        assert outcome["rounds"] == 40


def test_means_over_the_whole_run_are_over_accepted_releases(few: Dataset) -> None:
    fed = [Federation("few", "ls-static", [200, 200, 1e-38, 200])]
    sweep = sweep_of(few, fed, small(), rounds=3, evaluate_every=1)
    history = [rows[0] for rows in rows_of(sweep)]
    (final,) = federation_results(sweep, [history[-1]])
    assert (final["releases_accepted"], final["releases_refused"]) == (9, 3)
    losses = [row["utility_loss_last"][k] for row in history for k in (0, 1, 3)]
    assert final["mean_utility_loss"] == pytest.approx(sum(losses) / 9, rel=1e-6)
    assert final["final_utility_loss"] == pytest.approx(sum(losses[-3:]) / 3, rel=1e-6)


def test_the_noise_of_the_last_round_beside_its_update(few: Dataset) -> None:
    federations = [Federation("few", "pl-identical", 0.98), Federation("few", "laplace-dp", 100)]
    sweep = sweep_of(few, federations, small(), rounds=3, evaluate_every=2)
    history = rows_of(sweep)
    final = federation_results(sweep, [row for rows in history for row in rows])
    assert final[0]["final_noise_to_update"] == history[-1][0]["noise_to_update"] > 0
    assert final[1]["final_noise_to_update"] is None
    older = [{key: value for key, value in row.items() if key != "noise_to_update"} for row in history[-1]]
    assert federation_results(sweep, older)[0]["final_noise_to_update"] is None, "a folder of before"


def test_the_whole_of_it_can_be_written_and_says_what_a_budget_is_worth(few: Dataset) -> None:
    federations = [Federation("few", "laplace-dp", 100), Federation("few", "pl-learn", 0.98)]
    sweep = sweep_of(few, federations, small(), rounds=1)
    outcome = result(sweep, rows_of(sweep)[-1])
    assert json.loads(json.dumps(outcome)) == outcome
    assert (outcome["schema"], outcome["experiment"]) == (1, "seeded")
    assert [row["mechanism"] for row in outcome["federations"]] == ["laplace-dp", "pl-learn"]
    assert "The budget of laplace-dp is the epsilon of one release" in outcome["claim"]
    assert "No (epsilon, delta) is claimed for it." in outcome["claim"]
    alone = sweep_of(few, federations[:1], small(), rounds=1)
    assert "No (epsilon, delta)" not in result(alone, rows_of(alone)[-1])["claim"]


def test_full_records_reach_the_result(few: Dataset) -> None:
    federations = [Federation("few", "pl-learn", 0.98), Federation("few", "none"), Federation("few", "ls-static", 200)]
    sweep = sweep_of(few, federations, small(), rounds=5, full_every=2, evaluate_every=3)
    history = rows_of(sweep)
    final = federation_results(sweep, [row for rows in history for row in rows])
    for place, outcome in enumerate(final):
        seen = [rows[place]["full_utility_loss"] for rows in history if "full_utility_loss" in rows[place]]
        assert outcome["full_records"] == len(seen) == 4, "rounds 1, 2, 4 and 5"
        assert outcome["mean_full_utility_loss"] == pytest.approx(sum(map(sum, seen)) / 16)
        assert outcome["final_full_utility_loss"] == pytest.approx(sum(seen[-1]) / 4)
    assert final[0]["mean_full_utility_loss"] != final[0]["mean_utility_loss"], "that one is on mini-batches"
    assert final[1]["mean_full_utility_loss"] == 0


def test_without_full_records_nothing_is_said_of_them(few: Dataset) -> None:
    sweep = sweep_of(few, [Federation("few", "pl-learn", 0.98)], small(), rounds=2)
    (final,) = federation_results(sweep, rows_of(sweep)[-1])
    assert (final["full_records"], final["mean_full_utility_loss"], final["final_full_utility_loss"]) == (0, None, None)


def test_values_that_are_not_finite_are_left_out_of_full_records() -> None:
    rows = [{"full_utility_loss": [1.0, None]}, {"full_utility_loss": [float("nan")] * 2}, {"full_utility_loss": []}]
    assert full_utility_loss(rows) == {
        "full_records": 1, "mean_full_utility_loss": 1.0, "final_full_utility_loss": 1.0,
    }  # fmt: skip
