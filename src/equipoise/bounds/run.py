"""The paper's bounds beside what a run did: ``bounds_run`` reads a run folder, and its result saves itself.

For every federation and snapshot: each result's right-hand side with estimated constants, its left-hand side as
measured, whether the inequality holds, and what became of every assumption (``theory.py``, ``estimates.py``).

=================  =============================================================================================
applies            no assumption was seen to fail
does not apply     one was
not covered        the paper does not state the result for this mechanism
not checkable      what it takes is not there: no attack, no metrics
=================  =============================================================================================

An assumption is ``held`` (on the points visited), ``violated``, ``not checkable`` or ``not covered``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from ..engine.sweep import Sweep
from ..environment import environment
from ..errors import CheckpointError, ConfigError
from ..files import write_json, write_text
from ..runs.snapshot import snapshot_weights
from .context import BoundsOptions, Progress, Row, Scene
from .convergence import outer_rows
from .leakage import leakage_rows
from .stationarity import inner_rows

__all__ = ["Bounds", "BoundsOptions", "bounds_run"]

CLAIMS = {
    "proved": [
        "Each inequality, under its assumptions and with their true constants.",
        "phi and F are bounded below, since cross-entropy is never negative.",
    ],
    "measured": [
        "The constants, at the points visited: smoothness, gradient error, c_b and D from below, c_a from above.",
        "Both sides of each inequality, on the subproblems, rounds and releases counted beside them.",
    ],
    "not claimed": [
        "That an assumption holds at points that were not visited: held means not seen to fail.",
        "Anything about a run whose assumptions are violated: a bound shown for a smaller step is about that step.",
        "That the score bounds leakage where its envelope or its threshold is violated, or for other attacks.",
        "A differential-privacy guarantee of any kind.",
    ],
}


@dataclass(frozen=True)
class Bounds:
    """The content of ``bounds.json``."""

    found: dict[str, Any]

    @property
    def rows(self) -> list[Row]:
        rows: list[Row] = self.found["bounds"]
        return rows

    def save(self, folder: Path | str) -> list[Path]:
        """``bounds.json`` and ``bounds.html``; returns what was written."""
        from .page import page

        written = [Path(folder) / "bounds.json", Path(folder) / "bounds.html"]
        content = page(self.found)  # before anything is written
        write_json(written[0], self.found)
        write_text(written[1], content)
        return written


def bounds_run(folder: Path | str, options: BoundsOptions | None = None, progress: Progress | None = None) -> Bounds:
    """Set every federation of a run against the paper's results, at all its snapshots or at ``options.rounds``.

    The clients' own data are used to measure losses and gradients, as numbers only; the attack sees public images.
    """
    from ..runs.config import resolve

    folder, options = Path(folder), options or BoundsOptions()
    options.check()
    if not (folder / "config.toml").is_file():
        raise CheckpointError(
            f"{folder.resolve().name} is not a run folder: it has no config.toml.", "Train one first."
        )
    config = resolve(folder / "config.toml")
    paths, last = _snapshots(folder, options.rounds)
    metrics = _metrics(folder / "metrics.jsonl")
    sweep = Sweep(config.settings, config.federations())
    weights = {when: _weights(path, sweep) for when, path in paths.items()}
    final = weights[last] if last in weights else _weights(_path(folder, last), sweep)
    scene = Scene(sweep, weights, (last, final), options, progress)
    rows = [
        one for index in range(len(sweep.federations)) for when in weights for one in inner_rows(scene, index, when)
    ]
    rows += outer_rows(scene, metrics)
    rows += leakage_rows(scene)
    return Bounds(
        {
            "schema": 1,
            "experiment": "seeded",
            "claims": CLAIMS,
            "rounds": sorted(weights),
            "bounds": _ordered(rows, sweep),
            "options": asdict(options),
            "environment": environment(sweep.device),
        }
    )


ORDER = (
    "distortion_stationarity", "convex_suboptimality", "one_step", "converge_rate", "privacy_leakage",
    "conditional_preservation",
)  # fmt: skip


def _ordered(rows: Iterable[Row], sweep: Sweep) -> list[Row]:
    """Federations as configured; for each the results as the paper states them, round by round."""
    place = {repr(fed): sweep.order[i] for i, fed in enumerate(sweep.federations)}
    names = ("dataset", "mechanism", "budget", "seed")

    def key(one: Row) -> tuple[int, int, int]:
        fed = type(sweep.federations[0])(*(one[name] for name in names))
        return place[repr(fed)], ORDER.index(one["result"]), -1 if one["round"] is None else one["round"]

    return sorted(rows, key=key)


def _path(folder: Path, when: int) -> Path:
    return folder / "snapshots" / f"round-{when:06d}.safetensors"


def _snapshots(folder: Path, rounds: list[int] | None) -> tuple[dict[int, Path], int]:
    """The files of the rounds asked for, and the last round of which there is one."""
    paths = sorted((folder / "snapshots").glob("round-*.safetensors"))
    there = {int(number): path for path in paths if (number := path.stem.removeprefix("round-")).isdecimal()}
    if not there:
        raise CheckpointError(f"The run folder {folder.name} has no snapshots.", "Train it with snapshots=[0, 200].")
    wanted = sorted(there) if rounds is None else sorted(set(rounds))
    missing = [when for when in wanted if when not in there]
    if missing:
        raise ConfigError(f"No snapshot of round {missing}.", f"There are: {', '.join(map(str, sorted(there)))}.")
    return {when: there[when] for when in wanted}, max(there)


def _weights(path: Path, sweep: Sweep) -> Tensor:
    return snapshot_weights(path, sweep.batched.layout, len(sweep.order))[sweep.order].to(sweep.device, sweep.dtype)


def _metrics(path: Path) -> list[Row]:
    """The lines of metrics.jsonl; none where the run never came to an evaluation."""
    if not path.is_file():
        return []
    needed = {"round", "rounds_averaged", "distortion_norm_squared", "accepted", "refused", "clipped_share"}
    try:
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        lacking = [
            i
            for i, line in enumerate(lines, 1)
            if not isinstance(line, dict) or any(not isinstance(line.get(name), int | float) for name in needed)
        ]
    except (OSError, ValueError) as error:
        raise CheckpointError(f"metrics.jsonl is damaged: {error}.", "Restore it, or train again.") from error
    if lacking:
        raise CheckpointError(f"Line {lacking[0]} of metrics.jsonl is no record of a run.", "Restore it.")
    return lines
