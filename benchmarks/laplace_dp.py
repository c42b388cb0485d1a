"""What integers cost: one release of laplace-dp, beside the same step and noise in floats.

    python benchmarks/laplace_dp.py [--out benchmarks/results_laplace_dp.json]

*Integers* is what a client does: every record in a call of its own, rounded to the grid, and exact discrete noise from
the operating system. *Floats* is what it did before, and what has no guarantee: all records at once, float noise from
the same source, and the check of its size. Seconds of one release on one thread, the best of several, all in one run.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from equipoise.environment import environment
from equipoise.mechanism.distortion import draw_bounds
from equipoise.mechanism.grid import Grid
from equipoise.mechanism.intensity import intensity
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.records import records
from equipoise.mechanism.release import local_step, release
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP, LeNetZhu, SmallCNN
from equipoise.privacy.discrete_laplace import discrete_laplace
from equipoise.randomness import system_uniform, system_words

COMMAND = "python benchmarks/laplace_dp.py --out benchmarks/results_laplace_dp.json"
MODELS = {"lenet-zhu": LeNetZhu, "mlp": MLP, "small-cnn": SmallCNN}
EPSILON = 1.0


def best(calls: dict[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of each call; they take turns, so that a busy machine slows all of them."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(repeats):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - started)
    return {name: min(each) for name, each in times.items()}


def measure(name: str, batch: int, repeats: int) -> dict[str, float | str]:
    batched, settings = Batched(MODELS[name]()), ProtectionSettings(batch=batch, clip=50.0)
    x, y = torch.randn(batch, 1, 28, 28), torch.randint(0, 10, (batch,))
    start = batched.layout.flatten(dict(batched.model.named_parameters())).detach().unsqueeze(0)
    size, protection = start.shape[1], settings.at("laplace-dp", EPSILON, 1)
    steps = Grid.of(settings.eta, 50.0, batch, size).noise_scale(float(protection.scale))

    def float_noise() -> torch.Tensor:
        return standard_noise(system_uniform(size, torch.float32), "laplace").unsqueeze(0)

    def floats() -> bool:
        local, _ = local_step([batched.at(x[None], y[None])], start, settings.eta, protection)
        alpha, lower, _ = draw_bounds(float_noise(), protection)
        released = local + alpha
        return bool((intensity(released - local, "l1") >= 0.9999 * lower).all() & torch.isfinite(released).all())

    def integers() -> object:
        objective = records(batched, x, y, 10)
        return release([objective], start, [system_words], settings.eta, protection, utility=False)

    seconds = best(
        {
            "floats": floats,
            "integers": integers,
            "noise_floats": float_noise,
            "noise_integers": lambda: discrete_laplace(steps, size, system_words),
        },
        repeats,
    )
    return {
        "model": name, "parameters": size, "batch": batch, "noise_scale_in_steps": steps, **seconds,
        "integers_over_floats": seconds["integers"] / seconds["floats"],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=50)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [measure(name, batch, options.repeats) for name in MODELS for batch in (4, 44)]
    result = {"command": COMMAND, "epsilon": EPSILON, "rows": rows, "environment": environment()}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
