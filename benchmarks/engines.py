"""Time per round: the embedded engine against Flower's simulation, same data, same draws, same releases, in one run.

    python benchmarks/engines.py [--rounds 40] [--out results_engines.json]

Both train the same seeded federation (LeNetZhu, mini-batch 4, 10 inner steps). Rounding differs between them and
learning amplifies it, so the weights agree to 1e-5 for some rounds only; the largest difference is printed. Rounds
are timed after the first one, so that starting Ray and building the tables does not count; the time to the first round
stands apart. Simulation: one actor per core, validated replies, FedAvg, no evaluation.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import subprocess
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")

from flower_twin import simulate

from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.environment import environment

CASES = [("none", None, 4), ("pl-identical", 0.98, 4), ("pl-learn", 0.98, 4), ("pl-learn", 0.98, 40)]


def embedded(settings: Settings, federation: Federation) -> tuple[list[float], float, Any]:
    started = time.perf_counter()
    sweep = Sweep(settings, [federation])
    times = [time.perf_counter()]
    sweep.train(settings.training.rounds, lambda _: times.append(time.perf_counter()))
    return _steps(times), times[1] - started, sweep.batched.layout.unflatten(sweep.state.params[0])


def simulated(settings: Settings, federation: Federation) -> tuple[list[float], float, Any]:
    started = time.perf_counter()
    times: list[float] = []
    weights = simulate(settings, federation, lambda _: times.append(time.perf_counter()))
    return _steps(times), times[1] - started, weights


def _steps(times: list[float]) -> list[float]:
    """Seconds of every round but the first."""
    return [later - earlier for earlier, later in pairwise(times[1:])]


def measure(mechanism: str, budget: float | None, clients: int, rounds: int) -> dict[str, Any]:
    settings, federation = Settings.flat(rounds=rounds, clients=clients), Federation("mnist", mechanism, budget, 1)
    ours, ours_first, ours_weights = embedded(settings, federation)
    theirs, theirs_first, their_weights = simulated(settings, federation)
    apart = max(float((their_weights[name] - ours_weights[name]).abs().max()) for name in ours_weights)
    return {
        "mechanism": mechanism,
        "clients": clients,
        "embedded_ms": 1e3 * median(ours),
        "simulation_ms": 1e3 * median(theirs),
        "ratio": median(theirs) / median(ours),
        "ratio_range": [min(theirs) / max(ours), max(theirs) / min(ours)],
        "embedded_first_s": ours_first,
        "simulation_first_s": theirs_first,
        "largest_difference_of_a_weight": apart,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    rows = []
    for case in CASES:
        rows.append(measure(*case, options.rounds))
        row = rows[-1]
        print(
            f"{row['mechanism']:>12}, {row['clients']:>2} clients: embedded {row['embedded_ms']:8.2f} ms a round, "
            f"simulation {row['simulation_ms']:8.1f} ms, {row['ratio']:6.1f}x; weights differ by "
            f"{row['largest_difference_of_a_weight']:.1e}",
            flush=True,
        )
    if options.out:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
        ).stdout.strip()
        command = f"python benchmarks/engines.py --rounds {options.rounds} --out {options.out.name}"
        result = {"command": command, "commit": commit, "rounds": options.rounds, "rows": rows, **environment()}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
