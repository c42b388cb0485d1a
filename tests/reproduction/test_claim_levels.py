"""The three states of every claim, on its own cells: which interval shows it, contradicts it, or does neither."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from equipoise.engine.federation import Federation
from equipoise.reproduction.claims import CLAIMS, Tables, judge
from equipoise.reproduction.plan import BELOW
from tests.reproduction import synthetic as syn
from tests.reproduction.synthetic import World, wobble
from tests.reproduction.test_claims import (
    CAP,
    CLIENTS,
    COLLAPSE,
    DEVIATIONS,
    EVERYWHERE,
    GROWS,
    LAYERS,
    LS_BELOW,
    PL_BELOW,
    REBOUNDS,
    SIMILAR,
    SSIM,
    STEP_BATCH,
    STEP_FULL,
    STRICT,
    UNRECOGNISABLE,
    judged,
)  # fmt: skip

Edit = Callable[[Tables, tuple[float, float]], None]


def accuracy_of(family: str, dataset: str, mechanism: str, budget: float) -> Edit:
    def edit(tables: Tables, interval: tuple[float, float]) -> None:
        table = tables[f"accuracy-{family}"]
        about = {"dataset": dataset, "mechanism": mechanism, "budget": budget}
        syn.pick(table["cells"] + table["below_the_grid"], **about)["interval"] = interval

    return edit


def cell_of(artefact: str, *parts: str, rows: str = "cells", **about: Any) -> Edit:
    """One cell, or a part of it."""

    def edit(tables: Tables, interval: tuple[float, float]) -> None:
        cell = syn.pick(tables[artefact][rows], **about)
        for part in parts:
            cell = cell[part]
        cell["interval"] = interval

    return edit


PL_CELL = {"family": "PL", "dataset": "fmnist", "budget": 0.97}
TENSOR = {"family": "PL", "dataset": "fmnist"}
REBOUND = {"what": "rebound at 600: last tenth above the middle"}
LEVELS: list[tuple[str, Edit, float, int]] = [
    (EVERYWHERE, cell_of("trade-off", **PL_CELL), 0.0, +1),
    (COLLAPSE, accuracy_of("pl", "fmnist", "pl-identical", 0.96), 20.0, -1),
    (COLLAPSE, accuracy_of("pl", "fmnist", "pl-learn", 0.96), 20.0, +1),
    (PL_BELOW, accuracy_of("pl", "fmnist", "pl-identical", BELOW["PL"]), 20.0, -1),
    (LS_BELOW, accuracy_of("ls", "mnist", "ls-static", BELOW["LS"]), 20.0, -1),
    (SIMILAR, cell_of("gaps", family="PL", dataset="fmnist", quantity="mse"), 0.1, -1),
    (SIMILAR, cell_of("gaps", family="LS", dataset="mnist", quantity="ssim"), -1.0, +1),
    (SSIM, cell_of("defence-ls", quantity="ssim", dataset="mnist", budget=80, mechanism="ls-learn"), 6.3, -1),
    (SSIM, cell_of("defence-pl", quantity="ssim", dataset="mnist", budget=0.98, mechanism="pl-learn"), 5.8, -1),
    (UNRECOGNISABLE, cell_of("reconstructions", "ssim", dataset="mnist", mechanism="pl-learn"), 5.8, -1),
    (CAP, cell_of("cap", rows="up_percent", dataset="mnist", family="LS"), 0.0, +1),
    (CLIENTS, cell_of("clients", family="LS", client=2), 0.0, +1),
    (CLIENTS, cell_of("clients", "area", family="PL", client=4), 0.0, +1),
    (LAYERS, cell_of("layers", "size_ratio", tensor="conv2.weight", **TENSOR), 1.05, +1),
    (LAYERS, cell_of("layers", "size_ratio", tensor="conv1.bias", **TENSOR), 0.95, -1),
    (LAYERS, cell_of("layers", "size_ratio", tensor="fc.weight", **TENSOR), 1.05, -1),
    (LAYERS, cell_of("layers", "size_ratio", tensor="fc.bias", **TENSOR), 0.95, +1),
    (DEVIATIONS, cell_of("layers", "deviation_ratio", tensor="fc.bias", **TENSOR), 1.1, -1),
    (DEVIATIONS, cell_of("layers", "deviation_ratio", tensor="fc.bias", **TENSOR), 0.9, +1),
    (STEP_BATCH, cell_of("stepwise", dataset="mnist", measured_on="its mini-batch"), 0.0, -1),
    (STEP_FULL, cell_of("stepwise", dataset="fmnist", measured_on="all its data"), 0.0, -1),
    (GROWS, cell_of("gradient-norm", dataset="mnist", what="600 above 800"), 0.0, +1),
    (REBOUNDS, cell_of("gradient-norm", dataset="fmnist", **REBOUND), 0.0, +1),
]
"""A claim, one of its cells, the level, and the side of it on which the claim holds."""


def test_every_claim_but_the_trend_has_levels() -> None:
    assert {claim for claim, *_ in LEVELS} == set(CLAIMS) - {STRICT}, "the trend is computed from seeds"


@pytest.mark.parametrize(
    ("claim", "edit", "level", "side"), LEVELS, ids=[f"{claim}: {level:g}" for claim, _, level, _ in LEVELS]
)
def test_a_cell_holds_fails_or_is_not_shown_by_its_interval_alone(
    synthetic: Tables, claim: str, edit: Edit, level: float, side: int
) -> None:
    """The means stay: only the intervals decide. One that touches the level shows nothing."""
    near, far = 1e-6, 0.01
    good, bad = (sorted((level + sign * side * near, level + sign * side * far)) for sign in (1, -1))
    touching = [sorted((level, level + sign * side * far)) for sign in (1, -1)]
    across = (level - far, level + far)

    def verdict(interval: Sequence[float]) -> str:
        tables = copy.deepcopy(synthetic)
        edit(tables, (interval[0], interval[1]))
        return str(next(row["verdict"] for row in judge(tables) if row["claim"] == claim))

    assert verdict(good) == "holds"
    assert verdict(bad) == "fails"
    assert [verdict(interval) for interval in (*touching, across)] == ["not shown"] * 3


def gains(values: list[list[float]]) -> Callable[[Federation, str], float]:
    """Accuracies under LS of MNIST whose gains at the five budgets are these, a list for every seed."""

    def accuracy(fed: Federation, group: str) -> float:
        if group != "paper" or (fed.dataset, fed.mechanism) != ("mnist", "ls-learn") or syn.place(fed) < 0:
            return syn.accuracy(fed, group)
        return syn.STATIC[syn.place(fed)] + values[fed.seed - 1][syn.place(fed)] + wobble(fed.seed)

    return accuracy


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ([[5, 4, 3, 2, 1]] * 3, "holds"),
        ([[1, 2, 3, 4, 5]] * 3, "fails"),
        ([[5, 4, 3, 2, 1], [1, 2, 3, 4, 5], [3, 5, 1, 4, 2]], "not shown"),
    ],
)
def test_the_trend_is_judged_by_the_seeds_correlations(order: list[list[int]], expected: str) -> None:
    world = World(accuracy=gains([[0.15 + 0.01 * rank for rank in row] for row in order]))
    assert next(row["verdict"] for row in judged(world) if row["claim"] == STRICT) == expected
