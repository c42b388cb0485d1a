"""InvGrad, many targets at once, against a plain implementation that takes one target at a time, in one run.

``python benchmarks/attack.py [OUT.json]``: milliseconds per iteration and target. Both do the same work: gradient by
the same model, global cosine, total variation, sign, Adam, clamp.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from equipoise.attack.descent import Search
from equipoise.attack.invgrad import invgrad
from equipoise.attack.simulate import respond
from equipoise.attack.view import Server, View
from equipoise.data.loading import load
from equipoise.environment import environment
from equipoise.models.batched import Batched
from equipoise.models.bundled import LeNetZhu

TARGETS = (1, 8, 32)
ITERATIONS, REPEATS = 40, 5


def plain(model: nn.Module, before: Tensor, labels: Tensor, low: float, high: float, iterations: int) -> None:
    """One target, straight-line PyTorch: double backward through autograd and torch.optim.Adam."""
    guess = torch.randn(4, 1, 28, 28, requires_grad=True)
    optimiser = torch.optim.Adam([guess], lr=1.0)
    weights = list(model.parameters())
    target = torch.split(before, [p.numel() for p in weights])
    for _ in range(iterations):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(guess), labels)
        result = torch.autograd.grad(loss, weights, create_graph=True)
        inner = sum((a.flatten() * b).sum() for a, b in zip(result, target, strict=True))
        size = sum(a.square().sum() for a in result).sqrt() * sum(b.square().sum() for b in target).sqrt()
        tv = guess.diff(dim=-1).abs().mean() + guess.diff(dim=-2).abs().mean()
        (guess.grad,) = torch.autograd.grad(1 - inner / size + 1e-5 * tv, guess)
        guess.grad.sign_()
        optimiser.step()
        with torch.no_grad():
            guess.clamp_(low, high)


def main() -> None:
    torch.set_num_threads(2)
    torch.manual_seed(0)
    data, model = load("mnist"), LeNetZhu()
    batched = Batched(model)
    weights = batched.layout.flatten(dict(model.named_parameters()))
    low, high = float(data.public.inputs.min()), float(data.public.inputs.max())
    server = Server(batched, data.shape, data.classes, 4, low=low, high=high)
    most = max(TARGETS)
    images, labels = data.public.inputs[: 4 * most], data.public.labels[: 4 * most].view(most, 4)
    released = respond(server, weights, images.view(most, 4, *data.shape), labels, None)
    view = View(weights.expand(most, -1), released, labels)
    target = torch.randn(weights.numel())

    def timed(run: object) -> float:
        started = time.perf_counter()
        run()  # type: ignore[operator]
        return 1e3 * (time.perf_counter() - started) / ITERATIONS

    rows: dict[int, list[float]] = {count: [] for count in (0, *TARGETS)}
    for repeat in range(REPEATS + 1):  # the first is a warm-up; the contestants take turns
        times = {0: timed(lambda: plain(model, target, labels[0], low, high, ITERATIONS))}
        for count in TARGETS:
            part = view.rows(slice(0, count))
            times[count] = timed(lambda part=part: invgrad(server, part, Search(iterations=ITERATIONS))) / count
        if repeat:
            for count, value in times.items():
                rows[count].append(value)
    middle = {count: statistics.median(values) for count, values in rows.items()}
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    result = {
        "what": "InvGrad on LeNetZhu, batches of 4 images: milliseconds per iteration and target, median",
        "plain": {"ms": round(middle[0], 3), "all": [round(v, 3) for v in rows[0]]},
        "batched": {
            str(count): {
                "ms": round(middle[count], 3),
                "times_faster": round(middle[0] / middle[count], 2),
                "all": [round(v, 3) for v in rows[count]],
            }
            for count in TARGETS
        },
        "iterations": ITERATIONS,
        "repeats": REPEATS,
        "command": "python benchmarks/attack.py",
        "commit": commit.stdout.strip(),
        "environment": environment(torch.device("cpu")),
    }
    print(json.dumps(result, indent=1))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
