"""Write the SPEC of the leakage study: ``python studies/leakage/make_spec.py mnist ROUND... > spec.json``."""

from __future__ import annotations

import json
import sys

BUDGETS = {2: 0.995, 8: 0.98, 16: 0.96, 32: 0.92}
"""Lower bound of the distortion's L2 norm, to three digits, by the PL budget that asks for it."""


def spec(dataset: str, rounds: list[int], device: str = "cuda") -> dict[str, object]:
    protected = [
        {"dataset": dataset, "mechanism": mechanism, "budget": budget}
        for budget in BUDGETS.values()
        for mechanism in ("pl-identical", "pl-learn")
    ]
    return {
        "settings": {"rounds": max(1, *rounds), "device": device},
        "federations": [{"dataset": dataset, "mechanism": "none"}, *protected],
        "audit": {
            "rounds": rounds,
            "attacks": ["lti", "matched", "membership", "labels"],
            "releases": 500,
            "label_sets": 5,
            "samples": 2000,
            "given": "best",
            "pairs": 8,
            "anchors": 8,
            "around": 64,
            "tuning": 32,
            "trials": 64,
            "companions": 2,
            "nulls": 16,
            "pictures": 0,
        },
    }


if __name__ == "__main__":
    print(json.dumps(spec(sys.argv[1], [int(when) for when in sys.argv[2:]]), indent=1))
