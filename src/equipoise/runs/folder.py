"""A run folder as everybody reads it: configuration, snapshots, metrics, result. Nothing here changes anything.

What is missing or damaged raises ``CheckpointError`` by name; no line and no tensor is believed unchecked.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import fields
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from ..engine.datasets import dataset_labels
from ..engine.federation import Federation
from ..errors import CheckpointError, ConfigError
from ..files import read_json
from ..models.layout import Layout
from .config import Config, stored
from .metrics_file import METRICS, read_rows
from .snapshot import snapshot_path, snapshot_rounds, snapshot_states, snapshot_weights

RESULT = "result.json"


class RunFolder:
    """The folder of one run, as ``Run`` writes it.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from equipoise import Run, resolve
    >>> with TemporaryDirectory() as folder:
    ...     _ = Run(Path(folder) / "run", resolve(overrides={"rounds": 1}, sweep={"mechanisms": ["none"]})).execute()
    ...     RunFolder(Path(folder) / "run").snapshots()
    [0, 1]
    """

    def __init__(self, path: Path | str):
        self.path, self.notes = Path(path), list[str]()  # notes: what of the configuration this machine lacks
        if not os.path.isfile(self.path / "config.toml"):  # Path.is_file would raise for names too long
            named = self.path if self.path.name else self.path.resolve().name  # "." tells nobody which one
            raise CheckpointError(f"{named} is not a run folder: it has no config.toml.", "Train one first.")

    @cached_property
    def config(self) -> Config:
        return stored(self.path / "config.toml", self.notes)

    def snapshots(self) -> list[int]:
        """Rounds of which there is a snapshot; at least one."""
        result = snapshot_rounds(self.path)
        if not result:
            remedy = "Train it with --set snapshots='[0, 20]', say."
            if self.config.deployment is not None:
                remedy = 'Its server writes them: run it with equipoise.audit.snapshots = "[0, 1]".'
            raise CheckpointError(f"The run folder {self.path} has no snapshots.", remedy)
        return result

    def chosen(self, snapshots: Sequence[int] | None) -> list[int]:
        """The rounds asked for, sorted, where there is a snapshot of each; all of them for None."""
        there = self.snapshots()
        wanted = there if snapshots is None else sorted(set(snapshots))
        missing = [round_number for round_number in wanted if round_number not in there]
        if missing or not wanted:
            named = (
                f"There is no snapshot of round {', '.join(map(str, missing))}."
                if missing
                else "No snapshot was named."
            )
            raise ConfigError(named, f"There are: {', '.join(map(str, there))}.")
        last = self.config.settings.training.rounds
        if wanted[-1] > last:
            raise CheckpointError(
                f"There is a snapshot of round {wanted[-1]}, and the run has {last} rounds.",
                "Choose others (--snapshots), or remove it.",
            )
        return wanted

    def weights(self, round_number: int, layout: Layout) -> Tensor:
        """The global models ``[F, P]`` after a round, in the order of the configuration."""
        return snapshot_weights(snapshot_path(self.path, round_number), layout, len(self.config.federations()))

    def state(self, round_number: int) -> dict[str, Tensor]:
        """The global model of the first federation after a round, buffers and frozen layers too where it has them."""
        return snapshot_states(snapshot_path(self.path, round_number), 1)[0]

    def metrics(self, needed: Collection[str] = ()) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, each with numbers under the ``needed`` keys; none before the first evaluation."""
        rows = read_rows(self.path / METRICS, ("round", *needed), [part.name for part in fields(Federation)])
        labels = dataset_labels(fed.dataset for fed in self.config.federations())
        return [{**row, "dataset": labels.get(row["dataset"], row["dataset"])} for row in rows]  # earlier: a path

    def results(self) -> list[dict[str, Any]]:
        """What result.json says of every federation; empty for a run that was not finished."""
        path = self.path / RESULT
        if not path.is_file():
            return []
        result = read_json(path, "result", "Restore it, or train again.")
        rows = result.get("federations") if isinstance(result, dict) else None
        fits = isinstance(rows, list) and len(rows) == len(self.config.federations())
        return rows if fits and all(isinstance(row, dict) for row in rows) else []  # type: ignore[union-attr,return-value]
