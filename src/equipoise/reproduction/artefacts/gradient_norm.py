"""The paper's Figure 7 of the average squared gradient norm of LS-Learn at three budgets."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np

from ..agreement import Cell, between, paired, spread, told
from ..figures import panels
from ..plan import DATASETS, Need, Scale, grid
from ..records import Records
from ..tables import Table, plus_minus, verdict, with_interval
from .artefact import Artefact, Results

MECHANISM = "ls-learn"
BUDGETS = (600, 800, 1000)
COLOURS = dict(zip(BUDGETS, ("#b5179e", "#4361ee", "#2a9d8f"), strict=True))
MIDDLE_AND_END = ((0.4, 0.6), (0.9, 1.0))
"""Parts of the training between which the norm rebounds."""


def needs(scale: Scale) -> Iterator[Need]:
    yield from grid(DATASETS, [MECHANISM], BUDGETS, scale.seeds, "gradients")


def score(records: Records) -> Results:
    """Cells per dataset: the average squared gradient norm grows as the budget shrinks, and rebounds at 600."""
    cells: list[Cell] = []
    curves: list[Cell] = []
    averages: list[Cell] = []
    for dataset in DATASETS:
        average = {}
        for budget in BUDGETS:
            about = {"dataset": dataset, "budget": budget}
            rounds, values = _sampled(records, dataset, budget)
            running = running_average(rounds, values)
            average[budget] = running[:, -1].tolist()
            late = values[:, rounds >= rounds[-1] / 2].mean(1)
            averages.append({**about, "average": spread(average[budget]), "second_half": spread(late.tolist())})
            curve = {"rounds": rounds, "running": running.mean(0), "value": values.mean(0)}
            curves.append({**about, **{key: points.tolist() for key, points in curve.items()}})
        for smaller, larger in pairwise(BUDGETS):
            gap = spread(paired(average[smaller], average[larger]))
            cells.append(
                {"dataset": dataset, "what": f"{smaller} above {larger}", **gap, **told(between(gap, low=0.0))}
            )
        what = "rebound at 600: last tenth above the middle"
        gap = _rebound(*_sampled(records, dataset, BUDGETS[0]))
        cells.append({"dataset": dataset, "what": what, **gap, **told(between(gap, low=0.0))})
    return {"cells": cells, "averages": averages, "curves": curves}


def _cell(dataset: str, what: str, gap: Cell) -> Cell:
    return {"dataset": dataset, "what": what, **gap, **told(between(gap, low=0.0))}


def _sampled(records: Records, dataset: str, budget: float) -> tuple[Any, Any]:
    """Rounds, and squared norms ``[seeds, rounds]``."""
    rows = [row["gradients"] for row in records.by_seed(dataset, MECHANISM, budget)]
    return np.array(rows[0]["rounds"]), np.array([row["values"] for row in rows])


def _rebound(rounds: Any, values: Any) -> Cell:
    last = rounds[-1]
    middle, end = (values[:, (rounds > a * last) & (rounds <= b * last)].mean(1) for a, b in MIDDLE_AND_END)
    return spread((end - middle).tolist())


def running_average(rounds: Any, values: Any) -> Any:
    """The average over time up to every sampled round, by trapezoids; at round 0 the value itself."""
    steps = np.diff(rounds) * (values[:, 1:] + values[:, :-1]) / 2
    area = np.concatenate([np.zeros((len(values), 1)), np.cumsum(steps, axis=1)], axis=1)
    return np.where(rounds > 0, area / np.maximum(rounds, 1), values)


def draw(figure: Any, result: Results) -> None:
    axes = panels(figure, 1, 2, height=3.2)[0]
    for axis, dataset in zip(axes, DATASETS, strict=True):
        for curve in result["curves"]:
            if curve["dataset"] == dataset:
                rounds, budget, colour = curve["rounds"], curve["budget"], COLOURS[curve["budget"]]
                axis.plot(rounds, curve["running"], color=colour, label=f"{budget}: average so far")
                axis.plot(rounds, curve["value"], color=colour, lw=0.7, alpha=0.6, label=f"{budget}: at the round")
        axis.set_yscale("log")
        axis.set_title(dataset)
        axis.set_xlabel("round")
        axis.set_ylabel("squared gradient norm")
    axes[1].legend(fontsize=7)


def tables(result: Results) -> list[Table]:
    rows = [[c["dataset"], c["what"], with_interval(c, 3), verdict(c)] for c in result["cells"]]
    averages = [
        [a["dataset"], str(a["budget"]), plus_minus(a["average"], 3), plus_minus(a["second_half"], 3)]
        for a in result["averages"]
    ]
    return [
        Table("Differences (95 % interval, paired by seed)", ["data", "what", "difference", "verdict"], rows),
        Table(
            "Squared norm of the full gradient", ["data", "budget", "average over all rounds", "second half"], averages
        ),
    ]


GRADIENT_NORM = Artefact(
    name="gradient-norm",
    kind="figure",
    title="Average squared gradient norm of LS-Learn (600, 800, 1000)",
    claim="The smaller the budget, the larger the average squared gradient norm; at 600 it rebounds.",
    rule="A cell agrees when the 95 % interval of the difference lies above zero: of time averages between "
    "neighbouring budgets, and between the last tenth and the middle fifth of the rounds at 600. It differs when the "
    "interval lies below zero, and is not shown otherwise.",
    needs=needs,
    score=score,
    draw=draw,
    tables=tables,
)
