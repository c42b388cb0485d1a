"""What people see of a run: settings before it, results after it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from equipoise.cli.run_tables import COLUMNS, diverged_note, refused_note, result_table, summary
from equipoise.runs.config import resolve


def row(mechanism: str, budget: Any, seed: int, dataset: str = "mnist", accuracy: float = 0.5) -> dict[str, Any]:
    return {
        "dataset": dataset, "mechanism": mechanism, "budget": budget, "seed": seed, "accuracy": accuracy,
        "accuracy_at_best_validation": accuracy, "mean_utility_loss": -0.25, "releases_refused": 0,
        "releases_accepted": 4,
    }  # fmt: skip


SWEEP = [
    row(mechanism, budget, seed, dataset, 0.02 * seed**3)
    for dataset in ("mnist", "fmnist")
    for mechanism, budget in (
        ("none", None), ("pl-identical", 0.98), ("pl-learn", [0.97, 0.98, 0.99, 0.995]),
        ("pl-learn", {"rounds": [1, 501], "values": [0.97, 0.99]}), ("ls-learn", 200.0),
    )
    for seed in (1, 2)
]  # fmt: skip


@pytest.mark.parametrize("width", [80, 110])
def test_the_results_of_a_sweep_can_be_read(width: int) -> None:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(result_table(SWEEP))
    text = console.export_text()
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    assert "{" not in text
    assert "0.0 to 97.9%" in text  # Student's interval goes below; no accuracy does
    words = " ".join(text.split())
    for part in ("per client", "0.97→0.99", "(round", "501)", "-0.2500"):
        assert part in words, part
    assert [line.strip() for line in text.splitlines() if line.strip() in ("mnist", "fmnist")] == ["mnist", "fmnist"]


def test_every_column_that_needs_it_is_explained() -> None:
    assert "best validation: " in COLUMNS
    assert "utility loss: " in COLUMNS


def test_a_refused_release_is_a_line_of_its_own() -> None:
    row = {"dataset": "mnist", "mechanism": "pl-learn", "budget": 0.98, "seed": 2}
    assert refused_note([{**row, "releases_refused": 0, "releases_accepted": 8}]) == ""
    bare = {**row, "mechanism": "none", "budget": None, "releases_refused": 3, "releases_accepted": 5}
    assert "None" not in refused_note([bare]), "there is no budget to print"
    assert "3 of 8 releases refused" in refused_note([{**row, "releases_refused": 3, "releases_accepted": 5}])


def test_a_run_that_diverged_can_be_read_and_is_told_what_helps() -> None:
    """The budget keeps its digits beside a loss of ten digits."""
    lost = {**row("pl-identical", 0.98, 1), "mean_utility_loss": -4513506833.4807}
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(result_table([lost]))
    words = console.export_text().split()
    assert "-4.514e+09" in words
    assert "0.98" in words
    assert diverged_note([row("none", None, 1)]) == ""
    advice = "diverged: try a smaller eta (--set eta=...), a larger budget or a larger batch (--set batch=...)."
    assert diverged_note([lost]) == f"pl-identical {advice}"
    refused = {"releases_refused": 5, "releases_accepted": 3}
    assert diverged_note([{**row("pl-learn", 0.98, 1), **refused}]) == f"pl-learn {advice}"
    assert diverged_note([{**row("none", None, 1), **refused}]) == "none diverged: try a smaller eta (--set eta=...)."
    assert diverged_note([{**row("pl-learn", 0.98, 1), "releases_refused": 3, "releases_accepted": 5}]) == ""


def plan(*mechanisms: str, budget: float, **overrides: Any) -> str:
    sweep = {"mechanisms": list(mechanisms), "budgets": [budget]}
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(summary(resolve(overrides={"rounds": 10, **overrides}, sweep=sweep), Path("run")))
    return console.export_text()


def test_the_plan_counts_in_words_that_fit() -> None:
    one = plan("none", budget=0.98)
    assert "1 federation x 10 rounds" in one
    assert "at least 1 client\n" in one
    assert "evaluated at the end; " in one
    assert "evaluated every 5 rounds; " in plan("none", budget=0.98, evaluate_every=5)
    assert "2 federations x" in plan("none", "pl-learn", budget=0.98)


WHOLE, PARTS = "all records of a client in every round", "uniform mini-batches of 4, 1 local step(s)"


def test_the_plan_says_what_each_kind_of_mechanism_takes() -> None:
    both = plan("none", "gaussian-dp", budget=2.0)
    assert f"none: {PARTS}" in both
    assert f"gaussian-dp: {WHOLE}" in both
    one = plan("gaussian-dp", budget=2.0)
    assert f" {WHOLE}" in one
    assert "gaussian-dp: all" not in one, "there is no other to tell it from"
    assert "mini-batches" not in one
    sampled = plan("none", "gaussian-dp", budget=2.0, **{"gaussian.sampling_rate": 0.25})
    assert "gaussian-dp: a Poisson sample of a client's records in every round, at rate 0.25" in sampled
    assert WHOLE not in plan("none", "pl-learn", budget=0.98)


LEARNING, CLIP, EACH, S = (
    "M 10, gamma 0.1, lambda",
    "(L2) of the gradient of a mini-batch",
    "(L1) of the gradient",
    "S =",
)


@pytest.mark.parametrize(
    ("mechanisms", "budget", "shown"),
    [
        (["none", "gaussian-dp"], 2.0, []),
        (["none", "pl-identical"], 0.98, []),
        (["none", "pl-identical", "pl-learn"], 0.98, [LEARNING]),
        (["ls-static", "gs-static"], 200.0, [CLIP, S]),
        (["ls-learn"], 200.0, [LEARNING, CLIP, S]),
        (["none", "laplace-dp"], 1.0, [EACH]),
    ],
)
def test_the_plan_shows_constants_where_they_play_a_part(
    mechanisms: list[str], budget: float, shown: list[str]
) -> None:
    text = plan(*mechanisms, budget=budget)
    assert [part for part in (LEARNING, CLIP, EACH, S) if part in text] == shown
    assert ("upper = " in text) is (LEARNING in shown)
