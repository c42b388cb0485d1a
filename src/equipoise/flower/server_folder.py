"""What a server keeps of a deployed run: ledger, metrics, checkpoint, result; or nothing, without a folder.

The order of writing is the guarantee. ``asked`` is in the ledger before a message goes out, so that a release that may
have been seen is always counted; ``answered`` and the metrics come before the checkpoint that covers them. After a
crash the ledger is never cut back, because what was seen was seen; the metrics are.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from torch import Tensor

from ..environment import environment
from ..errors import CheckpointError, LimitError
from ..files import locked, plain, storage_errors, write_json
from ..ledger.ledger import FILE, Ledger, verify
from ..runs.checkpoint import load_checkpoint, save_checkpoint
from ..runs.snapshot import save_snapshot
from .terms import OF_A_RELEASE, Asked

CLAIM = "Budgets are per-release calibrations of the distortion. No (epsilon, delta) is claimed."


class Journal:
    """The folder of one deployed run, while its server runs."""

    def __init__(self, folder: Path | None, terms: Asked, seeded: bool, strategy: str):
        self.folder, self.terms, self.seeded, self.strategy = folder, terms, seeded, strategy
        self.ledger: Ledger | None = None
        self._open = ExitStack()
        self._asked: Counter[str] = Counter()

    def open(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """Take the folder; the checkpoint of an earlier server, if there is one."""
        if self.folder is None:
            return None
        self._open.enter_context(locked(self.folder))
        self.ledger = Ledger.open(self.folder / FILE, "seeded" if self.seeded else None, self.terms.release_limit)
        found, metrics = load_checkpoint(self.folder / "checkpoint"), self.folder / "metrics.jsonl"
        kept = 0 if found is None else self._checked(found[1])
        if metrics.exists():  # what was written after the checkpoint is written again
            with storage_errors(metrics):
                os.truncate(metrics, kept)
        return found

    def _checked(self, notes: dict[str, Any]) -> int:
        """Refuse a checkpoint of another run, or one whose ledger was changed; the bytes of its metrics."""
        assert self.folder is not None
        old, new = notes.get("terms"), self._terms()
        other = sorted(key for key in new if not isinstance(old, dict) or old.get(key) != new[key])
        if other:
            raise CheckpointError(
                f"The folder {self.folder.name} holds a run with other terms: {', '.join(other)}.",
                "Use the same ones, or another equipoise.out.",
            )
        note, kept = notes.get("ledger"), notes.get("metrics_bytes")
        whole = all(type(number) is int and number >= 0 for number in (kept, notes.get("round")))
        if not whole or not isinstance(note, dict) or kept > _size(self.folder / "metrics.jsonl"):  # type: ignore[operator]
            raise CheckpointError("The checkpoint does not fit metrics.jsonl.", "Restore it, or use another folder.")
        verify(self.folder / FILE, str(note.get("head")), note.get("entries"))  # it may have grown, nothing else
        return int(kept)  # type: ignore[arg-type]

    def close(self) -> None:
        self._open.close()

    def permit(self, clients: Sequence[str], when: int) -> None:
        """Raise before a round that would pass the limit on releases."""
        if self.ledger is not None:
            self.ledger.permit(clients, when)
            return
        limit = self.terms.release_limit
        worst = max(clients, key=lambda client: self._asked[client], default=None)  # without a folder: of this process
        if limit is not None and worst is not None and self._asked[worst] >= limit:
            raise LimitError(
                f"Client {worst} was asked for {limit} release(s); round {when} would pass the limit of {limit}.",
                "Give a folder (equipoise.out) to go on later with a higher limit.",
            )

    def asked(self, clients: Sequence[str], when: int) -> None:
        self._asked.update(clients)
        if self.ledger is not None:
            self.ledger.append([{"kind": "asked", **self._about(when), "clients": list(clients), "at": _now()}])

    def answered(self, releases: list[dict[str, Any]], when: int) -> None:
        if self.ledger is not None:
            self.ledger.append([{"kind": "answered", **self._about(when), "releases": releases, "at": _now()}])

    def _about(self, when: int) -> dict[str, Any]:
        kind = self.terms.mechanism
        return {"federation": 0, "round": when, "mechanism": kind.name, "budget": self.terms.budget, "norm": kind.norm}

    def _terms(self) -> dict[str, Any]:
        """What must not change within a run."""
        settings = asdict(self.terms.settings)
        about = {"mechanism": self.terms.mechanism.name, "budget": self.terms.budget, "strategy": self.strategy}
        return {**about, **{name: settings[name] for name in (*OF_A_RELEASE, "leakage")}}

    def metrics(self, row: Mapping[str, Any]) -> None:
        if self.folder is None:
            return
        path = self.folder / "metrics.jsonl"
        with storage_errors(path), path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(plain({"experiment": "seeded" if self.seeded else None, **row})) + "\n")
            file.flush()
            os.fsync(file.fileno())

    def refusals(self) -> dict[int, dict[str, str]]:
        """Who was refused in earlier rounds, and why."""
        if self.folder is None:
            return {}
        rows = read_rows(self.folder / "metrics.jsonl")
        return {row["round"]: row["refused"] for row in rows if row.get("refused")}

    def checkpoint(self, tensors: dict[str, Tensor], when: int) -> None:
        if self.folder is not None:
            assert self.ledger is not None
            notes = {
                "round": when,
                "terms": self._terms(),
                "metrics_bytes": _size(self.folder / "metrics.jsonl"),
                "ledger": {"head": self.ledger.head, "entries": self.ledger.entries},
            }
            save_checkpoint(self.folder / "checkpoint", tensors, notes)

    def result(self, model: dict[str, Tensor], about: dict[str, Any]) -> None:
        if self.folder is None or self.ledger is None:
            return
        save_snapshot(self.folder / "model.safetensors", model, {"round": str(about["rounds"])})
        kind = self.terms.mechanism
        federation = {"dataset": None, "mechanism": kind.name, "budget": self.terms.budget, "seed": None, **about}
        found = {
            "schema": 1,
            "experiment": "seeded" if self.seeded else None,
            "engine": "flower",
            "claim": CLAIM,
            "federations": [federation],
            "ledger": {"head": self.ledger.head, "entries": self.ledger.entries},
            "environment": environment(),
        }
        write_json(self.folder / "result.json", found)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a metrics file; one that is being written is left for later."""
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    try:
        return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    except ValueError as error:
        raise CheckpointError(f"{path.name} is damaged: {error}.", "Restore it, or use another folder.") from error


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
