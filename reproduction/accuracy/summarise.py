"""Turn raw results of spec.json into accuracy.json: every cell beside the paper's, and Learn minus Identical.

    python reproduction/accuracy/summarise.py OUT/ --commit HASH     # OUT: paper/, damped/, steps/

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

from equipoise.files import write_json
from equipoise.intervals import interval

HERE = Path(__file__).parent
PAIRS = {"PL": ("pl-identical", "pl-learn"), "LS": ("ls-static", "ls-learn")}
COMMAND = "PYTHONPATH=src python -m equipoise.compute reproduction/accuracy/spec.json OUT/paper"


def spread(values: list[float]) -> dict[str, Any]:
    """Mean, standard deviation, 95 % interval of the mean; in points."""
    return {"mean": mean(values), "sd": stdev(values), "interval": interval(values), "seeds": len(values)}


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
    free = {}
    for dataset in ("mnist", "fmnist"):
        values = [100 * row["accuracy"] for row in rows[dataset, "none", None]]
        free[dataset] = {**spread(values), "values": values}
    return {"cells": cells, "learn_minus_identical": pairs, "without_protection": free}


def baseline(raw: dict[str, Any], what: str, name: str, commit: str) -> dict[str, Any]:
    """The same cells under another protocol, with all seeds' values."""
    rows: dict[tuple[str, str, Any], list[float]] = {}
    for row in sorted(raw["federations"], key=lambda row: row["seed"]):
        rows.setdefault((row["dataset"], row["mechanism"], row["budget"]), []).append(100 * row["accuracy"])
    cells = [
        {"dataset": d, "mechanism": m, "budget": b, **spread(values), "values": values}
        for (d, m, b), values in rows.items()
    ]
    command = f"PYTHONPATH=src python -m equipoise.compute reproduction/accuracy/spec_{name}.json OUT/{name}"
    origin = {"command": command, "commit": commit, "seconds": raw["seconds"], "environment": raw["environment"]}
    return {"what": what, **origin, "cells": cells}


def against_learned(cells: list[dict[str, Any]], simple: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Baseline on static noise minus learned distortion under the plain mean, paired over the seeds both have."""
    learned = {(c["dataset"], c["mechanism"], c["budget"]): c["values"] for c in cells}
    partner = {static: learn for static, learn in PAIRS.values()}
    rows = []
    for c in simple:
        if c["mechanism"] in partner:
            theirs = learned[c["dataset"], partner[c["mechanism"]], c["budget"]]
            gains = [a - b for a, b in zip(c["values"], theirs, strict=False)]
            rows.append({"dataset": c["dataset"], "mechanism": c["mechanism"], "budget": c["budget"], **spread(gains)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("raw", type=Path)
    parser.add_argument("--commit", required=True, help="of the paper's protocol and the damped server")
    parser.add_argument("--commit-steps", help="of the eleven steps, if another")
    options = parser.parse_args()
    raw = json.loads((options.raw / "paper" / "result.json").read_text())
    simple = {name: json.loads((options.raw / name / "result.json").read_text()) for name in ("damped", "steps")}
    paper = json.loads((HERE.parent / "paper_accuracy.json").read_text())
    found = summarise(raw, paper)
    agree = sum(cell["agrees"] for cell in found["cells"])
    gains = [pair["interval"][0] > 0 for pair in found["learn_minus_identical"]]
    about = {
        "what": "test accuracy in percent after the last round",
        "agreement": f"{agree} of {len(found['cells'])} cells",
        "within_3_points": sum(abs(cell["difference"]) <= 3 for cell in found["cells"]),
        "within_5_points": sum(abs(cell["difference"]) <= 5 for cell in found["cells"]),
        "learned_better_beyond_its_interval": f"{sum(gains)} of {len(gains)} cells",
        "fitted": "eta, T, S and the initialisation were chosen by fit to the paper's tables; it does not state them. "
        "The subset of images was changed once after results were seen",
        "command": COMMAND,
        "commit": options.commit,
        "seconds": raw["seconds"],
        "environment": raw["environment"],
    }
    damped_what = "server steps of min(1, 1/l), l the expected L2 norm of one distortion: post-processing of releases"
    steps_what = "static noise with eleven local steps a round: as many gradients as learning spends"
    found["damped_server"] = baseline(simple["damped"], damped_what, "damped", options.commit)
    commit = options.commit_steps or options.commit
    found["static_eleven_steps"] = baseline(simple["steps"], steps_what, "steps", commit)
    for name in ("damped_server", "static_eleven_steps"):
        found[name]["minus_learned"] = against_learned(found["cells"], found[name]["cells"])
    write_json(HERE / "accuracy.json", {**about, **found})
    print(about["agreement"], "agree;", about["learned_better_beyond_its_interval"], "with a gain beyond its interval")


if __name__ == "__main__":
    main()
