"""Train the federations of a job and measure on them what the artefacts need: torch and numpy alone.

``run`` writes one raw file per job: a record per federation, reduced (per-image errors, per-tensor sizes, curves; a few
reconstructions of *public* images as uint8; no weights, no releases). While it runs, a checkpoint of a few arrays
lies beside it; a job that was killed goes on from there, and a job whose raw file exists is not run again.
"""

from __future__ import annotations

import io
import json
import math
import re
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch

from ..engine.federation import Federation
from ..engine.full_record import squared_gradients
from ..engine.metrics import evaluate
from ..engine.result import federation_results
from ..engine.settings import from_dict
from ..engine.sweep import Sweep
from ..engine.tables import LENGTH, Tables
from ..environment import environment
from ..errors import CheckpointError, ConfigError
from ..files import storage_errors, write_bytes, write_text
from . import measures
from .plan import SCHEMA, Scale, digest

Report = Callable[[str, int, int], None]
"""(what is being done, how far, of how much)"""

CHECKPOINT_SECONDS = 20.0
EARLY = (1, 2, 3, 5, 8, 13, 21, 34)
"""Rounds at which gradients and losses are measured beside the regular ones: at first they fall a hundredfold."""
TENSOR_ROUNDS = (0, 200, 1000)


def raw_path(job: dict[str, Any], folder: Path) -> Path:
    return folder / f"{job['name']}.json"


def run(job: dict[str, Any], folder: Path, report: Report | None = None) -> Path:
    """Compute one job unless its raw file exists; returns that file."""
    check_job(job)
    path = raw_path(job, folder)
    if path.exists():
        return path
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    running = JobRun(job, folder / f".{job['name']}.npz")
    result = running.execute(report or (lambda what, done, total: None))
    write_text(path, json.dumps(result, separators=(",", ":"), allow_nan=False) + "\n")
    running.checkpoint.unlink(missing_ok=True)
    return path


JOB = ("name", "group", "settings", "federations", "measures", "scale", "version", "commit")


def check_job(job: Any) -> None:
    """Refuse what ``plan.jobs`` did not write."""
    remedy = "Write the SPEC again with --plan."
    missing = [key for key in JOB if not isinstance(job, dict) or key not in job]
    if missing:
        raise ConfigError(f"A job of the SPEC lacks {missing[0]!r}.", remedy)
    if not isinstance(job["name"], str) or not re.fullmatch(r"[\w.=-]+", job["name"]) or job["name"].startswith("."):
        raise ConfigError(f"Expected the name of a job to be a word, got {job['name']!r}.", remedy)
    rows, measures = job["federations"], job["measures"]
    if not isinstance(rows, list) or not isinstance(measures, list) or len(rows) != len(measures):
        raise ConfigError(f"The job {job['name']!r} needs a list of measures for each federation.", remedy)


def scale_of(job: dict[str, Any]) -> Scale:
    try:
        raw: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in job["scale"].items()
        }
        return Scale(**raw)
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f"The job's scale is not readable: {error}.", "Write the SPEC again with --plan.") from error


class JobRun:
    """One job while it is being computed."""

    def __init__(self, job: dict[str, Any], checkpoint: Path):
        self.job, self.checkpoint, self.scale = job, checkpoint, scale_of(job)
        try:
            self.settings, self.federations = from_dict({key: job[key] for key in ("settings", "federations")})
            wanted = [set(row) for row in job["measures"]]
        except (KeyError, TypeError) as error:
            raise ConfigError(f"The job lacks {error}.", "Write the SPEC again with --plan.") from error
        self.sweep = Sweep(self.settings, self.federations)
        self.row = {federation: i for i, federation in enumerate(self.sweep.federations)}
        self.wanted = {
            name: [fed for fed, row in zip(self.federations, wanted, strict=True) if name in row]
            for name in ("clients", "utility", "gradients", "inversion", "pictures", "tensors")
        }
        self.sides: dict[str, Sweep] = {}
        self.history: list[list[dict[str, Any]]] = []  # rows of the evaluated rounds
        self.series: dict[str, list[Any]] = {"clients": [], "stepwise": [], "full": [], "gradients": [], "tensors": []}
        self.seconds = 0.0
        self.sweep.on_tables = self._observe if self.wanted["utility"] else None

    def side(self, measure: str) -> Sweep:
        """The federations of one measurement alone, at the weights that they have now."""
        if measure not in self.sides:
            self.sides[measure] = Sweep(self.settings, self.wanted[measure], self.sweep.datasets)
        side = self.sides[measure]
        params = self.sweep.state.params[[self.row[federation] for federation in side.federations]].clone()
        return side.at(self.sweep.state.round, params)

    def marks(self) -> dict[str, set[int]]:
        """Rounds after which something is measured, by measurement; 0 is before the first."""
        s, scale = self.settings, self.scale
        rounds = {
            "clients": range(0, s.training.rounds, scale.curve_every),
            "gradients": [*EARLY, *range(0, s.training.rounds, scale.gradient_every)],
            "utility": [*EARLY, *range(0, s.training.rounds, scale.full_every)],
            "tensors": TENSOR_ROUNDS,
        }
        result = {name: {*marks, s.training.rounds} if self.wanted[name] else set() for name, marks in rounds.items()}
        return {name: {t for t in marks if t <= s.training.rounds} for name, marks in result.items()} | {
            "evaluate": {*s.evaluated()}
        }

    def execute(self, report: Report) -> dict[str, Any]:
        started, marks = time.perf_counter(), self.marks()
        stops = sorted(set().union(*marks.values()))
        self._resume()
        label = f"{self.job['group']}: training {len(self.federations)} federations"
        saved = time.perf_counter()
        if self.sweep.state.round == 0 and not self.history:
            self._measure(0, marks)
        while self.sweep.state.round < self.settings.training.rounds:
            now = self.sweep.state.round
            stop = min(next(round_number for round_number in stops if round_number > now), now + LENGTH)
            self.sweep.train(stop, lambda round_number: report(label, round_number, self.settings.training.rounds))
            self._measure(stop, marks)
            if time.perf_counter() - saved > CHECKPOINT_SECONDS:
                self._save(time.perf_counter() - started)
                saved = time.perf_counter()
        self._save(time.perf_counter() - started)
        result = self._collect(report)
        self.seconds += time.perf_counter() - started
        return {**result, "seconds": round(self.seconds, 1)}

    def _observe(self, rounds: list[int], done: Tables) -> None:
        rows = [self.row[federation] for federation in self.wanted["utility"]]
        self.series["stepwise"] += done.utility_loss[:, rows].double().mean(2).tolist()

    def _measure(self, round_number: int, marks: dict[str, set[int]]) -> None:
        if round_number in marks["evaluate"]:
            self.history.append(evaluate(self.sweep, None))
        if round_number in marks["clients"]:
            self.series["clients"].append([round_number, measures.client_curves(self.side("clients"))])
        if round_number in marks["gradients"]:
            self.series["gradients"].append([round_number, squared_gradients(self.side("gradients"))])
        if round_number in marks["utility"]:
            self.series["full"].append([round_number, measures.full_utility(self.side("utility"))])
        if round_number in marks["tensors"]:
            self.series["tensors"].append([round_number, measures.tensor_sizes(self.side("tensors"))])

    # -- the raw file ------------------------------------------------------------------------------------------------

    def _collect(self, report: Report) -> dict[str, Any]:
        place = self.sweep.in_order(range(len(self.federations)))
        records = federation_results(self.sweep, [self.history[-1][i] for i in place])
        for i, record in zip(place, records, strict=True):
            record["curve"] = {
                "rounds": [rows[i]["round"] for rows in self.history],
                "accuracy": [rows[i]["accuracy"] for rows in self.history],
                "distortion_norm_squared": [rows[i]["distortion_norm_squared"] for rows in self.history],
            }
        mine = dict(zip(self.federations, records, strict=True))
        self._add_series(mine)
        extra: dict[str, Any] = {}
        if self.wanted["inversion"]:
            side = self.side("inversion")
            result, extra["baselines"] = measures.inversions(side, self.scale, report)
            for federation, value in zip(side.federations, result, strict=True):
                mine[federation]["inversion"] = value
        if self.wanted["pictures"]:
            side = self.side("pictures")
            result, extra["originals"] = measures.pictures(side, self.scale, report)
            for federation, value in zip(side.federations, result, strict=True):
                mine[federation]["pictures"] = value
        return {
            "schema": SCHEMA,
            "experiment": "seeded",
            **{key: self.job[key] for key in ("name", "group", "version", "commit", "scale", "settings")},
            "digest": digest(self.job),
            "measures": self.job["measures"],
            "federations": rounded(records),
            **rounded(extra),
            "environment": environment(self.sweep.device),
        }

    def _add_series(self, mine: dict[Federation, dict[str, Any]]) -> None:
        for name in ("clients", "gradients", "tensors"):
            points = self.series[name]
            for i, federation in enumerate(self.side(name).federations if self.wanted[name] else []):
                mine[federation][name] = {
                    "rounds": [round_number for round_number, _ in points],
                    "values": [v[i] for _, v in points],
                }
        for i, federation in enumerate(self.wanted["utility"]):
            mine[federation]["utility"] = {"values": [row[i] for row in self.series["stepwise"]]}
        for i, federation in enumerate(self.side("utility").federations if self.wanted["utility"] else []):
            full = self.series["full"]
            mine[federation]["utility"] |= {
                "full_rounds": [round_number + 1 for round_number, _ in full],
                "full": [v[i] for _, v in full],
            }

    # -- the checkpoint ----------------------------------------------------------------------------------------------

    def _save(self, seconds: float) -> None:
        arrays = {name: tensor.cpu().numpy() for name, tensor in self.sweep.state.tensors().items()}
        notes = {
            "digest": digest(self.job),
            "round": self.sweep.state.round,
            "seconds": self.seconds + seconds,
            "history": self.history,
            "series": self.series,
        }
        packed = io.BytesIO()
        text = np.array(json.dumps(notes))
        np.savez(packed, notes=text, **arrays)  # type: ignore[arg-type]
        write_bytes(self.checkpoint, packed.getvalue())

    def _resume(self) -> None:
        if not self.checkpoint.exists():
            return
        remedy = "Delete it; the job starts again."
        try:
            with np.load(io.BytesIO(self.checkpoint.read_bytes()), allow_pickle=False) as stored:
                arrays = {name: torch.from_numpy(stored[name]) for name in stored.files if name != "notes"}
                notes = json.loads(str(stored["notes"]))
            if notes["digest"] != digest(self.job):
                raise CheckpointError(f"The checkpoint {self.checkpoint.name} belongs to another job.", remedy)
            round_number, seconds, history, series = (notes[key] for key in ("round", "seconds", "history", "series"))
            if (
                type(round_number) is not int
                or not 0 <= round_number <= self.settings.training.rounds
                or set(series) != set(self.series)
            ):
                raise ValueError("its notes do not fit the job")
            self.sweep.state.restore(round_number, arrays)
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error, RecursionError) as error:
            raise CheckpointError(f"The checkpoint {self.checkpoint.name} cannot be read: {error}.", remedy) from error
        self.seconds, self.history, self.series = seconds, history, series


def rounded(value: Any) -> Any:
    """Numbers to six significant digits, and null for those that JSON does not know."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(item) for item in value]
    return value
