"""What gaussian-dp reaches with the settings that a user gets who names a budget alone, and its unprotected twin.

``python studies/gaussian_dp/accuracy.py specs FOLDER`` writes a SPEC for each model, ``equipoise compute SPEC OUT`` (or
``python -m equipoise.compute``, which needs torch and numpy alone) trains it, and
``python studies/gaussian_dp/accuracy.py table OUT...`` makes ``accuracy.json`` of the results and fills the table of
docs/gaussian_dp.md, which ``page`` does alone.

Rules, fixed beforehand: both image sets, delta 1e-5, epsilon 1, 2, 4 and 8, eight seeds, test split, last round;
Student's 95 % interval over seeds. Nothing is chosen here: docs/tuning_gaussian_dp.md says where they come from. The
twin has the same model, rounds and momentum, all records in every round, no clip and no noise. Its rate is the one
of ``RATES`` with the best mean accuracy on validation images, which is in its favour: no such choice was made for
gaussian-dp. The rates above 1 were added, for scatter-linear alone, when the largest of the first six was its best.
"""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np

from equipoise.engine.federation import Federation
from equipoise.engine.recommended import RECIPES, recommended
from equipoise.engine.settings import Settings, to_dict
from equipoise.statistics import interval

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "gaussian_dp.md"
MODELS = ("scatter-linear", "lenet-tanh", "lenet-zhu")  # in the order of the page
WORDS = {"mnist": "MNIST", "fmnist": "Fashion-MNIST"}
DATASETS, EPSILONS, SEEDS = ("mnist", "fmnist"), (1.0, 2.0, 4.0, 8.0), range(1, 9)
RATES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


def protected(model: str, device: str) -> dict[str, Any]:
    keys = {**recommended("gaussian-dp", model), "model": model, "device": device}
    settings = Settings.flat(**keys)
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
    alike: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for cell in cells:  # of the twins, several that differ in their rate
        alike.setdefault(tuple(cell[name] for name in ("model", "dataset", "mechanism", "epsilon")), []).append(cell)
    return [_chosen(several) for several in alike.values()]


def _chosen(cells: list[dict[str, Any]]) -> dict[str, Any]:
    """The cell with the best mean validation accuracy; a twin also says what that was at every rate."""
    best = max(cells, key=lambda cell: float(cell["validation"]))
    if best["twin_rate"] is None:
        return best
    ordered = sorted(cells, key=lambda cell: float(cell["twin_rate"]))
    return {**best, "validation_by_rate": [[cell["twin_rate"], cell["validation"]] for cell in ordered]}


def _cell(key: tuple[Any, ...], rows: list[dict[str, Any]]) -> dict[str, Any]:
    model, dataset, mechanism, epsilon, sigma, twin_rate = key
    return {
        "model": model, "dataset": dataset, "mechanism": mechanism, "epsilon": epsilon, "sigma": sigma,
        "twin_rate": twin_rate, "rounds": rows[0]["rounds"], "seeds": len(rows),
        "accuracy": mean(row["accuracy"] for row in rows), "interval": interval([row["accuracy"] for row in rows]),
        "validation": mean(row["validation"] for row in rows),
        "accuracies": [row["accuracy"] for row in rows], "environment": rows[0]["environment"],
    }  # fmt: skip


# -- the page ----------------------------------------------------------------------------------------------------------


def percent(cell: dict[str, Any]) -> str:
    """The mean and half of the interval around it."""
    low, high = cell["interval"]
    return f"{100 * cell['accuracy']:.1f} ± {50 * (high - low):.1f}"


def part(content: dict[str, Any]) -> str:
    """The table of the page, and what must be said before and after it."""
    cells = {(cell["model"], cell["dataset"], cell["epsilon"]): cell for cell in content["cells"]}
    (seeds,) = {cell["seeds"] for cell in content["cells"]}
    delta = f"{content['delta']:.0e}".replace("e-0", "e-")
    before = (
        f"Test accuracy in percent after the last round, mean ± half of the 95 % interval over {seeds} seeds: 4 "
        f"clients with 1,000 records each, epsilon and delta ({delta}) of the whole run, {content['relation']}, unit "
        f"{content['unit']}. "
        "These are seeded experiments: the epsilon is that of the mechanism, the runs have none."
    )
    heads = [f"epsilon {epsilon:g}" for epsilon in EPSILONS]
    rows = [["model, rounds", "data", "no protection", *heads]]
    for model in MODELS:
        for dataset in DATASETS:
            own = [cells[model, dataset, epsilon] for epsilon in (None, *EPSILONS)]
            rows.append([f"{model}, {own[0]['rounds']}", WORDS[dataset], *map(percent, own)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    lines.insert(1, "|" + "---|" * len(rows[0]))
    return "\n".join([*textwrap.wrap(before, 120), "", *lines, "", *textwrap.wrap(_twins(cells), 120)])


def _twins(cells: dict[tuple[Any, ...], dict[str, Any]]) -> str:
    """What "no protection" stands for, and why one of these columns is no better than epsilon 8."""
    badly, private = ([cells["lenet-zhu", name, epsilon] for name in DATASETS] for epsilon in (None, EPSILONS[-1]))
    by_rate = ", ".join(f"{100 * right:.0f} % at {rate:g}" for rate, right in badly[0]["validation_by_rate"])
    pairs = " and ".join(
        f"{100 * one['accuracy']:.1f} beside {100 * other['accuracy']:.1f}"
        for one, other in zip(private, badly, strict=True)
    )
    return (
        "*No protection* is the same model with the same rounds and momentum, no clip and no noise, at the rate that "
        "was best on validation images. That of scatter-linear starts at zero and draws nothing, so its seeds are one "
        f"run. **lenet-zhu at epsilon {EPSILONS[-1]:g} is as good as its unprotected twin or better ({pairs}), and "
        "that is no claim that noise helps:** without a clip this network trains badly at larger rates (validation "
        f"accuracy on MNIST: {by_rate}), and the private runs have a clip."
    )


def filled(page: str, content: dict[str, Any]) -> str:
    """The page with its table made anew."""
    begin, end = "<!-- accuracy: begin -->\n", "<!-- accuracy: end -->"
    before, rest = page.split(begin)
    return f"{before}{begin}{part(content)}\n{end}{rest.split(end)[1]}"


def read() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((HERE / "accuracy.json").read_text())
    return content


def fill_page() -> None:
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), read()), encoding="utf-8")


def main() -> None:
    if sys.argv[1] == "specs":
        write_specs(Path(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "cpu")
        return
    if sys.argv[1] == "page":
        fill_page()
        return
    cells = table([Path(name) for name in sys.argv[2:]])
    content = {"rule": __doc__, "delta": 1e-5, "relation": "add/remove", "unit": "record", "cells": cells}
    (HERE / "accuracy.json").write_text(json.dumps(content, indent=1) + "\n")
    fill_page()
    for cell in cells:
        print(
            cell["model"], cell["dataset"], cell["mechanism"], cell["epsilon"], f"{cell['accuracy']:.2%}", cell["seeds"]
        )


if __name__ == "__main__":
    main()
