"""What a server keeps of a deployed run: ledger, metrics, checkpoint, result, and configuration and snapshots for an
audit; or nothing, without a folder.

The order of writing is the guarantee. ``asked`` is in the ledger before a message goes out, so that a release that may
have been seen is always counted; ``answered`` and the metrics come before the checkpoint that covers them. After a
crash, or where the newest checkpoint is damaged, the ledger is never cut back, because what was seen was seen; metrics
and snapshots are.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..environment import environment
from ..errors import CheckpointError, LimitError, is_count
from ..files import locked, refuse_link, storage_errors, write_json, write_text
from ..ledger.ledger import FILE, Ledger, verify
from ..mechanism.claims import of_budgets
from ..runs.checkpoint import Checkpoint
from ..runs.checkpoint_series import CheckpointSeries
from ..runs.deployment import MARK
from ..runs.metrics_file import METRICS, append_rows, cut, read_rows, size_of
from ..runs.snapshot import save_snapshot, snapshot_path, snapshot_rounds
from .run_config import OF_A_RELEASE, Terms

log = logging.getLogger("flwr.equipoise")


class ServerFolder:
    """The run folder of a deployed server, while it runs; without a path only the releases are counted."""

    def __init__(self, path: Path | None, terms: Terms, seeded: bool, strategy: str):
        self.path, self.terms, self.seeded, self.strategy = path, terms, seeded, strategy
        self.ledger: Ledger | None = None
        self._open = ExitStack()
        self._asked: Counter[str] = Counter()

    def open(self) -> Checkpoint | None:
        """Take the folder; the newest whole checkpoint of an earlier server, if there was one."""
        if self.path is None:
            return None
        self._open.enter_context(locked(self.path))
        self._refuse_other_run(self.path / "config.toml")
        refuse_link(self.path / "checkpoint")
        self.ledger = Ledger.open(self.path / FILE, "seeded" if self.seeded else None, self.terms.release_limit)
        self._checkpoints = CheckpointSeries(self.path / "checkpoint")
        result = self._checkpoints.load()
        kept = 0 if result is None else self._checked(result[1])
        for one in self._checkpoints.damaged:
            log.error("%s is damaged: %s Going on from the checkpoint before it.", one.path.name, one.reason)
            if one.notes is not None:  # the tensors are lost, but not how far the ledger went
                self._checked(one.notes)
        self._checkpoints.set_aside()
        cut(self.path / METRICS, kept)
        self._drop_snapshots(-1 if result is None else result[1]["round"])
        return result

    def _refuse_other_run(self, config: Path) -> None:
        """A run of the embedded engine keeps its configuration."""
        with storage_errors(config):
            other = config.is_file() and not config.read_bytes().startswith(MARK.encode())
        if other:
            raise CheckpointError(
                f"The folder {config.parent.name} holds another run than a deployment's.", "Use another equipoise.out."
            )

    def _drop_snapshots(self, last: int) -> None:
        """Those of rounds after ``last`` are of a trajectory that a crash ended: these rounds are asked again."""
        assert self.path is not None
        with storage_errors(self.path):
            for round_number in snapshot_rounds(self.path):
                if round_number > last:
                    snapshot_path(self.path, round_number).unlink(missing_ok=True)

    def begin(self, model: Mapping[str, Tensor], round_number: int, rounds: int) -> None:
        """Write down what was asked of the clients; ``model`` is that of ``round_number``, the rounds done before."""
        if self.path is None:
            return
        kinds = [tensor.dtype for tensor in model.values() if tensor.is_floating_point()]
        dtype = "float64" if kinds and set(kinds) == {torch.float64} else "float32"
        write_text(self.path / "config.toml", f"{MARK}\n{self.terms.config(max(1, rounds), dtype).to_toml()}")
        if round_number == 0:
            self.snapshot(model, 0)

    def snapshot(self, model: Mapping[str, Tensor], round_number: int, last: bool = False) -> None:
        """Keep the global model of a round that was asked for, or of the last one."""
        if self.path is not None and (last or round_number in self.terms.audit.snapshots):
            tensors = {f"federation-0/{name}": tensor for name, tensor in model.items()}
            save_snapshot(snapshot_path(self.path, round_number), tensors, {"round": str(round_number)})

    def _checked(self, notes: dict[str, Any]) -> int:
        """Refuse a checkpoint of another run, or one whose ledger was changed; the bytes of its metrics."""
        assert self.path is not None
        old, new = notes.get("terms"), self._terms()
        other = sorted(key for key in new if not isinstance(old, dict) or old.get(key) != new[key])
        if other:
            raise CheckpointError(
                f"The folder {self.path.name} holds a run with other terms: {', '.join(other)}.",
                "Use the same ones, or another equipoise.out.",
            )
        note, kept = notes.get("ledger"), notes.get("metrics_bytes")
        if not isinstance(note, dict) or not is_count(notes.get("round")) or not is_count(kept):
            raise CheckpointError("The checkpoint has other notes than a server's.", "Use another folder.")
        verify(self.path / FILE, str(note.get("head")), note.get("entries"))  # it may have grown, nothing else
        return kept

    def close(self) -> None:
        self._open.close()

    def permit(self, clients: Sequence[str], round_number: int) -> None:
        """Raise before a round that would pass the limit on releases."""
        if self.ledger is not None:
            self.ledger.permit(clients, round_number)
            return
        limit = self.terms.release_limit
        worst = max(clients, key=lambda client: self._asked[client], default=None)  # without a folder: of this process
        if limit is not None and worst is not None and self._asked[worst] >= limit:
            raise LimitError(
                f"Client {worst} was asked for {limit} release(s); round {round_number} would pass the limit of "
                f"{limit}.",
                "Give a folder (equipoise.out) to go on later with a higher limit.",
            )

    def asked(self, clients: Sequence[str], round_number: int) -> None:
        self._asked.update(clients)
        if self.ledger is not None:
            self.ledger.append([{"kind": "asked", **self._about(round_number), "clients": list(clients)}])

    def answered(self, releases: list[dict[str, Any]], round_number: int) -> None:
        if self.ledger is not None:
            self.ledger.append([{"kind": "answered", **self._about(round_number), "releases": releases}])

    def _about(self, round_number: int) -> dict[str, Any]:
        mechanism, budget = self.terms.mechanism, self.terms.budget
        return {
            "federation": 0,
            "round": round_number,
            "mechanism": mechanism.name,
            "budget": budget,
            "norm": mechanism.norm,
        }

    def _terms(self) -> dict[str, Any]:
        """What must not change within a run."""
        settings = asdict(self.terms.settings)
        about = {"mechanism": self.terms.mechanism.name, "budget": self.terms.budget, "strategy": self.strategy}
        return {**about, **{name: settings[name] for name in (*OF_A_RELEASE, "leakage")}}

    def metrics(self, row: Mapping[str, Any]) -> None:
        if self.path is not None:
            append_rows(self.path / METRICS, [row], "seeded" if self.seeded else None)

    def refusals(self) -> dict[int, dict[str, str]]:
        """Who was refused in earlier rounds, and why."""
        if self.path is None:
            return {}
        rows = read_rows(self.path / METRICS, ["round"])
        return {row["round"]: row["refused"] for row in rows if row.get("refused") and isinstance(row["refused"], dict)}

    def checkpoint(self, tensors: dict[str, Tensor], round_number: int, *, changed: bool) -> None:
        """Keep the state after a round; a void one changed nothing, and no good state is written again for it."""
        if self.path is not None:
            assert self.ledger is not None
            notes = {
                "round": round_number,
                "terms": self._terms(),
                "metrics_bytes": size_of(self.path / METRICS),
                "ledger": {"head": self.ledger.head, "entries": self.ledger.entries},
            }
            self._checkpoints.save(tensors, notes, changed=changed)

    def result(self, model: dict[str, Tensor], about: dict[str, Any]) -> None:
        if self.path is None or self.ledger is None:
            return
        save_snapshot(self.path / "model.safetensors", model, {"round": str(about["rounds"])})
        self.snapshot(model, about["rounds"], last=True)
        mechanism = self.terms.mechanism
        federation = {"dataset": None, "mechanism": mechanism.name, "budget": self.terms.budget, "seed": None, **about}
        outcome = {
            "schema": 1,
            "experiment": "seeded" if self.seeded else None,
            "engine": "flower",
            "claim": of_budgets([mechanism], self.seeded),
            "federations": [federation],
            "ledger": {"head": self.ledger.head, "entries": self.ledger.entries},
            "environment": environment(),
        }
        write_json(self.path / "result.json", outcome)
