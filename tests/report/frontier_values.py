"""Made-up panels of plausible size for the tests of the frontier's picture: nothing was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from equipoise.report.frontier_picture import Mark, Panel


def family(name: str, strengths: Sequence[str], values: Sequence[tuple[float, float]], **more: Any) -> list[Mark]:
    """Marks with intervals around (accuracy, leakage)."""
    limits = more.pop("proved", [None] * len(values))
    return [
        Mark(
            name, strength, accuracy, (max(accuracy - 0.008, 0.0), min(accuracy + 0.008, 1.0)),
            leakage, (leakage * 0.7, min(leakage * 1.35, 1.0)), proved=limit, **more,
        )
        for strength, (accuracy, leakage), limit in zip(strengths, values, limits, strict=True)
    ]  # fmt: skip


def panel(title: str = "MNIST", less: float = 0.0, chosen: str = "") -> Panel:
    """Ten families; ``less`` is taken from every accuracy; ``chosen`` is a strength of the recommended family."""
    epsilons = [f"ε {value}" for value in ("0.25", "0.5", "1", "2", "4", "8")]
    pl = [f"PL {value}" for value in ("0.96", "0.97", "0.98", "0.99", "0.995")]
    batch = ["16", "8", "4", "2", "1"]
    marks = family("no protection", [""], [(0.953, 1.0)])
    learned = [(0.46, 0.3), (0.58, 0.55), (0.7, 0.83), (0.83, 0.97), (0.91, 1.0)]
    marks += family("the paper's learned noise", pl, learned, role="paper")
    marks += family(
        "static noise, batches of 4", batch, [(0.1, 0.1), (0.3, 0.22), (0.62, 0.45), (0.81, 0.75), (0.9, 0.95)]
    )
    marks += family(
        "static noise, damped server", batch, [(0.8, 0.1), (0.84, 0.23), (0.88, 0.46), (0.905, 0.76), (0.92, 0.95)]
    )
    marks += family(
        "static noise, batches of 44", batch, [(0.83, 0.05), (0.868, 0.09), (0.895, 0.2), (0.915, 0.4), (0.925, 0.6)]
    )
    marks += family("eleven local steps", ["8", "2"], [(0.72, 0.2), (0.86, 0.5)])
    marks += family("gaussian-dp, LeNetZhu", epsilons[2:], [(0.66, 0.006), (0.76, 0.008), (0.84, 0.014), (0.88, 0.026)],
                    proved=[0.0105, 0.019, 0.049, 0.18])  # fmt: skip
    exact = [(0.85, 0.005), (0.876, 0.0055), (0.905, 0.008), (0.93, 0.0135), (0.95, 0.035), (0.966, 0.13)]
    marks += family("gaussian-dp, scatter-linear", epsilons, exact, proved=[0.0061, 0.0073, 0.0105, 0.019, 0.049, 0.18],
                  role="recommended")  # fmt: skip
    marks += family("gradient pruning", ["99 %", "90 %", "70 %"], [(0.9, 0.9), (0.94, 0.98), (0.95, 1.0)])
    marks += family("Outpost", ["1", "2", "3", "4"], [(0.6, 0.5), (0.78, 0.72), (0.9, 0.93), (0.94, 1.0)])
    marks += family("public images alone", ["200", "1,000"], [(0.8, 0.005), (0.93, 0.005)])
    if less or chosen:
        marks = [
            replace(mark, accuracy=max(mark.accuracy - less, 0.05), accuracy_interval=None,
                    chosen=mark.role == "recommended" and mark.strength == chosen)
            for mark in marks
        ]  # fmt: skip
    return Panel(title, marks, 0.005, 0.953 - less)


def panels(chosen: str = "") -> list[Panel]:
    return [panel("MNIST", chosen=chosen), panel("Fashion-MNIST", less=0.11, chosen=chosen)]
