"""Inversions of single releases: InvGrad by start, rate and sign, and every other attack that optimises inputs.

``python studies/invgrad/run.py OUT/ COMMIT [DEVICE]``: 32 releases of four MNIST images over 8 label sets at the first
round, LeNetZhu; torch and numpy alone. OUT gets ``invgrad.json`` and ``values.npz``, with the values of every release.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from equipoise.attack.view import Server
from equipoise.auditing.cells import Cell, server_of
from equipoise.auditing.examine import attack_cell
from equipoise.auditing.options import AuditOptions
from equipoise.auditing.results import Outcome, summary
from equipoise.auditing.scoring import baselines
from equipoise.auditing.store import Values, packed, unpacked
from equipoise.auditing.targets import Materials, build_targets
from equipoise.data.loading import load
from equipoise.engine.settings import Settings
from equipoise.environment import environment
from equipoise.mechanism.protection import NO_PROTECTION
from equipoise.models.batched import Batched
from equipoise.models.bundled import LeNetZhu
from equipoise.randomness import experiment_key, uniform

SEED, RELEASES, LABEL_SETS = 1, 32, 8
DEFENCES = [(name, budget) for budget in (0.995, 0.98) for name in ("pl-identical", "pl-learn")]
OTHERS = ("dlg", "idlg", "likelihood", "unrolled")

Case = dict[str, Any]


def cases() -> list[Case]:
    """InvGrad undistorted with every setting, distorted with two; the others with their own settings."""
    plain = [
        {"attack": "invgrad", "init": init, "lr": lr, "signed": signed, "mechanism": "none", "budget": None}
        for init in ("torch", "uniform") for lr in (1.0, 0.1) for signed in (True, False)
    ]  # fmt: skip
    defended = [
        {"attack": "invgrad", "init": "uniform", "lr": lr, "signed": lr == 1.0, "mechanism": name, "budget": budget}
        for name, budget in DEFENCES for lr in (1.0, 0.1)
    ]  # fmt: skip
    places = [("torch", "none", None), ("uniform", "none", None), *(("uniform", *defence) for defence in DEFENCES)]
    others = [
        {"attack": attack, "init": init, "mechanism": name, "budget": budget}
        for attack in OTHERS for init, name, budget in places
    ]  # fmt: skip
    return plain + defended + others


def weights(kind: str, batched: Batched) -> Tensor:
    if kind == "uniform":  # as the engine draws U(-0.5, 0.5) for this seed
        numbers = uniform([experiment_key(SEED, "init")], [0], [0], batched.layout.size, torch.float64)[0, 0]
        return (numbers - 0.5).float()
    torch.manual_seed(SEED)
    return batched.layout.flatten(dict(LeNetZhu().named_parameters()))


def rows_of(values: Values) -> list[Case]:
    """The figures of every case from what was measured on every release."""
    return [{**one.about, "releases": RELEASES, **summary(one.values)} for one in values.outcomes]


def main() -> None:
    out, commit = Path(sys.argv[1]), sys.argv[2]
    device = torch.device(sys.argv[3] if len(sys.argv) > 3 else "cpu")
    data, settings, batched = load("mnist"), Settings(), Batched(LeNetZhu().to(device), device=device)
    materials = Materials.of(data).to(device, torch.float32)
    server: Server = server_of(settings, data, batched, NO_PROTECTION)
    outcomes: list[Outcome] = []
    for case in cases():
        search = {name: case[name] for name in ("lr", "signed") if name in case}
        options = AuditOptions(
            attacks=[case["attack"]], releases=RELEASES, label_sets=LABEL_SETS, candidates=200, pictures=0, **search
        )
        targets = build_targets(materials, server, options)
        protection = settings.protection.at(case["mechanism"], case["budget"], 1)
        started = time.perf_counter()
        cell = Cell(weights(case["init"], batched).to(device), replace(server, protection=protection), {})
        result = attack_cell(cell, targets, materials, options)[0]
        about = {**case, "seconds": round(time.perf_counter() - started, 1)}
        outcomes.append(replace(result, about=about, negative={}, images=None))
        print(about, f"MSE {result.values['mse'].mean():.4f}", flush=True)
    content = packed(Values(outcomes))
    guesses = baselines(targets, materials, server)
    whole = {
        "rows": rows_of(unpacked(content)), "baselines": {name: summary(values) for name, values in guesses.items()},
        "seed": SEED, "command": "python studies/invgrad/run.py OUT/ COMMIT DEVICE", "commit": commit,
        "environment": environment(device),
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    (out / "values.npz").write_bytes(content)
    (out / "invgrad.json").write_text(json.dumps(whole, indent=1) + "\n")


if __name__ == "__main__":
    main()
