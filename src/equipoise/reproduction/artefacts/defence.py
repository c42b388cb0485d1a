"""The paper's Tables 5 (LS) and 6 (PL) of InvGrad's errors; and guesses that use no update beside them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import product
from typing import Any

from ..agreement import REACH, compared, rule, spread
from ..figures import REFERENCE, against_budgets, panels
from ..paper import PRINTED, paper
from ..plan import BUDGETS, DATASETS, FAMILIES, Need, Scale, grid
from ..records import Records
from ..tables import Table, plus_minus, verdict
from .artefact import Artefact, Results

QUANTITIES = {"mse": 1, "ssim": 100}
"""What is measured -> the factor to the paper's unit: SSIM is in percent."""
FOR_SSIM = "For SSIM {:g} and {:g} points.".format(*REACH["ssim"])


def needs(family: str, scale: Scale) -> Iterator[Need]:
    """Twenty cells and no protection."""
    yield from grid(DATASETS, FAMILIES[family], BUDGETS[family], scale.seeds, "inversion")
    yield from grid(DATASETS, ["none"], [None], scale.seeds, "inversion")


def score(family: str, records: Records) -> Results:
    """Twenty cells of MSE and twenty of SSIM (percent) of InvGrad's images; the leakage score beside them."""
    said, cells, leakage = paper(), [], []
    for (quantity, factor), dataset in product(QUANTITIES.items(), DATASETS):
        for place, budget in enumerate(BUDGETS[family]):
            for name, key in zip(FAMILIES[family], PRINTED, strict=True):
                values = [factor * value for value in records.inversion(dataset, name, budget, quantity)]
                theirs = said[quantity][family][dataset][key][place]
                about = {"quantity": quantity, "dataset": dataset, "budget": budget, "mechanism": name}
                cells.append({**about, **compared(values, theirs, quantity)})
    for dataset, budget, name in product(DATASETS, BUDGETS[family], FAMILIES[family]):
        about = {"dataset": dataset, "budget": budget, "mechanism": name}
        leakage.append({**about, **spread(records.inversion(dataset, name, budget, "leakage"))})
    free = {
        name: {key: spread(records.inversion(name, "none", None, key)) for key in ("mse", "ssim", "leakage")}
        for name in DATASETS
    }
    rows = records.by_seed("mnist", FAMILIES[family][0], BUDGETS[family][0])
    return {
        "cells": cells,
        "batches_per_cell": max(len(row["inversion"]["mse"]) for row in rows) * len(rows),
        "leakage": leakage,
        "without_protection": free,
        "guesses_without_an_update": records.baselines,
    }


def draw(figure: Any, result: Results) -> None:
    axes = panels(figure, 2, 2)
    for row, (quantity, unit) in enumerate((("mse", "MSE"), ("ssim", "SSIM, %"))):
        for axis, dataset in zip(axes[row], DATASETS, strict=True):
            cells = [c for c in result["cells"] if (c["quantity"], c["dataset"]) == (quantity, dataset)]
            against_budgets(axis, cells, unit, dataset)
            black = result["guesses_without_an_update"][dataset]["black"][quantity]
            axis.axhline(black * QUANTITIES[quantity], color=REFERENCE, ls="-.", lw=1, label="all black")
            axis.set_ylim(bottom=min(0, axis.get_ylim()[0]))
    axes[0][0].legend(fontsize=7)


def tables(result: Results) -> list[Table]:
    batches = f"{result['batches_per_cell']} batches of four a cell, {result['cells'][0]['seeds']} seeds"
    head = ["data", "budget", "mechanism", "paper", "ours", "difference", "verdict"]
    return [
        Table(f"MSE in normalised units, {batches}", head, _rows(result, "mse", 2)),
        Table(f"SSIM in percent (Gaussian window, sigma 1.5), {batches}", head, _rows(result, "ssim", 1)),
        Table(
            "For scale: guesses that use no update",
            ["data", "guess", "MSE", "SSIM %", "leakage score"],
            _guesses(result),
        ),
    ]


def _rows(result: Results, quantity: str, digits: int) -> list[list[str]]:
    return [
        [
            cell["dataset"], f"{cell['budget']:g}", cell["mechanism"], f"{cell['paper']:.{digits}f}",
            plus_minus(cell, digits), f"{cell['difference']:+.{digits}f}", verdict(cell),
        ]
        for cell in result["cells"] if cell["quantity"] == quantity
    ]  # fmt: skip


def _guesses(result: Results) -> list[list[str]]:
    rows = [
        [name, guess.replace("_", " "), f"{row['mse']:.2f}", f"{100 * row['ssim']:.1f}", f"{row['leakage']:.2f}"]
        for name, table in result["guesses_without_an_update"].items()
        for guess, row in table.items()
    ]
    for name, row in result["without_protection"].items():
        numbers = plus_minus(row["mse"], 2), f"{100 * row['ssim']['mean']:.1f}", f"{row['leakage']['mean']:.2f}"
        rows.append([name, "InvGrad without protection", *numbers])
    return rows


def notes(result: Results) -> list[str]:
    scores = [cell["mean"] for cell in result["leakage"]]
    return [
        f"By the paper's definition (D = 56) InvGrad's leakage here is {min(scores):.2f} to {max(scores):.2f}. Compare "
        "the guesses that use no update. MSE near that of noise says that the optimiser saturated, not that an "
        "attacker learns nothing: see studies/leakage."
    ]


def _defence(family: str, title: str, claim: str) -> Artefact:
    return Artefact(
        name=f"defence-{family.lower()}",
        kind="defence",
        title=title,
        claim=claim,
        rule=f"{rule('mse', '(MSE, normalised units)')} {FOR_SSIM} A seed's value is the mean over the four images of "
        "the first mini-batch of each of its four clients, in the round after the last.",
        needs=partial(needs, family),
        score=partial(score, family),
        draw=draw,
        tables=tables,
        notes=notes,
    )


LS = _defence(
    "LS",
    title="InvGrad's errors under the Laplace-scale calibration",
    claim="InvGrad reconstructs about equally badly from learned and from static releases; SSIM is at most 6.3 %.",
)
PL = _defence(
    "PL",
    title="InvGrad's errors under the privacy-leakage calibration",
    claim="The same for the budgets of the leakage score; SSIM is at most 5.8 %.",
)
