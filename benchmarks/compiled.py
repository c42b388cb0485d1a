"""The hand-written batched layers against ``torch.func`` and ``torch.compile`` of it, on this machine's CPU.

    python benchmarks/compiled.py [--replicas 4 80] [--out compiled.json]

Time per gradient of one client (LeNetZhu, mini-batch 4), best of several, all in one run.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

from equipoise.environment import environment
from equipoise.models.batched import Batched
from equipoise.models.bundled import LeNetZhu


def best(call, repeats: int = 30) -> float:
    for _ in range(5):
        call()
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def measure(replicas: int) -> dict[str, float]:
    model = LeNetZhu()
    hand, plain = Batched(model), Batched(model, route="vmap")
    x, y = torch.randn(replicas, 4, 1, 28, 28), torch.randint(0, 10, (replicas, 4))
    params = torch.rand(replicas, hand.layout.size) - 0.5

    def one(flat: torch.Tensor, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        tensors = {s.name: flat[s.start : s.stop].view(s.shape) for s in plain.layout.slots}
        return nn.functional.cross_entropy(functional_call(model, tensors, (images,)), labels)

    mapped = vmap(grad(one))
    compiled = torch.compile(mapped, dynamic=False)
    started = time.perf_counter()
    compiled(params, x, y)
    waited = time.perf_counter() - started
    objective = hand.at(x, y)
    seconds = {
        "hand": best(lambda: objective.gradient(params)),
        "func": best(lambda: mapped(params, x, y)),
        "compiled": best(lambda: compiled(params, x, y)),
    }
    return {
        "replicas": replicas,
        "compile_seconds": waited,
        **{f"{name}_microseconds_per_client": 1e6 * value / replicas for name, value in seconds.items()},
        "compiled_over_hand": seconds["compiled"] / seconds["hand"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replicas", type=int, nargs="+", default=[4, 80])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = {"rows": [measure(count) for count in options.replicas], "environment": environment()}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
