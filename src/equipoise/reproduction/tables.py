"""Raw records -> the cells of the paper's tables, each beside its value. Values are over seeds, paired by seed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib.resources import files
from statistics import mean
from typing import Any

import numpy as np

from .agreement import compared, spread
from .plan import BELOW, BUDGETS, DATASETS, FAMILIES
from .records import Raw, Record

Found = dict[str, Any]


def paper() -> Found:
    """The paper's numbers."""
    found: Found = json.loads(files(__package__).joinpath("paper.json").read_text(encoding="utf-8"))
    return found


def _cells() -> Iterator[tuple[str, str, float, int]]:
    for family, budgets in BUDGETS.items():
        for dataset in DATASETS:
            for place, budget in enumerate(budgets):
                yield family, dataset, budget, place


def _paired(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a - b for a, b in zip(one, other, strict=True)]


# -- tables -------------------------------------------------------------------------------------------------------


def accuracy(raw: Raw, family: str) -> Found:
    """Twenty cells of test accuracy in percent, what learning gains, and the simple baselines."""
    said, (static, learned) = paper()["accuracy"][family], FAMILIES[family]
    cells, gains, simple = [], [], []
    for kind, dataset, budget, place in _cells():
        if kind != family:
            continue
        about = {"dataset": dataset, "budget": budget}
        ours = {}
        for name, key in ((static, "identical"), (learned, "learn")):
            ours[name] = raw.accuracies(dataset, name, budget)
            best = [100 * row["accuracy_at_best_validation"] for row in raw.records(dataset, name, budget)]
            theirs = said[dataset][key][place]
            cell = {**about, "mechanism": name, **compared(ours[name], theirs, "accuracy")}
            cell["at_best_validation"] = {**spread(best), "agrees": compared(best, theirs, "accuracy")["agrees"]}
            cells.append(cell)
        gain = _paired(ours[learned], ours[static])
        theirs = said[dataset]["learn"][place] - said[dataset]["identical"][place]
        gains.append({**about, **spread(gain), "values": gain, "paper": round(theirs, 2)})
        simple += [{**about, **row} for row in _baselines(raw, dataset, budget, static, learned, ours[learned])]
    free = {name: spread(raw.accuracies(name, "none", None)) for name in DATASETS}
    under = []
    for name in DATASETS:
        for kind in (static, learned):
            values = raw.accuracies(name, kind, BELOW[family])
            about = {"dataset": name, "budget": BELOW[family], "mechanism": kind}
            under.append({**about, **spread(values), "values": values})
    return {"cells": cells, "gains": gains, "baselines": simple, "without_protection": free, "below_the_grid": under}


def _baselines(
    raw: Raw, dataset: str, budget: float, static: str, learned: str, plain: list[float]
) -> Iterator[dict[str, Any]]:
    """Simple things beside learning: a damped server on either, and as many gradients as learning spends."""
    for group, name in (("damped", static), ("eleven-steps", static), ("damped", learned)):
        values = raw.accuracies(dataset, name, budget, group)
        if values:
            minus = spread(_paired(values, plain))
            yield {"baseline": group, "mechanism": name, **spread(values), "minus_learned": minus}


def _per_seed(rows: list[Record], key: str, measure: str = "inversion") -> list[float]:
    return [float(np.mean(row[measure][key])) for row in rows]


def defence(raw: Raw, family: str) -> Found:
    """Twenty cells of MSE and twenty of SSIM (percent) of InvGrad's images; the leakage score beside them."""
    said, kinds = paper(), FAMILIES[family]
    cells, leakage = [], []
    for quantity, factor in (("mse", 1), ("ssim", 100)):
        for kind, dataset, budget, place in _cells():
            for name, key in zip(kinds, ("identical", "learn"), strict=True) if kind == family else ():
                values = [factor * v for v in _per_seed(raw.records(dataset, name, budget), quantity)]
                theirs = said[quantity][family][dataset][key][place]
                about = {"quantity": quantity, "dataset": dataset, "budget": budget, "mechanism": name}
                cells.append({**about, **compared(values, theirs, quantity)})
    for kind, dataset, budget, _ in _cells():
        for name in kinds if kind == family else ():
            about = {"dataset": dataset, "budget": budget, "mechanism": name}
            leakage.append({**about, **spread(_per_seed(raw.records(dataset, name, budget), "leakage"))})
    free = {
        name: {key: spread(_per_seed(raw.records(name, "none", None), key)) for key in ("mse", "ssim", "leakage")}
        for name in DATASETS
    }
    batches = {len(row["inversion"]["mse"]) for row in raw.records("mnist", kinds[0], BUDGETS[family][0])}
    rows = raw.records("mnist", kinds[0], BUDGETS[family][0])
    return {
        "cells": cells,
        "batches_per_cell": max(batches) * len(rows),
        "leakage": leakage,
        "without_protection": free,
        "guesses_without_an_update": raw.baselines,
    }


def gaps(raw: Raw) -> Found:
    """Learn minus Identical, averaged over the budgets: MSE, and SSIM in points."""
    said, cells = paper()["gap"], []
    for dataset in DATASETS:
        for family, (static, learned) in FAMILIES.items():
            for quantity, factor in (("mse", 1), ("ssim", 100)):
                table = [
                    _paired(
                        _per_seed(raw.records(dataset, learned, budget), quantity),
                        _per_seed(raw.records(dataset, static, budget), quantity),
                    )
                    for budget in BUDGETS[family]
                ]
                values = [factor * mean(column) for column in zip(*table, strict=True)]
                about = {"quantity": quantity, "dataset": dataset, "family": family}
                cells.append({**about, **compared(values, said[dataset][quantity][family], quantity)})
    return {"cells": cells}


def cap(raw: Raw) -> Found:
    """Accuracy times MSE, averaged over the budgets; and how much higher it is for the learned distortion."""
    numbers, cells, ups = paper(), [], []
    for dataset in DATASETS:
        for family, kinds in FAMILIES.items():
            said, ours, own = numbers["cap"][dataset][family], {}, {}
            for name, key in zip(kinds, ("identical", "learn"), strict=True):
                table = [
                    [row["accuracy"] * error for row, error in zip(rows, _per_seed(rows, "mse"), strict=True)]
                    for rows in (raw.records(dataset, name, budget) for budget in BUDGETS[family])
                ]
                ours[key] = [mean(column) for column in zip(*table, strict=True)]
                printed = zip(
                    numbers["accuracy"][family][dataset][key], numbers["mse"][family][dataset][key], strict=True
                )
                own[key] = mean(acc / 100 * error for acc, error in printed)
                about = {"dataset": dataset, "family": family, "mechanism": name}
                cells.append({**about, **compared(ours[key], said[key], "cap"), "paper_recomputed": own[key]})
            up = [100 * (b / a - 1) for a, b in zip(ours["identical"], ours["learn"], strict=True)]
            again = 100 * (own["learn"] / own["identical"] - 1)
            about = {"dataset": dataset, "family": family, **spread(up), "paper": said["up_percent"]}
            ups.append({**about, "paper_recomputed": again, "values": up})
    return {"cells": cells, "up_percent": ups}
