"""The paper's Figure 2 of accuracy against budget, as what learning gains at every budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..agreement import above
from ..figures import DATASET_COLOURS, deviations, panels
from ..plan import FAMILIES, Need, Scale
from ..records import Records
from ..tables import Table, verdict, with_interval
from . import accuracy
from .artefact import Artefact, Results


def needs(scale: Scale) -> Iterator[Need]:
    """What both tables of accuracy need."""
    for family in FAMILIES:
        yield from accuracy.needs(family, scale)


def score(records: Records) -> Results:
    """A cell per budget: whether the learned distortion has the higher mean accuracy."""
    cells = []
    for family in FAMILIES:
        for gain in accuracy.score(family, records)["gains"]:
            cells.append({"family": family, **gain, "agrees": gain["mean"] > 0, "beyond_its_interval": above(gain)})
    return {"cells": cells}


def draw(figure: Any, result: Results) -> None:
    axes = panels(figure, 1, 2)[0]
    for axis, family in zip(axes, FAMILIES, strict=True):
        for dataset, colour in DATASET_COLOURS.items():
            mine = [c for c in result["cells"] if (c["family"], c["dataset"]) == (family, dataset)]
            mine.sort(key=lambda cell: cell["budget"])
            place, hollow = range(len(mine)), {"mfc": "none", "mec": colour, "ms": 7}
            axis.errorbar(place, [c["mean"] for c in mine], deviations(mine), color=colour, marker="o", ms=4,
                          capsize=2, label=f"{dataset}, ours")  # fmt: skip
            axis.plot(place, [c["paper"] for c in mine], "o", **hollow, label=f"{dataset}, paper")
            axis.set_xticks(place, [f"{c['budget']:g}" for c in mine])
        axis.axhline(0, color="black", lw=0.6)
        axis.set_title(f"{family}: learned minus static")
        axis.set_xlabel("budget")
        axis.set_ylabel("points of accuracy")
    axes[0].legend(fontsize=7)


def tables(result: Results) -> list[Table]:
    head = ["data", "calibration", "budget", "paper", "learned - static (95 % interval)", "verdict"]
    rows = [
        [c["dataset"], c["family"], f"{c['budget']:g}", f"{c['paper']:+.2f}", with_interval(c), verdict(c)]
        for c in result["cells"]
    ]
    return [Table("Gain in accuracy, in points", head, rows)]


TRADE_OFF = Artefact(
    name="trade-off",
    kind="figure",
    title="Trade-off curves",
    claim="Accuracy against budget: the learned curve lies above the static one, most of all at strict budgets.",
    rule="A cell agrees when the learned distortion has the higher mean over seeds.",
    needs=needs,
    score=score,
    draw=draw,
    tables=tables,
)
