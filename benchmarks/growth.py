"""How time and memory grow: with clients, those of a round and those there are, with parameters, and what travels.

    python benchmarks/growth.py [--quick] [--out growth.json]

Each row is a fresh process, so that the peak memory is that of the row. Slopes are log-log fits: 1 is linear, 0 flat.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

from equipoise.data.dataset import from_tensors
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.environment import environment
from equipoise.models.bundled import MLP
from equipoise.server.aggregate import Total


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def timed(sweep: Sweep, rounds: int) -> float:
    sweep.train(1)
    started = time.perf_counter()
    sweep.train(1 + rounds)
    return (time.perf_counter() - started) / rounds


def clients(count: int) -> dict[str, float]:
    """PL-Learn with ``count`` clients in one federation, and the server's part of it alone."""
    settings = Settings.flat(rounds=100, clients=count, chunk=64, partition="iid" if count > 400 else "identical")
    sweep = Sweep(settings, [Federation("mnist", "pl-learn", 0.98)])
    before = peak_mib()
    seconds = timed(sweep, max(1, 200 // count))
    size = sweep.batched.layout.size
    one = torch.randn(1, 64, size)
    accepted, shares = torch.ones(1, 64, dtype=torch.bool), torch.full((1, 64), 1 / count)
    started = time.perf_counter()
    total = Total(torch.zeros(1, size))
    for start in range(0, count, 64):
        k = min(64, count - start)
        total.add(slice(0, 1), one[:, :k], one[:, :k], shares[:, :k], accepted[:, :k])
    total.step(torch.zeros(1, size), 1.0, 1)
    server = time.perf_counter() - started
    return {
        "clients": count, "seconds_per_round": seconds, "seconds_per_client": seconds / count,
        "server_seconds": server, "peak_mib": peak_mib(), "mib_above_start": peak_mib() - before,
        "bytes_up_per_round": 4 * size * count, "bytes_down_per_round": 4 * size * count,
    }  # fmt: skip


def parameters(hidden: int) -> dict[str, float]:
    """PL-Learn of an MLP with four clients."""
    sweep = Sweep(Settings.flat(rounds=100), [Federation("mnist", "pl-learn", 0.98)], model=MLP(hidden=hidden))
    size = sweep.batched.layout.size
    seconds = timed(sweep, max(1, min(50, 3_000_000 // size)))
    return {"parameters": size, "seconds_per_round": seconds, "peak_mib": peak_mib(), "bytes_up_per_round": 16 * size}


def sampled(count: int) -> dict[str, float]:
    """PL-Learn of a small model on tables, with ``count`` clients of four records, of whom 100 take part in a round."""
    draw = torch.Generator().manual_seed(0)
    table, labels = torch.randn(4 * count, 20, generator=draw), torch.arange(4 * count) % 2
    data = from_tensors((table, labels), (table[:64], labels[:64]), (table[:64], labels[:64]), classes=2, name="made")
    settings = Settings.flat(rounds=100, clients=count, participants=100)
    started, before = time.perf_counter(), peak_mib()
    sweep = Sweep(settings, [Federation("made", "pl-learn", 0.98)], {"made": data}, MLP((20,), 2, hidden=16))
    start = time.perf_counter() - started
    return {
        "clients": count, "participants": 100, "parameters": sweep.batched.layout.size, "seconds_to_start": start,
        "seconds_per_round": timed(sweep, 50), "peak_mib": peak_mib(), "mib_above_start": peak_mib() - before,
    }  # fmt: skip


def slope(rows: list[dict[str, float]], x: str, y: str, least: float = 0) -> float:
    points = [(math.log(row[x]), math.log(row[y])) for row in rows if row[x] >= least]
    mx, my = (sum(values) / len(points) for values in zip(*points, strict=True))
    return sum((a - mx) * (b - my) for a, b in points) / sum((a - mx) ** 2 for a, _ in points)


def measure(kind: str, value: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--row", kind, str(value)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="stop at 250 clients and 10^6 parameters")
    parser.add_argument("--row", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.row:
        kind, value = options.row
        print(json.dumps({"clients": clients, "parameters": parameters, "sampled": sampled}[kind](int(value))))
        return
    counts = [4, 16, 64, 250] + ([] if options.quick else [500, 1000])
    widths = [13, 126, 1258] + ([] if options.quick else [12579])  # about 10^4, 10^5, 10^6, 10^7 parameters
    by_clients = [measure("clients", count) for count in counts]
    by_parameters = [measure("parameters", width) for width in widths]
    by_sampled = [measure("sampled", count) for count in ([1000] if options.quick else [1000, 10_000])]
    result = {
        "clients": by_clients,
        "parameters": by_parameters,
        "sampled": by_sampled,
        "slope_round_in_clients": slope(by_clients, "clients", "seconds_per_round", least=64),
        "slope_client_in_clients": slope(by_clients, "clients", "seconds_per_client", least=64),
        "slope_server_in_clients": slope(by_clients, "clients", "server_seconds", least=64),
        "slope_round_in_parameters": slope(by_parameters, "parameters", "seconds_per_round", least=100_000),
        "environment": environment(),
    }
    if options.out:
        options.out.write_text(json.dumps(result, indent=1))
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
