"""The paper's Figure 3 of every client's training curve."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..agreement import Cell, above, spread
from ..figures import colour_of, panels
from ..plan import FAMILIES, Need, Scale, grid
from ..records import Records
from ..tables import Table, verdict, with_interval
from .artefact import Artefact, Results

DATASET = "fmnist"
BUDGETS = {"LS": 200, "PL": 0.975}


def needs(scale: Scale) -> Iterator[Need]:
    for family, kinds in FAMILIES.items():
        yield from grid([DATASET], kinds, [BUDGETS[family]], scale.seeds, "clients")


def score(records: Records) -> Results:
    """A cell per client: final accuracy and area under the curve of the learned distortion minus the static one."""
    cells: list[Cell] = []
    curves: list[Cell] = []
    for family, kinds in FAMILIES.items():
        rows = {name: records.by_seed(DATASET, name, BUDGETS[family]) for name in kinds}
        accuracy, loss = (
            {name: np.array([[p[key] for p in row["clients"]["values"]] for row in rows[name]]) for name in kinds}
            for key in ("accuracy", "training_loss")
        )  # [seeds, rounds, clients], by mechanism
        static, learned = kinds
        rounds = rows[static][0]["clients"]["rounds"]
        for client in range(accuracy[static].shape[2]):
            gap = 100 * (accuracy[learned] - accuracy[static])[:, :, client]
            more = (loss[learned] - loss[static])[:, -1, client]
            final, area = spread(gap[:, -1].tolist()), spread(gap.mean(1).tolist())
            cells.append(
                {
                    "family": family, "budget": BUDGETS[family], "client": client + 1, **final, "area": area,
                    "final_training_loss": spread(more.tolist()), "agrees": above(final) and above(area),
                }
            )  # fmt: skip
            for name in kinds:
                about = {"family": family, "client": client + 1, "mechanism": name, "rounds": rounds}
                curves.append({**about, **_curve(accuracy[name][:, :, client], loss[name][:, :, client])})
    return {"cells": cells, "curves": curves}


def _curve(accuracy: Any, loss: Any) -> Cell:
    """Over seeds; accuracy in percent."""
    return {
        "mean": (100 * accuracy.mean(0)).tolist(),
        "low": (100 * accuracy.min(0)).tolist(),
        "high": (100 * accuracy.max(0)).tolist(),
        "training_loss": loss.mean(0).tolist(),
    }


def draw(figure: Any, result: Results) -> None:
    axes = panels(figure, 2, 4, width=10.0, height=2.4)
    for row, family in enumerate(FAMILIES):
        for column, axis in enumerate(axes[row]):
            for curve in result["curves"]:
                if (curve["family"], curve["client"]) == (family, column + 1):
                    colour = colour_of(curve["mechanism"])
                    axis.fill_between(curve["rounds"], curve["low"], curve["high"], color=colour, alpha=0.2, lw=0)
                    axis.plot(curve["rounds"], curve["mean"], color=colour, lw=1.2, label=curve["mechanism"])
            axis.set_title(f"client {column + 1}")
            axis.set_ylim(0, 80)
            axis.set_xlabel("round")
        axes[row][0].set_ylabel(f"{family}: test accuracy, %")
        axes[row][3].legend(fontsize=7, loc="lower right")


def tables(result: Results) -> list[Table]:
    head = ["calibration", "budget", "client", "final accuracy", "mean over the curve", "final training loss",
            "verdict"]  # fmt: skip
    rows = [
        [
            c["family"], f"{c['budget']:g}", str(c["client"]), with_interval(c), with_interval(c["area"]),
            with_interval(c["final_training_loss"], 2), verdict(c),
        ]
        for c in result["cells"]
    ]  # fmt: skip
    caption = "Learned minus static (95 % interval); accuracy in points on the client's test images"
    return [Table(caption, head, rows)]


CLIENTS = Artefact(
    name="clients",
    kind="figure",
    title="Training curves of the clients (Fashion-MNIST, LS 200 and PL 0.975)",
    claim="All four clients converge faster and further with the learned distortion.",
    rule="A cell agrees when the 95 % intervals of the gain in final accuracy and in mean accuracy over the curve both "
    "lie above zero.",
    needs=needs,
    score=score,
    draw=draw,
    tables=tables,
)
