"""Turn raw results of spec.json into accuracy.json: every cell beside the paper's, and Learn minus Identical.

    python reproduction/accuracy/summarise.py OUT/ --commit HASH     # OUT holds paper/ and damped/

Intervals are 95 % Student intervals over seeds. Differences are paired: both sides of a pair share mini-batches and
standard noise, seed by seed. A cell *agrees* when the paper's value lies in the 95 % prediction interval for one
further seed, taken at least 3 and at most 10 points to each side.
"""

from __future__ import annotations

import argparse
import json
from math import sqrt
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from scipy.stats import t as student

from equipoise.storage import write_json

HERE = Path(__file__).parent
PAIRS = {"PL": ("pl-identical", "pl-learn"), "LS": ("ls-static", "ls-learn")}
COMMAND = "PYTHONPATH=src python -m equipoise.compute reproduction/accuracy/spec.json OUT/paper"


def spread(values: list[float]) -> dict[str, Any]:
    """Mean, standard deviation, 95 % interval of the mean; in points."""
    half = float(student.ppf(0.975, len(values) - 1)) * stdev(values) / sqrt(len(values))
    centre = mean(values)
    return {"mean": centre, "sd": stdev(values), "interval": [centre - half, centre + half], "seeds": len(values)}


def agrees(values: list[float], paper: float) -> bool:
    reach = float(student.ppf(0.975, len(values) - 1)) * stdev(values) * sqrt(1 + 1 / len(values))
    return abs(paper - mean(values)) <= min(10.0, max(3.0, reach))


def cell(rows: list[dict[str, Any]], paper: float) -> dict[str, Any]:
    last = [100 * row["accuracy"] for row in rows]
    best = [100 * row["accuracy_at_best_validation"] for row in rows]
    return {
        **spread(last),
        "values": last,
        "at_best_validation": spread(best),
        "paper": paper,
        "difference": mean(last) - paper,
        "agrees": agrees(last, paper),
    }


def summarise(raw: dict[str, Any], paper: dict[str, Any]) -> dict[str, Any]:
    rows: dict[tuple[str, str, Any], list[dict[str, Any]]] = {}
    for row in raw["federations"]:
        rows.setdefault((row["dataset"], row["mechanism"], row["budget"]), []).append(row)
    for same in rows.values():
        same.sort(key=lambda row: row["seed"])
    cells, pairs = [], []
    for family, (static, learned) in PAIRS.items():
        for dataset in ("mnist", "fmnist"):
            for place, budget in enumerate(paper[family]["budgets"]):
                about = {"family": family, "dataset": dataset, "budget": budget}
                for name, key in ((static, "identical"), (learned, "learn")):
                    found = cell(rows[dataset, name, budget], paper[family][dataset][key][place])
                    cells.append({**about, "mechanism": name, **found})
                gains = [
                    100 * (b["accuracy"] - a["accuracy"])
                    for a, b in zip(rows[dataset, static, budget], rows[dataset, learned, budget], strict=True)
                ]
                theirs = paper[family][dataset]["learn"][place] - paper[family][dataset]["identical"][place]
                pairs.append({**about, **spread(gains), "values": gains, "paper": theirs})
    free = {d: spread([100 * row["accuracy"] for row in rows[d, "none", None]]) for d in ("mnist", "fmnist")}
    return {"cells": cells, "learn_minus_identical": pairs, "without_protection": free}


def damped_cells(raw: dict[str, Any]) -> dict[str, Any]:
    """The same cells with the server's step damped by the size of the distortion: post-processing of releases."""
    rows: dict[tuple[str, str, Any], list[float]] = {}
    for row in raw["federations"]:
        rows.setdefault((row["dataset"], row["mechanism"], row["budget"]), []).append(100 * row["accuracy"])
    cells = [{"dataset": d, "mechanism": m, "budget": b, **spread(values)} for (d, m, b), values in rows.items()]
    command = COMMAND.replace("spec.json", "spec_damped.json").replace("paper", "damped")
    return {"rate": "min(1, 1/l), l the expected L2 norm of one distortion", "command": command, "cells": cells}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path)
    parser.add_argument("--commit", required=True)
    options = parser.parse_args()
    raw = json.loads((options.raw / "paper" / "result.json").read_text())
    damped = json.loads((options.raw / "damped" / "result.json").read_text())
    paper = json.loads((HERE.parent / "paper_accuracy.json").read_text())
    found = summarise(raw, paper)
    agree = sum(cell["agrees"] for cell in found["cells"])
    gains = [pair["interval"][0] > 0 for pair in found["learn_minus_identical"]]
    about = {
        "what": "test accuracy in percent after the last round",
        "agreement": f"{agree} of {len(found['cells'])} cells",
        "learned_better_beyond_its_interval": f"{sum(gains)} of {len(gains)} cells",
        "fitted": "eta, T, S and the initialisation were chosen by fit to the paper's tables; it does not state them",
        "command": COMMAND,
        "commit": options.commit,
        "seconds": raw["seconds"],
        "environment": raw["environment"],
    }
    write_json(HERE / "accuracy.json", {**about, **found, "damped_server": damped_cells(damped)})
    print(about["agreement"], "agree;", about["learned_better_beyond_its_interval"], "with a gain beyond its interval")


if __name__ == "__main__":
    main()
