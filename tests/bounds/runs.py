"""What the tests of the bounds share: small run folders, sweeps that were never trained, and how to pick rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from equipoise.bounds.context import BoundsContext
from equipoise.bounds.options import BoundsOptions
from equipoise.bounds.rows import Row
from equipoise.bounds.run import Bounds
from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep

CHEAP = BoundsOptions(subproblems=4, repeats=3, samples=4, examples=16, power=3, short=2, targets=2, iterations=6)
MECHANISMS = ("pl-learn", "none", "ls-learn", "pl-identical")


def rows(outcome: Bounds | Sequence[Row], result: str, **where: Any) -> list[Row]:
    """The rows of one result that have the given entries."""
    every = outcome.rows if isinstance(outcome, Bounds) else outcome
    picked = [row for row in every if row["result"] == result]
    return [row for row in picked if all(row[name] == value for name, value in where.items())]


def untrained(
    dataset: Dataset, *federations: Federation, snapshots: Sequence[int] = (0,), options: BoundsOptions = CHEAP,
    **settings: Any,
) -> BoundsContext:  # fmt: skip
    """A sweep whose every snapshot holds the first weights."""
    sweep = Sweep(
        Settings.flat(**{"model": "mlp", "init": "torch", **settings}), federations,
        {name: dataset for name in {fed.dataset for fed in federations}},
    )  # fmt: skip
    return BoundsContext(sweep, list(snapshots), {number: sweep.state.params for number in snapshots}, options)
