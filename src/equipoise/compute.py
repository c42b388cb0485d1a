"""Run a SPEC with torch and numpy alone: ``python -m equipoise.compute SPEC.json OUT/``.

A SPEC is what ``settings.to_dict`` writes. OUT gets ``result.json`` (as in a run folder, plus seconds) and
``curves.npz`` (``rounds`` and ``[F, evaluations]`` arrays). With an entry ``audit`` (the options of an audit,
and ``snapshots``) the federations are attacked at the weights of those rounds instead, and OUT gets ``audit.json`` and
``audit.npz`` (values per release, which ``auditing/store.py`` reads). With an entry ``multi_round`` (the arguments of
``replay.replayed_all``) every federation is replayed and its releases combined, and OUT gets ``multi_round.json``.
With an entry ``public`` (numbers of images) a model is trained on so many public images alone, without any client, and
OUT gets ``public.json``.

Two kinds of SPEC hold several. One with the entry ``parts`` (SPECs by name) computes each into a folder of its own
below OUT, and leaves out what is there: killed, it goes on where it was, several processes with the same OUT share the
work, and a part that fails stops no other. One with the entry ``reproduction`` holds the jobs of ``equipoise reproduce
--plan``; OUT gets a raw file for each. Nothing else is written: no weights, no private images.
"""

from __future__ import annotations

import io
import json
import sys
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .auditing.limit_comparison import compared
from .auditing.limits_audit import replayed_limits
from .auditing.options import AuditOptions, attacked_rounds, kept_values
from .auditing.replay import replayed_all
from .auditing.results import Findings, renamed
from .auditing.store import Values, packed, thinned
from .auditing.sweep_audit import audit_sweep
from .choosing.public_alone import public_alone
from .engine.datasets import dataset_labels
from .engine.evaluation import score
from .engine.federation import Federation
from .engine.result import result
from .engine.settings import from_dict
from .engine.sweep import Sweep
from .environment import VERSION, environment
from .errors import CheckpointError, ConfigError, EquipoiseError
from .files import DONE, finished, locked, refuse_link, storage_errors, write_bytes, write_json
from .mechanism.registry import get_mechanism
from .models.inputs import placed

CURVES = (
    "accuracy", "validation_accuracy", "loss", "utility_loss", "intensity", "distortion_norm",
    "distortion_norm_squared", "clipped_share", "gradient_norm_squared",
)  # fmt: skip


def compute(spec: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train the sweep of ``spec``; write the results below ``out`` and return them."""
    settings, federations = from_dict(spec)
    if settings.run.release_limit is not None:
        raise ConfigError("A SPEC cannot have a release_limit: compute keeps no ledger.", "Use equipoise train.")
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    sweep = Sweep(settings, federations)
    history: list[list[dict[str, Any]]] = []
    for event in sweep.run():
        if event.rows:
            history.append(event.rows)
            rate = event.round / (time.perf_counter() - started)
            print(f"round {event.round}/{settings.training.rounds}  {rate:.1f} rounds/s", flush=True)
    if sweep.device.type == "cuda":
        torch.cuda.synchronize()
    flat = [row for rows in history for row in rows]
    asked = {**spec, "federations": [sweep.about(federation) for federation in federations]}
    outcome = {**result(sweep, flat), "seconds": time.perf_counter() - started, "spec": asked}
    write_json(out / "result.json", outcome)
    curves = {
        name: np.array([[row.get(name, np.nan) for row in rows] for rows in history], dtype=np.float32).T
        for name in CURVES
    }
    curves["rounds"] = np.array(settings.evaluated())
    content = io.BytesIO()
    np.savez_compressed(content, **curves)  # type: ignore[arg-type]
    write_bytes(out / "curves.npz", content.getvalue())
    return outcome


CHOICES = ("seeds", "keep")
"""Of the entry ``audit``: which federations are attacked, by seed, and which values are kept of every release; all."""
OLD_NAMES = {"rounds": "snapshots", "given": "condition_on"}
"""What the entry ``audit`` of an older SPEC calls them."""
MULTI_ROUND = ("rounds", "examples", "decoys", "around", "pairs", "client", "seed", "unknown", "games", "among")
GAMES = ("games", "among", "seed")
"""Of these, what concerns federations whose budget is that of a whole run."""


def _table(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"Expected {name!r} in the SPEC to be an object, got {value!r}.", "See compute.py.")
    return dict(value)


def _named(spec: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    """The SPEC as results keep it: with the names of dataset folders, not their paths."""
    return {**spec, "federations": renamed(spec["federations"], names)}


def compute_audit(spec: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train the sweep of ``spec`` to every round that is to be attacked, attack, and write what was found."""
    spec = dict(spec)
    raw = {OLD_NAMES.get(name, name): value for name, value in _table(spec.pop("audit"), "audit").items()}
    snapshots, chosen = raw.pop("snapshots", [0]), {name: raw.pop(name) for name in CHOICES if name in raw}
    settings, federations = from_dict(spec)
    options = AuditOptions(**raw)
    options.check()
    attacked, keep = _attacked(federations, chosen.get("seeds")), kept_values(chosen.get("keep"))
    snapshots = attacked_rounds(snapshots, settings.training.rounds)
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    started = time.perf_counter()
    sweep = Sweep(settings, federations)
    weights, accuracies = {}, []
    for round_number in snapshots:
        sweep.train(round_number)
        weights[round_number] = sweep.models()[attacked]
        accuracies += _accuracies(sweep)
    if snapshots[-1] < settings.training.rounds:
        sweep.train(settings.training.rounds)
        accuracies += _accuracies(sweep)
    trained = time.perf_counter() - started
    told = 0.0

    def progress(attack: str, amount: float) -> None:
        nonlocal told
        if time.perf_counter() - told > 20:
            told = time.perf_counter()
            print(f"{attack}  {told - started:.0f} s", flush=True)

    findings = audit_sweep(
        settings, [federations[place] for place in attacked], sweep.datasets, sweep.batched, weights, options, progress,
        on_features=sweep.on_features,
    )  # fmt: skip
    names = dataset_labels(federation.dataset for federation in federations)
    outcome = {
        "schema": 1,
        "experiment": "seeded",
        "complete": findings.complete,
        "accuracy": accuracies,
        "attacks": renamed(findings.rows, names),
        "limits": renamed(compared(findings.limits), names),
        "differences": renamed(findings.differences, names),
        "baselines": {names[name]: guesses for name, guesses in findings.baselines.items()},
        "options": options.plain(),
        "seconds": {"training": trained, "all": time.perf_counter() - started},
        "environment": environment(sweep.device),
        "spec": {**_named(spec, names), "audit": {**raw, "snapshots": snapshots, **chosen}},
    }
    write_json(out / "audit.json", outcome)
    write_bytes(out / "audit.npz", packed(_values(findings, names, keep)))
    return outcome


def _attacked(federations: list[Federation], seeds: Any) -> list[int]:
    """The places of the federations that are attacked: those of some seeds, or all of them."""
    if seeds is None:
        return list(range(len(federations)))
    own = sorted({federation.seed for federation in federations})
    if not isinstance(seeds, list) or not seeds or not all(seed in own for seed in seeds):
        raise ConfigError(f"Expected seeds={seeds!r} to be a list of seeds that federations have.", f"They have {own}.")
    return [place for place, federation in enumerate(federations) if federation.seed in seeds]


def _accuracies(sweep: Sweep) -> list[dict[str, Any]]:
    """Of every federation's global model on the test set, now."""
    rows = []
    for name, data in sweep.datasets.items():
        mine = sweep.federations_on(name)
        images, labels = placed(data.test.inputs, sweep.device, sweep.dtype), data.test.labels.to(sweep.device)
        right = score(sweep.batched, sweep.state.params[mine], images, labels)[0].double().mean(1)
        rows += [
            {**sweep.about(sweep.federations[place]), "round": sweep.state.round, "accuracy": accuracy}
            for place, accuracy in zip(mine, right.tolist(), strict=True)
        ]
    return rows


def _values(findings: Findings, names: dict[str, str], keep: list[str] | None = None) -> Values:
    """What was measured on every release, and which of the public images stood behind it; no image."""
    every = [*findings.outcomes, *findings.limit_outcomes]
    abouts = renamed((one.about for one in every), names)
    outcomes = [replace(one, about=about, pictures=None) for one, about in zip(every, abouts, strict=True)]
    outcomes = outcomes if keep is None else [thinned(one, keep) for one in outcomes]
    arrays = {
        f"{names[name]}/{what}": getattr(targets, what).cpu().numpy()
        for name, targets in findings.targets.items() for what in ("truth", "labels")
    }  # fmt: skip
    fewest = min((targets.candidates for targets in findings.targets.values()), default=None)
    return Values(outcomes, arrays, {} if fewest is None else {"candidates": fewest})


def compute_multi_round(spec: dict[str, Any], out: Path) -> dict[str, Any]:
    """Replay every federation of ``spec`` and combine the releases of one client; written after each federation."""
    spec = dict(spec)
    raw = _table(spec.pop("multi_round"), "multi_round")
    settings, federations = from_dict(spec)
    unknown = sorted(set(raw) - set(MULTI_ROUND))
    if unknown:
        raise ConfigError(f"Unknown key {unknown[0]!r} in 'multi_round'.", f"Known: {', '.join(MULTI_ROUND)}.")
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    started, names = time.perf_counter(), dataset_labels(federation.dataset for federation in federations)
    outcome: dict[str, Any] = {
        "schema": 1,
        "experiment": "seeded",
        "attacks": [],
        "spec": {**_named(spec, names), "multi_round": raw},
        "environment": environment(torch.device(settings.run.device)),
    }
    games = AuditOptions(**{name: raw[name] for name in GAMES if name in raw})
    games.check()
    usual = {"rounds": settings.training.rounds, **{name: raw[name] for name in raw if name not in GAMES[:2]}}
    limits: list[dict[str, Any]] = []
    for several in _replayable(federations):
        if get_mechanism(several[0].mechanism).whole_run:
            limits += replayed_limits(settings, several[0], usual["rounds"], games)
            outcome["limits"] = renamed(compared(limits), names)
        else:
            outcome["attacks"] += renamed(replayed_all(settings, several, **usual), names)
        outcome["seconds"] = time.perf_counter() - started
        print(f"{several[0].label()} and {len(several) - 1} more  {outcome['seconds']:.0f} s", flush=True)
        write_json(out / "multi_round.json", outcome)
    return outcome


def _replayable(federations: list[Federation]) -> list[list[Federation]]:
    """Federations that are replayed together: of one seed and dataset; those with a budget of a whole run alone."""
    groups: dict[Any, list[Federation]] = {}
    for place, federation in enumerate(federations):
        alone = place if get_mechanism(federation.mechanism).whole_run else None
        groups.setdefault((alone, federation.seed, federation.dataset), []).append(federation)
    return list(groups.values())


def compute_public(spec: dict[str, Any], out: Path) -> dict[str, Any]:
    """Train on public images alone, at each of the numbers of them that ``spec`` lists."""
    spec = dict(spec)
    numbers = spec.pop("public")
    settings, federations = from_dict(spec)
    started = time.perf_counter()
    rows = public_alone(settings, federations, numbers)
    outcome = {
        "schema": 1,
        "experiment": "seeded",
        "federations": renamed(rows, dataset_labels(federation.dataset for federation in federations)),
        "seconds": time.perf_counter() - started,
        "environment": environment(torch.device(settings.run.device)),
        "spec": {**_named(spec, dataset_labels(federation.dataset for federation in federations)), "public": numbers},
    }
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
    write_json(out / "public.json", outcome)
    return outcome


def compute_parts(spec: dict[str, Any], out: Path) -> bool:
    """Compute every part that is not there and that no other process is at; whether all of them are there now.

    A part that fails stops no other: its error is printed at once and again at the end, and the first one is raised.
    """
    parts, stopped = _parts(spec, out), False
    failed: dict[str, EquipoiseError] = {}
    for name, part in parts.items():
        try:
            stopped = not _computed(part, out / name, spec.get("commit"))
        except EquipoiseError as error:
            failed[name] = error
            print(f"error in part {name}: {error}", file=sys.stderr, flush=True)
        if stopped:  # by hand: the others wait, too
            break
    left = [name for name, part in parts.items() if name in failed or not finished(out / name, part)]
    print(f"{len(parts) - len(left)} of {len(parts)} parts are there", flush=True)
    for name, why in failed.items():
        print(f"failed: part {name}: {why}", file=sys.stderr, flush=True)
    if failed and not stopped:
        raise next(iter(failed.values()))
    return not left


def _parts(spec: dict[str, Any], out: Path) -> dict[str, Any]:
    """The parts, all of which are fit to be computed below ``out``."""
    parts = _table(spec["parts"], "parts")
    for name, part in parts.items():
        if not name or not name.isprintable() or Path(name).name != name or name[0] == ".":  # NUL ends a path
            raise ConfigError(
                f"A part cannot be called {name!r}: it names a folder.", "Use letters, digits and dashes."
            )
        _table(part, name)
        refuse_link(out / name)
        finished(out / name, part)  # that of another SPEC is refused
    return parts


def _computed(part: dict[str, Any], folder: Path, commit: Any) -> bool:
    """Compute one part unless it is there or another process is at it; False: it was stopped in the middle."""
    if finished(folder, part):
        return True
    refuse_link(folder)
    with ExitStack() as held:
        try:
            held.enter_context(locked(folder))
        except CheckpointError:  # another process is at it
            return True
        if finished(folder, part):
            return True
        print(f"part {folder.name}", flush=True)
        started = time.perf_counter()
        if not run_spec(part, folder):
            return False
        seconds = time.perf_counter() - started
        write_json(folder / DONE, {"schema": 1, "commit": commit, "spec": part, "seconds": seconds})
    return True


def compute_reproduction(spec: dict[str, Any], out: Path) -> list[Path]:
    """Run the jobs that ``equipoise reproduce --plan`` wrote; a job whose raw file exists is not run again."""
    from .reproduction.job import check_job, run
    from .reproduction.plan import SCHEMA

    raw = _table(spec["reproduction"], "reproduction")
    if raw.get("schema") != SCHEMA or raw.get("version") != VERSION or not isinstance(raw.get("jobs"), list):
        raise ConfigError(
            f"The SPEC is of version {raw.get('version')}, schema {raw.get('schema')}; this is {VERSION}, {SCHEMA}.",
            "Write it again with equipoise reproduce --plan.",
        )
    for job in raw["jobs"]:
        check_job(job)
    told = time.perf_counter()
    written = []

    def report(what: str, done: int, total: int) -> None:
        nonlocal told
        if time.perf_counter() - told > 10:
            told = time.perf_counter()
            print(f"{what}  {done}/{total}", flush=True)

    for job in raw["jobs"]:
        started = time.perf_counter()
        written.append(run(job, out, report))
        print(
            f"{job['group']}: {len(job['federations'])} federations in {time.perf_counter() - started:.1f} s",
            flush=True,
        )
    return written


def run_spec(spec: Any, out: Path) -> bool:
    """Compute a SPEC of any kind; whether it was computed to its end."""
    if not isinstance(spec, dict):
        raise ConfigError("Expected an object with 'settings' and 'federations'.", "See engine.settings.to_dict.")
    kind = next((name for name in ("parts", "audit", "reproduction", "multi_round", "public") if name in spec), "")
    if kind == "parts":
        return compute_parts(spec, out)
    if kind == "audit":
        outcome = compute_audit(spec, out)
        rows = len(outcome["attacks"]) + len(outcome["limits"])
        print(f"{rows} rows in {outcome['seconds']['all']:.1f} s")
        return bool(outcome["complete"])
    if kind == "reproduction":
        compute_reproduction(spec, out)
    elif kind == "multi_round":
        compute_multi_round(spec, out)
    elif kind == "public":
        compute_public(spec, out)
    else:
        outcome = compute(spec, out)
        print(f"{len(outcome['federations'])} federations in {outcome['seconds']:.1f} s")
    return True


def main(arguments: list[str]) -> int:
    """The entry point: two paths, no options."""
    if len(arguments) != 2:
        print("usage: python -m equipoise.compute SPEC.json OUT/", file=sys.stderr)
        return 2
    try:
        path = Path(arguments[0])
        try:
            spec = json.loads(path.read_text())
        except (OSError, ValueError, RecursionError) as error:
            raise ConfigError(f"Cannot read the SPEC {path}: {error}.", "Give a JSON file.") from error
        return 0 if run_spec(spec, Path(arguments[1])) else 130
    except EquipoiseError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
