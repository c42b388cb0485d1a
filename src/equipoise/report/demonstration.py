"""What ``equipoise demo`` trains, attacks and draws."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..auditing.audit import Audit
from ..auditing.options import AuditOptions
from ..auditing.run_audit import audit_run
from ..files import write_text
from ..runs.config import Config, resolve
from ..runs.folder import RunFolder
from .accuracy import accuracy_page

ATTACK: dict[str, Any] = {
    "attacks": ["matched", "lti", "membership"],
    "releases": 24,
    "label_sets": 1,
    "candidates": 50,
    "others": 8,
    "samples": 400,
    "pictures": 1,
}
"""The attacks that decide, with little effort."""


def demo_config(rounds: int) -> Config:
    """MNIST without protection, with static and with learned distortion, at a strict and a loose budget."""
    return resolve(
        overrides={
            "rounds": rounds,
            "evaluate_every": max(1, rounds // 12),
            "sweep": [
                {"mechanisms": ["none"]},
                {"mechanisms": ["pl-identical", "pl-learn"], "budgets": [0.97, 0.99]},
            ],
        }
    )


def demo_audit(folder: Path, progress: Callable[[str, float], None] | None) -> Audit:
    """Attack the first releases of a demo, and write what came of it."""
    result = audit_run(folder, AuditOptions(**ATTACK), snapshots=[0], progress=progress)
    result.save(folder)
    return result


def demo_page(folder: Path, rounds: int) -> Path:
    """Draw the accuracy of a demo over its rounds; returns the page."""
    page = folder / "accuracy.html"
    write_text(page, accuracy_page(RunFolder(folder).metrics(), f"MNIST, 4 clients, {rounds} rounds, seed 1"))
    return page
