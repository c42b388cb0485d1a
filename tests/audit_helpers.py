"""What the tests of audits share: small pictures on disk, a run of three rounds on them, attacks that cost nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from equipoise.auditing import sweep_audit
from equipoise.auditing.options import AuditOptions
from equipoise.engine.settings import Settings
from equipoise.files import write_text
from equipoise.runs.config import Config, SweepBlock, resolve
from equipoise.runs.deployment import DATASET, MARK, Deployment
from equipoise.runs.run import Run
from equipoise.runs.snapshot import save_snapshot, snapshot_path
from tests.helpers import write_dataset

SIDE = 12
EFFORT: dict[str, Any] = {
    "iterations": 2, "samples": 20, "candidates": 5, "others": 3, "label_sets": 2, "pairs": 1, "anchors": 1,
    "around": 4, "tuning": 2, "trials": 2, "companions": 1, "nulls": 2, "pictures": 1,
}  # fmt: skip


def cheap(**change: Any) -> AuditOptions:
    """All attacks with the least effort, on two releases."""
    return AuditOptions(**{"releases": 2, **EFFORT, **change})


def write_pictures(folder: Path, train: int = 160, test: int = 16) -> Path:
    """As ``write_dataset``: 12x12 pictures of four classes."""
    return write_dataset(folder, train, test, seed=11, side=SIDE, classes=4)


def settings_for(**change: Any) -> dict[str, Any]:
    """A tiny model, three rounds, half of the pictures public."""
    given = {"rounds": 3, "model": "mlp", "init": "torch", "batch": 2, "steps": 2, "evaluate_every": 3}
    return {**given, "public_fraction": 0.6, "snapshots": [0, 1, 2], **change}


def train_run(
    folder: Path, data: Path | str, mechanisms: tuple[str, ...] = ("none", "pl-identical", "pl-learn"), **change: Any
) -> Path:
    """A run folder as ``train`` writes it."""
    sweep = {"datasets": [str(data)], "mechanisms": list(mechanisms), "budgets": [0.98]}
    Run(folder, resolve(overrides=settings_for(**change), sweep=sweep)).execute()
    return folder


def deployed(
    folder: Path, states: dict[int, dict[str, Tensor]], told: dict[str, Any] | None = None, **change: Any
) -> Path:
    """A folder as the server of a deployment writes it: the global weights of some rounds, and what it asked for."""
    settings = Settings.flat(**{"rounds": max(states), "batch": 2, "steps": 2, **change})
    block = SweepBlock(datasets=[DATASET], mechanisms=["pl-learn"], budgets=[0.98], seeds=[0])
    write_text(folder / "config.toml", f"{MARK}\n{Config(settings, [block], Deployment(**told or {})).to_toml()}")
    for number, state in states.items():
        tensors = {f"federation-0/{name}": tensor for name, tensor in state.items()}
        save_snapshot(snapshot_path(folder, number), tensors, {"round": str(number)})
    return folder


def interrupt(monkeypatch: pytest.MonkeyPatch, last: int) -> list[Any]:
    """Ctrl-C while cell number ``last`` is attacked; returns the cells, as they come."""
    seen: list[Any] = []

    def interrupted(cell: Any, *arguments: Any, **more: Any) -> Any:
        seen.append(cell)
        if len(seen) == last:
            raise KeyboardInterrupt
        return genuine(cell, *arguments, **more)

    genuine = sweep_audit.attack_cell
    monkeypatch.setattr(sweep_audit, "attack_cell", interrupted)
    return seen
