"""InvGrad under settings that the paper does not state: which of them come near its MSE table?

    PYTHONPATH=src python studies/invgrad/variants.py OUT.json [COMMIT]     # on a GPU: torch and numpy alone

Releases are those of ``equipoise reproduce``: of all four clients, in the round after the last of 5,000.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import torch

from equipoise.attack.descent import Search
from equipoise.attack.invgrad import invgrad
from equipoise.attack.view import View
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.environment import environment
from equipoise.reproduction.measures import attacked_releases, errors, server_and_materials

PAPER = Search(starts=1)
VARIANTS = {
    "the paper's, signed": PAPER,
    "unsigned": replace(PAPER, signed=False),
    "signed, lr 0.1": replace(PAPER, lr=0.1),
    "unsigned, lr 0.1": replace(PAPER, lr=0.1, signed=False),
    "signed, tv 0.1": replace(PAPER, tv=0.1),
    "unsigned, tv 0.1": replace(PAPER, signed=False, tv=0.1),
    "signed, no decay": replace(PAPER, decay=False),
}


def main() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    federations = [
        Federation(dataset, mechanism, budget, seed)
        for dataset in ("mnist", "fmnist")
        for mechanism in ("pl-identical", "pl-learn")
        for budget in (0.96, 0.98, 0.995)
        for seed in range(1, 9)
    ]
    started = time.perf_counter()
    sweep = Sweep(Settings.flat(device=device, snapshots=[]), federations)
    sweep.train(sweep.settings.training.rounds)
    rows = []
    for dataset, mine in attacked_releases(sweep, sweep.settings.protection.clients).items():
        server, materials = server_and_materials(sweep, dataset)
        truth, labels = sweep.inputs[mine.examples], sweep.labels[mine.examples]
        view = View(sweep.state.params[mine.federations], mine.released, labels)
        for name, search in VARIANTS.items():
            result = errors(invgrad(server, view, search).images, truth, labels, materials)[1]
            for i in sorted(set(mine.federations)):
                own = [place for place, f in enumerate(mine.federations) if f == i]
                federation = sweep.federations[i]
                means = {key: float(values[own].mean()) for key, values in result.items()}
                rows.append(
                    {
                        "variant": name,
                        "dataset": dataset,
                        "mechanism": federation.mechanism,
                        "budget": federation.budget,
                        "seed": federation.seed,
                        **means,
                    }
                )
            print(f"{dataset} {name} {time.perf_counter() - started:.0f} s", flush=True)
            content = {
                "command": "PYTHONPATH=src python studies/invgrad/variants.py OUT.json",
                "commit": sys.argv[2] if len(sys.argv) > 2 else None,
                "what": "mean over the four clients' batches of four, per seed; SSIM and MSE as in reproduction/",
                "seconds": time.perf_counter() - started,
                "environment": environment(device),
                "rows": rows,
            }
            Path(sys.argv[1]).write_text(json.dumps(content, indent=0) + "\n")


if __name__ == "__main__":
    main()
