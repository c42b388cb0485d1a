"""The paper's Figure 5 of InvGrad's images: here of public images, so that they may be shown."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from statistics import mean
from typing import Any

import numpy as np

from ..agreement import spread
from ..paper import paper
from ..plan import DATASETS, FAMILIES, SHOWN, Need, Scale, grid
from ..records import Records
from ..tables import Table, verdict, with_interval
from .artefact import Artefact, Results


def needs(scale: Scale) -> Iterator[Need]:
    """One trajectory of each."""
    seeds = scale.seeds[:1]
    for family, kinds in FAMILIES.items():
        yield from grid(DATASETS, kinds, [SHOWN[family]], seeds, "pictures")
    yield from grid(DATASETS, ["none"], [None], seeds, "pictures")


def packed(images: list[Any]) -> list[str]:
    """Images ``[C, H, W]`` of bytes, as text."""
    return [base64.b64encode(np.array(image, dtype=np.uint8).tobytes()).decode() for image in images]


def unpacked(image: str, side: int = 28) -> Any:
    """The grey image behind such a text.

    >>> unpacked(packed([[[[7, 8], [9, 0]]]])[0], side=2).tolist()
    [[7, 8], [9, 0]]
    """
    return np.frombuffer(base64.b64decode(image), dtype=np.uint8).reshape(-1, side)


def score(records: Records) -> Results:
    """A cell per mechanism: SSIM (percent) and MSE of InvGrad's images of public batches, and the images of one."""
    ceiling = paper()["ssim_at_most"]
    cells, images = [], []
    for dataset in DATASETS:
        images.append({"dataset": dataset, "row": "original", "pixels": packed(records.originals[dataset]["pixels"])})
        shown = [(None, "none", None)] + [(f, name, SHOWN[f]) for f, kinds in FAMILIES.items() for name in kinds]
        for family, name, budget in shown:
            result = next(row["pictures"] for row in records.by_seed(dataset, name, budget) if "pictures" in row)
            errors = {key: np.mean(result[key], axis=1).tolist() for key in ("mse", "ssim")}  # per batch
            label = name if budget is None else f"{name} {budget:g}"
            images.append(
                {"dataset": dataset, "row": label, "pixels": packed(result["pixels"]), "mse": mean(errors["mse"])}
            )
            if family is None:
                continue
            ssim, error = spread([100 * v for v in errors["ssim"]]), spread(errors["mse"])
            batches = ssim.pop("seeds")
            error.pop("seeds")
            about = {"dataset": dataset, "family": family, "mechanism": name, "budget": budget, "batches": batches}
            about |= {"seeds": 1, "ssim": ssim, "mse": error, "paper": f"SSIM at most {ceiling[family]} %"}
            cells.append({**about, "agrees": ssim["mean"] <= ceiling[family]})
    guesses = {name: result["baselines"] for name, result in records.originals.items()}
    return {"cells": cells, "images": images, "guesses_without_an_update": guesses}


def draw(figure: Any, result: Results) -> None:
    rows = [row["row"] for row in result["images"] if row["dataset"] == "mnist"]
    figure.set_size_inches(7.5, 0.95 * len(rows))
    axes = figure.subplots(len(rows), 8, squeeze=False)
    for half, dataset in enumerate(DATASETS):
        shown = [row for row in result["images"] if row["dataset"] == dataset]
        for line, row in enumerate(shown):
            for column, image in enumerate(row["pixels"]):
                axis = axes[line][4 * half + column]
                axis.imshow(unpacked(image), cmap="gray", vmin=0, vmax=255, interpolation="nearest")
                axis.set_axis_off()
            if half == 0:
                axes[line][0].text(-0.15, 0.5, row["row"], transform=axes[line][0].transAxes, ha="right", va="center")
        axes[0][4 * half].set_title(dataset, loc="left")


def tables(result: Results) -> list[Table]:
    head = ["data", "mechanism", "budget", "MSE", "SSIM %", "paper", "verdict"]
    rows = [
        [
            c["dataset"], c["mechanism"], f"{c['budget']:g}", with_interval(c["mse"], 2), with_interval(c["ssim"]),
            c["paper"], verdict(c),
        ]
        for c in result["cells"]
    ]  # fmt: skip
    caption = f"{result['cells'][0]['batches']} batches of public images at the weights of seed 1 (95 % intervals)"
    return [Table(caption, head, rows)]


RECONSTRUCTIONS = Artefact(
    name="reconstructions",
    kind="figure",
    title="InvGrad's reconstructions (LS 200 and PL 0.98)",
    claim="No recognisable image is reconstructed from either, and both look alike.",
    rule="A cell agrees when the mean SSIM is at most the highest of the paper's table. Public images, one trajectory.",
    needs=needs,
    score=score,
    draw=draw,
    tables=tables,
)
