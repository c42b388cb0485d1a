"""84 federations x 5,000 rounds on one GPU, and how far CPU and GPU agree.

    PYTHONPATH=src python benchmarks/gpu_sweep.py [--rounds 5000] [--out gpu_sweep.json]

Needs torch and numpy alone. The sweep is two datasets x (ten budgets x static and learned + none) x two seeds,
with the paper's settings. The time includes set-up, capture of the round and all evaluations.
"""

import argparse
import json
import time
from pathlib import Path

import torch

from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.environment import environment

PL, LS = (0.96, 0.97, 0.98, 0.99, 0.995), (80, 200, 400, 600, 800)


def sweep_of_84() -> list[Federation]:
    kinds = [(m, b) for m in ("pl-identical", "pl-learn") for b in PL]
    kinds += [(m, b) for m in ("ls-static", "ls-learn") for b in LS] + [("none", None)]
    return [Federation(d, m, b, s) for d in ("mnist", "fmnist") for m, b in kinds for s in (1, 2)]


def agreement(rounds: int = 20) -> float:
    """Largest difference of the parameters between CPU and GPU after some rounds of every mechanism."""
    kinds = [("pl-identical", 0.98), ("pl-learn", 0.98), ("ls-static", 200), ("ls-learn", 200), ("none", None)]
    feds = [Federation("mnist", name, budget) for name, budget in kinds]
    results = []
    for device in ("cpu", "cuda"):
        sweep = Sweep(Settings.flat(rounds=rounds, device=device), feds)
        sweep.train(rounds)
        results.append(sweep.state.params.cpu())
    return float((results[0] - results[1]).abs().max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    federations = sweep_of_84()
    started = time.perf_counter()
    sweep = Sweep(Settings.flat(rounds=options.rounds, device="cuda", evaluate_every=250), federations)
    rows = [event.rows for event in sweep.run() if event.rows][-1]
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    memory = torch.cuda.max_memory_allocated() / 2**30
    result = {
        "federations": len(federations), "rounds": options.rounds, "seconds": seconds,
        "seconds_for_5000_rounds": seconds * 5000 / options.rounds, "peak_memory_gib": memory,
        "cpu_gpu_largest_difference_after_20_rounds": agreement(),
        "accuracy": {f"{r['dataset']} {r['mechanism']} {r['budget']} {r['seed']}": r["accuracy"] for r in rows},
        "environment": environment("cuda"),
    }  # fmt: skip
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))
    print(json.dumps({k: v for k, v in result.items() if k != "accuracy"}, indent=1))


if __name__ == "__main__":
    main()
