"""Gaps are averaged over the budgets and paired by seed."""

from __future__ import annotations

import pytest

from equipoise.engine.federation import Federation
from equipoise.reproduction.artefacts.gaps import GAPS
from equipoise.reproduction.artefacts.registry import needs
from equipoise.reproduction.claims import Tables
from equipoise.reproduction.paper import paper
from equipoise.reproduction.plan import DATASETS
from tests.reproduction import synthetic as syn
from tests.reproduction.synthetic import SCALE, World, pick, records_of, wobble


def test_gaps_are_averaged_over_budgets_and_paired_by_seed() -> None:
    def mse(fed: Federation) -> float:
        shift = syn.place(fed) / 10 if fed.mechanism == "pl-learn" else 0.0  # 0 to 0.4: 0.2 on average
        return 2.0 + wobble(fed.seed, 1.0) + shift

    cells = GAPS.score(records_of(World(mse=mse, ssim=lambda fed: 0.01 + 0.005 * (fed.mechanism == "ls-learn"))))[
        "cells"
    ]
    assert len(cells) == 8
    for dataset in DATASETS:
        pl, ls = (pick(cells, quantity="mse", dataset=dataset, family=family) for family in ("PL", "LS"))
        assert pl["values"] == pytest.approx([0.2, 0.2, 0.2])
        assert ls["values"] == pytest.approx([0, 0, 0])
        assert pick(cells, quantity="ssim", dataset=dataset, family="LS")["mean"] == pytest.approx(0.5)  # points
        assert pl["paper"] == paper()["gap"][dataset]["mse"]["PL"]
        assert pl["agrees"] is bool(abs(0.2 - pl["paper"]) <= 0.1)


def test_the_table_has_a_row_per_gap(synthetic: Tables) -> None:
    (table,) = GAPS.tables(synthetic["gaps"])
    assert len(table.rows) == 8
    assert table.rows[0] == ["mnist", "LS", "MSE", "+0.002", "0.010 (0.008 to 0.012)", "agrees"]
    assert needs(["gaps"], SCALE) == needs(["defence-ls", "defence-pl"], SCALE)
