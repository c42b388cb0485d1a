"""Raw records, read from a folder: what was measured on which federation, and where it came from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..engine.federation import Federation
from ..engine.settings import LATER, present_names
from ..environment import VERSION
from ..errors import CheckpointError
from .plan import BY_THE_WAY, SCHEMA, Needs, Scale, settings_of

Record = dict[str, Any]
Key = tuple[str, str, str, float | None]
"""(group, dataset, mechanism, budget)"""


@dataclass
class Records:
    """All records of one scale, by what was trained; seeds in order."""

    scale: str
    cells: dict[Key, dict[int, Record]] = field(default_factory=dict)
    measured: Needs = field(default_factory=dict)
    baselines: dict[str, Any] = field(default_factory=dict)
    originals: dict[str, Any] = field(default_factory=dict)
    origins: list[dict[str, Any]] = field(default_factory=list)  # one per file

    def by_seed(self, dataset: str, mechanism: str, budget: float | None, group: str = "paper") -> list[Record]:
        """The records of a cell, in the order of seeds."""
        cell = self.cells.get((group, dataset, mechanism, budget), {})
        return [cell[seed] for seed in sorted(cell)]

    def accuracies(self, dataset: str, mechanism: str, budget: float | None, group: str = "paper") -> list[float]:
        """In percent, by seed."""
        return [100 * record["accuracy"] for record in self.by_seed(dataset, mechanism, budget, group)]

    def inversion(self, dataset: str, mechanism: str, budget: float | None, quantity: str) -> list[float]:
        """What InvGrad's images were measured by ("mse", "ssim", "leakage"), by seed: means over clients and images."""
        return [float(np.mean(row["inversion"][quantity])) for row in self.by_seed(dataset, mechanism, budget)]

    @property
    def quick(self) -> bool:
        return self.scale != "full"


def read(folders: Iterable[Path], scale: Scale) -> Records:
    """All raw files below the folders; one of another version or scale is an error, and nothing is changed.

    Where two jobs trained the same federation, the one that trained more federations counts.
    """
    files = []
    for folder in folders:
        if not folder.is_dir():
            raise CheckpointError(f"There is no folder {folder} with raw results.", "Compute them first.")
        files += [_load(path, scale) for path in sorted(folder.glob("*.json"))]
    result = Records(scale.name)
    for content in sorted(files, key=lambda content: (-len(content["federations"]), content["name"])):
        _take(result, content)
    return result


WHOLE = (
    "schema", "version", "scale", "name", "group", "commit", "settings", "federations", "measures", "seconds",
    "environment",
)  # fmt: skip


def _load(path: Path, scale: Scale) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        schema, version, made = content["schema"], content["version"], content["scale"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(
            f"{path.name} is not a raw result: {error}.", "Give the OUT folder of compute."
        ) from error
    if (schema, version) != (SCHEMA, VERSION):
        raise CheckpointError(
            f"{path.name} is of version {version}, schema {schema}; this is {VERSION}, {SCHEMA}.",
            "Compute it again into another folder, or use the version that made it.",
        )
    if made != json.loads(json.dumps(asdict(scale))):
        name = made.get("name") if isinstance(made, dict) else made
        raise CheckpointError(
            f"{path.name} is of the scale {name!r} with other settings than {scale.name!r} has here.",
            "Use --quick for quick results, and another folder for other ones.",
        )
    wrong = _problem(content) or _other_settings(content, scale)
    if wrong:
        raise CheckpointError(f"{path.name} is damaged: {wrong}.", "Compute it again.")
    loaded: dict[str, Any] = content
    return loaded


def _other_settings(content: dict[str, Any], scale: Scale) -> str:
    """Defaults change without the version's doing so: records of other settings must not be mixed in."""
    try:
        expected = settings_of(scale, content["group"], "cpu").plain()
    except (KeyError, ValueError, TypeError):
        return f"there is no group {content['group']!r}"
    mine = LATER | present_names(content["settings"]) if isinstance(content["settings"], dict) else {}
    names = [name for name in expected if name not in BY_THE_WAY]
    other = [name for name in names if mine.get(name, name) != json.loads(json.dumps(expected[name]))]
    return f"it was made with another {other[0]}" if other else ""


def _problem(content: dict[str, Any]) -> str:
    """What is missing or of the wrong kind; nothing where all is well."""
    missing = [key for key in WHOLE if key not in content]
    if missing:
        return f"it lacks {missing[0]!r}"
    rows, measures = content["federations"], content["measures"]
    if not isinstance(rows, list) or not isinstance(measures, list) or len(rows) != len(measures):
        return "federations and measures do not match"
    for i, (row, names) in enumerate(zip(rows, measures, strict=True)):
        if not isinstance(row, dict) or not {"dataset", "mechanism", "budget", "seed", "accuracy"} <= set(row):
            return f"federation {i} is not a record"
        if not isinstance(row["accuracy"], int | float) or not isinstance(names, list):
            return f"federation {i} has no accuracy, as one that diverged"
    return ""


def _take(result: Records, content: dict[str, Any]) -> None:
    rows, group = content["federations"], content["group"]
    for row, names in zip(rows, content["measures"], strict=True):
        federation = Federation(row["dataset"], row["mechanism"], row["budget"], row["seed"])
        key = (group, federation.dataset, federation.mechanism, federation.budget)
        kept = result.cells.setdefault(key, {}).setdefault(federation.seed, {})
        result.cells[key][federation.seed] = {**row, **kept}
        result.measured.setdefault(group, {}).setdefault(federation, set()).update([*names, "accuracy"])
    for name in ("baselines", "originals"):
        for dataset, value in content.get(name, {}).items():
            getattr(result, name).setdefault(dataset, value)
    about = ("name", "group", "commit", "version", "seconds", "environment")
    result.origins.append({**{key: content[key] for key in about}, "federations": len(rows)})
