"""Bring the parts of the study together: ``python studies/leakage/summarise.py [--add] PARTS.json studies/leakage``.

With ``--add`` what is committed there stays, and the parts of PARTS.json come beside it: cells and runs that are in
both are taken from the new parts.

PARTS.json lists what was run: {"folder", "design", "commit", "command", "machine"}; a folder is what
``python -m equipoise.compute SPEC.json FOLDER`` wrote, or, of kind "trained", a run folder for its accuracies alone.
``values.npz`` gets what was measured on every release and ``leakage.json`` all that follows from it: ``summarise``
makes the second of the first, and a test does it again.

Rules, written before the figures:

* A figure is the mean over three trajectories. Its interval resamples whole releases, with all three trajectories of
  each, so it covers other images and noise; ``least`` and ``most`` are over the trajectories.
* Learned is set against static noise by one measure an attack (``PRIMARY``), release by release. At the same weights
  it *leaks more* or *less* if the 95 % interval of the mean difference over releases excludes zero, else there is *no
  clear difference*. Against static noise on its own trajectory, where the weights differ, the interval is Student's
  over the three trajectories. Nothing is corrected for the number of cells: one in twenty equal pairs is called
  different.
* *control failed* where there is no clear difference and the attack does not work on undistorted releases at the
  weights of either side, by the rule of ``auditing/results.py`` applied to the mean over trajectories.

Added after the figures of an earlier run were known: ``beside_undistorted`` sets every distorted release beside the
undistorted ones at the same weights, by the same measure and the same bootstrap over releases.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.auditing.results import Outcome, able, interval_of
from equipoise.auditing.store import Values, packed, unpacked
from equipoise.statistics import (
    Array,
    Interval,
    auc_by_release,
    bootstrap,
    interval,
    share_interval,
    tpr_at,
)

OWN, POSITIVE, LOWER, NORM = "own", "undistorted", "static, equal lower bound", "static, equal final norm"
STATIC, LEARNED = "pl-identical", "pl-learn"
TRAJECTORY = "static, own trajectory"
PLACE = ("design", "dataset", "mechanism", "budget", "round", "role", "attack")
MEASURES = {
    "matched": ("identification", "log_rank"), "lti": ("identification", "log_rank"), "membership": ("membership_auc",),
    "labels": ("labels_exact",),
}  # fmt: skip
PRIMARY = {attack: measures[0] for attack, measures in MEASURES.items()}
Place = tuple[Any, ...]
Cells = dict[Place, list[Outcome]]
"""Outcomes of all trajectories, in the order of their seeds."""


# -- values ------------------------------------------------------------------------------------------------------------


def kept(outcome: Outcome, design: str, candidates: int) -> Outcome:
    """What verdicts need, as small as loses none: of membership scores, their order."""
    about = {
        name: outcome.about.get(name) for name in ("dataset", "mechanism", "budget", "seed", "round", "role", "lower")
    }
    values, negative = (_small(part) for part in (outcome.values, outcome.negative))
    return Outcome({**about, "design": design, "candidates": candidates}, outcome.attack, values, negative)


def _small(values: dict[str, Array]) -> dict[str, Array]:
    names = ("identification", "log_rank", "labels", "labels_exact", "mse", "ssim")
    result = {name: values[name].astype(np.float32).astype(np.float64) for name in names if name in values}
    if "log_rank" in result:
        result["rank"] = np.round(2 * np.expm1(values["log_rank"])) / 2
        result.pop("log_rank")
    if "members" in values:
        _, place = np.unique(np.concatenate([values["members"].ravel(), values["others"].ravel()]), return_inverse=True)
        size = values["members"].size
        result["members"] = place[:size].reshape(values["members"].shape)
        result["others"] = place[size:].reshape(values["others"].shape)
    return result


def side(outcome: Outcome, negative: bool) -> dict[str, Array]:
    """The values of an outcome, or those of its negative control."""
    return outcome.negative if negative else outcome.values


def by_release(outcome: Outcome, measure: str, negative: bool = False) -> Array:
    """A measure ``[N, ...]`` of one outcome, the mean of which is the figure."""
    values = side(outcome, negative)
    if measure == "membership_auc":
        return auc_by_release(values["members"], values["others"])[:, None]
    table = np.log1p(values["rank"]) if measure == "log_rank" else values[measure]
    return table.reshape(len(table), -1).astype(np.float64)


def cells_of(values: Values) -> Cells:
    cells: Cells = {}
    for one in values.outcomes:
        cells.setdefault(tuple({**one.about, "attack": one.attack}[name] for name in PLACE), []).append(one)
    return {place: sorted(several, key=lambda one: one.about["seed"]) for place, several in cells.items()}


# -- figures -----------------------------------------------------------------------------------------------------------


def figure(several: list[Outcome], measure: str, negative: bool = False) -> dict[str, float | None]:
    """A measure over all trajectories: mean, interval over releases, least and most.

    All trajectories have the same images and standard noise, so a release counts once, by its mean over them.
    """
    tables = [by_release(one, measure, negative) for one in several]
    joined: Array = np.mean(tables, axis=0)
    if measure == "membership_auc":
        area = joined.mean(1)
        members = side(several[0], negative)["members"].size
        ends = share_interval(float(area.mean()), float(area.var()) / len(area), len(area), members)
    else:
        width = several[0].about["candidates"] - negative
        ends = interval_of(measure, joined, candidates=width) or (np.nan, np.nan)
    each = [float(table.mean()) for table in tables]
    result = {"": float(joined.mean()), "_low": ends[0], "_high": ends[1], "_least": min(each), "_most": max(each)}
    return {f"{measure}{end}": value for end, value in result.items()}


def rows_of(cells: Cells) -> list[dict[str, Any]]:
    rows = []
    for place, several in cells.items():
        about = dict(zip(PLACE, place, strict=True))
        about |= {"trajectories": len(several), "releases": len(next(iter(several[0].values.values())))}
        about["lower"] = float(np.mean([one.about["lower"] for one in several]))
        for negative in (False, True):
            row = {**about, "control": "negative" if negative else "positive" if about["role"] == POSITIVE else None}
            for measure in (*MEASURES[about["attack"]], "labels", "mse", "ssim"):
                needed = {"membership_auc": "members", "log_rank": "rank"}.get(measure, measure)
                if needed in side(several[0], negative):
                    row |= figure(several, measure, negative)
            if about["attack"] == "membership":
                sides = [side(one, negative) for one in several]
                rates = [tpr_at(values["members"], values["others"]) for values in sides]
                row |= {"membership_tpr": float(np.mean(rates)), "membership_tpr_least": min(rates)}
                row["membership_tpr_most"] = max(rates)
            if "identification" in row:
                row["chance"] = f"1 in {several[0].about['candidates'] - negative}"
            rows.append(row)
    _mark(rows)
    return rows


def _mark(rows: list[dict[str, Any]]) -> None:
    """Say of every row whether its attack works on undistorted releases at the same weights."""
    table = {(*(row[name] for name in PLACE), row["control"] == "negative"): row for row in rows}
    for row in rows:
        if row["control"] is None:
            role = OWN if row["mechanism"] == "none" else POSITIVE
            there = tuple(role if name == "role" else row[name] for name in PLACE)
            row["control_failed"] = not able(table[*there, False], table.get((*there, True)))


# -- verdicts ----------------------------------------------------------------------------------------------------------


def comparisons(cells: Cells) -> Iterator[tuple[dict[str, Any], list[Outcome], list[Outcome]]]:
    """Learned distortion and what it is set against, on the same targets with the same standard noise."""
    for place, learned in cells.items():
        about = dict(zip(PLACE, place, strict=True))
        if (about["mechanism"], about["role"]) != (LEARNED, OWN):
            continue
        others = {role: {**about, "role": role} for role in (LOWER, NORM)}
        if about["round"]:  # at round 0 all federations of a seed have the same weights
            others[TRAJECTORY] = {**about, "mechanism": STATIC}
        for against, other in others.items():
            yield {**about, "against": against}, learned, cells[tuple(other[name] for name in PLACE)]


def difference(
    learned: list[Outcome], static: list[Outcome], measure: str, *, over_trajectories: bool
) -> tuple[list[float], Interval]:
    """By how much learned leaks more on each trajectory, and the 95 % interval of the mean that the rules ask for."""
    gaps = np.array(
        [by_release(a, measure).mean(1) - by_release(b, measure).mean(1) for a, b in zip(learned, static, strict=True)]
    )
    each: list[float] = gaps.mean(1).tolist()
    return each, (interval(each) if over_trajectories else bootstrap(gaps.mean(0))) or (-np.inf, np.inf)


def verdicts(cells: Cells, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Every comparison, with the interval of the difference and a word."""
    failed = {tuple(row[name] for name in PLACE) for row in rows if row.get("control_failed")}
    result = []
    for about, learned, static in comparisons(cells):
        measure, own = PRIMARY[about["attack"]], about["against"] == TRAJECTORY
        each, (low, high) = difference(learned, static, measure, over_trajectories=own)
        places = [
            tuple({**about, **other}[name] for name in PLACE) for other in ({}, {"mechanism": STATIC} if own else {})
        ]
        useless = any(place in failed for place in places)
        word = "learned leaks more" if low > 0 else "static leaks more" if high < 0 else "no clear difference"
        if useless and low <= 0 <= high:
            word = "control failed"
        result.append({
            **{name: about[name] for name in (*PLACE, "against")}, "measure": measure, "gap": float(np.mean(each)),
            "low": low, "high": high, "trajectories": each, "control_failed": useless, "verdict": word,
        })  # fmt: skip
    return result


def counts(answers: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    result: dict[str, dict[str, int]] = {}
    for answer in answers:
        place = result.setdefault(f"{answer['attack']} ({answer['measure']}) against {answer['against']}", {})
        place[answer["verdict"]] = place.get(answer["verdict"], 0) + 1
    return result


def beside_undistorted(cells: Cells) -> list[dict[str, Any]]:
    """What a mechanism leaks, less what the same releases leak without their distortion."""
    result = []
    for place, distorted in cells.items():
        about = dict(zip(PLACE, place, strict=True))
        if about["mechanism"] == "none" or about["role"] not in (OWN, LOWER):
            continue
        bare, measure = {**about, "role": POSITIVE}, PRIMARY[about["attack"]]
        each, (low, high) = difference(
            distorted, cells[tuple(bare[name] for name in PLACE)], measure, over_trajectories=False
        )
        word = "leaks more" if low > 0 else "leaks less" if high < 0 else "no clear difference"
        gap = {"measure": measure, "gap": float(np.mean(each)), "low": low, "high": high, "verdict": word}
        result.append({**about, **gap})
    return result


def summarise(values: Values) -> dict[str, Any]:
    """All that follows from the values of every release."""
    cells = cells_of(values)
    rows = rows_of(cells)
    answers = verdicts(cells, rows)
    accuracies = []
    for one in values.about["accuracy"]:
        low, high = interval(one["values"]) or (None, None)
        accuracies.append(
            {**one, "accuracy": float(np.mean(one["values"])), "accuracy_low": low, "accuracy_high": high}
        )
    return {
        "rows": rows, "accuracy": accuracies, "verdicts": answers, "counts": counts(answers),
        "beside_undistorted": beside_undistorted(cells),
    }  # fmt: skip


# -- files -------------------------------------------------------------------------------------------------------------


def rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: rounded(one) for name, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return (round(value, 5) if np.isfinite(value) else None) if isinstance(value, float) else value


def collected(parts: list[dict[str, Any]], folder: Path) -> tuple[Values, list[dict[str, Any]], list[dict[str, Any]]]:
    """The values of all parts, how each was made, and the rows of releases combined over rounds."""
    outcomes, runs, multi = [], [], []
    accuracy: dict[Place, list[float]] = {}
    for part in parts:
        name = {"multi-round": "multi_round.json", "trained": "result.json"}.get(part.get("kind"), "audit.json")
        raw = json.loads((folder / part["folder"] / name).read_text())
        runs.append({**part, **{key: raw[key] for key in ("spec", "environment", "seconds") if key in raw}})
        rows = raw["federations"] if part.get("kind") == "trained" else raw.get("accuracy", [])
        for row in rows if part.get("accuracy", True) else []:
            place = (part["design"], row["dataset"], row["mechanism"], row["budget"], row.get("round", 5000))
            accuracy.setdefault(place, []).append(row["accuracy"])
        if "kind" in part:
            multi += raw["attacks"] if part["kind"] == "multi-round" else []
            continue
        read = unpacked((folder / part["folder"] / "audit.npz").read_bytes())
        width = int(read.about["candidates"])
        outcomes += [kept(one, part["design"], width) for one in read.outcomes]
    names = ("design", "dataset", "mechanism", "budget", "round")
    about = [{**dict(zip(names, place, strict=True)), "values": several} for place, several in accuracy.items()]
    return Values(outcomes, about={"accuracy": about}), runs, multi


Part = tuple[Values, list[dict[str, Any]], list[dict[str, Any]]]
"""What ``collected`` returns."""


def joined(old: Part, new: Part) -> Part:
    """Both, in the order in which they came; of what is in both, the new one."""

    def cell(one: Outcome) -> Place:
        return one.attack, *(one.about[name] for name in (*PLACE[:-1], "seed"))

    def trained(one: dict[str, Any]) -> Place:
        return tuple(one[name] for name in PLACE[:-2])

    def replayed(one: dict[str, Any]) -> Place:
        return tuple(one[name] for name in ("dataset", "mechanism", "budget", "seed", "rounds"))

    def both(older: list[Any], newer: list[Any], name: Callable[[Any], Any]) -> list[Any]:
        return list({name(one): one for one in (*older, *newer)}.values())

    (values, runs, multi), (more, ran, combined) = old, new
    return (
        Values(
            both(values.outcomes, more.outcomes, cell),
            about={"accuracy": both(values.about["accuracy"], more.about["accuracy"], trained)},
        ),
        both(runs, ran, lambda one: one["folder"]),
        both(multi, combined, replayed),
    )


def main() -> None:
    add = sys.argv[1] == "--add"
    parts, out = map(Path, sys.argv[1 + add : 3 + add])
    values, runs, multi = collected(json.loads(parts.read_text()), parts.parent)
    if add:
        there = json.loads((out / "leakage.json").read_text())
        old = unpacked((out / "values.npz").read_bytes()), there["runs"], there["multi_round"]
        values, runs, multi = joined(old, (values, runs, multi))
    content = packed(values)
    (out / "values.npz").write_bytes(content)
    result = summarise(unpacked(content))
    whole = {"schema": 2, "experiment": "seeded", "runs": runs, **rounded(result), "multi_round": rounded(multi)}
    (out / "leakage.json").write_text(json.dumps(whole, indent=0) + "\n")
    print(json.dumps(result["counts"], indent=1))


if __name__ == "__main__":
    main()
