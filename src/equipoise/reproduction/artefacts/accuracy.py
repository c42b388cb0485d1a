"""The paper's Tables 2 (LS) and 3 (PL) of test accuracy; and simple baselines beside them."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from ...mechanism.registry import get_mechanism
from ..agreement import Cell, compared, paired, rule, spread
from ..figures import REFERENCE, STATIC, against_budgets, panels
from ..paper import PRINTED, paper
from ..plan import BELOW, BUDGETS, DATASETS, FAMILIES, Need, Scale, grid
from ..records import Records
from ..tables import Table, plus_minus, verdict, with_interval
from .artefact import Artefact, Results


def needs(family: str, scale: Scale) -> Iterator[Need]:
    """Twenty cells, no protection, the budget below the grid, and the baselines."""
    static, learned = kinds = FAMILIES[family]
    budgets, seeds = BUDGETS[family], scale.seeds
    yield from grid(DATASETS, kinds, budgets, seeds, "accuracy")
    yield from grid(DATASETS, ["none"], [None], seeds, "accuracy")
    yield from grid(DATASETS, kinds, [BELOW[family]], seeds, "accuracy")
    damped = (static, learned) if scale.baselines else (static,)
    yield from grid(DATASETS, damped, budgets, seeds, "accuracy", "damped")
    if scale.baselines:
        yield from grid(DATASETS, [static], budgets, seeds, "accuracy", "eleven-steps")


def score(family: str, records: Records) -> Results:
    """Twenty cells of test accuracy in percent, what learning gains, and the baselines."""
    said, (static, learned) = paper()["accuracy"][family], FAMILIES[family]
    cells, gains, simple = [], [], []
    for dataset in DATASETS:
        for place, budget in enumerate(BUDGETS[family]):
            about = {"dataset": dataset, "budget": budget}
            theirs = {key: said[dataset][key][place] for key in PRINTED}
            for name, key in zip(FAMILIES[family], PRINTED, strict=True):
                cells.append({**about, "mechanism": name, **_cell(records, dataset, name, budget, theirs[key])})
            ours = {name: records.accuracies(dataset, name, budget) for name in (static, learned)}
            gain = paired(ours[learned], ours[static])
            printed = round(theirs["learn"] - theirs["identical"], 2)
            gains.append({**about, **spread(gain), "values": gain, "paper": printed})
            simple += [{**about, **row} for row in _baselines(records, family, dataset, budget, ours[learned])]
    free = {name: spread(records.accuracies(name, "none", None)) for name in DATASETS}
    under = _below_the_grid(records, family)
    return {"cells": cells, "gains": gains, "baselines": simple, "without_protection": free, "below_the_grid": under}


def _cell(records: Records, dataset: str, name: str, budget: float, theirs: float) -> Cell:
    best = [100 * row["accuracy_at_best_validation"] for row in records.by_seed(dataset, name, budget)]
    cell = compared(records.accuracies(dataset, name, budget), theirs, "accuracy")
    cell["at_best_validation"] = {**spread(best), "agrees": compared(best, theirs, "accuracy")["agrees"]}
    return cell


def _baselines(records: Records, family: str, dataset: str, budget: float, plain: list[float]) -> Iterator[Cell]:
    """Simple things beside learning: a damped server on either, and as many gradients as learning spends."""
    static, learned = FAMILIES[family]
    for group, name in (("damped", static), ("eleven-steps", static), ("damped", learned)):
        values = records.accuracies(dataset, name, budget, group)
        if values:
            minus = spread(paired(values, plain))
            yield {"baseline": group, "mechanism": name, **spread(values), "minus_learned": minus}


def _below_the_grid(records: Records, family: str) -> list[Cell]:
    under = []
    for dataset in DATASETS:
        for name in FAMILIES[family]:
            values = records.accuracies(dataset, name, BELOW[family])
            about = {"dataset": dataset, "budget": BELOW[family], "mechanism": name}
            under.append({**about, **spread(values), "values": values})
    return under


def draw(figure: Any, result: Results) -> None:
    axes = panels(figure, 1, 2)[0]
    for axis, dataset in zip(axes, DATASETS, strict=True):
        against_budgets(axis, [c for c in result["cells"] if c["dataset"] == dataset], "test accuracy, %", dataset)
        simple = [
            b for b in result["baselines"] if b["dataset"] == dataset and not get_mechanism(b["mechanism"]).learns
        ]
        for group, line in (("damped", ":"), ("eleven-steps", "--")):
            mine = sorted((b for b in simple if b["baseline"] == group), key=lambda row: row["budget"])
            if mine:
                label = {"damped": "static, damped server", "eleven-steps": "static, eleven steps"}[group]
                axis.plot(range(len(mine)), [b["mean"] for b in mine], line, color=STATIC, label=label)
        axis.axhline(
            result["without_protection"][dataset]["mean"], color=REFERENCE, ls="-.", lw=1, label="no protection"
        )
        axis.set_ylim(0, 100)
    axes[1].legend(fontsize=7, loc="lower right")


def tables(result: Results) -> list[Table]:
    head = ["data", "budget", "mechanism", "paper", "ours", "difference", "at best validation", "verdict"]
    rows = [
        [
            cell["dataset"], f"{cell['budget']:g}", cell["mechanism"], f"{cell['paper']:.2f}", plus_minus(cell),
            f"{cell['difference']:+.1f}", plus_minus(cell["at_best_validation"]), verdict(cell),
        ]
        for cell in result["cells"]
    ]  # fmt: skip
    seeds = result["cells"][0]["seeds"]
    return [
        Table(f"Test accuracy in percent, mean ± standard deviation of {seeds} seeds", head, rows),
        Table(
            "Learned minus static in points (95 % interval, paired by seed), beside simple baselines (percent)",
            ["data", "budget", "paper", "learned - static", "static, damped server", "static, eleven steps",
             "learned, damped server"],
            _gains(result),
        ),
    ]  # fmt: skip


def _gains(result: Results) -> list[list[str]]:
    simple = {
        (row["dataset"], row["budget"], row["baseline"], get_mechanism(row["mechanism"]).learns): plus_minus(row)
        for row in result["baselines"]
    }
    rows = []
    for gain in result["gains"]:
        dataset, budget = gain["dataset"], gain["budget"]
        shown = [
            simple.get((dataset, budget, group, learns), "not run")
            for group, learns in (("damped", False), ("eleven-steps", False), ("damped", True))
        ]
        rows.append([dataset, f"{budget:g}", f"{gain['paper']:+.2f}", with_interval(gain), *shown])
    return rows


def notes(result: Results) -> list[str]:
    below = ", ".join(
        f"{row['dataset']} {row['mechanism']} {row['budget']:g}: {plus_minus(row)}" for row in result["below_the_grid"]
    )
    free = ", ".join(f"{name} {plus_minus(cell)}" for name, cell in result["without_protection"].items())
    return [f"Below the paper's grid: {below}.", f"Without protection: {free}.", *differing(result["cells"])]


def differing(cells: list[Cell]) -> list[str]:
    """What can be said about every cell that does not agree."""
    said = []
    for cell in cells:
        if cell["agrees"]:
            continue
        values, side = cell["values"], "above" if cell["difference"] > 0 else "below"
        best = cell["at_best_validation"]
        also = "it agrees" if best["agrees"] else "it differs too"
        said.append(
            f"{cell['dataset']} {cell['mechanism']} {cell['budget']:g} differs: ours is {abs(cell['difference']):.1f} "
            f"points {side} the paper's one seed, where {cell['reach']:.1f} are allowed; our seeds range from "
            f"{min(values):.1f} to {max(values):.1f}; at the best-validation round ({best['mean']:.1f}) {also}."
        )
    return said


def _accuracy(family: str, title: str, claim: str) -> Artefact:
    return Artefact(
        name=f"accuracy-{family.lower()}",
        kind="accuracy",
        title=title,
        claim=claim,
        rule=rule("accuracy", "points"),
        needs=partial(needs, family),
        score=partial(score, family),
        draw=draw,
        tables=tables,
        notes=notes,
    )


LS = _accuracy(
    "LS",
    title="Accuracy under the Laplace-scale calibration",
    claim="At every budget from 80 to 800 the learned distortion keeps more test accuracy than static Laplace noise, "
    "and at 80 it still trains where static noise does not.",
)
PL = _accuracy(
    "PL",
    title="Accuracy under the privacy-leakage calibration",
    claim="The same for the budgets 0.96 to 0.995 of the leakage score, with distortions on an L2 annulus.",
)
