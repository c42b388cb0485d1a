"""The paper's Figure 4 of the distortion of every tensor, before and after learning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..agreement import Cell, spread
from ..figures import LEARNED, STATIC, panels
from ..paper import paper
from ..plan import DATASETS, FAMILIES, SHOWN, Need, Scale, grid
from ..records import Record, Records
from ..tables import Table, with_interval
from .artefact import Artefact, Results

KEPT_WITHIN = 0.05
"""A tensor's distortion counts as kept when learning changes its mean size by less than this share."""


def needs(scale: Scale) -> Iterator[Need]:
    for family, (_, learned) in FAMILIES.items():
        yield from grid(DATASETS, [learned], [SHOWN[family]], scale.seeds, "tensors")


def score(records: Records) -> Results:
    """A cell per tensor: what learning does to the mean size of its distortion, and to its standard deviation."""
    said = {name: word for word in ("amplified", "reduced", "kept") for name in paper()["layers"][word]}
    cells: list[Cell] = []
    earlier: list[Cell] = []
    for family, (_, learned) in FAMILIES.items():
        for dataset in DATASETS:
            rows = records.by_seed(dataset, learned, SHOWN[family])
            rounds = rows[0]["tensors"]["rounds"]
            for place, round_number in enumerate(rounds):
                for name in said:
                    about = {"family": family, "dataset": dataset, "tensor": name, "round": round_number}
                    about |= _change([row["tensors"]["values"][place][name] for row in rows])
                    about |= {"paper": said[name], "agrees": about["verdict"] == said[name]}
                    (cells if round_number == rounds[-1] else earlier).append(about)
    return {"cells": cells, "earlier_rounds": earlier, "kept_within": KEPT_WITHIN}


def _change(table: list[Record]) -> Cell:
    """Per seed, the mean over its clients; ratios are after / before."""
    values = {
        key: np.array([row[key] for row in table]) for key in ("size", "mean", "deviation")
    }  # [seeds, clients, 2]
    ratio = {
        key: spread((v[..., 1].mean(1) / v[..., 0].mean(1)).tolist()) for key, v in values.items() if key != "mean"
    }
    change = ratio["size"]["mean"] - 1
    word = "kept" if abs(change) < KEPT_WITHIN else "amplified" if change > 0 else "reduced"
    both = {key: [float(part) for part in v.mean((0, 1))] for key, v in values.items()}
    signed = [float(part) for part in np.abs(values["mean"]).mean((0, 1))]
    names = {"size_ratio": ratio["size"], "deviation_ratio": ratio["deviation"], "size": both["size"]}
    return {**names, "deviation": both["deviation"], "absolute_mean": signed, "verdict": word, "seeds": len(table)}


def draw(figure: Any, result: Results) -> None:
    axes = panels(figure, 2, 2, width=9.0)
    for row, (key, unit) in enumerate((("size", "mean |distortion|"), ("deviation", "standard deviation"))):
        for axis, family in zip(axes[row], FAMILIES, strict=True):
            mine = [c for c in result["cells"] if (c["family"], c["dataset"]) == (family, "mnist")]
            mine.sort(key=lambda cell: (cell["tensor"].split(".")[0], cell["tensor"].endswith("bias")))
            place = range(len(mine))
            axis.bar([p - 0.2 for p in place], [c[key][0] for c in mine], 0.4, color=STATIC, label="before learning")
            axis.bar([p + 0.2 for p in place], [c[key][1] for c in mine], 0.4, color=LEARNED, label="after")
            names = [c["tensor"].replace("weight", "w").replace("bias", "b") for c in mine]
            axis.set_xticks(list(place), names, fontsize=7)
            axis.set_title(f"{family}, mnist")
            axis.set_ylabel(unit)
            axis.set_ylim(0, 1.3 * max(max(c[key]) for c in mine))
    axes[0][0].legend(fontsize=7, loc="upper left", ncols=2)


def tables(result: Results) -> list[Table]:
    head = ["calibration", "data", "tensor", "before", "after", "after / before", "deviation: after / before", "paper",
            "ours"]  # fmt: skip
    rows = [
        [
            c["family"], c["dataset"], c["tensor"], f"{c['size'][0]:.4f}", f"{c['size'][1]:.4f}",
            with_interval(c["size_ratio"], 3), with_interval(c["deviation_ratio"], 3), c["paper"], c["verdict"],
        ]
        for c in result["cells"]
    ]  # fmt: skip
    early = [
        [c["family"], c["dataset"], c["tensor"], str(c["round"]), with_interval(c["size_ratio"], 3), c["verdict"]]
        for c in result["earlier_rounds"]
    ]
    return [
        Table("Mean absolute distortion and its standard deviation, after the last round (95 % intervals)", head, rows),
        Table("Earlier in the training", ["calibration", "data", "tensor", "round", "after / before", "ours"], early),
    ]


LAYERS = Artefact(
    name="layers",
    kind="figure",
    title="Distortion of every tensor before and after learning (LS 200 and PL 0.98)",
    claim="Learning amplifies the distortion of conv2.w and conv3.w, reduces that of conv1.w, conv1.b, conv2.b and "
    "conv3.b and keeps that of fc; standard deviations change little. (The caption names conv3.b twice and conv3.w "
    "never; the amplified one is read as conv3.w. It names no budget.)",
    rule="A tensor is amplified or reduced when the mean absolute distortion changes by 5 % or more in the mean over "
    "seeds, at the weights after the last round, and kept otherwise; it agrees when that is the paper's word.",
    needs=needs,
    score=score,
    draw=draw,
    tables=tables,
)
