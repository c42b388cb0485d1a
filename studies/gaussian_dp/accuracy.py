"""What gaussian-dp reaches with the settings that a user gets who names a budget alone, and its unprotected twin.

``python studies/gaussian_dp/accuracy.py specs FOLDER`` writes a SPEC for each model, ``equipoise compute SPEC OUT`` (or
``python -m equipoise.compute``, which needs torch and numpy alone) trains it, and
``python studies/gaussian_dp/accuracy.py table OUT...`` makes ``accuracy.json`` of the results.

Rules, fixed beforehand: both image sets, delta 1e-5, epsilon 1, 2, 4 and 8, eight seeds, test split, last round;
Student's 95 % interval over seeds. Nothing is chosen here: docs/tuning_gaussian_dp.md says where they come from. The
twin has the same model, rounds and momentum, all records in every round, no clip and no noise. Its rate is the one
of ``RATES`` with the best mean accuracy on validation images, which is in its favour: no such choice was made for
gaussian-dp. The rates above 1 were added when the largest of the first six was the best one of scatter-linear.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from equipoise.engine.federation import Federation
from equipoise.engine.recommended import RECIPES, recommended
from equipoise.engine.settings import Settings, to_dict
from equipoise.statistics import interval

HERE = Path(__file__).parent
DATASETS, EPSILONS, SEEDS = ("mnist", "fmnist"), (1.0, 2.0, 4.0, 8.0), range(1, 9)
RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


def protected(model: str, device: str) -> dict[str, Any]:
    keys = recommended("gaussian-dp", model)
    settings = Settings.flat(model=model, device=device, **keys)
    settings = settings.replace(evaluate_every=settings.training.rounds, snapshots=[])
    return to_dict(
        settings, [Federation(d, "gaussian-dp", epsilon, s) for d in DATASETS for epsilon in EPSILONS for s in SEEDS]
    )


def twin(model: str, device: str, rate: float) -> dict[str, Any]:
    recipe = RECIPES[model]
    settings = Settings.flat(
        model=model, device=device, rounds=recipe.rounds, eta=rate, init=recipe.init, batch=1000,
        server_momentum=recipe.momentum, evaluate_every=recipe.rounds, snapshots=[],
    )  # fmt: skip
    return to_dict(settings, [Federation(d, "none", None, s) for d in DATASETS for s in SEEDS])


def write_specs(folder: Path, device: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for model in RECIPES:
        (folder / f"{model}.json").write_text(json.dumps(protected(model, device)))
        for rate in RATES:
            (folder / f"{model}-twin-{rate:g}.json").write_text(json.dumps(twin(model, device, rate)))


def table(folders: list[Path]) -> list[dict[str, Any]]:
    """One entry per model, data set, mechanism and epsilon."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for folder in folders:
        result = json.loads((folder / "result.json").read_text())
        settings = result["spec"]["settings"]
        sigmas = dict(map(tuple, settings["gaussian"]["sigmas"]))
        validation = np.load(folder / "curves.npz")["validation_accuracy"][:, -1].tolist()
        for row, right in zip(result["federations"], validation, strict=True):
            sigma, twin_rate = sigmas.get(row["budget"]), settings["eta"] if row["mechanism"] == "none" else None
            key = (settings["model"], row["dataset"], row["mechanism"], row["budget"], sigma, twin_rate)
            groups.setdefault(key, []).append({**row, "validation": right, "environment": result["environment"]})
    cells = [_cell(key, rows) for key, rows in groups.items()]
    best = {}
    for cell in cells:  # of the twins, one rate
        name = (cell["model"], cell["dataset"], cell["mechanism"], cell["epsilon"])
        if name not in best or cell["validation"] > best[name]["validation"]:
            best[name] = cell
    return list(best.values())


def _cell(key: tuple[Any, ...], rows: list[dict[str, Any]]) -> dict[str, Any]:
    model, dataset, mechanism, epsilon, sigma, twin_rate = key
    return {
        "model": model, "dataset": dataset, "mechanism": mechanism, "epsilon": epsilon, "sigma": sigma,
        "twin_rate": twin_rate, "rounds": rows[0]["rounds"], "seeds": len(rows),
        "accuracy": mean(row["accuracy"] for row in rows), "interval": interval([row["accuracy"] for row in rows]),
        "validation": mean(row["validation"] for row in rows),
        "accuracies": [row["accuracy"] for row in rows], "environment": rows[0]["environment"],
    }  # fmt: skip


def main() -> None:
    if sys.argv[1] == "specs":
        write_specs(Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "cpu")
        return
    cells = table([Path(name) for name in sys.argv[2:]])
    content = {"rule": __doc__, "delta": 1e-5, "relation": "add/remove", "unit": "record", "cells": cells}
    (HERE / "accuracy.json").write_text(json.dumps(content, indent=1) + "\n")
    for cell in cells:
        print(
            cell["model"], cell["dataset"], cell["mechanism"], cell["epsilon"], f"{cell['accuracy']:.2%}", cell["seeds"]
        )


if __name__ == "__main__":
    main()
