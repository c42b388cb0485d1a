"""The frontier as one record: all cells, and what the recommended mechanism needs for the accuracy of the paper's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..auditing.store import Values
from ..errors import CheckpointError
from ..files import read_json
from ..reproduction.reproduce import checkout
from . import frontier_plan as plan
from .frontier_cells import WHOLE, Row, cells
from .frontier_plan import CANDIDATES, RECOMMENDED, STAGES
from .frontier_store import FILE as VALUES
from .frontier_store import PARTS

SCHEMA = 1
FOLDER, FILE = "frontier", "frontier.json"
AGAIN = "Make it again from its values with equipoise frontier --again, or take the parts over with --from."
SCOPES = (*STAGES, WHOLE)
SHARE = 1 / 5
"""Of the learner's identification: what the recommended mechanism should leave at most."""


def committed() -> Path:
    """The results that came with the source."""
    here, root = Path(FOLDER), checkout()
    if (here / FILE).is_file() or root is None:
        return here
    return root / FOLDER


def record(values: Values, root: Path) -> dict[str, Any]:
    """What ``frontier.json`` holds; below ``root`` lie the learner's accuracy as reproduced, and that of the
    recommended model without protection."""
    every = cells(values)
    parts, planned = values.about[PARTS], plan.parts()
    commits = Counter(str(part["commit"]) for part in parts.values())
    return {
        "schema": SCHEMA,
        "experiment": "seeded",
        "commit": ", ".join(sorted(commits)),
        "parts": {
            "computed": len(parts),
            "by_commit": dict(sorted(commits.items())),
            "planned": len(planned),
            "missing": sorted(set(planned) - set(parts)),
        },
        "seconds": sum(part["seconds"] for part in parts.values()),
        "machines": sorted({part["environment"]["device"] for part in parts.values() if "environment" in part}),
        "unprotected": unprotected(root / "studies" / "gaussian_dp" / "accuracy.json"),
        "cells": every,
        "equal_accuracy": equal_accuracy(every, learner(root / "reproduction")),
    }


def status(folder: Path) -> dict[str, Any]:
    """The committed record."""
    if not (folder / FILE).is_file() and (folder / VALUES).is_file():  # it is removed first and written last
        raise CheckpointError(f"The results in {folder.name} are not whole: {FILE} is missing.", AGAIN)
    if not (folder / FILE).is_file():
        raise CheckpointError(
            f"There are no results in {folder.name}.", "Run in the source checkout, or give the folder with --out."
        )
    result: dict[str, Any] = read_json(folder / FILE, "frontier", AGAIN)
    if not isinstance(result, dict) or result.get("schema") != SCHEMA:
        raise CheckpointError(f"{FILE} is of another version.", AGAIN)
    return result


def unprotected(path: Path) -> dict[str, float]:
    """The accuracy of the recommended model with all records in every round, no clip and no noise, by dataset."""
    content = read_json(path, "accuracies of gaussian-dp", "Run in the source checkout.")
    model = CANDIDATES[RECOMMENDED].model
    free = [cell for cell in content["cells"] if cell["model"] == model and cell["mechanism"] == "none"]
    return {cell["dataset"]: cell["accuracy"] for cell in free}


def learner(reproduction: Path) -> list[Row]:
    """The paper's twenty cells: dataset, mechanism, budget and mean test accuracy of the learner."""
    rows = []
    for family in ("pl", "ls"):
        path = reproduction / f"accuracy-{family}" / "results.json"
        content = read_json(path, "results of the reproduction", "Run in the source checkout.")
        rows += [
            {
                "dataset": cell["dataset"], "mechanism": f"{family}-learn", "budget": cell["budget"],
                "accuracy": cell["mean"] / 100,
            }
            for cell in content["cells"] if cell["mechanism"] == f"{family}-learn"
        ]  # fmt: skip
    return rows


# -- equal accuracy ----------------------------------------------------------------------------------------------------


def equal_accuracy(every: Sequence[Row], learners: Sequence[Row]) -> list[Row]:
    """For each cell of the paper the strictest strength of the recommended mechanism that is as accurate.

    ``ratio`` is the largest of all scopes, which ``scope`` names; identification is that in this scope.
    """
    usual = [row for row in every if row["clients"] == 4 and row["partition"] == "identical"]
    return [_matched(usual, cell) for cell in learners]


def _matched(usual: Sequence[Row], cell: Row) -> Row:
    name, family = cell["dataset"], cell["mechanism"]
    theirs = {
        row["scope"]: row for row in usual
        if (row["dataset"], row["mechanism"], row["budget"]) == (name, family, cell["budget"])
        and row["server"] == "plain" and row["batch"] == 4 and row["local_steps"] == 1
    }  # fmt: skip
    able = [row for row in usual if row["dataset"] == name and is_recommended(row) and row["accuracy"] is not None]
    strengths = sorted({row["budget"] for row in able if row["accuracy"] >= cell["accuracy"]})
    alike = [
        row["budget"] for row in usual
        if row["dataset"] == name and row["epsilon"] is not None and row["model"] == "lenet-zhu"
        and row["accuracy"] is not None and row["accuracy"] >= cell["accuracy"]
    ]  # fmt: skip
    result = {
        "dataset": name, "cell": f"{family} {cell['budget']:g}", "learner_accuracy": cell["accuracy"],
        "learner_identification": _share(theirs.get(WHOLE)), "epsilon_on_its_model": min(alike, default=None),
    }  # fmt: skip
    if not strengths:
        nothing = dict.fromkeys(("choice", "epsilon", "accuracy", "scope", "identification", "ratio", "proved"))
        return {**result, **nothing, "met": False, "by_scope": {}}
    ours = {row["scope"]: row for row in able if row["budget"] == strengths[0]}
    by_scope = {str(scope): _verdict(theirs.get(scope), ours.get(scope)) for scope in SCOPES}
    measured = {scope: verdict for scope, verdict in by_scope.items() if verdict["ratio"] is not None}
    worst = max(measured, key=lambda scope: measured[scope]["ratio"], default=None)
    first = next(iter(ours.values()))
    shown = {} if worst is None else measured[worst]
    return {
        **result, **{name: shown.get(name) for name in ("learner_identification", "identification", "ratio")},
        "scope": worst, "epsilon": strengths[0], "accuracy": first["accuracy"],
        "choice": f"{first['mechanism']}, {first['model']}, epsilon {strengths[0]:g}",
        "proved": _share(ours.get(WHOLE), "proved_identification"),
        "met": all(verdict["met"] for verdict in by_scope.values()), "by_scope": by_scope,
    }  # fmt: skip


def is_recommended(row: Row) -> bool:
    best = CANDIDATES[RECOMMENDED]
    return bool(row["mechanism"] == best.kinds[0][0] and row["model"] == best.model)


def _share(row: Row | None, name: str = "identification") -> float | None:
    return None if row is None else row[name]


def _verdict(theirs: Row | None, ours: Row | None) -> Row:
    """At most a fifth of the learner's, or not above chance by the interval. There is no ratio to a learner's 0."""
    if theirs is None or ours is None or theirs["control_failed"] or ours["control_failed"]:
        return {"ratio": None, "met": False, "why": "not measured, or a control failed"}
    result = {
        "learner_identification": theirs["identification"], "identification": ours["identification"],
        "learner_low": theirs["identification_low"], "high": ours["identification_high"],
        "learner_undistorted": theirs["undistorted"],
        "learner_membership": theirs["membership_tpr_at_1pct"], "membership": ours["membership_tpr_at_1pct"],
        "ratio": ours["identification"] / theirs["identification"] if theirs["identification"] else None,
    }  # fmt: skip
    if ours["identification_low"] is not None and ours["identification_low"] <= 1 / ours["candidates"]:
        return {**result, "met": True, "why": "not above chance"}
    met = result["ratio"] is not None and result["ratio"] <= SHARE
    return {**result, "met": met, "why": "at most a fifth" if met else "more than a fifth"}
