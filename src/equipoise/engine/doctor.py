"""Checks of the installation that a user can run and paste into a report."""

from __future__ import annotations

import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..data.loading import load
from ..environment import environment
from ..errors import EquipoiseError
from ..files import write_text
from ..models.batched import Batched
from ..models.bundled import LeNetZhu
from .federation import Federation
from .settings import Settings
from .sweep import Sweep

EXTRAS = {"data": ("PIL", "pyarrow"), "flower": ("flwr",), "paper": ("matplotlib",)}
"""The modules that each needs."""


def examine() -> dict[str, Any]:
    """Every check with its outcome; nothing is changed."""
    checks = []
    for name, look in CHECKS.items():
        try:
            checks.append({"name": name, "ok": True, "detail": look()})
        except (EquipoiseError, OSError, RuntimeError) as error:
            checks.append({"name": name, "ok": False, "detail": str(error)})
    return {"checks": checks, "environment": environment()}


def _versions() -> str:
    seen = environment()
    return f"equipoise {seen['equipoise']}, Python {seen['python']}, torch {seen['torch']}, numpy {seen['numpy']}"


def _device() -> str:
    gpu = torch.cuda.get_device_name(0) if torch.cuda.is_available() else "no GPU (none is needed)"
    return f"{torch.get_num_threads()} CPU thread(s), {gpu}"


def _data() -> str:
    sizes = {name: len(load(name).train) for name in ("mnist", "fmnist")}
    return "hashes right: " + ", ".join(f"{name} {size:,} training images" for name, size in sizes.items())


def _arithmetic() -> str:
    """Batched gradients against autograd, in float64."""
    model = LeNetZhu().double()
    batched = Batched(model)
    x, y = torch.randn(2, 4, 1, 28, 28, dtype=torch.float64), torch.tensor([[0, 1, 2, 3], [4, 5, 6, 7]])
    params = batched.layout.flatten(dict(model.named_parameters())).repeat(2, 1)
    ours = batched.at(x, y).gradient(params)
    loss = nn.functional.cross_entropy(model(x[1]), y[1])
    names = [name for name, _ in model.named_parameters()]
    theirs = batched.layout.flatten(dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True)))
    error = float((ours[1] - theirs).abs().max())
    if error >= 1e-10:
        raise EquipoiseError(
            f"Batched gradients differ from autograd by {error:.2e}.", "Report this, with the versions."
        )
    return f"batched gradients equal autograd to {error:.0e}"


def _speed() -> str:
    sweep = Sweep(Settings.flat(rounds=30), [Federation("mnist", "pl-learn", 0.98)])
    sweep.train(5)
    started = time.perf_counter()
    sweep.train(25)
    return f"{20 / (time.perf_counter() - started):.0f} rounds/s of PL-Learn, one federation of 4 clients"


def _disk() -> str:
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        write_text(Path(folder) / "probe", "x")
    return "the current folder is writable"


def _extras() -> str:
    found = {name: all(map(importlib.util.find_spec, modules)) for name, modules in EXTRAS.items()}
    return ", ".join(f"{name} {'yes' if there else 'no'}" for name, there in found.items())


CHECKS: dict[str, Callable[[], str]] = {
    "versions": _versions,
    "device": _device,
    "bundled data": _data,
    "arithmetic": _arithmetic,
    "speed": _speed,
    "disk": _disk,
    "optional extras": _extras,
}
