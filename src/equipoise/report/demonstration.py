"""What ``equipoise demo`` trains, attacks and draws; ``demo_ways.py`` has what came of it, way by way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..auditing.audit import Audit
from ..auditing.options import AuditOptions
from ..auditing.run_audit import audit_run
from ..errors import StorageError
from ..files import refuse_link, storage_errors, write_text
from ..privacy import CANDIDATES
from ..runs.config import Config, resolve
from ..runs.folder import RunFolder
from .accuracy import accuracy_page

PAPER, RECOMMENDED = "paper", "recommended"
"""The run folders in a demo's own: of the paper's model and mechanisms, and of what is recommended."""
MARK = ".equipoise-demonstration"
"""The file by which a demo knows a folder that it made itself."""
BUDGET, EPSILON = 0.98, 2.0
"""Of the paper's mechanisms, and of a whole run."""

ATTACK: dict[str, Any] = {
    "attacks": ["matched", "lti"],
    "releases": 24,
    "label_sets": 1,
    "candidates": CANDIDATES,
    "others": 8,
    "samples": 400,
    "pictures": 1,
}
"""The attacks that identify, with little effort."""
GAMES: dict[str, Any] = {"attacks": ["matched"], "games": 400, "among": CANDIDATES}
"""The games that the limits of the recommended way are proved for."""
Progress = Callable[[str, float], None]


def prepare(out: Path) -> tuple[Path, Path]:
    """The two run folders in ``out``. What is there is replaced only where an earlier demo made the folder.

    Nothing is removed here: a run that begins anew removes what a run writes, and nothing else.
    """
    own = {PAPER, RECOMMENDED, MARK}
    with storage_errors(out):
        there = {path.name for path in out.iterdir()} if out.is_dir() else set()
        if (out.exists() and not out.is_dir()) or there - own or (there and MARK not in there):
            raise StorageError(
                f"{out} holds other things than a demo of this version: nothing was touched.",
                "Name a folder that is new or empty, with --out; or remove this one if it is a demo of before.",
            )
        for name in (PAPER, RECOMMENDED):
            refuse_link(out / name)
        write_text(out / MARK, "Made by equipoise demo, which replaces what is in this folder.\n")
    return out / PAPER, out / RECOMMENDED


def paper_config(rounds: int) -> Config:
    """MNIST without protection, with the paper's learned noise, and with static noise of the same budget."""
    return resolve(
        overrides={
            "rounds": rounds,
            "evaluate_every": max(1, rounds // 12),
            "sweep": [{"mechanisms": ["none", "pl-identical", "pl-learn"], "budgets": [BUDGET]}],
        }
    )


def recommended_config() -> Config:
    """What ``equipoise train --mechanism gaussian-dp --budget 2`` does: model, rounds and rates as recommended."""
    return resolve(sweep={"mechanisms": ["gaussian-dp"], "budgets": [EPSILON]})


def attack_paper(folder: Path, progress: Progress | None = None) -> Audit:
    """Attack the first releases of the paper's sweep, and write what came of it."""
    return _attacked(folder, ATTACK, progress)


def play_recommended(folder: Path, progress: Progress | None = None) -> Audit:
    """Play the game of the proof at the first release: an attacker who knows every other record."""
    return _attacked(folder, GAMES, progress)


def _attacked(folder: Path, options: dict[str, Any], progress: Progress | None) -> Audit:
    result = audit_run(folder, AuditOptions(**options), snapshots=[0], progress=progress)
    result.save(folder)
    return result


def demo_page(folder: Path, rounds: int) -> Path:
    """Draw the accuracy of the paper's sweep over its rounds; returns the page."""
    page = folder / "accuracy.html"
    write_text(page, accuracy_page(RunFolder(folder).metrics(), f"MNIST, 4 clients, {rounds} rounds, seed 1"))
    return page
