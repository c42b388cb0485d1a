"""The paper's Figure 6 of the step-wise utility loss: what one round's distortion adds to the loss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..agreement import Cell, between, spread, told
from ..figures import colour_of, panels
from ..plan import DATASETS, FAMILIES, SHOWN, Need, Scale, grid
from ..records import Records
from ..tables import Table, verdict, with_interval
from .artefact import Artefact, Results

KINDS = STATIC, LEARNED = FAMILIES["LS"]
BUDGET = SHOWN["LS"]
POINTS = 250
"""A curve of more rounds is thinned to means of blocks, at least as many."""


def needs(scale: Scale) -> Iterator[Need]:
    yield from grid(DATASETS, KINDS, [BUDGET], scale.seeds, "utility")


def score(records: Records) -> Results:
    """Cells per dataset: the loss that one round's distortion adds, learned minus static, on two sets of images.

    The learner sees its mini-batch, every round; the paper defines the loss on all data of the client, which is
    sampled, densely at first, and averaged over time by trapezoids.
    """
    cells: list[Cell] = []
    curves: list[Cell] = []
    for dataset in DATASETS:
        rows = {name: [row["utility"] for row in records.by_seed(dataset, name, BUDGET)] for name in KINDS}
        batch = {name: np.array([row["values"] for row in rows[name]]) for name in KINDS}  # [seeds, rounds]
        full = {name: np.array([row["full"] for row in rows[name]]).mean(2) for name in KINDS}
        sampled = np.array(rows[STATIC][0]["full_rounds"])
        every = np.arange(1, batch[STATIC].shape[1] + 1)
        for where, table, rounds in (("its mini-batch", batch, every), ("all its data", full, sampled)):
            about = {"dataset": dataset, "budget": BUDGET, "measured_on": where}
            cells.append({**about, **_difference(table, rounds, settled=rounds > every[-1] / 20)})
        for name in KINDS:
            curve = {"full_rounds": sampled.tolist(), "full": full[name].mean(0).tolist()}
            curves.append({"dataset": dataset, "mechanism": name, **_thinned(every, batch[name].mean(0)), **curve})
    return {"cells": cells, "curves": curves}


def _difference(table: dict[str, Any], rounds: Any, settled: Any) -> Cell:
    """Averages over time, per seed; fluctuation is the standard deviation over the settled rounds."""
    averages = {name: time_average(rounds, table[name]) for name in KINDS}
    gap = spread((averages[LEARNED] - averages[STATIC]).tolist())
    later = spread((table[LEARNED] - table[STATIC])[:, settled].mean(1).tolist())
    cell = {**gap, **told(between(gap, high=0.0)), "rounds": len(rounds), "from_a_twentieth_on": later}
    for name in KINDS:
        fluctuation = spread(table[name][:, settled].std(1).tolist())
        cell[name] = {**spread(averages[name].tolist()), "fluctuation": fluctuation}
    return cell


def time_average(rounds: Any, values: Any) -> Any:
    """The average over time of values ``[seeds, rounds]`` at some rounds, by trapezoids."""
    if len(rounds) < 2:
        return values.mean(1)
    return np.trapezoid(values, rounds, axis=1) / (rounds[-1] - rounds[0])


def _thinned(every: Any, values: Any) -> Cell:
    """Means of blocks of rounds, each named by its last round."""
    step = max(1, len(every) // POINTS)
    blocks = values[: len(every) // step * step].reshape(-1, step)
    return {"rounds": every[step - 1 :: step].tolist(), "mean": blocks.mean(1).tolist()}


def draw(figure: Any, result: Results) -> None:
    axes = panels(figure, 1, 2, height=3.2)[0]
    for axis, dataset in zip(axes, DATASETS, strict=True):
        for curve in result["curves"]:
            if curve["dataset"] == dataset:
                name, colour = curve["mechanism"], colour_of(curve["mechanism"])
                axis.plot(curve["rounds"], curve["mean"], color=colour, lw=1, label=f"{name}, its mini-batch")
                axis.plot(curve["full_rounds"], curve["full"], ":", color=colour, marker="s", ms=3,
                          label=f"{name}, all its data")  # fmt: skip
        axis.axhline(0, color="black", lw=0.6)
        axis.set_ylim(-1, 0.6)
        axis.set_title(f"{dataset} (early rounds reach below -1)")
        axis.set_xlabel("round")
        axis.set_ylabel("loss added by the distortion")
    axes[1].legend(fontsize=7, loc="lower left")


def tables(result: Results) -> list[Table]:
    head = ["data", "measured on", "static", "learned", "difference", "s.d. over rounds: static, learned", "verdict"]
    rows = [
        [
            c["dataset"], c["measured_on"], with_interval(c[STATIC], 3), with_interval(c[LEARNED], 3),
            with_interval(c, 3), ", ".join(f"{c[name]['fluctuation']['mean']:.2f}" for name in KINDS), verdict(c),
        ]
        for c in result["cells"]
    ]  # fmt: skip
    return [Table("Loss that one round's distortion adds (95 % intervals)", head, rows)]


STEPWISE = Artefact(
    name="stepwise",
    kind="figure",
    title="Step-wise utility loss (LS 200)",
    claim="What one round's distortion adds to the loss is lower, and steadier, when it is learned.",
    rule="A cell agrees when the 95 % interval of learned minus static, averaged over rounds, lies below zero, differs "
    "when it lies above, and is not shown otherwise.",
    needs=needs,
    score=score,
    draw=draw,
    tables=tables,
)
