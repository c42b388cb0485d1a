"""Bring the parts of the study together: ``python studies/leakage/summarise.py PARTS.json leakage.json``.

PARTS.json lists what was run: {"file", "attacks", "commit", "command", "machine"}. Of every file only the rows of the
named attacks are taken.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

KEPT = (
    "mechanism", "budget", "seed", "round", "role", "lower", "attack", "control", "targets", "label_sets", "evidence",
    "mse", "ssim", "identification", "log_rank", "labels", "labels_exact", "membership_score", "membership_auc",
    "auc_loss", "auc_first", "auc_last", "tpr_loss", "tpr_first", "tpr_last",
)  # fmt: skip
ABLE = 0.05
"""An attack that identifies fewer undistorted releases than this, ten times chance, says nothing at these weights."""
LOWER, NORM, OWN = "static, equal lower bound", "static, equal final norm", "static, own trajectory"


def rounded(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def kept(row: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in row if name in KEPT or name.removesuffix("_low").removesuffix("_high") in KEPT]
    return {name: rounded(row[name]) for name in names if row[name] is not None or name in ("budget", "control")}


def verdict(low: float, high: float, worse_is: int) -> str:
    """From the paired interval of learned - static; ``worse_is`` is the sign of a gap that means more leakage."""
    if low <= 0 <= high:
        return "no clear difference"
    return "learned leaks more" if (low > 0) == (worse_is > 0) else "static leaks more"


def apart(one: dict[str, Any], other: dict[str, Any], name: str) -> str:
    """Likewise from two unpaired intervals: clear only where they do not overlap."""
    if one[f"{name[0]}_low"] > other[f"{name[1]}_high"]:
        return "learned leaks more"
    return "static leaks more" if one[f"{name[0]}_high"] < other[f"{name[1]}_low"] else "no clear difference"


Rows = dict[tuple[Any, ...], dict[str, Any]]


def positive_controls(rows: list[dict[str, Any]]) -> dict[tuple[Any, ...], float]:
    """Identification from undistorted releases at the weights of every learned federation."""
    return {
        (row["attack"], row["budget"], row["round"]): row["identification"]
        for row in rows
        if row["role"] == "undistorted" and row["mechanism"] == "pl-learn" and row["control"] != "negative"
        if "identification" in row
    }


def pairs(rows: Rows, attack: str) -> Iterator[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]]:
    """(what is compared, learned row, static row); at round 0 both trajectories have the same weights."""
    for (name, mechanism, budget, round_number, role), row in rows.items():
        if (name, mechanism, role) != (attack, "pl-learn", "own"):
            continue
        others = {LOWER: (name, "pl-learn", budget, round_number, LOWER)}
        others |= {OWN: (name, "pl-identical", budget, round_number, "own")} if round_number else {}
        for against, key in others.items():
            yield {"attack": attack, "budget": budget, "round": round_number, "against": against}, row, rows[key]


def unpaired(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Membership (the best of three scores on either side) and labels (exact multisets)."""
    table: Rows = {
        (row["attack"], row["mechanism"], row["budget"], row["round"], row["role"]): row
        for row in rows
        if row["control"] != "negative"
    }
    for about, learned, static in pairs(table, "membership"):
        names = tuple(f"auc_{row['membership_score']}" for row in (learned, static))
        values = {"learned": learned["membership_auc"], "static": static["membership_auc"], "measure": "best AUC"}
        yield {**about, **values, "verdict": apart(learned, static, names)}
    for about, learned, static in pairs(table, "labels"):
        names = ("labels_exact", "labels_exact")
        values = {"learned": learned["labels_exact"], "static": static["labels_exact"], "measure": "exact multisets"}
        yield {**about, **values, "verdict": apart(learned, static, names)}


def main() -> None:
    parts = json.loads(Path(sys.argv[1]).read_text())
    rows, gaps, runs, multi = [], [], [], []
    baselines: dict[str, Any] = {}
    for part in parts:
        raw = json.loads((Path(sys.argv[1]).parent / part["file"]).read_text())
        if "multi_round" in raw["spec"]:
            multi += [{name: rounded(value) for name, value in row.items()} for row in raw["attacks"]]
        else:
            rows += [kept(row) for row in raw["attacks"] if row["attack"] in part["attacks"]]
            gaps += [row for row in raw["differences"] if row["attack"] in part["attacks"]]
            baselines = baselines or {
                name: {key: rounded(value) for key, value in guess.items()}
                for name, guess in raw["baselines"]["mnist"].items()
            }
        runs.append({**part, "spec": raw["spec"], "environment": raw["environment"], "seconds": raw.get("seconds")})
    controls = positive_controls(rows)
    answers = []
    for gap in gaps:
        if "log_rank" not in gap or (gap["against"] == OWN and gap["round"] == 0):
            continue
        able = controls[gap["attack"], gap["budget"], gap["round"]] >= ABLE
        about = {name: gap[name] for name in ("attack", "budget", "round", "against")}
        for measure, sign in (("log_rank", -1), ("identification", 1)):
            low, high = gap[f"{measure}_low"], gap[f"{measure}_high"]
            word = verdict(low, high, sign) if able else "control failed"
            values = {"gap": rounded(gap[measure]), "low": rounded(low), "high": rounded(high)}
            answers.append({**about, "measure": measure.replace("_", "-"), **values, "verdict": word})
    answers += unpaired(rows)
    counts: dict[str, dict[str, int]] = {}
    for answer in answers:
        place = counts.setdefault(f"{answer['attack']} ({answer['measure']}) against {answer['against']}", {})
        place[answer["verdict"]] = place.get(answer["verdict"], 0) + 1
    result = {
        "schema": 1, "experiment": "seeded", "dataset": "mnist", "runs": runs, "counts": counts, "answers": answers,
        "rows": rows, "multi_round": multi, "baselines": baselines,
    }  # fmt: skip
    Path(sys.argv[2]).write_text(json.dumps(result, indent=0) + "\n")
    print(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
