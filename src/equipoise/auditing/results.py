"""What attacks found, per release; and the same as numbers with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from ..statistics import Array, auc, bootstrap, bootstrap_auc, tpr_at
from .targets import Targets

ENOUGH = 20
"""Releases below which a result says too little to be called one."""
FEW = "insufficient evidence"


@dataclass(frozen=True)
class Outcome:
    """What one attack found in one cell, per release."""

    about: dict[str, Any]
    attack: str
    values: dict[str, Array]  # [N, ...]
    negative: dict[str, Array]  # the same against the impostors
    pictures: Array | None = None  # [n, E, C, H, W] uint8
    images: Tensor | None = None  # [N, E, ...]: the reconstructions themselves
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Findings:
    """All that was found, ready to be written."""

    rows: list[dict[str, Any]]  # one per attack and cell, negative controls included
    differences: list[dict[str, Any]]  # learned against static
    baselines: dict[str, dict[str, Any]]  # by dataset, then by guess
    outcomes: list[Outcome]  # values per release, pictures
    targets: dict[str, Targets]
    complete: bool = True  # False: interrupted, and these are the cells that were finished


REPORTED = (
    "mse", "mse_pixel", "psnr", "ssim", "identification", "log_rank", "leakage", "beyond_D", "labels", "labels_exact",
    "cost",
)  # fmt: skip
"""Values that are averaged over releases."""


def evidence(releases: int) -> str:
    """Whether that many releases are enough to speak of a result.

    >>> evidence(19), evidence(20)
    ('insufficient evidence', 'ok')
    """
    return "ok" if releases >= ENOUGH else FEW


def summary(values: dict[str, Array], seed: int = 0) -> dict[str, Any]:
    """Means with 95 % intervals by bootstrap over releases; membership as AUC and TPR at 1 % FPR, score by score."""
    results: dict[str, Any] = {}
    for name in REPORTED:
        if name not in values:
            continue
        per_release = values[name].reshape(len(values[name]), -1).mean(1)
        finite = per_release[np.isfinite(per_release)]
        if len(finite) < len(per_release):
            results["not_finite"] = max(results.get("not_finite", 0), len(per_release) - len(finite))
        results |= _with_interval(name, finite, seed)
    for name in membership_scores(values):
        members, others = values[f"{name}_members"], values[f"{name}_others"]
        areas, rates = bootstrap_auc(members, others, seed=seed) or (None, None)
        results[f"auc_{name}"], results[f"tpr_{name}"] = auc(members, others), tpr_at(members, others)
        results[f"auc_{name}_low"], results[f"auc_{name}_high"] = areas or (None, None)
        results[f"tpr_{name}_low"], results[f"tpr_{name}_high"] = rates or (None, None)
    return results


def membership_scores(values: dict[str, Array]) -> list[str]:
    """The scores by which members and others were compared."""
    return [name.removesuffix("_members") for name in values if name.endswith("_members")]


def _with_interval(name: str, per_release: Array, seed: int) -> dict[str, Any]:
    interval = bootstrap(per_release, seed=seed) if len(per_release) else None
    low, high = interval or (None, None)
    return {name: float(per_release.mean()) if len(per_release) else None, f"{name}_low": low, f"{name}_high": high}


def rows_of(outcome: Outcome, targets: Targets, seed: int = 0) -> list[dict[str, Any]]:
    """The result of an attack and its negative control, as rows of ``audit.json``."""
    releases = len(targets.truth)
    rows = []
    for control, values in ((outcome.about.get("control"), outcome.values), ("negative", outcome.negative)):
        row = {**outcome.about, "attack": outcome.attack, "control": control, "targets": releases}
        row |= {"label_sets": targets.label_sets, "distinct_images": len(targets.truth.unique())}
        row |= {"evidence": evidence(releases), **summary(values, seed)}
        if "identification" in values:
            row["chance"] = f"1 in {targets.decoys.shape[2] + 1}"  # of identifying an example
        if scores := membership_scores(values):
            best = max(scores, key=lambda name: row[f"auc_{name}"])
            row |= {"membership_auc": row[f"auc_{best}"], "membership_score": best}
        if control != "negative":
            row |= outcome.notes
        rows.append(row)
    return rows


def renamed(rows: Iterable[Mapping[str, Any]], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows with their dataset by its label, see ``dataset_labels``."""
    return [{**row, "dataset": names[row["dataset"]]} if row.get("dataset") in names else {**row} for row in rows]


def differences(one: Outcome, other: Outcome, seed: int) -> dict[str, Any]:
    """``one - other`` on the same targets, release by release, with intervals."""
    results: dict[str, Any] = {}
    for name in ("mse", "ssim", "identification", "log_rank", "labels"):
        if name in one.values and name in other.values:
            gap = (one.values[name] - other.values[name]).reshape(len(one.values[name]), -1).mean(1)
            results |= _with_interval(name, gap, seed)
    return results
