"""``audit_run``: attack the releases of a run at its own snapshots."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from ..engine.datasets import dataset_labels, load_datasets
from ..engine.federation import Federation
from ..environment import environment
from ..models.batched import Batched
from ..models.bundled import build
from ..runs.folder import RunFolder
from . import image_scores as scores
from .audit import Audit, content, run_sections
from .cells import OWN
from .examine import Progress
from .options import AuditOptions
from .replay import replayed
from .results import Findings, renamed, shortages
from .summary import counted
from .sweep_audit import audit_sweep

LISTS = ("attacks", "differences", "cap", "multi_round")
"""The parts of a result that are rows, each with its dataset."""


def audit_run(
    folder: Path | str,
    options: AuditOptions | None = None,
    snapshots: Sequence[int] | None = None,
    private: bool = False,
    multi_rounds: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Attack every federation of a run at its own snapshots: first, early and last, unless ``snapshots`` lists others.

    Args:
        folder: a run folder, as ``equipoise train`` or ``Run`` writes it.
        options: which attacks, and how hard; see ``AuditOptions``.
        snapshots: the rounds to attack; the run kept the weights of each.
        private: attack the clients' own images, and show them in the picture, instead of public ones.
        multi_rounds: if > 0, also replay each federation for so many rounds and combine the releases of client 0.
        progress: called with (what, amount) while it works.

    Returns:
        What the attacks got: ``summary()`` in words, ``rows`` with intervals, ``save(folder)`` for audit.json.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from equipoise import Run, resolve
    >>> config = resolve(overrides={"rounds": 1}, sweep={"mechanisms": ["none"]})
    >>> options = AuditOptions(attacks=["membership"], releases=2, label_sets=1)
    >>> with TemporaryDirectory() as folder:
    ...     _ = Run(Path(folder), config).execute()
    ...     audit_run(folder, options, snapshots=[0]).rows[0]["attack"]
    'membership'
    """
    options = options or AuditOptions()
    options.check()
    run = RunFolder(folder)
    settings, federations = run.config.settings, run.config.federations()
    datasets = load_datasets(settings, [fed.dataset for fed in federations])
    sample = next(iter(datasets.values()))
    device, dtype = torch.device(settings.run.device), getattr(torch, settings.run.dtype)
    with torch.random.fork_rng(devices=[]):
        batched = Batched(build(settings.training.model, sample.shape, sample.classes).to(device, dtype), device=device)
    chosen = run.chosen(_usual(run.snapshots()) if snapshots is None else snapshots)
    weights = {round_number: run.weights(round_number, batched.layout).to(device, dtype) for round_number in chosen}
    findings = Findings([], [], {}, [], {})
    if options.attacks:
        findings = audit_sweep(settings, federations, datasets, batched, weights, options, progress, private=private)
    if not findings.complete and not findings.rows:
        raise KeyboardInterrupt  # nothing was finished: an earlier audit stays as it is
    whose = "private" if private else "public"
    places = f"{counted(len(chosen), 'snapshot')} of {counted(len(federations), 'federation')}"
    releases = max((len(targets) for targets in findings.targets.values()), default=options.releases)
    attacked = f"{releases} releases of {whose} images at {places}"
    result = content(findings, options, whose, attacked)
    result["notes"] += _shortages(findings, options)
    result["cap"] = _cap(run.results(), findings, federations, settings.training.rounds)
    if multi_rounds and findings.complete:
        most = min(multi_rounds, settings.training.rounds)
        step = None if progress is None else (lambda number: progress("multi-round", 0.3))
        result["multi_round"] = [
            replayed(settings, fed, most, examples=24, labels=1, decoys=49, around=32, on_round=step)
            for fed in federations
        ]
    if any(_per_client(fed.budget) for fed in federations):
        result["notes"].append("Where every client has a budget of its own, that of client 0 was attacked.")
    result["environment"] = environment(device)
    return Audit(_without_paths(result, federations), run_sections(findings, datasets))


def _shortages(findings: Findings, options: AuditOptions) -> list[str]:
    """What there were too few images for, by dataset where there are several."""
    names, several = dataset_labels(findings.targets), len(findings.targets) > 1
    return [
        f"{names[name]}: {note}" if several else note
        for name, targets in findings.targets.items()
        for note in shortages(targets, options)
    ]


def _per_client(budget: Any) -> bool:
    parts = budget["values"] if isinstance(budget, Mapping) else [budget]
    return any(isinstance(part, list) and len(set(part)) > 1 for part in parts)


def _usual(snapshots: list[int]) -> list[int]:
    """The first snapshot, an early one and the last."""
    return sorted({snapshots[0], snapshots[min(1, len(snapshots) - 1)], snapshots[-1]})


def _without_paths(result: dict[str, Any], federations: list[Federation]) -> dict[str, Any]:
    """The same with a dataset folder's name for its path."""
    names = dataset_labels(fed.dataset for fed in federations)
    parts = {name: renamed(rows, names) for name, rows in result.items() if name in LISTS}
    return {**result, **parts, "baselines": {names[name]: rows for name, rows in result["baselines"].items()}}


def _cap(
    results: list[dict[str, Any]], findings: Findings, federations: list[Federation], last: int
) -> list[dict[str, Any]]:
    """Calibrated Averaged Performance at the last round: mean over budgets of accuracy times reconstruction error."""
    if not results:
        return []
    errors: dict[tuple[str, str, int, str], dict[int, float]] = {}
    for row in findings.rows:
        if row["role"] == OWN and row["control"] != "negative" and row["round"] == last and "mse" in row:
            about = Federation(row["dataset"], row["mechanism"], row["budget"], row["seed"])
            key = (row["dataset"], row["mechanism"], row["seed"], row["attack"])
            errors.setdefault(key, {})[federations.index(about)] = row["mse"]
    return [
        {
            "dataset": dataset, "mechanism": name, "seed": seed, "attack": attack, "round": last, "budgets": len(mine),
            "cap": scores.cap([results[i]["accuracy"] for i in mine], list(mine.values())),
        }
        for (dataset, name, seed, attack), mine in errors.items()
    ]  # fmt: skip
