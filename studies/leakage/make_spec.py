"""Write the SPECs of the leakage study: ``python studies/leakage/make_spec.py OUT/``.

=================  =============================================================================================
main.json          500 releases, rounds 0, 200 and 2000 of every mechanism's own trajectory, seed 1: every attack
seeds.json         120 releases, two further trajectories (seeds 2 and 3), rounds 200 and 2000
multi_round.json   5,000 rounds of one client combined, 100 of its images: static, learned at lower bound 8
multi_round_2      the same at lower bound 2
multi_round_cpu    the first 300 rounds at lower bound 8, for a machine without a GPU
=================  =============================================================================================
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BUDGETS = {2: 0.995, 8: 0.98, 16: 0.96, 32: 0.92}
"""Lower bound of the distortion's L2 norm, to three digits, by the PL budget that asks for it."""

EFFORT = {
    "label_sets": 5, "samples": 2000, "condition_on": "best", "pairs": 8, "anchors": 8, "around": 64, "tuning": 32,
    "trials": 64, "companions": 2, "nulls": 16, "pictures": 0,
}  # fmt: skip
ATTACKS = ["lti", "matched", "membership", "labels"]


def spec(snapshots: list[int], seeds: list[int], releases: int, device: str = "cuda", **other: Any) -> dict[str, Any]:
    kinds = [("none", None)]
    kinds += [(mechanism, budget) for budget in BUDGETS.values() for mechanism in ("pl-identical", "pl-learn")]
    federations = [{"mechanism": name, "budget": budget, "seed": seed} for seed in seeds for name, budget in kinds]
    audit = {"snapshots": snapshots, "attacks": ATTACKS, "releases": releases, **EFFORT, **other}
    return {"settings": {"rounds": max(snapshots), "device": device}, "federations": federations, "audit": audit}


WHOLE = {"examples": 100, "decoys": 49, "around": 32, "pairs": 2}
"""Images of the client and how much is simulated, where a GPU combines a whole run."""


def multi_round(settings: dict[str, Any], lower: int, **how: int) -> dict[str, Any]:
    federations = [{"mechanism": name, "budget": BUDGETS[lower]} for name in ("pl-identical", "pl-learn")]
    return {"settings": settings, "federations": federations, "multi_round": how}


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    specs = {
        "main": spec([0, 200, 2000], [1], 500),
        "seeds": spec([200, 2000], [2, 3], 120, label_sets=3, samples=1000, twins=False),
        "multi_round": multi_round({"rounds": 5000, "device": "cuda"}, 8, **WHOLE),
        "multi_round_2": multi_round({"rounds": 5000, "device": "cuda"}, 2, **WHOLE),
        "multi_round_cpu": multi_round({"rounds": 300, "threads": 1}, 8),
    }
    for name, value in specs.items():
        (out / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")
