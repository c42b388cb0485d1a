"""InvGrad on undistorted releases (two initialisations, learning rates, signed and unsigned), and on distorted ones.

``python studies/invgrad/run.py OUT.json``: 32 releases of four MNIST images (and the first eight by themselves),
1,600 iterations, one restart, LeNetZhu.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from equipoise.attack.view import Server
from equipoise.auditing.cells import Cell, server_of
from equipoise.auditing.examine import attack_cell
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.results import summary
from equipoise.auditing.scoring import baselines
from equipoise.auditing.targets import Materials, build_targets
from equipoise.data.loading import load
from equipoise.engine.settings import Settings
from equipoise.environment import environment
from equipoise.mechanism.protection import NO_PROTECTION
from equipoise.models.batched import Batched
from equipoise.models.bundled import LeNetZhu
from equipoise.randomness import experiment_key, uniform

SEED = 1


def weights(kind: str, batched: Batched) -> torch.Tensor:
    if kind == "uniform":  # as the engine draws U(-0.5, 0.5) for this seed
        numbers = uniform([experiment_key(SEED, "init")], [0], [0], batched.layout.size, torch.float64)[0, 0]
        return (numbers - 0.5).float()
    torch.manual_seed(SEED)
    return batched.layout.flatten(dict(LeNetZhu().named_parameters()))


def main() -> None:
    data, settings, batched = load("mnist"), Settings(), Batched(LeNetZhu())
    materials = Materials.of(data)
    server: Server = server_of(settings, data, batched, NO_PROTECTION)
    rows: list[dict[str, Any]] = []
    plain = [
        (init, lr, signed, "none", None)
        for init in ("torch", "uniform")
        for lr in (1.0, 0.1)
        for signed in (True, False)
    ]
    kinds = [(name, budget) for budget in (0.995, 0.98) for name in ("pl-identical", "pl-learn")]
    defended = [("uniform", lr, lr == 1.0, *kind) for kind in kinds for lr in (1.0, 0.1)]
    for init, lr, signed, name, budget in plain + defended:
        protection = settings.protection.at(name, budget, 1)
        options = AuditOptions(attacks=["invgrad"], releases=32, label_sets=8, lr=lr, signed=signed, pictures=0)
        targets = build_targets(materials, server, options)
        started = time.perf_counter()
        outcome = attack_cell(
            Cell(weights(init, batched), replace(server, protection=protection), {}), targets, materials, options
        )[0]
        about = {"init": init, "lr": lr, "signed": signed, "mechanism": name, "budget": budget}
        rows.append(
            {
                **about,
                "releases": 32,
                **summary(outcome.values),
                "first_eight": summary({name: v[:8] for name, v in outcome.values.items()}),
                "seconds": round(time.perf_counter() - started, 1),
            }
        )
        print(about, f"MSE {rows[-1]['mse']:.4f} SSIM {rows[-1]['ssim']:.3f}", flush=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "rows": rows,
        "baselines": {name: summary(values) for name, values in baselines(targets, materials, server).items()},
        "seed": SEED,
        "command": "python studies/invgrad/run.py OUT.json",
        "commit": commit.stdout.strip(),
        "environment": environment(torch.device("cpu")),
    }
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
