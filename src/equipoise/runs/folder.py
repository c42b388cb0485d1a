"""A run folder as everybody reads it: configuration, snapshots, metrics, result. Nothing here changes anything.

What is missing or damaged raises ``CheckpointError`` by name; no line and no tensor is believed unchecked.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError, ConfigError
from ..files import read_json
from ..models.layout import Layout
from .config import Config, resolve
from .snapshot import snapshot_weights

METRICS, RESULT = "metrics.jsonl", "result.json"


class RunFolder:
    """The folder of one run, as ``Run`` writes it."""

    def __init__(self, path: Path | str):
        self.path = Path(path)
        if not (self.path / "config.toml").is_file():
            raise CheckpointError(
                f"{self.path.resolve().name} is not a run folder: it has no config.toml.", "Train one first."
            )

    @cached_property
    def config(self) -> Config:
        return resolve(self.path / "config.toml")

    def rounds(self) -> list[int]:
        """Rounds of which there is a snapshot; at least one."""
        names = (path.stem.removeprefix("round-") for path in (self.path / "snapshots").glob("round-*.safetensors"))
        result = sorted(int(name) for name in names if name.isdecimal())
        if not result:
            raise CheckpointError(
                f"The run folder {self.path.name} has no snapshots.", "Train it with snapshots=[0, 200]."
            )
        return result

    def chosen(self, rounds: Sequence[int] | None) -> list[int]:
        """The rounds asked for, sorted, where there is a snapshot of each; all of them for None."""
        there = self.rounds()
        wanted = there if rounds is None else sorted(set(rounds))
        missing = [round_number for round_number in wanted if round_number not in there]
        if missing or not wanted:
            named = (
                f"There is no snapshot of round {', '.join(map(str, missing))}."
                if missing
                else "No snapshot was named."
            )
            raise ConfigError(named, f"There are: {', '.join(map(str, there))}.")
        return wanted

    def weights(self, round_number: int, layout: Layout) -> Tensor:
        """The global models ``[F, P]`` after a round, in the order of the configuration."""
        path = self.path / "snapshots" / f"round-{round_number:06d}.safetensors"
        return snapshot_weights(path, layout, len(self.config.federations()))

    def metrics(self, needed: Collection[str] = ()) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl, each with numbers under the ``needed`` keys; none before the first evaluation."""
        rows = read_rows(self.path / METRICS)
        for number, row in enumerate(rows, 1):
            if any(not isinstance(row.get(name), int | float) for name in needed):
                raise CheckpointError(f"Line {number} of {METRICS} is no record of a run.", "Restore it.")
        return rows

    def results(self) -> list[dict[str, Any]]:
        """What result.json says of every federation; empty for a run that was not finished."""
        path = self.path / RESULT
        if not path.is_file():
            return []
        result = read_json(path, "result")
        rows = result.get("federations") if isinstance(result, dict) else None
        fits = isinstance(rows, list) and len(rows) == len(self.config.federations())
        return rows if fits and all(isinstance(row, dict) for row in rows) else []  # type: ignore[union-attr,return-value]


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file, each an object; a last line without its end is left for later."""
    if not path.is_file():
        return []
    try:
        text = path.read_text(encoding="utf-8")
        rows = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} is damaged: {error}.", "Restore it, or train again.") from error
    lacking = [number for number, row in enumerate(rows, 1) if not isinstance(row, dict)]
    if lacking:
        raise CheckpointError(f"Line {lacking[0]} of {path.name} is no record of a run.", "Restore it.")
    return rows
