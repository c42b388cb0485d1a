"""InvGrad on a GPU: 640 targets of four images x 1,600 iterations, as the paper runs it.

``PYTHONPATH=src python benchmarks/gpu_invgrad.py [OUT.json]``; needs torch and numpy alone.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

from equipoise.attack.descent import Search
from equipoise.attack.invgrad import invgrad
from equipoise.attack.simulate import respond
from equipoise.attack.view import Server, View
from equipoise.data.loading import load
from equipoise.environment import environment
from equipoise.models.batched import Batched
from equipoise.models.bundled import LeNetZhu

TARGETS, ITERATIONS = 640, 1600


def main() -> None:
    device = torch.device("cuda")
    torch.manual_seed(0)
    data, model = load("mnist"), LeNetZhu().to(device)
    batched = Batched(model, device=device)
    weights = batched.layout.flatten(dict(model.named_parameters()))
    low, high = float(data.public.inputs.min()), float(data.public.inputs.max())
    server = Server(batched, data.shape, data.classes, 4, low=low, high=high)
    images = data.public.inputs[: 4 * TARGETS].view(TARGETS, 4, *data.shape).to(device)
    labels = data.public.labels[: 4 * TARGETS].view(TARGETS, 4).to(device)
    view = View(weights.expand(TARGETS, -1), respond(server, weights, images, labels, None), labels)
    invgrad(server, view, Search(iterations=3))  # kernels are loaded and chosen
    torch.cuda.synchronize()
    started = time.perf_counter()
    outcome = invgrad(server, view, Search(iterations=ITERATIONS))
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    result = {
        "what": "InvGrad, LeNetZhu at PyTorch's default initialisation, undistorted releases of 4 images",
        "targets": TARGETS,
        "iterations": ITERATIONS,
        "seconds": round(seconds, 2),
        "microseconds_per_target_and_iteration": round(1e6 * seconds / TARGETS / ITERATIONS, 2),
        "mean_mse": float((outcome.images - images).square().mean()),
        "runs": 1,
        "command": "PYTHONPATH=src python benchmarks/gpu_invgrad.py",
        "environment": environment(device),
    }
    print(json.dumps(result, indent=1))
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
