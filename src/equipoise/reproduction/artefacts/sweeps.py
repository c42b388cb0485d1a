"""Beside the paper: accuracy with other numbers M of inner steps and other sizes gamma of them than its own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..agreement import spread
from ..figures import DATASET_COLOURS, deviations, panels
from ..plan import DATASETS, FAMILIES, SHOWN, SWEPT, Need, Scale, grid
from ..records import Records
from ..tables import Table, plus_minus, with_interval
from .artefact import Artefact, Results

PAPER = {"M": 10.0, "gamma": 0.1}


def needs(scale: Scale) -> Iterator[Need]:
    groups = [f"M={steps}" for steps in scale.inner_steps] + [f"gamma={rate:g}" for rate in scale.inner_rates]
    for family, (static, learned) in FAMILIES.items():
        yield from grid(DATASETS, (static, learned), [SHOWN[family]], scale.seeds, "accuracy")
        for group in groups:
            yield from grid(DATASETS, [learned], [SHOWN[family]], scale.seeds, "accuracy", group)


def score(records: Records) -> Results:
    """Accuracy in percent by M and by gamma; M = 0 is static noise."""
    cells = []
    for family, (static, learned) in FAMILIES.items():
        for dataset in DATASETS:
            about = {"family": family, "dataset": dataset, "budget": SHOWN[family]}
            values = {("M", 0.0): records.accuracies(dataset, static, SHOWN[family])}
            for point in PAPER.items():
                values[point] = records.accuracies(dataset, learned, SHOWN[family])
            for group in {group for group, *_ in records.cells}:
                letter, _, text = group.partition("=")
                if letter in SWEPT:
                    values[letter, float(text)] = records.accuracies(dataset, learned, SHOWN[family], group)
            for (letter, value), ours in sorted(values.items()):
                cell = {**about, "setting": letter, "value": value, **spread(ours), "values": ours}
                cells.append({**cell, "paper": PAPER[letter] == value})
    return {"cells": cells}


def draw(figure: Any, result: Results) -> None:
    axes = panels(figure, 1, 2, height=3.2)[0]
    for axis, setting in zip(axes, PAPER, strict=True):
        for family in FAMILIES:
            for dataset, colour in DATASET_COLOURS.items():
                where = family, dataset, setting
                mine = [c for c in result["cells"] if (c["family"], c["dataset"], c["setting"]) == where]
                mine.sort(key=lambda cell: cell["value"])
                place, line = range(len(mine)), "-" if family == "LS" else "--"
                look: Any = {"color": colour, "ls": line, "marker": "o", "ms": 4, "capsize": 2}
                axis.errorbar(place, [c["mean"] for c in mine], deviations(mine), **look, label=f"{dataset}, {family}")
                axis.set_xticks(place, [f"{c['value']:g}" for c in mine])
        axis.set_xlabel(setting)
        axis.set_ylabel("test accuracy, %")
    axes[0].legend(fontsize=7)


def tables(result: Results) -> list[Table]:
    head = ["calibration", "data", "setting", "value", "accuracy, mean ± s.d.", "95 % interval"]
    rows = [
        [c["family"], c["dataset"], c["setting"], f"{c['value']:g}", plus_minus(c), with_interval(c)]
        for c in result["cells"]
    ]
    return [Table(f"Test accuracy in percent, {result['cells'][0]['seeds']} seeds", head, rows)]


SWEEPS = Artefact(
    name="sweeps",
    kind="beside",
    title="M and gamma swept (LS 200 and PL 0.98)",
    claim="The paper says that the number of inner steps M and their size gamma matter, and shows no sweep.",
    rule="No verdict: the paper has no values. M = 0 is static noise; M = 10 and gamma = 0.1 are the paper's.",
    needs=needs,
    score=score,
    draw=draw,
    tables=tables,
)
