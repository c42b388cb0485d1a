"""How much of the paper agrees, in a line on accuracy and one on the attack; every number is counted from results."""

from __future__ import annotations

from collections.abc import Iterable

from .agreement import Cell, below
from .claims import Tables

LOOSE: dict[str, float] = {"LS": 400, "PL": 0.99}
"""Budgets from which on the paper's static noise keeps more than 80 % on MNIST."""


def headline(tables: Tables) -> list[str]:
    """What can be said of the results that are there, both ends of accuracy named."""
    families = [family for family in LOOSE if f"accuracy-{family.lower()}" in tables]
    accuracy = [cell for family in families for cell in tables[f"accuracy-{family.lower()}"]["cells"]]
    defence = [cell for name in ("defence-ls", "defence-pl") for cell in tables.get(name, {}).get("cells", [])]
    cap = tables.get("cap", {}).get("cells", [])
    attack = [f"{_agree(defence)} of InvGrad's errors (MSE, SSIM)"] if defence else []
    attack += [f"{_agree(cap)} of CAP"] if cap else []
    lines = []
    if accuracy:
        best = _agree(cell["at_best_validation"] for cell in accuracy)
        lines.append(
            f"{_agree(accuracy)} of test accuracy agree with the paper at the last round, and {best} at the best "
            f"validation round. {_loose(tables, families)}"
        )
    if attack:
        lines.append(f"{' and '.join(attack)} agree.")
    return lines


def _agree(cells: Iterable[Cell]) -> str:
    verdicts = [cell["agrees"] for cell in cells]
    return f"{sum(verdicts)} of {len(verdicts)} cells"


def _loose(tables: Tables, families: list[str]) -> str:
    """How many cells of MNIST at loose budgets lie below the paper's value, by their whole interval, and how far."""
    cells = [
        cell
        for family in families
        for cell in tables[f"accuracy-{family.lower()}"]["cells"]
        if cell["dataset"] == "mnist" and cell["budget"] >= LOOSE[family]
    ]
    low = [-cell["difference"] for cell in cells if below(cell, cell["paper"])]
    far = f", by {min(low):.1f} to {max(low):.1f} points" if low else ""
    budgets = " and ".join(f"{family} {LOOSE[family]:g}" for family in families)
    return (
        f"Of the {len(cells)} MNIST cells at loose budgets (from {budgets} on), {len(low)} lie below the paper's value "
        f"with their whole 95 % interval{far}."
    )
