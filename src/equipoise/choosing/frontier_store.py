"""The frontier's values on disk: one file with all that was measured, and how every part of it was computed.

``gathered`` reads the folders that ``equipoise.compute`` wrote; ``merged`` puts parts into a file that is there, where
a part that was computed again takes the place of the old one. Every figure of the frontier is made of this file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..auditing.results import Outcome
from ..auditing.store import Values, packed, unpacked
from ..errors import CheckpointError, closest
from ..files import DONE, read_json, write_bytes
from . import frontier_plan as plan

SCHEMA = 1
FILE = "values.npz"
AGAIN = "Compute it again."
MACHINE = ("device", "threads")
"""Settings that say on what a part is computed, and change no result that counts."""
PARTS = "parts"
"""In ``Values.about``: for each part its commit, seconds, machine, SPEC and the rows that have no values."""


def gathered(folder: Path) -> Values:
    """All finished parts below a folder."""
    found = sorted(path.parent for path in folder.glob(f"*/{DONE}"))
    if not found:
        raise CheckpointError(f"There are no finished parts in {folder}.", f"A finished part has a file {DONE}.")
    outcomes: list[Outcome] = []
    parts: dict[str, Any] = {}
    planned = json.loads(json.dumps(plan.parts()))  # as a SPEC that was read has it
    for path in found:
        parts[path.name], own = _part(path, planned)
        outcomes += own
    return Values(outcomes, {}, {"schema": SCHEMA, PARTS: parts})


def _part(folder: Path, planned: Mapping[str, Any]) -> tuple[dict[str, Any], list[Outcome]]:
    """What is kept of a part, and what was measured on every release."""
    done = read_json(folder / DONE, "finished part", AGAIN)
    try:
        part = {name: done[name] for name in ("commit", "seconds", "spec")}
        refuse_other(folder.name, part["spec"], planned)
        return _found(folder, part)
    except (KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"The part {folder.name} is not what compute writes: {error!r}.", AGAIN) from error


def refuse_other(name: str, spec: Mapping[str, Any], planned: Mapping[str, Any]) -> None:
    """A part of another SPEC than planned has its name, and would take the place of a result."""
    if name not in planned:
        raise CheckpointError(
            f"The part {name} is not planned.{closest(name, list(planned))}", "Move its folder out of the way."
        )
    rounds, asked = spec["settings"]["rounds"], planned[name]["settings"]["rounds"]
    if rounds != asked:
        raise CheckpointError(
            f"The part {name} has {rounds} rounds instead of {asked}: it says nothing.",
            "Compute a SPEC that was planned without --quick.",
        )
    other = _difference(_anywhere(spec), _anywhere(planned[name]))
    if other is not None:
        raise CheckpointError(
            f"The part {name} is of another SPEC than planned: it differs in {other or 'all'}.",
            "Compute a SPEC that equipoise frontier --plan writes now.",
        )


def _anywhere(spec: Mapping[str, Any]) -> dict[str, Any]:
    """A SPEC without the machine that it is computed on."""
    return {**spec, "settings": {key: value for key, value in spec["settings"].items() if key not in MACHINE}}


def _difference(one: Any, other: Any) -> str | None:
    """Where two values of JSON differ first, as a path of keys; None: nowhere, but for the last digits of a float."""
    if isinstance(one, dict) and isinstance(other, dict):
        keys: Iterable[Any] = one if one.keys() == other.keys() else sorted(one.keys() ^ other.keys())
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        keys = range(len(one))
    elif isinstance(one, float) and isinstance(other, float):  # computed ones vary with the machine that plans
        return None if math.isclose(one, other, rel_tol=1e-9) else ""
    else:
        return None if type(one) is type(other) and one == other else ""
    for key in keys:
        if isinstance(one, dict) and (key not in one or key not in other):
            return str(key)
        inner = _difference(one[key], other[key])
        if inner is not None:
            return f"{key}.{inner}".rstrip(".")
    return None


def _found(folder: Path, part: dict[str, Any]) -> tuple[dict[str, Any], list[Outcome]]:
    for name, kept in (
        ("audit", ("accuracy", "limits")), ("multi_round", ("attacks", "limits")), ("public", ("federations",))
    ):  # fmt: skip
        if (path := folder / f"{name}.json").exists():
            content = read_json(path, "result of a part", AGAIN)
            part |= {one: content[one] for one in kept if content.get(one)}
            part["environment"] = content["environment"]
    if not (folder / "audit.npz").exists():
        return part, []
    values = unpacked((folder / "audit.npz").read_bytes(), str(folder))
    part["candidates"] = values.about.get("candidates")
    return part, [_small(one, folder.name) for one in values.outcomes if "games" not in part["spec"]["audit"]]


def _small(outcome: Outcome, part: str) -> Outcome:
    """As small as loses nothing: ranks in place of their logarithms, and nothing that follows from the SPEC."""
    about = {name: outcome.about.get(name) for name in ("dataset", "mechanism", "budget", "seed", "round", "role")}

    def some(values: Mapping[str, Any]) -> dict[str, Any]:
        result = {name: value for name, value in values.items() if name != "log_rank"}
        if "log_rank" in values:
            result["rank"] = np.round(2 * np.expm1(values["log_rank"])) / 2
        return result

    negative = {name: value for name, value in some(outcome.negative).items() if name == "identification"}
    return Outcome({**about, "part": part}, outcome.attack, some(outcome.values), negative)


def merged(old: Values | None, new: Values) -> Values:
    """Both together; of a part that is in both the new one."""
    if old is None:
        return new
    parts = {**old.about[PARTS], **new.about[PARTS]}
    kept = [one for one in old.outcomes if one.about["part"] not in new.about[PARTS]]
    return replace(new, outcomes=[*kept, *new.outcomes], about={**new.about, PARTS: parts})


def write(values: Values, folder: Path) -> None:
    order = sorted(values.outcomes, key=lambda one: json.dumps([one.about["part"], one.about, one.attack], default=str))
    parts = {name: values.about[PARTS][name] for name in sorted(values.about[PARTS])}
    write_bytes(folder / FILE, packed(Values(order, {}, {**values.about, PARTS: parts})))


def read(folder: Path) -> Values:
    """The file that ``write`` wrote."""
    path = folder / FILE
    if not path.is_file():
        raise CheckpointError(
            f"There is no {FILE} in {folder.name}.", "Run in the source checkout, or give the folder with --out."
        )
    values = unpacked(path.read_bytes(), FILE)
    if values.about.get("schema") != SCHEMA or PARTS not in values.about:
        raise CheckpointError(f"{path.name} is of another version.", "Make it again with equipoise frontier --from.")
    return values
