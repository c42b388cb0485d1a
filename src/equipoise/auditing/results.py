"""What attacks found, per release; and the same as numbers with intervals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from ..statistics import Array, Interval, auc, bootstrap, bootstrap_auc, bounded_interval, rate_interval, tpr_at
from .options import AuditOptions
from .targets import Targets
from .unfinished import Unfinished

ENOUGH = 20
"""Releases below which a result says too little to be called one."""
FEW = "insufficient evidence"
THINGS = {"image": "image", "table": "record", "tokens": "sequence"}
"""What one input is called, by ``Server.kind``."""
NON_MEMBERS = "non_members"
"""Stands in a row of membership where there were fewer than ``ENOUGH`` of them: how many."""
FAILED = "failed"
"""The note of an outcome whose attack could not work: why."""


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
    _: KW_ONLY
    read: int = 0  # results that an earlier audit of this user kept ...
    computed: int = 0  # ... and those of this one
    limits: list[dict[str, Any]] = field(default_factory=list)  # what is held against proved limits
    limit_outcomes: list[Outcome] = field(default_factory=list)
    unfinished: Unfinished | None = None  # what is missing, if the audit was interrupted

    @property
    def complete(self) -> bool:
        return self.unfinished is None


REPORTED = (
    "mse", "mse_pixel", "psnr", "ssim", "error_sd", "correlation", "identification", "log_rank", "leakage", "beyond_D",
    "labels", "labels_exact", "cost", "verified", "accepted", "accepted_wrongly",
)  # fmt: skip
"""Values that are averaged over releases."""


def evidence(releases: int) -> str:
    """Whether that many releases are enough to speak of a result.

    >>> evidence(19), evidence(20)
    ('insufficient evidence', 'ok')
    """
    return "ok" if releases >= ENOUGH else FEW


RATES = ("identification", "labels_exact", "verified", "accepted", "accepted_wrongly")
"""Of these, shares of examples, guesses or releases."""


def summary(
    values: dict[str, Array], seed: int = 0, *, candidates: int | None = None, intervals: bool = True
) -> dict[str, Any]:
    """Means with 95 % intervals over releases; membership as AUC and as the true positive rate at 1 % false alarms.

    ``candidates`` are those among which a log-rank was taken; ``intervals=False`` where releases are not independent.
    """
    results: dict[str, Any] = {}
    for name in REPORTED:
        if name not in values:
            continue
        table = values[name].reshape(len(values[name]), -1)
        finite = table[np.isfinite(table).all(1)]
        if len(finite) < len(table):
            results["not_finite"] = max(results.get("not_finite", 0), len(table) - len(finite))
        interval = None
        if intervals and len(finite):
            interval = interval_of(name, finite, seed, candidates)
        results |= _with_interval(name, finite, interval)
    if "members" in values:
        members, others = values["members"], values["others"]
        areas, rates = (bootstrap_auc(members, others, seed=seed) if intervals else None) or (None, None)
        results["membership_auc"], results["membership_tpr"] = auc(members, others), tpr_at(members, others)
        results["membership_auc_low"], results["membership_auc_high"] = areas or (None, None)
        results["membership_tpr_low"], results["membership_tpr_high"] = rates or (None, None)
    return results


def interval_of(name: str, table: Array, seed: int = 0, candidates: int | None = None) -> Interval | None:
    """The 95 % interval over releases that suits a measure, of its values ``[N, ...]``."""
    if name in RATES:
        return rate_interval(table)
    if name == "labels":
        return bounded_interval(table, 1.0)
    if name == "log_rank" and candidates is not None and candidates > 1:  # one candidate has no rank but the first
        return bounded_interval(table, float(np.log(candidates)))
    return bootstrap(table, seed=seed)


def _with_interval(name: str, table: Array, interval: Interval | None) -> dict[str, Any]:
    """The mean of a table ``[N, ...]`` beside its interval over releases."""
    low, high = interval or (None, None)
    return {name: float(table.mean()) if len(table) else None, f"{name}_low": low, f"{name}_high": high}


def rows_of(outcome: Outcome, targets: Targets, seed: int = 0) -> list[dict[str, Any]]:
    """The result of an attack and its negative control, as rows of ``audit.json``."""
    rows = []
    for control, values in ((outcome.about.get("control"), outcome.values), ("negative", outcome.negative)):
        if not values:
            continue
        row = {**outcome.about, "attack": outcome.attack, "control": control, "targets": len(targets)}
        row |= {"label_sets": targets.label_sets, "distinct_images": len(targets.truth.unique())}
        again = targets.recurring or ("members" in values and targets.others_recurring)
        width = targets.candidates - (control == "negative")  # this control leaves the truth out
        row |= {"evidence": evidence(len(targets)), **summary(values, seed, candidates=width, intervals=not again)}
        outside = len(targets.asked[~targets.member].unique())
        if "members" in values and outside < ENOUGH:
            row[NON_MEMBERS] = outside
        if values.keys() & {"identification", "verified"}:
            row["chance"] = f"1 in {width}"
        if control != "negative":
            row |= {name: note for name, note in outcome.notes.items() if name not in row}  # beside the numbers
        rows.append(row)
    return rows


ABLE = {"identification": 10.0, "membership_auc": 0.75, "labels": 0.5, "verified": 10.0}
"""What the lower end of an attack's interval must exceed on undistorted releases for its results to say anything at
these weights: so many times chance; this area; this share of the way from guessing to certainty."""


def mark_controls(rows: list[dict[str, Any]]) -> None:
    """Set ``control_failed`` in every row whose attack does not work on undistorted releases at the same weights."""
    table = {(place_of(row), row["role"], row["control"] == "negative"): row for row in rows}
    for row in rows:
        if row["control"] is not None:
            continue
        positive = table.get((place_of(row), "undistorted", False))
        if positive is None and row["mechanism"] == "none":
            positive = row
        if positive is not None and not able(positive, table.get((place_of(positive), positive["role"], True))):
            row["control_failed"] = True


def able(row: Mapping[str, Any], negative: Mapping[str, Any] | None) -> bool:
    """Whether an attack on undistorted releases got clearly more than chance; where nothing tells, it is believed."""
    for name, least in ABLE.items():
        got = row.get(f"{name}_low")
        if got is None:
            got = row.get(name)
        if got is None:
            continue
        if name in ("identification", "verified"):
            least = min(least / candidates_of(row), 0.5)
        elif name == "labels":
            guessed = (negative or {}).get(name) or 0.0
            least = guessed + least * (1 - guessed)
        return bool(got > least)
    return True


def place_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Which attack, at the weights of which federation and round: what a row has in common with its controls."""
    return (
        row["attack"], row.get("dataset"), row["mechanism"], str(row.get("budget")), row.get("seed"), row.get("round"),
    )  # fmt: skip


def candidates_of(row: Mapping[str, Any]) -> int:
    """Among how many candidates a row's examples were sought.

    >>> candidates_of({"chance": "1 in 25"})
    25
    """
    return int(row["chance"].removeprefix("1 in "))


def renamed(rows: Iterable[Mapping[str, Any]], names: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rows with their dataset by its label, see ``dataset_labels``."""
    return [{**row, "dataset": names[row["dataset"]]} if row.get("dataset") in names else {**row} for row in rows]


def differences(one: Outcome, other: Outcome, seed: int) -> dict[str, Any]:
    """``one - other`` on the same targets, release by release, with intervals."""
    results: dict[str, Any] = {}
    for name in ("mse", "ssim", "error_sd", "identification", "log_rank", "labels"):
        if name in one.values and name in other.values:
            gap = (one.values[name] - other.values[name]).reshape(len(one.values[name]), -1).mean(1)
            results |= _with_interval(name, gap, bootstrap(gap, seed=seed))  # a difference of rates is no rate
    return results


def repeated(count: int, kind: str = "image") -> str:
    """
    >>> repeated(1), repeated(3, "table")
    ('1 image that equals another was left out', '3 records that equal another were left out')
    """
    return f"{count} {THINGS[kind]}{' that equals another was' if count == 1 else 's that equal another were'} left out"


def shortages(targets: Targets, options: AuditOptions, *, given: bool = False, classes: bool = True) -> list[str]:
    """What there were too few records for; ``given`` where the releases are not of our making."""
    notes = []
    if not given and len(targets) < options.releases:
        notes.append(
            f"{len(targets)} releases are attacked, not {options.releases}: no example plays a part twice, and there "
            "are no more of these labels."
        )
    if 1 < targets.candidates < options.candidates:
        notes.append(
            f"Each example is sought among {targets.candidates} candidates, not {options.candidates}: there are no "
            f"more{' of its label' if classes else ''}."
        )
    if "membership" in options.attacks and 0 < targets.others < options.others:
        notes.append(
            f"Members are told from {targets.others} other{'' if targets.others == 1 else 's'}, not {options.others}: "
            f"there are no more{' of their labels' if classes else ''}."
        )
    if targets.recurring:
        notes.append("There are no intervals: an example is in several releases, so these are not independent.")
    elif "membership" in options.attacks and targets.others_recurring:
        notes.append("Membership has no intervals: there are too few others for each release to have its own.")
    return notes
