"""From the cells of the frontier to the marks of its picture: which family each belongs to, and where it stands.

Leakage of a mark is the most that any attack got at any stage or over the run: a floor of what an attacker can get. Of
``gaussian-dp`` it is the proved limit over the run instead, a ceiling: nobody gets more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .frontier_marks import Mark, Panel, Role

Row = Mapping[str, Any]
TITLES = {"mnist": "MNIST", "fmnist": "Fashion-MNIST"}
CHANCE = 1 / 200
RECOMMENDED = "gaussian-dp, scatter-linear (proved)"
LEARNED = "the paper's learned noise"
FAMILIES: tuple[tuple[str, Role, Mapping[str, Any]], ...] = (
    (RECOMMENDED, "recommended", {"mechanism": "gaussian-dp", "model": "scatter-linear"}),
    (LEARNED, "paper", {"mechanism": "pl-learn", "server": "plain"}),
    ("learned noise, damped server", "baseline", {"mechanism": "pl-learn", "server": "damped"}),
    ("static noise", "baseline", {"mechanism": "pl-identical", "server": "plain", "batch": 4, "local_steps": 1}),
    ("static noise, damped server", "baseline",
     {"mechanism": "pl-identical", "server": "damped", "batch": 4, "local_steps": 1}),
    ("static noise, batches of 44, damped server", "baseline",
     {"mechanism": "pl-identical", "server": "damped", "batch": 44}),
    ("static noise, eleven local steps", "baseline", {"mechanism": "pl-identical", "local_steps": 11}),
    ("gaussian-dp, LeNetZhu (proved)", "baseline", {"mechanism": "gaussian-dp", "model": "lenet-zhu"}),
    ("gradient pruning", "baseline", {"mechanism": "pruning"}),
    ("Outpost", "baseline", {"mechanism": "outpost"}),
    ("public images alone", "baseline", {"mechanism": "none", "model": "scatter-linear"}),
)  # fmt: skip
"""Name, role, and what all cells of a family have in common; in the order of the legend."""
CAPTION = (
    "Each mark is one strength of a defence; up and to the left is better. Leakage: the most that any of our attacks "
    "got at four stages of the training or over all of it, a floor; of gaussian-dp what is proved that nobody exceeds, "
    "a ceiling. Bars are 95 % intervals. 4 clients with 1,000 images each."
)


def panels(record: Mapping[str, Any], names: Sequence[str] = tuple(TITLES)) -> list[Panel]:
    """A panel for each data set, of the cells with four clients and equal parts; none where nothing is whole yet."""
    rows = [row for row in record["cells"] if _shown(row)]
    every = [_panel([row for row in rows if row["dataset"] == name], name) for name in names]
    return [panel for panel in every if panel.marks]


def _shown(row: Row) -> bool:
    return row["public"] is not None or (row["clients"] == 4 and row["partition"] == "identical")


def _panel(rows: Sequence[Row], name: str) -> Panel:
    marks = [mark for family in FAMILIES for mark in _marks(rows, *family)]
    free = [row for row in rows if row["mechanism"] == "none" and row["public"] is None and row["batch"] == 4]
    return Panel(TITLES[name], marks, CHANCE, free[0]["accuracy"] if free else None)


def _marks(rows: Sequence[Row], family: str, role: Role, common: Mapping[str, Any]) -> list[Mark]:
    mine = [row for row in rows if all(row[key] == value for key, value in common.items())]
    if common["mechanism"] == "none":
        mine = [row for row in mine if row["public"] is not None]
    settings: dict[tuple[Any, ...], list[Row]] = {}
    for row in mine:
        settings.setdefault((row["budget"], row["public"], row["server"]), []).append(row)
    ordered = sorted(settings, key=lambda key: (key[0] or 0, key[1] or 0, key[2]))
    return [_mark(settings[key], family, role) for key in ordered if _whole(settings[key])]


def _whole(scopes: Sequence[Row]) -> bool:
    """Whether a setting was looked at over the run, too: without that it would look better than others."""
    return scopes[0]["accuracy"] is not None and any(row["scope"] == "run" for row in scopes)


def _mark(scopes: Sequence[Row], family: str, role: Role) -> Mark:
    first = scopes[0]
    worst = max(scopes, key=lambda row: row["identification"])
    leakage, ends = worst["identification"], (worst["identification_low"], worst["identification_high"])
    if first["epsilon"] is not None:
        leakage, ends = next(row["proved_identification"] for row in scopes if row["scope"] == "run"), (None, None)
    accuracy = (first["accuracy_low"], first["accuracy_high"])
    return Mark(
        family, strength(first), first["accuracy"], None if accuracy[0] is None else within(accuracy), leakage,
        None if ends[0] is None else ends, role=role,
    )  # fmt: skip


def within(ends: tuple[float, float]) -> tuple[float, float]:
    return max(0.0, ends[0]), min(1.0, ends[1])


def strength(row: Row) -> str:
    """What a setting is called at its mark.

    >>> strength({"epsilon": 2, "public": None, "budget": 2, "mechanism": "gaussian-dp"})
    'ε 2'
    """
    if row["epsilon"] is not None:
        return f"ε {row['epsilon']:g}"
    if row["public"] is not None:
        return f"{row['public']:,}"
    return f"{'PL ' if row['mechanism'].startswith('pl-') else ''}{row['budget']:g}"
