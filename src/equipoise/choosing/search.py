"""Finding a workable budget on public data, as the paper does by empirical utility testing.

No private example is touched: the sweep trains and tests on the dataset's public part alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

import torch
from torch import nn

from ..data.dataset import Dataset, from_tensors
from ..engine.federation import Federation
from ..engine.settings import Settings
from ..engine.sweep import Sweep
from ..errors import ConfigError, DataError
from ..mechanism.registry import MeasureKind, get_mechanism
from ..models.named import Factory
from ..statistics import interval


@dataclass(frozen=True)
class Trial:
    """Accuracy of a mechanism at one budget over the seeds, and whether that counts as trained."""

    mechanism: str
    budget: float | None
    seeds: int
    accuracy: float
    interval: tuple[float, float] | None  # 95 %, Student's t; None for one seed
    trains: bool


@dataclass(frozen=True)
class SearchResult:
    """The trials, the bar that a trial must reach, and the strictest budget that reaches it per mechanism."""

    trials: list[Trial]
    bar: float
    strictest: dict[str, float | None]

    def at_edge(self, name: str) -> bool:
        """Whether the strictest budget tried still trains, so that a stricter one may train too."""
        tried = [trial.budget for trial in self.trials if trial.mechanism == name and trial.budget is not None]
        return self.strictest[name] == min(tried)


def public_dataset(dataset: Dataset) -> Dataset:
    """The public part as a dataset of its own: half of it to train on, a third to test, a sixth to validate."""
    if dataset.public is None:
        raise DataError(
            f"The dataset {dataset.name!r} has no public part to search on.",
            "Set some of it apart: --set public_fraction=0.1.",
        )
    train, pool, tuning = dataset.public_attack, dataset.public_pool, dataset.public_tuning
    test, more = (pool.take(part) for part in (slice(len(pool) * 4 // 5), slice(len(pool) * 4 // 5, None)))
    rest = torch.cat([more.inputs, tuning.inputs]), torch.cat([more.labels, tuning.labels])
    return from_tensors(
        (train.inputs, train.labels), (test.inputs, test.labels), rest, classes=dataset.classes, name=dataset.name
    )


def search(
    dataset: Dataset,
    mechanisms: Sequence[str],
    settings: Settings,
    budgets: Sequence[float] | None = None,
    seeds: Sequence[int] = (1, 2, 3),
    keep: float = 0.5,
    on_round: Callable[[int], None] | None = None,
    *,
    model: nn.Module | Factory | None = None,
) -> SearchResult:
    """Sweep budgets on public data; the strictest that still trains, per mechanism.

    A budget *trains* when the mean accuracy over the seeds reaches chance plus ``keep`` times what training without
    protection gains over chance. A budget stricter than one that fails does not count, even if it passes by luck.
    ``model`` is what the settings' ``module:callable`` means, where they have one.
    """
    _check(mechanisms, budgets, seeds, keep)
    public = public_dataset(dataset)
    grid = {name: list(budgets or kind.grid) for name, kind in _kinds(mechanisms).items()}
    federations = [Federation(dataset.name, "none", None, seed) for seed in seeds]
    federations += [
        Federation(dataset.name, name, budget, seed)
        for name, values in grid.items()
        for budget in values
        for seed in seeds
    ]
    once = settings.replace(evaluate_every=settings.training.rounds, snapshots=[])
    sweep = Sweep(once, federations, {dataset.name: public}, model)
    rows = [event.rows for event in sweep.run(on_round) if event.rows][-1]
    chance = 1 / dataset.classes
    free = _trial(rows, "none", None, 0.0)
    if free.accuracy < 3 * chance:
        raise ConfigError(
            f"Without protection, {settings.training.rounds} rounds reach only {free.accuracy:.1%}: too few.",
            "Use more --rounds.",
        )
    bar = chance + keep * (free.accuracy - chance)
    trials = [_trial(rows, name, budget, bar) for name, values in grid.items() for budget in sorted(values)]
    return SearchResult([free, *trials], bar, {name: _strictest(trials, name) for name in grid})


def _check(mechanisms: Sequence[str], budgets: Sequence[float] | None, seeds: Sequence[int], keep: float) -> None:
    kinds = _kinds(mechanisms)
    if not kinds:
        raise ConfigError("Expected at least one mechanism with a budget.", "For example pl-learn.")
    if budgets and len({kind.name for kind in kinds.values()}) > 1:
        raise ConfigError(
            "One grid of budgets cannot serve two kinds of budget.", "Search for pl-* and ls-* separately."
        )
    if not budgets and not all(kind.grid for kind in kinds.values()):
        raise ConfigError("There is no grid for a measure of your own.", "Give the budgets to try.")
    if not all(isinstance(seed, int) for seed in seeds) or not seeds:
        raise ConfigError(f"Expected seeds={list(seeds)!r} to be whole numbers.", "For example 1,2,3.")
    if not 0 < keep < 1:
        raise ConfigError(f"Expected keep={keep!r} to lie between 0 and 1.", "0.5 is the default.")


def _kinds(mechanisms: Sequence[str]) -> dict[str, MeasureKind]:
    """The kinds of budget of those mechanisms that have one."""
    result = {name: get_mechanism(name).measure_kind for name in mechanisms}
    return {name: kind for name, kind in result.items() if kind is not None}


def _trial(rows: list[dict[str, Any]], name: str, budget: float | None, bar: float) -> Trial:
    values = [row["accuracy"] for row in rows if row["mechanism"] == name and row["budget"] == budget]
    centre = mean(values)
    return Trial(name, budget, len(values), centre, interval(values), centre >= bar)


def _strictest(trials: list[Trial], name: str) -> float | None:
    """Strict budgets are small; from the loosest one down, the last before the first failure."""
    best = None
    for trial in sorted((t for t in trials if t.mechanism == name), key=lambda t: -(t.budget or 0)):
        if not trial.trains:
            break
        best = trial.budget
    return best
