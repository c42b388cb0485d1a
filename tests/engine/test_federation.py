"""One federation of a sweep: a plain value, named so that a reader knows it."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from equipoise.engine.federation import Federation


@pytest.mark.parametrize(
    ("federation", "label"),
    [
        (Federation("mnist", "none"), "mnist none (seed 1)"),
        (Federation("fmnist", "pl-learn", 0.98, 7), "fmnist pl-learn @ 0.98 (seed 7)"),
        (Federation("mnist", "ls-static", [80, 200], 2), "mnist ls-static @ per client 80, 200 (seed 2)"),
        (Federation("mnist", "ls-static", 0), "mnist ls-static @ 0 (seed 1)"),  # refused elsewhere, shown here
    ],
)
def test_the_label_names_data_mechanism_budget_and_seed(federation: Federation, label: str) -> None:
    assert federation.label() == label


@pytest.mark.parametrize(
    ("budget", "budgets"),
    [(0.98, [0.98]), ([80, 200], [80, 200]), ((1.0, 2.0), [1.0, 2.0]), (None, [None])],
)
def test_budgets_are_those_of_the_clients_or_the_one_of_all(budget: Any, budgets: list[Any]) -> None:
    assert Federation(budget=budget).budgets == budgets


def test_federations_of_one_sweep_have_different_labels() -> None:
    labels = {
        Federation(dataset, name, budget, seed).label()
        for dataset in ("mnist", "fmnist")
        for name in ("pl-learn", "pl-identical")
        for budget in (0.96, 0.98)
        for seed in (1, 2)
    }
    assert len(labels) == 16


def test_a_federation_is_a_value() -> None:
    one: Any = Federation("mnist", "pl-learn", 0.98)
    assert one == Federation("mnist", "pl-learn", 0.98, seed=1)
    with pytest.raises(FrozenInstanceError):
        one.seed = 2
