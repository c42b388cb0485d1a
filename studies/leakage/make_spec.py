"""Write the SPECs of the leakage study: ``python studies/leakage/make_spec.py OUT/``.

===========================  ========================================================================================
batch-4-DATASET              none, static and learned with batches of 4
batch-4-more-DATASET         static and learned with batches of 4 at lower bounds of 16 and 32
batch-44-DATASET             none and static with batches of 44: as many gradients a round as learning spends with 4
eleven-steps-DATASET         static with eleven local steps of 4: likewise, and the first and last round alone
eleven-steps-middle-DATASET  the same after 4 and 40 % of the rounds
lti-DATASET                  the first design again for ``lti``, one trajectory
trained-44                   none and static with batches of 44, eight seeds, both datasets: accuracy alone
trained-44-damped            the same with a damped server
multi_round                  5,000 rounds of one client combined, 100 of its images: static, learned at lower bound 8
multi_round_2                the same at lower bound 2
multi_round_cpu              the first 300 rounds at lower bound 8, for a machine without a GPU
multi_round_small            1,000 rounds of a client with a fifth of the images, for such a machine too: static alone
===========================  ========================================================================================

Each mechanism is attacked on three trajectories of its own (seeds 1, 2, 3), at the first round and after 4, 40 and
100 % of 5,000 rounds. Designs differ in how many releases the pool of 2,500 images has distinct images for.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

BUDGETS = {2: 0.995, 8: 0.98, 16: 0.96, 32: 0.92}
"""PL budget by the lower bound of the distortion's L2 norm that it asks for, to three digits."""
LOWERS = (2, 8)
DATASETS = ("mnist", "fmnist")
ROUNDS = [0, 200, 2000, 5000]
STATIC, LEARNED = "pl-identical", "pl-learn"

EFFORT = {"candidates": 200, "tuning": 32, "trials": 64, "pictures": 0}
"""Of ``matched`` and ``membership``, more than an audit takes by default."""
DESIGNS: dict[str, dict[str, Any]] = {
    "batch-4": {
        "settings": {}, "mechanisms": (STATIC, LEARNED), "snapshots": ROUNDS,
        "audit": {"releases": 200, "others": 8, "label_sets": 3, "pairs": 8, "anchors": 4, "around": 64},
    },
    "batch-44": {
        "settings": {"batch": 44}, "mechanisms": (STATIC,), "snapshots": ROUNDS,
        "audit": {"releases": 27, "others": 40, "label_sets": 1, "pairs": 2, "anchors": 4, "around": 256},
    },
    "eleven-steps": {
        "settings": {"local_steps": 11}, "mechanisms": (STATIC,), "snapshots": [0, 5000],
        "audit": {"releases": 27, "others": 40, "label_sets": 1, "pairs": 1, "anchors": 2, "around": 96},
    },
}  # fmt: skip
"""A learned response is a mean over noise, so ``pairs`` is what ``matched`` lives by there; 43 companions take more
simulations (``around``) to describe than three. Eleven steps have about 38 labels and steps to simulate, each for
itself: there the effort was cut to what fits the time."""


def spec(
    design: str, dataset: str, seeds: tuple[int, ...] = (1, 2, 3), more: bool = False, **audit: Any
) -> dict[str, Any]:
    about, lowers = DESIGNS[design], (16, 32) if more else LOWERS
    kinds: list[tuple[str, float | None]] = [] if more else [("none", None)]
    kinds += [(name, BUDGETS[lower]) for lower in lowers for name in about["mechanisms"]]
    federations = [
        {"dataset": dataset, "mechanism": name, "budget": budget, "seed": seed}
        for seed in seeds for name, budget in kinds
    ]  # fmt: skip
    names = ["matched", "membership"] + (["labels"] if design == "batch-4" else [])  # 44 examples have all labels
    attacks = {"attacks": names, "samples": 2000, "snapshots": about["snapshots"]}
    settings = {"rounds": max(ROUNDS), "device": "cuda", **about["settings"]}
    return {"settings": settings, "federations": federations, "audit": {**EFFORT, **about["audit"], **attacks, **audit}}


def trained(**settings: Any) -> dict[str, Any]:
    """What batches of 44 train to."""
    kinds = [("none", None)] + [(STATIC, BUDGETS[lower]) for lower in LOWERS]
    federations = [
        {"dataset": dataset, "mechanism": name, "budget": budget, "seed": seed}
        for dataset in DATASETS for seed in range(1, 9) for name, budget in kinds
    ]  # fmt: skip
    common = {"rounds": max(ROUNDS), "device": "cuda", "evaluate_every": 250, **DESIGNS["batch-44"]["settings"]}
    return {"settings": {**common, **settings}, "federations": federations}


WHOLE = {"examples": 100, "decoys": 49, "around": 32, "pairs": 2}
"""Images of the client and how much is simulated, where a GPU combines a whole run. The filter was chosen on seed 1."""


SMALL = {"examples": 60, "decoys": 15, "around": 32}
"""Likewise of the small client, whose images are in as many releases of 1,000 rounds as those of others in 5,000."""


def multi_round(
    settings: dict[str, Any], lower: int, mechanisms: tuple[str, ...] = (STATIC, LEARNED), **how: int
) -> dict[str, Any]:
    federations = [{"mechanism": name, "budget": BUDGETS[lower], "seed": 2} for name in mechanisms]
    return {"settings": settings, "federations": federations, "multi_round": how}


def specs() -> dict[str, dict[str, Any]]:
    """All of them by name."""
    result = {f"{design}-{dataset}": spec(design, dataset) for design in DESIGNS for dataset in DATASETS}
    result |= {f"batch-4-more-{dataset}": spec("batch-4", dataset, more=True) for dataset in DATASETS}
    result |= {
        f"eleven-steps-middle-{dataset}": spec("eleven-steps", dataset, snapshots=ROUNDS[1:3]) for dataset in DATASETS
    }
    result |= {f"lti-{dataset}": spec("batch-4", dataset, (1,), attacks=["lti"]) for dataset in DATASETS}
    whole = {"rounds": max(ROUNDS), "device": "cuda"}
    return result | {
        "trained-44": trained(),
        "trained-44-damped": trained(server_rate="auto"),
        "multi_round": multi_round(whole, 8, **WHOLE),
        "multi_round_2": multi_round(whole, 2, **WHOLE),
        "multi_round_cpu": multi_round({"rounds": 300, "threads": 1}, 8),
        "multi_round_small": multi_round(
            {"rounds": 1000, "threads": 1, "sizes": [1, 6, 6, 6]}, 8, mechanisms=(STATIC,), **SMALL
        ),
    }


if __name__ == "__main__":
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for name, value in specs().items():
        (out / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")
