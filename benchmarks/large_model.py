"""One release of a large model by static mechanisms, beside a plain loop: seconds, and memory above the caller's own.

    python benchmarks/large_model.py [--quick] [--out large_model.json]

The plain loop copies the state dict and adds torch's own noise, tensor by tensor: no bounds, no check, and noise from a
generator that is not made to resist anyone. Each row is a fresh process, so that the peak memory is that of the row.
The caller's own model and received state dict (2 x 4 bytes a parameter) are in memory before it starts.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from equipoise.environment import environment
from equipoise.mechanism.protect import protect

WIDTH = 1000
BUDGETS = {"pl-identical": 0.98, "ls-static": 200.0, "gs-static": 200.0}
SIZES = (10**7, 10**8)


def peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def model_of(parameters: int) -> nn.Module:
    layers = [nn.utils.skip_init(nn.Linear, WIDTH, WIDTH, bias=False) for _ in range(parameters // WIDTH**2)]
    model = nn.Sequential(*layers)
    with torch.no_grad():
        for tensor in model.parameters():
            tensor.fill_(0.01)
    return model


def plain(model: nn.Module, scale: float = 0.05) -> dict[str, Tensor]:
    state = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    for tensor in state.values():
        tensor.add_(torch.randn_like(tensor), alpha=scale)
    return state


def row(way: str, parameters: int, repeats: int) -> dict[str, Any]:
    """The least time of some calls, and the most memory that they needed above what was there before."""
    model = model_of(parameters)
    received = {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}
    calls: dict[str, Callable[[], Any]] = {"plain loop": lambda: plain(model)}
    calls |= {name: lambda name=name: protect(model, received, None, name, BUDGETS[name]) for name in BUDGETS}
    before, seconds = peak_mib(), []
    for _ in range(repeats):
        started = time.perf_counter()
        result = calls[way]()
        seconds.append(time.perf_counter() - started)
        del result
    extra = peak_mib() - before
    return {
        "way": way, "parameters": parameters, "seconds": min(seconds), "mib_above_start": extra,
        "vectors_above_start": extra * 2**20 / (4 * parameters), "peak_mib": peak_mib(), "repeats": repeats,
    }  # fmt: skip


def fresh(way: str, parameters: int, repeats: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--row", way, str(parameters), str(repeats)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="10^7 parameters alone")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--row", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.row:
        print(json.dumps(row(given.row[0], int(given.row[1]), int(given.row[2]))))
        return
    rows = []
    for parameters in SIZES[:1] if given.quick else SIZES:
        own = [fresh(way, parameters, 5 if parameters < 10**8 else 2) for way in ("plain loop", *BUDGETS)]
        rows += [{**one, "times_plain_loop": one["seconds"] / own[0]["seconds"]} for one in own]
    result = {"environment": environment(), "threads": torch.get_num_threads(), "rows": rows}
    text = json.dumps(result, indent=1)
    print(text)
    if given.out:
        given.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
