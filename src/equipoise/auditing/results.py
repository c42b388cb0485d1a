"""What an attack found, per release; and the same as numbers with intervals."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from . import scores
from .targets import Targets

Array = npt.NDArray[Any]


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


REPORTED = (
    "mse", "mse_pixel", "psnr", "ssim", "identification", "log_rank", "leakage", "beyond_D", "labels", "labels_exact",
    "cost",
)  # fmt: skip


def summary(values: dict[str, Array], seed: int = 0) -> dict[str, Any]:
    """Means with 95 % intervals by bootstrap over releases; membership as AUC and TPR at 1 % FPR, score by score."""
    found: dict[str, Any] = {}
    for name in REPORTED:
        if name not in values:
            continue
        per_release = values[name].reshape(len(values[name]), -1).mean(1)
        finite = per_release[np.isfinite(per_release)]
        if len(finite) < len(per_release):
            found["not_finite"] = max(found.get("not_finite", 0), len(per_release) - len(finite))
        found[name] = float(finite.mean()) if len(finite) else None
        interval = scores.bootstrap(finite, seed=seed) if len(finite) else None
        found[f"{name}_low"], found[f"{name}_high"] = interval if interval is not None else (None, None)
    for name in ("loss", "first", "last"):
        if f"{name}_members" not in values:
            continue
        members, others = values[f"{name}_members"], values[f"{name}_others"]
        areas, rates = scores.bootstrap_auc(members, others, seed=seed) or (None, None)
        found[f"auc_{name}"], found[f"tpr_{name}"] = scores.auc(members, others), scores.tpr_at(members, others)
        for kind, interval in (("auc", areas), ("tpr", rates)):
            low, high = interval if interval is not None else (None, None)
            found[f"{kind}_{name}_low"], found[f"{kind}_{name}_high"] = low, high
    return found


def rows_of(outcome: Outcome, targets: Targets, seed: int = 0) -> list[dict[str, Any]]:
    """The result of an attack and its negative control, as rows of ``audit.json``."""
    releases = len(targets.truth)
    rows = []
    for control, values in ((outcome.about.get("control"), outcome.values), ("negative", outcome.negative)):
        row = {**outcome.about, "attack": outcome.attack, "control": control, "targets": releases}
        row |= {"label_sets": targets.label_sets, "distinct_images": len(targets.truth.unique())}
        row |= {"evidence": scores.verdict(releases), **summary(values, seed)}
        if outcome.attack == "membership":
            best = max(("loss", "first", "last"), key=lambda name: row[f"auc_{name}"])
            row |= {"membership_auc": row[f"auc_{best}"], "membership_score": best}
        if control != "negative":
            row |= outcome.notes
        rows.append(row)
    return rows


def differences(one: Outcome, other: Outcome, seed: int = 0) -> dict[str, Any]:
    """``one - other`` on the same targets, release by release, with intervals."""
    found: dict[str, Any] = {}
    for name in ("mse", "ssim", "identification", "log_rank", "labels"):
        if name in one.values and name in other.values:
            gap = (one.values[name] - other.values[name]).reshape(len(one.values[name]), -1).mean(1)
            interval = scores.bootstrap(gap, seed=seed)
            found[name] = float(gap.mean())
            found[f"{name}_low"], found[f"{name}_high"] = interval if interval is not None else (None, None)
    return found
