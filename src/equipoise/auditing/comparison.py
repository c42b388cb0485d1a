"""The rows of ``audit.json`` side by side: a defence, its static twins, no protection, and chance."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..mechanism.schedule import defence_label
from .summary import remarks

Row = dict[str, Any]
BESIDE = ("static, equal lower bound", "static, equal final norm", "undistorted")
"""Roles of the rows that a defence is compared with, beside its negative control."""


class Defence(NamedTuple):
    """A federation of an audited run."""

    dataset: str | None
    label: str  # mechanism and budget
    seed: int | None


Sides = dict[str, Row]
"""Rows of one attack on one defence by role: "own", "negative", or one of ``BESIDE``."""


def side_by_side(rows: list[Row]) -> dict[Any, dict[Defence, dict[str, Sides]]]:
    """The rows of ``audit.json`` by round, defence, attack and role. Negative controls of twins are left out."""
    result: dict[Any, dict[Defence, dict[str, Sides]]] = {}
    for row in rows:
        negative = row.get("control") == "negative"
        if negative and row["role"] != "own":
            continue
        defence = Defence(row.get("dataset"), defence_label(row["mechanism"], row["budget"]), row.get("seed"))
        sides = result.setdefault(row["round"], {}).setdefault(defence, {}).setdefault(row["attack"], {})
        sides["negative" if negative else row["role"]] = row
        if row["mechanism"] == "none" and row["role"] == "own" and not negative:
            sides["undistorted"] = row
    return result


def notes(content: dict[str, Any]) -> list[str]:
    """Baselines and evidence: what has to be said beside the numbers."""
    lines: list[str] = []
    for dataset, guesses in content["baselines"].items():
        words = [
            f"{name.replace('_', ' ')}: MSE {row['mse']:.2f}"
            + (f", score {row['leakage']:.2f}" if "leakage" in row else "")
            for name, row in guesses.items()
        ]
        lines.append(f"guesses that use no update ({dataset}): " + "; ".join(words))
    promised = sorted({row["promised_leakage"] for row in content["attacks"] if "promised_leakage" in row})
    if promised and any("leakage" in row for row in content["attacks"]):
        lines.append(f"score promised by the budgets: at most {', '.join(f'{value:g}' for value in promised)}")
    for row in content.get("cap", []):
        lines.append(f"CAP of {row['mechanism']} against {row['attack']}, round {row['round']}: {row['cap']:.3f}")
    if any(row["attack"] == "matched" for row in content["attacks"]):
        how = content["options"]["condition_on"]
        lines.append(f"matched conditioned its responses on {how}; condition_on=best is stronger, and slower")
    return [*lines, *remarks(content)]
