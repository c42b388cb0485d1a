"""The rows of ``audit.json`` side by side: a defence, its static twins, no protection, and chance."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..mechanism.schedule import schedule_text
from .summary import defence

Row = dict[str, Any]
BESIDE = ("static, equal lower bound", "static, equal final norm", "undistorted", "negative")
"""What a defence is compared with: roles of rows, and the negative control."""


class Defence(NamedTuple):
    """A federation of an audited run."""

    dataset: str | None
    mechanism: str
    budget: str  # as people read it; "-" without one
    seed: int | None

    def label(self) -> str:
        """
        >>> Defence("mnist", "pl-learn", "0.98", 1).label()
        'pl-learn @ 0.98'
        """
        return self.mechanism if self.budget == "-" else f"{self.mechanism} @ {self.budget}"


Sides = dict[str, Row]
"""Rows of one attack on one defence by role: "own", or one of ``BESIDE``."""


def side_by_side(rows: list[Row]) -> dict[Any, dict[Defence, dict[str, Sides]]]:
    """The rows of ``audit.json`` by round, defence, attack and role. Negative controls of twins are left out."""
    result: dict[Any, dict[Defence, dict[str, Sides]]] = {}
    for row in rows:
        negative = row.get("control") == "negative"
        if negative and row["role"] != "own":
            continue
        defence = Defence(row.get("dataset"), row["mechanism"], schedule_text(row["budget"]), row.get("seed"))
        sides = result.setdefault(row["round"], {}).setdefault(defence, {}).setdefault(row["attack"], {})
        sides["negative" if negative else row["role"]] = row
    for defences in result.values():
        for defence, attacks in defences.items():
            for sides in attacks.values():
                if defence.mechanism == "none" and "own" in sides:
                    sides["undistorted"] = sides["own"]
    return result


def interval_of(row: Row, metric: str) -> tuple[float, float] | None:
    """The 95 % interval of a number in a row."""
    name = f"auc_{row['membership_score']}" if metric == "membership_auc" else metric
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    return None if low is None or high is None else (low, high)


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
    lines += [_combined(row) for row in content.get("multi_round", [])]
    for row in content.get("cap", []):
        lines.append(f"CAP of {row['mechanism']} against {row['attack']}, round {row['round']}: {row['cap']:.3f}")
    if any(row["attack"] == "matched" for row in content["attacks"]):
        how = content["options"]["condition_on"]
        lines.append(f"matched conditioned its responses on {how}; condition_on=best is stronger, and slower")
    if not content.get("complete", True):
        lines.append("interrupted: these are the cells that were finished")
    few = {row["targets"] for row in content["attacks"] if row.get("evidence") == "insufficient evidence"}
    if few:
        lines.append(f"insufficient evidence: {min(few)} release(s) are fewer than 20")
    return lines


def _combined(row: Row) -> str:
    shares = [row[f"identification_schedule_{kind}"] for kind in ("known", "unknown")]
    words = ["not measured" if share is None else f"{share:.0%}" for share in shares]
    return (
        f"{defence(row)}, {row['rounds']} releases combined: identified "
        f"{words[0]} with the schedule known, {words[1]} unknown ({row['targets']} examples, each among "
        f"{row['candidates']})"
    )
