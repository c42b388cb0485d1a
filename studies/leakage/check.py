"""Is what the study found of first releases still so? Played again on a CPU, with the targets that are built today.

``python studies/leakage/check.py specs FOLDER`` writes the SPECs of the design ``batch-4`` at the first round, with all
of its effort; ``python -m equipoise.compute SPEC.json OUT/NAME`` plays each (half an hour on one core); and
``python studies/leakage/check.py compare OUT studies/leakage/check.json`` sets the figures beside those of
``leakage.json``. Which images are drawn from the pool, and for whom, has changed since that was made.

The rule, fixed before these results, though one cell at full effort had been looked at (static, 0.98, MNIST, seed 1):
two figures of other releases of one pool *differ* where the difference is larger than the root of the sum of the
squares of their half intervals: in one cell of twenty by chance, but cells share their images. The study *stands* if
at most one cell of ten differs and no comparison of learned with static noise at the same weights has the opposite
verdict.
"""

from __future__ import annotations

import json
import subprocess
import sys
from math import hypot
from pathlib import Path
from typing import Any

from equipoise.environment import environment

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from make_spec import DATASETS, spec  # noqa: E402
from summarise import MEASURES, PLACE, collected, rounded, summarise  # noqa: E402

OPPOSITE = {"learned leaks more": "static leaks more", "static leaks more": "learned leaks more"}
ODD, ALLOWED = "differ", 0.1


def specs() -> dict[str, dict[str, Any]]:
    """By dataset and seed: first releases need no training."""
    every = {}
    for dataset in DATASETS:
        for seed in (1, 2, 3):
            one = spec("batch-4", dataset, (seed,), snapshots=[0])
            every[f"{dataset}-{seed}"] = {
                **one,
                "settings": {**one["settings"], "rounds": 1, "device": "cpu", "threads": 1},
            }
    return every


def table(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Every figure of the new rows beside the old one, and every comparison whose verdict is another."""
    known = {_place(row): row for row in old["rows"]}
    figures = [
        _beside(known[_place(row)], row, measure)
        for row in new["rows"] for measure in MEASURES[row["attack"]] if row["control"] != "negative"
    ]  # fmt: skip
    said = {(*_place(row), row["against"]): row["verdict"] for row in old["verdicts"]}
    verdicts = []
    for row in new["verdicts"]:
        before = said[*_place(row), row["against"]]
        if before != row["verdict"]:
            about = {name: row[name] for name in (*PLACE, "against")}
            verdicts.append({**about, "old": before, "new": row["verdict"]})
    different = sum(one[ODD] for one in figures)
    turned = [one for one in verdicts if OPPOSITE.get(one["old"]) == one["new"]]
    return {
        "stands": different <= ALLOWED * len(figures) and not turned, "compared": len(figures), ODD: different,
        "verdicts": len(new["verdicts"]), "other_verdicts": verdicts, "figures": figures,
    }  # fmt: skip


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return (*(row[name] for name in PLACE), row.get("control"))


def _beside(old: dict[str, Any], new: dict[str, Any], measure: str) -> dict[str, Any]:
    halves = [(row[f"{measure}_high"] - row[f"{measure}_low"]) / 2 for row in (old, new)]
    about = {name: new[name] for name in PLACE}
    different = abs(new[measure] - old[measure]) > hypot(*halves)
    return {**about, "measure": measure, "old": old[measure], "new": new[measure], ODD: different}


def main() -> None:
    what, folder = sys.argv[1], Path(sys.argv[2])
    if what == "specs":
        folder.mkdir(parents=True, exist_ok=True)
        for name, value in specs().items():
            (folder / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")
        return
    parts = [{"folder": name, "design": "batch-4"} for name in specs()]
    values, _, _ = collected(parts, folder)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=HERE, capture_output=True, text=True)
    result = table(json.loads((HERE / "leakage.json").read_text()), rounded(summarise(values)))
    about = {"schema": 1, "command": "python studies/leakage/check.py", "commit": commit.stdout.strip()}
    Path(sys.argv[3]).write_text(json.dumps({**about, "environment": environment(), **result}, indent=1) + "\n")
    print({key: result[key] for key in ("stands", "compared", ODD, "verdicts")}, len(result["other_verdicts"]))


if __name__ == "__main__":
    main()
