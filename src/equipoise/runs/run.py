"""A run folder: train into it, be killed at any moment, run again, and get the same bits.

``config.toml``, ``metrics.jsonl``, ``ledger.jsonl``, ``result.json``, ``model.safetensors``, ``checkpoint/``,
``snapshots/``: see docs/architecture.md. Order matters: metrics and ledger are appended before the checkpoint that
covers them, and on resume both are cut back to what the checkpoint saw. A seeded experiment then repeats the releases
that it forgets, bit for bit; a deployment never cuts its ledger back.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ..engine.draws import Draws
from ..engine.result import result
from ..engine.state import Event
from ..engine.sweep import Progress, Sweep
from ..engine.tables import Tables
from ..errors import CheckpointError, ConfigError, LedgerError
from ..files import changing, locked, refuse_link, storage_errors, write_json, write_text
from ..ledger import ledger as ledgers
from ..mechanism.learned_leak import warn_of_leaks
from ..models.named import Factory, is_imported
from ..models.routes import NAMES
from . import model_code
from .checkpoint import Checkpoint, load_checkpoint, read_notes, save_checkpoint, tidy
from .config import MARK, Config, differing, stored
from .entries import last_round, round_entries
from .guarantees import FILE as GUARANTEE
from .guarantees import guarantees
from .metrics_file import METRICS, append_rows, cut, read_rows, size_of
from .snapshot import save_snapshot, snapshot_path

CHECKPOINT_SECONDS = 15.0
"""The most work that a crash can cost, apart from the rounds under way."""

OWN = (
    "metrics.jsonl", "ledger.jsonl", "result.json", "model.safetensors", "accuracy.html", "audit.json", "audit.svg",
    "bounds.json", "bounds.html", "checkpoint/latest.json", GUARANTEE,
)  # fmt: skip
OWN_PATTERNS = (
    "checkpoint/state-*.safetensors", "snapshots/round-*.safetensors", "audit/*.npz", "audit-*.json", "audit-*.svg",
    "**/.*.partial",
)  # fmt: skip


class Run:
    """One run folder while it is being written.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from equipoise import resolve
    >>> config = resolve(overrides={"rounds": 1}, sweep={"mechanisms": ["pl-learn"], "budgets": [0.98]})
    >>> with TemporaryDirectory() as folder:
    ...     result = Run(Path(folder) / "run", config).execute()
    >>> result["federations"][0]["mechanism"]
    'pl-learn'
    """

    def __init__(self, folder: Path, config: Config, fresh: bool = False, *, model: nn.Module | Factory | None = None):
        """``model`` is what the configuration's ``module:callable`` means: a run imports nothing by itself."""
        if model is not None and not is_imported(config.settings.training.model):
            cause = f"The configuration names a bundled model, {config.settings.training.model!r}."
            raise ConfigError(cause, "Leave the model out, or set model to the name of its code.")
        self.folder, self.config, self.fresh = folder, config, fresh
        self.metrics = folder / METRICS
        if config.settings.run.threads:
            torch.set_num_threads(config.settings.run.threads)
        s, federations = config.settings, config.federations()
        draws = Draws(
            list(dict.fromkeys(fed.seed for fed in federations)), s.protection.clients, s.training.participants
        )
        last = last_round(draws, s.training.rounds, s.run.release_limit)  # where the limit ends the run, if not before
        route = self._kept_route() if s.run.route in ("auto", "measured") else s.run.route
        self.sweep = Sweep(s.replace(rounds=last, route=route or s.run.route), federations, model=model)
        s = s.replace(route=self.sweep.batched.route)  # a resumed run takes it too
        self.config = replace(config, settings=s, data=None)
        self._code = model_code.digests(model, self.sweep.batched.model)
        self.ledger: ledgers.Ledger | None = None
        self.resumed_from = 0
        self.warnings: list[str] = []
        """What may make a resumed run another one than it was begun as; known when it starts."""

    def _kept_route(self) -> str | None:
        """That of the checkpoint: another one would order the parameters otherwise, and round differently."""
        notes = self.folder / "checkpoint" / "latest.json"
        if self.fresh or not os.path.exists(notes):  # unlike Path.exists, no error for names that no folder can have
            return None
        try:
            kept = read_notes(notes).get("route")
        except CheckpointError:  # told when the run begins
            return None
        return kept if kept in NAMES else None

    def execute(self, on_start: Progress | None = None, on_round: Progress | None = None) -> dict[str, Any]:
        """Train to the end, from the checkpoint if there is one; returns the content of result.json."""
        self._refuse_foreign_folder()
        with locked(self.folder):
            if self.fresh:
                self._clear()
            checkpoint = load_checkpoint(self.folder / "checkpoint")
            self._refuse_other_experiment(checkpoint)
            write_text(self.folder / "config.toml", f"{MARK}\n{self.config.to_toml()}")
            self._resume(checkpoint)
            claim = guarantees(self.sweep)  # before the first round: what cannot be claimed is not trained
            if claim is not None:
                write_json(self.folder / GUARANTEE, claim)
            warn_of_leaks(fed.mechanism for fed in self.sweep.federations)
            if self.ledger is not None:
                self.sweep.on_tables = self._record
            if self.resumed_from > self.sweep.settings.training.rounds:  # trained under a higher limit
                self._permit_next()
            if on_start:
                on_start(self.resumed_from)
            last: list[dict[str, Any]] = self._last_rows()
            saved = time.monotonic()
            for event in self.sweep.run(on_round):
                self._store(event)
                last = event.rows or last
                if event.rows or event.snapshot or time.monotonic() - saved > CHECKPOINT_SECONDS:
                    self._checkpoint()
                    saved = time.monotonic()
            outcome = self._finish(last)
            if self.sweep.state.round < self.config.settings.training.rounds:
                self._permit_next()
            return outcome

    def _record(self, rounds: list[int], done: Tables) -> None:
        if self.ledger is not None:
            self.ledger.append(list(round_entries(self.sweep, rounds, done)))

    def _permit_next(self) -> None:
        """Raise for the first client that the next round would take past the limit on releases."""
        round_number = self.sweep.state.round + 1
        who = self.sweep.draws.participants([round_number])[0].tolist()  # [seeds][slots]
        for federation, fed in enumerate(self.config.federations()):
            clients = who[self.sweep.draws.seeds.index(fed.seed)]
            if self.ledger is not None:
                self.ledger.permit([str(client) for client in clients], round_number, federation)

    def _store(self, event: Event) -> None:
        if event.rows:
            append_rows(self.metrics, event.rows, "seeded")
        if event.snapshot:
            self._snapshot(snapshot_path(self.folder, event.round))

    def _snapshot(self, path: Path) -> None:
        """The global models as ``federation-i/tensor name``, in the order of the configuration."""
        tensors: dict[str, Tensor] = {}
        for place, flat in enumerate(self.sweep.models()):
            for name, tensor in self.sweep.batched.layout.unflatten(flat).items():
                tensors[f"federation-{place}/{name}"] = tensor
        save_snapshot(
            path, tensors, {"round": str(self.sweep.state.round), "model": self.config.settings.training.model}
        )

    # -- resume ------------------------------------------------------------------------------------------------

    def _checkpoint(self) -> None:
        notes = {
            "round": self.sweep.state.round,
            "digest": self.config.digest(),
            "device": self.config.settings.run.device,
            "route": self.sweep.batched.route,
            "threads": torch.get_num_threads(),
            **({"code": self._code} if self._code else {}),
            "metrics_bytes": size_of(self.metrics),
            "data": self._fingerprints,
            "ledger": self._ledger_note(),
        }
        save_checkpoint(self.folder / "checkpoint", self.sweep.state.tensors(), notes)

    def _resume(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            self._clear()  # what a run left that never reached a checkpoint
            self._open_ledger()
            return
        tensors, notes = checkpoint
        self._refuse_other_circumstances(notes)
        try:
            self.sweep.state.restore(notes["round"], tensors)
        except ValueError as error:
            back = "Change the model back, or use --fresh" if self._code else "Use --fresh"
            cause = f"The checkpoint cannot be used: {error}."
            raise CheckpointError(cause, f"{back} or another --out.") from error
        self.warnings = list(self._warnings(notes))
        tally = self.sweep.state.tally
        counts = torch.cat([tally.total[:, 1:].flatten(), tally.recent[:, 3:5].flatten(), tally.rounds])
        if not bool(((counts >= 0) & (counts < 1 << 53)).all()):
            raise CheckpointError("The checkpoint holds impossible numbers of releases.", "Use --fresh.")
        cut(self.metrics, notes["metrics_bytes"])
        self._resume_ledger(notes.get("ledger"))
        self.resumed_from = self.sweep.state.round
        tidy(self.folder / "checkpoint", [notes["file"]])

    def _refuse_other_circumstances(self, notes: dict[str, Any]) -> None:
        """What would change the bits without being a setting: the data, the device. Threads are set as they were."""
        for name in ("round", "metrics_bytes"):
            if type(notes.get(name)) is not int or not 0 <= notes[name] < 1 << 62:
                raise CheckpointError(f"The checkpoint has no valid {name!r}: {notes.get(name)!r}.", "Use --fresh.")
        data = notes.get("data")  # the names of datasets are settings, compared before
        if not isinstance(data, dict) or list(data.values()) != list(self._fingerprints.values()):
            raise CheckpointError(
                "The training data has changed since the checkpoint.", "Use --fresh or another --out."
            )
        if notes.get("device") != self.config.settings.run.device:
            raise CheckpointError(
                f"The run was on {notes.get('device')!r}, not {self.config.settings.run.device!r}.",
                f"Use --device {notes.get('device')}, --fresh or another --out.",
            )
        if notes.get("route", self.sweep.batched.route) != self.sweep.batched.route:
            raise CheckpointError(
                f"The run takes the route {notes['route']!r}, not {self.sweep.batched.route!r}.",
                "Leave route out, or use --fresh or another --out.",
            )
        if type(notes.get("threads")) is int and 0 < notes["threads"] <= (os.cpu_count() or 1):
            torch.set_num_threads(notes["threads"])

    def _warnings(self, notes: dict[str, Any]) -> Iterator[str]:
        files = model_code.changed(notes.get("code"), self._code)
        if files:
            verb = "has" if len(files) == 1 else "have"
            yield f"the model's code, {', '.join(files)}, {verb} changed since the checkpoint; --fresh begins anew"
        threads = notes.get("threads")
        if type(threads) is int and threads != torch.get_num_threads():
            yield (
                f"the run had {threads} CPU threads and goes on with {torch.get_num_threads()}: its bits may differ "
                "from those of an uninterrupted one"
            )

    def _open_ledger(self) -> None:
        s = self.config.settings
        if s.run.ledger:
            self.ledger = ledgers.Ledger.open(self.folder / ledgers.FILE, "seeded", s.run.release_limit)

    def _resume_ledger(self, note: Any) -> None:
        """Cut the ledger back to what the checkpoint saw, and see that its chain still leads there."""
        path = self.folder / ledgers.FILE
        if (note is not None) != self.config.settings.run.ledger:
            raise CheckpointError(
                f"The run was begun {'without' if note is None else 'with'} a ledger.",
                f"Use --set ledger={str(note is not None).lower()}, --fresh or another --out.",
            )
        if note is None:
            return
        size = note.get("bytes") if isinstance(note, dict) else None
        if type(size) is not int or not path.is_file() or not 0 < size <= path.stat().st_size:
            raise LedgerError("ledger.jsonl is shorter than the checkpoint says.", "Restore it, or use --fresh.")
        with changing(path) as file:
            file.truncate(size)
        self._open_ledger()
        if self._ledger_note() != note:
            raise LedgerError("ledger.jsonl is not the one that the checkpoint saw.", "Restore it, or use --fresh.")

    def _ledger_note(self) -> dict[str, Any] | None:
        kept = self.ledger
        return None if kept is None else {"entries": kept.entries, "head": kept.head, "bytes": kept.bytes}

    @cached_property
    def _fingerprints(self) -> dict[str, str]:
        """SHA-256 of every dataset's training examples, and of whose they are."""
        prints = {}
        for name, data in self.sweep.datasets.items():
            content = data.train.inputs.numpy().tobytes() + data.train.labels.numpy().tobytes()
            content += b"" if data.train.groups is None else data.train.groups.numpy().tobytes()
            prints[self.sweep.dataset_labels[name]] = hashlib.sha256(content).hexdigest()
        return prints

    def _last_rows(self) -> list[dict[str, Any]]:
        """The last evaluated rows, for a run that was killed after its last round."""
        if self.metrics.exists() and self.metrics.read_bytes()[-1:] not in (b"", b"\n"):  # a row would continue it
            raise CheckpointError(f"{METRICS} is damaged: its last line has no end.", "Restore it, or use --fresh.")
        rows = read_rows(self.metrics, keys=("accuracy", "client_accuracy", "intensity_last"))
        return rows[-len(self.sweep.federations) :]

    def _finish(self, last: list[dict[str, Any]]) -> dict[str, Any]:
        rows, count = read_rows(self.metrics), len(self.sweep.federations)
        if len(last) != count or len(rows) % count:
            raise CheckpointError(f"{METRICS} lacks rows of some federations.", "Restore it, or use --fresh.")
        self._snapshot(self.folder / "model.safetensors")
        outcome = result(self.sweep, [*rows[:-count], *last])
        if self.ledger is not None:
            outcome["ledger"] = {"entries": self.ledger.entries, "head": self.ledger.head}
        if self.sweep.state.round < self.config.settings.training.rounds:
            limit, rounds = self.config.settings.run.release_limit, self.config.settings.training.rounds
            outcome["stopped"] = {"round": self.sweep.state.round, "of": rounds, "release_limit": limit}
        write_json(self.folder / "result.json", outcome)
        return outcome

    def _clear(self) -> None:
        """Remove what a run writes, and nothing else."""
        own = [self.folder / name for name in OWN]
        with storage_errors(self.folder):
            for path in [*own, *(path for pattern in OWN_PATTERNS for path in self.folder.glob(pattern))]:
                path.unlink(missing_ok=True)

    def _refuse_foreign_folder(self) -> None:
        """A folder that holds other things is never written into, nor what its folders may link to."""
        for name in ("checkpoint", "snapshots", "audit"):
            refuse_link(self.folder / name)
        early = {".lock", ".config.toml.partial"}  # all that a run leaves that was killed before it began
        config = self.folder / "config.toml"
        with storage_errors(self.folder):
            if not self.folder.is_dir() or early >= {path.name for path in self.folder.iterdir()}:
                return
            own = config.is_file() and config.read_bytes().startswith(MARK.encode())
        if not own:
            raise CheckpointError(
                f"The folder {self.folder} is not empty and not a run folder.", "Choose another --out."
            )

    def _refuse_other_experiment(self, checkpoint: Checkpoint | None) -> None:
        if checkpoint is None:
            if (self.folder / "result.json").exists():
                raise CheckpointError(
                    f"The folder {self.folder} holds results without a checkpoint.",
                    "Use --fresh or another --out.",
                )
            return
        if checkpoint[1].get("digest") != self.config.digest():
            other = "; ".join(differing(self.folder / "config.toml", self.config)) or "its sweep is combined otherwise"
            model = stored(self.folder / "config.toml").settings.training.model
            code = is_imported(model) and model != self.config.settings.training.model
            again = f"To go on with it, add --model {model}. Else use" if code else "Use"
            raise CheckpointError(
                f"The folder {self.folder} holds a run with other settings ({other}).",
                f"{again} --fresh to replace it, or another --out.",
            )
