"""Bring the parts of the study together: ``python studies/leakage/summarise.py PARTS.json leakage.json``.

PARTS.json lists what was run: {"file", "attacks", "commit", "command", "machine"}. Of every file only the rows of the
named attacks are taken.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

KEPT = (
    "mechanism", "budget", "seed", "round", "role", "lower", "attack", "control", "targets", "label_sets", "evidence",
    "mse", "ssim", "identification", "log_rank", "labels", "labels_exact", "membership_score", "membership_auc",
    "auc_loss", "auc_first", "auc_last", "tpr_loss", "tpr_first", "tpr_last",
)  # fmt: skip
LOWER, NORM, OWN = "static, equal lower bound", "static, equal final norm", "static, own trajectory"


def rounded(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value


def kept(row: dict[str, Any]) -> dict[str, Any]:
    names = [name for name in row if name in KEPT or name.removesuffix("_low").removesuffix("_high") in KEPT]
    return {name: rounded(row[name]) for name in names if row[name] is not None or name in ("budget", "control")}


def verdict(gap: dict[str, Any]) -> str:
    """Whether learned leaks more than static, by the paired interval of the identification's mean log-rank."""
    if gap["log_rank_high"] < 0:
        return "learned leaks more"
    return "static leaks more" if gap["log_rank_low"] > 0 else "no clear difference"


def membership_verdicts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Best of three scores for each side; clear where the 95 % intervals of the two AUCs do not overlap."""
    mine = {
        (row["budget"], row["round"], row["mechanism"], row["role"]): row
        for row in rows if row["attack"] == "membership" and row["control"] != "negative"
    }  # fmt: skip
    found = []
    for (budget, when, mechanism, role), row in mine.items():
        if mechanism != "pl-learn" or role != "own":
            continue
        for name, key in ((LOWER, (budget, when, "pl-learn", LOWER)), (OWN, (budget, when, "pl-identical", "own"))):
            other = mine[key]
            ends = [
                (r[f"auc_{r['membership_score']}_low"], r[f"auc_{r['membership_score']}_high"]) for r in (row, other)
            ]
            word = "no clear difference"
            if ends[0][0] > ends[1][1]:
                word = "learned leaks more"
            elif ends[0][1] < ends[1][0]:
                word = "static leaks more"
            gap = {"learned": row["membership_auc"], "static": other["membership_auc"], "verdict": word}
            found.append({"attack": "membership", "budget": budget, "round": when, "against": name, **gap})
    return found


def best_verdicts(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The better of lti and matched for each side, by identification; clear where the intervals do not overlap."""
    best: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        if row["attack"] in ("lti", "matched") and row["control"] != "negative":
            key = (row["budget"], row["round"], row["mechanism"], row["role"])
            if key not in best or row["identification"] > best[key]["identification"]:
                best[key] = row
    found = []
    for (budget, when, mechanism, role), row in best.items():
        if mechanism != "pl-learn" or role != "own":
            continue
        sides = ((LOWER, (budget, when, "pl-learn", LOWER)), (OWN, (budget, when, "pl-identical", "own")))
        for name, key in sides:
            other, word = best[key], "no clear difference"
            if row["identification_low"] > other["identification_high"]:
                word = "learned leaks more"
            elif row["identification_high"] < other["identification_low"]:
                word = "static leaks more"
            gap = {"learned": row["identification"], "static": other["identification"], "verdict": word}
            found.append({"attack": "best of lti and matched", "budget": budget, "round": when, "against": name, **gap})
    return found


def main() -> None:
    parts = json.loads(Path(sys.argv[1]).read_text())
    rows, gaps, runs, multi = [], [], [], []
    baselines: dict[str, Any] = {}
    for part in parts:
        raw = json.loads(Path(part.pop("file")).read_text())
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
    answers = [
        {
            "attack": gap["attack"], "budget": gap["budget"], "round": gap["round"], "against": gap["against"],
            **{name: rounded(gap[name]) for name in gap if name.startswith(("log_rank", "identification"))},
            "verdict": verdict(gap),
        }
        for gap in gaps if "log_rank" in gap
    ]  # fmt: skip
    answers += membership_verdicts(rows) + best_verdicts(rows)
    counts: dict[str, dict[str, int]] = {}
    for answer in answers:
        place = counts.setdefault(f"{answer['attack']} against {answer['against']}", {})
        place[answer["verdict"]] = place.get(answer["verdict"], 0) + 1
    found = {
        "schema": 1, "experiment": "seeded", "dataset": "mnist", "runs": runs, "counts": counts, "answers": answers,
        "rows": rows, "multi_round": multi, "baselines": baselines,
    }  # fmt: skip
    Path(sys.argv[2]).write_text(json.dumps(found, indent=0) + "\n")
    print(json.dumps(counts, indent=1))


if __name__ == "__main__":
    main()
