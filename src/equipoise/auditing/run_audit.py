"""``audit_run``: attack the releases of a run at its own snapshots."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from ..engine.datasets import load_datasets
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
from .results import Findings, renamed, shown_names
from .summary import counted
from .sweep_audit import audit_sweep


def audit_run(
    folder: Path | str,
    options: AuditOptions | None = None,
    snapshots: Sequence[int] | None = None,
    private: bool = False,
    multi_rounds: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """Attack every federation of a run at its own snapshots: first, early and last, unless ``snapshots`` lists others.

    The targets are public images unless ``private``: then the clients' own images are attacked, and shown in the
    picture. ``multi_rounds`` > 0 also replays each federation so far and combines the releases of client 0.
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
    there = run.snapshots()
    usual = sorted({there[0], there[min(1, len(there) - 1)], there[-1]})
    chosen = run.chosen(usual if snapshots is None else snapshots)
    weights = {round_number: run.weights(round_number, batched.layout).to(device, dtype) for round_number in chosen}
    findings = Findings([], [], {}, [], {})
    if options.attacks:
        findings = audit_sweep(settings, federations, datasets, batched, weights, options, progress, private=private)
    if not findings.complete and not findings.rows:
        raise KeyboardInterrupt  # nothing was finished: an earlier audit stays as it is
    whose = "private" if private else "public"
    places = f"{counted(len(chosen), 'snapshot')} of {counted(len(federations), 'federation')}"
    attacked = f"{options.releases} releases of {whose} images at {places}"
    result = content(findings, options, whose, attacked)
    result["cap"] = _cap(run.results(), findings, federations, settings.training.rounds)
    if multi_rounds and findings.complete:
        most = min(multi_rounds, settings.training.rounds)
        step = None if progress is None else (lambda number: progress("multi-round", 0.3))
        result["multi_round"] = [
            replayed(settings, fed, most, examples=24, labels=1, decoys=49, around=32, on_round=step)
            for fed in federations
        ]
    result["environment"] = environment(device)
    names = shown_names(fed.dataset for fed in federations)
    for part in ("attacks", "differences", "cap", "multi_round"):
        if part in result:
            result[part] = renamed(result[part], names)
    result["baselines"] = {names[name]: guesses for name, guesses in result["baselines"].items()}
    return Audit(result, run_sections(findings, datasets))


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
