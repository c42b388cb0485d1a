"""The paper's Table 4a: how much InvGrad's errors differ, on average, between learned and static distortion."""

from __future__ import annotations

from collections.abc import Iterator
from statistics import mean
from typing import Any

from ..agreement import compared, paired, rule
from ..figures import bars, panels
from ..paper import paper
from ..plan import BUDGETS, DATASETS, FAMILIES, Need, Scale
from ..records import Records
from ..tables import Table, verdict, with_interval
from . import defence
from .artefact import Artefact, Results


def needs(scale: Scale) -> Iterator[Need]:
    """What both tables of InvGrad's errors need."""
    for family in FAMILIES:
        yield from defence.needs(family, scale)


def score(records: Records) -> Results:
    """Learn minus Identical, averaged over the budgets: MSE, and SSIM in points."""
    said, cells = paper()["gap"], []
    for dataset in DATASETS:
        for family, (static, learned) in FAMILIES.items():
            for quantity, factor in defence.QUANTITIES.items():
                table = [
                    paired(*(records.inversion(dataset, name, budget, quantity) for name in (learned, static)))
                    for budget in BUDGETS[family]
                ]  # [budgets, seeds]
                values = [factor * mean(column) for column in zip(*table, strict=True)]
                about = {"quantity": quantity, "dataset": dataset, "family": family}
                cells.append({**about, **compared(values, said[dataset][quantity][family], quantity)})
    return {"cells": cells}


def draw(figure: Any, result: Results) -> None:
    axes = panels(figure, 1, 2)[0]
    for axis, (quantity, unit) in zip(axes, (("mse", "gap in MSE"), ("ssim", "gap in SSIM, points")), strict=True):
        cells = [cell for cell in result["cells"] if cell["quantity"] == quantity]
        bars(axis, cells, [f"{cell['dataset']}\n{cell['family']}" for cell in cells], unit)


def tables(result: Results) -> list[Table]:
    head = ["data", "calibration", "quantity", "paper", "ours (95 % interval)", "verdict"]
    rows = [
        [c["dataset"], c["family"], c["quantity"].upper(), f"{c['paper']:+.3f}", with_interval(c, 3), verdict(c)]
        for c in result["cells"]
    ]
    return [Table("Learn minus identical, averaged over budgets; SSIM in points", head, rows)]


GAPS = Artefact(
    name="gaps",
    kind="summary",
    title="Average gap in defence",
    claim="Averaged over the budgets, InvGrad's MSE and SSIM differ little between learned and static distortion.",
    rule=f"{rule('mse', '(MSE)')} {defence.FOR_SSIM}",
    needs=needs,
    score=score,
    draw=draw,
    tables=tables,
)
