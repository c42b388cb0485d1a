"""Rounds per second against examples/basic_flow.py, and the share of the machine's matrix-multiply rate.

    python benchmarks/throughput.py [--repeats 5] [--out results.json]

One run measures everything, alternating between the candidates, so that ratios hold on a noisy machine. Work:
LeNetZhu, 4 clients, mini-batch 4, 10 inner steps, PL-Learn at budget 0.98, including noise, mini-batch draws and
the per-round utility loss on both sides.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import basic_flow

from equipoise.data.loading import load
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.environment import environment

MULTIPLY_ADDS = 58_800 + 176_400 + 176_400 + 5_880  # forward pass of one image, layer by layer
GRADIENT_FLOP = 2 * (3 * MULTIPLY_ADDS - 58_800)  # forward, weight gradient, input gradient except the first layer's
ROUND_FLOP = 4 * 4 * (11 * GRADIENT_FLOP + 2 * 2 * MULTIPLY_ADDS)  # 4 clients x 4 images; two losses


def basic_round() -> Callable[[], None]:
    torch.manual_seed(1)
    data, model = load("mnist"), basic_flow.LeNetZhu()
    state = {"weights": [torch.rand_like(p) - 0.5 for p in model.parameters()]}
    unit = torch.distributions.Laplace(0.0, 1.0)

    def step() -> None:
        releases = []
        for k in range(basic_flow.K):
            mine = 1000 * k + torch.randperm(1000)[: basic_flow.BATCH]
            noise = [unit.sample(w.shape) for w in state["weights"]]
            x, y = data.train.inputs[mine], data.train.labels[mine]
            released, _ = basic_flow.client(model, state["weights"], x, y, noise, "pl-learn", 7.99975)
            releases.append(released)
        state["weights"] = basic_flow.server(releases)

    return step


def library_rounds(federations: int) -> Callable[[], None]:
    feds = [Federation("mnist", "pl-learn", 0.98, seed) for seed in range(1, federations + 1)]
    sweep = Sweep(Settings.flat(rounds=1_000_000), feds)

    def step() -> None:
        sweep.train(sweep.state.round + 10)

    return step


def seconds(step: Callable[[], None], repeats: int) -> float:
    started = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - started) / repeats


def matmul_rate() -> float:
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    return 2 * 1024**3 / seconds(lambda: torch.mm(a, b), 20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result: dict[str, object] = {"environment": environment()}
    cores = torch.get_num_threads()
    for threads in sorted({1, cores}):
        torch.set_num_threads(threads)
        basic, one, twenty = basic_round(), library_rounds(1), library_rounds(20)
        for step in (basic, one, twenty, matmul_rate):
            step()
        times: dict[str, list[float]] = {"basic": [], "one": [], "twenty": [], "rate": []}
        for _ in range(options.repeats):
            times["basic"].append(seconds(basic, 10))
            times["one"].append(seconds(one, 1) / 10)
            times["twenty"].append(seconds(twenty, 1) / 10 / 20)
            times["rate"].append(matmul_rate())
        row = {name: median(values) for name, values in times.items()}
        result[f"threads_{threads}"] = {
            "basic_flow_rounds_per_second": 1 / row["basic"],
            "one_federation_rounds_per_second": 1 / row["one"],
            "twenty_federations_rounds_per_second_each_share": 1 / row["twenty"],
            "matmul_gflops": row["rate"] / 1e9,
            "share_of_matmul_rate_one": ROUND_FLOP / row["one"] / row["rate"],
            "share_of_matmul_rate_twenty": ROUND_FLOP / row["twenty"] / row["rate"],
            "seconds": {name: values for name, values in times.items() if name != "rate"},
        }
    best = max(
        (result[f"threads_{t}"]["basic_flow_rounds_per_second"] for t in {1, cores}),  # type: ignore[index]
    )
    for threads in sorted({1, cores}):
        row = result[f"threads_{threads}"]
        row["ratio_one"] = row["one_federation_rounds_per_second"] / best  # type: ignore[index]
        row["ratio_twenty"] = row["twenty_federations_rounds_per_second_each_share"] / best  # type: ignore[index]
    result["note"] = "ratios are against the faster of basic_flow's thread counts"
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
