"""From the cells of the frontier to the marks of its picture: which family each belongs to, and where it stands.

Leakage of a mark is the most that any attack got at any stage or over the run: a floor of what an attacker can get. Of
``gaussian-dp`` it is the proved limit over the run instead, a ceiling: nobody gets more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..privacy.guarantee import share_up
from .frontier_marks import Mark, Panel, Role

Row = Mapping[str, Any]
TITLES = {"mnist": "MNIST", "fmnist": "Fashion-MNIST"}
CHANCE = 1 / 200
RECOMMENDED = "gaussian-dp on scattering features (proved)"
LEARNED = "the paper's learned noise"
PUBLIC = "public images alone"
START = 2
"""The epsilon to begin with, which the picture marks."""
BATCH = {"batch": 4, "local_steps": 1}
FAMILIES: tuple[tuple[str, Role, Mapping[str, Any]], ...] = (
    (RECOMMENDED, "recommended", {"mechanism": "gaussian-dp", "model": "scatter-linear"}),
    (LEARNED, "paper", {"mechanism": "pl-learn", "server": "plain"}),
    ("learned noise, damped server", "baseline", {"mechanism": "pl-learn", "server": "damped"}),
    (PUBLIC, "alternative", {"mechanism": "none", "model": "scatter-linear", "clients": 0}),
    ("static noise", "baseline", {"mechanism": "pl-identical", "server": "plain", **BATCH}),
    ("static noise, damped server", "baseline", {"mechanism": "pl-identical", "server": "damped", **BATCH}),
    ("static noise on batches of 44, damped server", "baseline",
     {"mechanism": "pl-identical", "server": "damped", "batch": 44}),
    ("gaussian-dp on LeNetZhu (proved)", "baseline", {"mechanism": "gaussian-dp", "model": "lenet-zhu"}),
    ("gradient pruning", "baseline", {"mechanism": "pruning"}),
    ("Outpost", "baseline", {"mechanism": "outpost"}),
)  # fmt: skip
"""Name, role, and what all cells of a family have in common; in the order of the legend."""
DRAWN = {"gaussian-dp": (0.2, 0.5, 1, 2, 4, 8), "pl-identical": (0.96, 0.98, 0.995)}
"""Strengths of which there are too many for a picture: those that are drawn."""
CAPTION = (
    "Marks are strengths of a way to protect, some left out; higher and further left is better. Leakage of noise is "
    "the most that our attacks got: another attack may get more. That of gaussian-dp is proved: no attack "
    "gets more (epsilon of the whole run, for one record, delta 1e-5). Public images alone: 200 and 1,000 labelled "
    "ones that belong to nobody, the first thing to train on where there are some. Unprotected: on scattering "
    "features, too; all noise is on LeNetZhu. Bars: 95 % intervals. 4 clients with 1,000 images each."
)


def panels(record: Mapping[str, Any], names: Sequence[str] = tuple(TITLES)) -> list[Panel]:
    """A panel for each data set, of the cells with four clients and equal parts; none where nothing is whole yet."""
    every = [
        _panel([row for row in record["cells"] if _shown(row, name)], name, record["unprotected"]) for name in names
    ]
    return [panel for panel in every if panel.marks]


def _panel(rows: Sequence[Row], name: str, unprotected: Mapping[str, float]) -> Panel:
    marks = [mark for family in FAMILIES for mark in _marks(rows, *family)]
    return Panel(TITLES[name], marks, CHANCE, unprotected[name], "start with")


def _shown(row: Row, name: str) -> bool:
    usual = row["public"] is not None or (row["clients"] == 4 and row["partition"] == "identical")
    return bool(row["dataset"] == name and usual and row["budget"] in DRAWN.get(row["mechanism"], (row["budget"],)))


def _marks(rows: Sequence[Row], family: str, role: Role, common: Mapping[str, Any]) -> list[Mark]:
    mine = [row for row in rows if all(row[key] == value for key, value in common.items())]
    settings: dict[tuple[Any, ...], list[Row]] = {}
    for row in mine:
        settings.setdefault((row["budget"], row["public"], row["server"]), []).append(row)
    ordered = sorted(settings, key=lambda key: (key[0] or 0, key[1] or 0, key[2]))
    return [_mark(settings[key], family, role) for key in ordered if _whole(settings[key])]


def _whole(scopes: Sequence[Row]) -> bool:
    """Whether a setting was looked at over the run, too: without that it would look better than others.

    What stands at its proved limit needs one: it may be that it could not be computed.
    """
    run = next((row for row in scopes if row["scope"] == "run"), None)
    if run is None or run["control_failed"] or run["accuracy"] is None:
        return False
    return run["epsilon"] is None or run["proved_identification"] is not None


def _mark(scopes: Sequence[Row], family: str, role: Role) -> Mark:
    first = scopes[0]
    told = [row for row in scopes if not row["control_failed"]]  # over the run it works, see _whole
    worst = max(told, key=lambda row: row["identification"])
    leakage, ends = worst["identification"], (worst["identification_low"], worst["identification_high"])
    if first["epsilon"] is not None:
        proved = next(row["proved_identification"] for row in scopes if row["scope"] == "run")
        leakage, ends = share_up(proved), (None, None)  # as it is printed
    accuracy = (first["accuracy_low"], first["accuracy_high"])
    return Mark(
        family, strength(first), first["accuracy"], None if accuracy[0] is None else within(accuracy), leakage,
        None if ends[0] is None else ends, role=role, chosen=role == "recommended" and first["epsilon"] == START,
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
        return f"{row['public']:,} images"
    return f"{'PL ' if row['mechanism'].startswith('pl-') else ''}{row['budget']:g}"
