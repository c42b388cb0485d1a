"""The last checkpoints of a run: one that is damaged costs a round, not the run.

For a deployed server, whose rounds cannot be repeated at will. ``state-NNNNNNNN.safetensors`` holds the tensors after a
round, ``checkpoint-NNNNNNNN.json`` names them with their SHA-256 and is renamed last: with it the checkpoint of round N
begins to exist. Neither is written again. A round that changes nothing adds notes alone, which name the tensors of an
earlier one. The last three states are kept; the embedded engine keeps one checkpoint (``checkpoint.py``).

The newest checkpoint that is whole counts. What is newer and damaged is set aside before anything else is written, so
that it cannot come back later and contradict what was done since. A crash between any two steps leaves a whole one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from ..files import storage_errors
from .checkpoint import Checkpoint, read_notes, read_state, tidy, write_notes, write_state

KEPT = 3
"""States; the newest may be damaged, and the one before it too."""
REMEDY = "Restore the folder from a copy, or begin in another one."


@dataclass
class Damaged:
    """A checkpoint that is not whole: the file of its notes, why, and the notes where only the tensors are lost."""

    path: Path
    reason: str
    notes: dict[str, Any] | None


@dataclass
class CheckpointSeries:
    """The checkpoints in a folder, while one process writes them."""

    folder: Path
    damaged: list[Damaged] = field(default_factory=list)  # newer than the one that was loaded
    _state: dict[str, str] | None = None

    def load(self) -> Checkpoint | None:
        """The newest whole checkpoint; None if there never was one. Changes nothing."""
        self.damaged, notes = [], None
        for path in self._all():
            try:
                notes = None
                notes = read_notes(path)
                tensors = read_state(self.folder, notes)
            except CheckpointError as error:
                self.damaged.append(Damaged(path, error.cause, notes))
                continue
            self._state = {"file": notes["file"], "sha256": notes["sha256"]}
            return tensors, notes
        if self.damaged:
            first, many = self.damaged[0], len(self.damaged)
            raise CheckpointError(
                f"{'The only checkpoint is' if many == 1 else f'All {many} checkpoints are'} damaged; the newest, "
                f"{first.path.name}: {first.reason}",
                REMEDY,
            )
        return None

    def set_aside(self) -> None:
        """Rename the notes of what is damaged: they count for nothing any more, and remain to be looked at."""
        with storage_errors(self.folder):
            for one in reversed(self.damaged):  # the newest last: until then the next start finds the same
                one.path.replace(one.path.with_name(f"damaged-{one.path.name}"))

    def save(self, tensors: dict[str, Tensor], notes: dict[str, Any], *, changed: bool) -> None:
        """Add a checkpoint; with ``changed=False`` the tensors are those of the last one, and stay in their file."""
        if changed or self._state is None:
            self._state = write_state(self.folder, tensors, notes["round"])
        write_notes(self.folder / f"checkpoint-{notes['round']:08d}.json", self._state, notes)
        self._tidy()

    def _all(self) -> list[Path]:
        """The notes of every checkpoint, the newest first; ``latest.json`` is of a version that kept one."""
        earlier = self.folder / "latest.json"
        return [
            *sorted(self.folder.glob("checkpoint-*.json"), reverse=True),
            *([earlier] if earlier.exists() else []),
        ]

    def _tidy(self) -> None:
        """Keep the last states, each with its first and its newest notes; drop what a killed process left."""
        notes: dict[str, list[Path]] = {}  # by state, the newest first
        for path in self._all():
            notes.setdefault(self._named(path), []).append(path)
        last = [name for name in notes if name][:KEPT]
        kept = {path for name in last for path in (notes[name][0], notes[name][-1])}
        with storage_errors(self.folder):
            for path in (path for paths in notes.values() for path in paths if path not in kept):
                path.unlink(missing_ok=True)
        tidy(self.folder, last)

    def _named(self, path: Path) -> str:
        """The state that some notes name; empty where they are damaged, which older ones may be unnoticed."""
        try:
            return str(read_notes(path)["file"])
        except CheckpointError:
            return ""
