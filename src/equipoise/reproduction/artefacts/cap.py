"""The paper's Table 4b, Calibrated Averaged Performance: accuracy times InvGrad's error, averaged over the budgets."""

from __future__ import annotations

from statistics import mean
from typing import Any

from ..agreement import compared, rule, spread
from ..figures import bars, panels
from ..paper import PRINTED, paper
from ..plan import BUDGETS, DATASETS, FAMILIES
from ..records import Records
from ..tables import Table, plus_minus, verdict, with_interval
from . import gaps
from .artefact import Artefact, Results


def score(records: Records) -> Results:
    """CAP of either mechanism; and how much higher it is for the learned distortion."""
    said, cells, ups = paper()["cap"], [], []
    for dataset in DATASETS:
        for family, kinds in FAMILIES.items():
            theirs = said[dataset][family]
            ours = {key: _ours(records, dataset, name, family) for name, key in zip(kinds, PRINTED, strict=True)}
            again = {key: _recomputed(dataset, family, key) for key in PRINTED}
            for name, key in zip(kinds, PRINTED, strict=True):
                about = {"dataset": dataset, "family": family, "mechanism": name}
                cells.append({**about, **compared(ours[key], theirs[key], "cap"), "paper_recomputed": again[key]})
            up = [100 * (b / a - 1) for a, b in zip(ours["identical"], ours["learn"], strict=True)]
            about = {"dataset": dataset, "family": family, **spread(up), "paper": theirs["up_percent"]}
            recomputed = 100 * (again["learn"] / again["identical"] - 1)
            ups.append({**about, "paper_recomputed": recomputed, "values": up})
    return {"cells": cells, "up_percent": ups}


def _ours(records: Records, dataset: str, name: str, family: str) -> list[float]:
    """By seed."""
    table = [
        [
            row["accuracy"] * error
            for row, error in zip(
                records.by_seed(dataset, name, budget), records.inversion(dataset, name, budget, "mse"), strict=True
            )
        ]
        for budget in BUDGETS[family]
    ]  # [budgets, seeds]
    return [mean(column) for column in zip(*table, strict=True)]


def _recomputed(dataset: str, family: str, key: str) -> float:
    """From the paper's own tables."""
    accuracies, errors = (paper()[table][family][dataset][key] for table in ("accuracy", "mse"))
    return mean(float(accuracy / 100 * error) for accuracy, error in zip(accuracies, errors, strict=True))


def draw(figure: Any, result: Results) -> None:
    axis = panels(figure, 1, 1, height=3.2)[0][0]
    bars(axis, result["cells"], [f"{cell['dataset']}\n{cell['mechanism']}" for cell in result["cells"]], "CAP")


def tables(result: Results) -> list[Table]:
    rows = [
        [
            c["dataset"], c["family"], c["mechanism"], f"{c['paper']:.2f}", f"{c['paper_recomputed']:.3f}",
            plus_minus(c, 2), verdict(c),
        ]
        for c in result["cells"]
    ]  # fmt: skip
    ups = [
        [u["dataset"], u["family"], f"{u['paper']:.1f}", f"{u['paper_recomputed']:.1f}", with_interval(u)]
        for u in result["up_percent"]
    ]
    again = "from the paper's own tables"
    return [
        Table("CAP", ["data", "calibration", "mechanism", "paper", again, "ours", "verdict"], rows),
        Table("Learned above static, in percent", ["data", "calibration", "paper", again, "ours (95 % interval)"], ups),
    ]


def notes(result: Results) -> list[str]:
    return ["Rerr is the MSE in normalised units. The paper's printed CAP differs from its own tables by up to 0.04."]


CAP = Artefact(
    name="cap",
    kind="summary",
    title="Calibrated Averaged Performance",
    claim="Accuracy times reconstruction error, averaged over the budgets, is higher for the learned distortion.",
    rule=rule("cap", "(accuracy as a fraction times MSE)"),
    needs=gaps.needs,
    score=score,
    draw=draw,
    tables=tables,
    notes=notes,
)
