"""Choose the defaults of gaussian-dp on stand-in clients made of public images; see docs/tuning_gaussian_dp.md.

    python studies/gaussian_dp/tune.py search grid rounds star final --out FOLDER   (one GPU: about eight minutes)
    python studies/gaussian_dp/tune.py collect FOLDER                               (writes tuning.json)
    python studies/gaussian_dp/tune.py tables                                       (fills the page from tuning.json)

``search`` runs the grids of ``steps.py`` and writes the accuracies of every run to FOLDER. It needs torch, numpy and
this package. On a CPU a step takes days; ``--tiny`` shortens each to two runs of two rounds, to see that it works.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
from dataclasses import asdict, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import torch
from runs import DATASETS, Level, Setting
from steps import CHOSEN, DISPLACEMENT, MAIN, SMALL, STEPS, Rows, Search, curves, ruled

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "tuning_gaussian_dp.md"
NAMES = {"mnist": "MNIST", "fmnist": "Fashion-MNIST"}
COLUMNS = ("rate", "mnist", "mnist_error", "mnist_averaged", "fmnist", "fmnist_error", "fmnist_averaged")
ABOUT = {
    "command": "python studies/gaussian_dp/tune.py search grid rounds star final --out FOLDER",
    "machine": "one NVIDIA H200, torch 2.11.0, Python 3.12; 463 s of runs in three commands, 615 s with its starts",
    "data": "public_attack of mnist and fmnist, 3,000 images each: 2,400 train, 600 validate, in five folds",
    "noise": "as for 1,000 records a client (or 125): noise on the mean = sigma clip / (divisor sqrt(clients))",
    "guarantee": "whole run, record level, add/remove, delta 1e-5, every record in every round",
    "columns": "accuracy in % over folds and seeds, its standard error (between runs), and that of averaged weights",
}


def collect(folder: Path) -> dict[str, Any]:
    """Every setting tried, with its accuracies: by step, shape and level a list of ``COLUMNS``."""
    rows = [row for path in sorted(folder.glob("*.json")) for row in json.loads(path.read_text())]
    found: dict[Any, dict[str, list[float]]] = {}
    for row in rows:
        key = tuple(row[name] for name in ("step", *Setting.__dataclass_fields__, *Level.__dataclass_fields__))
        values = row["accuracies"]
        error = stdev(values) / math.sqrt(len(values)) if len(values) > 1 else math.nan
        part = [round(x, 2) for x in (mean(values), error, mean(row["averaged"]))]
        found.setdefault((key, row["folds"], row["seeds"]), {})[row["dataset"]] = part
    entries: dict[Any, dict[str, Any]] = {}
    names = [name for name in Setting.__dataclass_fields__ if name != "rate"]
    for (key, folds, seeds), parts in found.items():
        step, *rest = key
        setting, level = Setting(*rest[:-3]), Level(*rest[-3:])
        shape = tuple(getattr(setting, name) for name in names)
        about = {"step": step, **dict(zip(names, shape, strict=True)), "folds": folds, "seeds": seeds, "levels": {}}
        levels = entries.setdefault((step, shape, folds, seeds), about)["levels"]
        line = [setting.rate, *parts[DATASETS[0]], *parts[DATASETS[1]]]
        levels.setdefault(f"{level.epsilon:g} {level.clients}x{level.divisor}", []).append(line)
    return {"about": ABOUT, "line": COLUMNS, "shapes": list(entries.values())}


def write(folder: Path) -> None:
    result = collect(folder)
    shapes = ",\n".join(json.dumps(shape, separators=(",", ":")) for shape in result["shapes"])
    head = json.dumps({name: result[name] for name in ("about", "line")}, indent=1)[:-2]
    (HERE / "tuning.json").write_text(f'{head},\n "shapes": [\n{shapes}\n]}}\n')


def read() -> Rows:
    """The lines of tuning.json, one for each setting, level and dataset."""
    rows = []
    for shape in json.loads((HERE / "tuning.json").read_text())["shapes"]:
        about = {name: value for name, value in shape.items() if name != "levels"}
        for level, lines in shape["levels"].items():
            epsilon, clients, divisor = (float(part) for part in level.replace("x", " ").split())
            for line in lines:
                for dataset, part in zip(DATASETS, (line[1:4], line[4:7]), strict=True):
                    row = {"epsilon": epsilon, "clients": int(clients), "divisor": int(divisor), "dataset": dataset}
                    names = ("mean", "error", "averaged")
                    rows.append({**about, **row, "rate": line[0], **dict(zip(names, part, strict=True))})
    return rows


def chosen_table(rows: Rows) -> str:
    """Accuracies by the rule for the rate, and what it loses against the best of the neighbouring rates."""
    lines = ["| model, rounds | clients | | eps 1 | 2 | 4 | 8 |", "|---" * 7 + "|"]
    shapes = [*CHOSEN[:2], replace(CHOSEN[1], rounds=100), *CHOSEN[2:]]
    for shape, levels in itertools.product(shapes, (MAIN, SMALL)):
        known = curves([row for row in rows if row["step"].endswith("final")], "mean")[shape]
        if levels[0] not in known:
            continue
        title = f"| {shape.model}, {shape.rounds} | {levels[0].clients} x {levels[0].divisor} |"
        pairs = ruled([shape], levels, (1.0,))
        for dataset in DATASETS:
            parts = [pick(rows, setting, level, dataset) for setting, level in pairs]
            cells = [f"{part['mean']:.1f} ± {part['error']:.1f}" for part in parts]
            lines.append(f"{title} {NAMES[dataset]} | " + " | ".join(cells) + " |")
            title = "| | |"
        if len(known[levels[0]]) > 1:
            lost = [max(known[level].values()) - known[level][setting.rate] for setting, level in pairs]
            lines.append("| | | lost to the best rate | " + " | ".join(f"{x:.1f}" for x in lost) + " |")
    return "\n".join(lines)


def pick(rows: Rows, setting: Setting, level: Level, dataset: str) -> dict[str, Any]:
    wanted = {**asdict(setting), **asdict(level), "dataset": dataset}
    return next(
        row
        for row in rows
        if row["step"].endswith("final") and all(row[name] == value for name, value in wanted.items())
    )


def near_table(rows: Rows) -> str:
    """Mean over datasets and epsilon 1 to 8 of the best rate's accuracy, for the chosen shapes and their neighbours."""
    lines = ["| model | step | rounds | clip | momentum | init | scale | 4 x 1000 | 32 x 125 |", "|---" * 9 + "|"]
    for step in ("final", "star"):
        for model in DISPLACEMENT:
            here = [row for row in rows if row["step"] == f"{model} {step}" and row["epsilon"] <= 8]
            for shape, levels in curves(here, "mean").items():
                cells = []
                for clients in (4, 32):
                    best = [max(by.values()) for level, by in levels.items() if level.clients == clients]
                    cells.append(f"{mean(best):.2f}" if best else "")
                about = f"{shape.rounds} | {shape.clip:g} | {shape.momentum:g} | {shape.init} | {shape.scale:g}"
                lines.append(f"| {model} | {step} | {about} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def filled(page: str, rows: Rows) -> str:
    """The page with both tables made anew."""
    for name, table in (("chosen", chosen_table(rows)), ("near", near_table(rows))):
        before, rest = page.split(f"<!-- {name}: begin -->\n")
        page = f"{before}<!-- {name}: begin -->\n{table}\n<!-- {name}: end -->{rest.split(f'<!-- {name}: end -->')[1]}"
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    search = commands.add_parser("search", help="run grids")
    search.add_argument("steps", nargs="+", choices=STEPS)
    search.add_argument("--out", type=Path, required=True)
    search.add_argument("--tiny", action="store_true")
    commands.add_parser("collect", help="write tuning.json").add_argument("folder", type=Path)
    commands.add_parser("tables", help="fill the page's tables")
    options = parser.parse_args()
    if options.command == "search":
        torch.backends.cuda.matmul.allow_tf32 = True
        options.out.mkdir(parents=True, exist_ok=True)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        for step in options.steps:
            STEPS[step](Search(options.out / f"{step}.json", device, options.tiny))
    elif options.command == "collect":
        write(options.folder)
    else:
        PAGE.write_text(filled(PAGE.read_text(), read()))


if __name__ == "__main__":
    main()
