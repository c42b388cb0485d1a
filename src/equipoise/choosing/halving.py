"""Successive halving: every candidate is tried a little, the better part of them more, the best a lot.

Jamieson and Talwalkar, "Non-stochastic best arm identification and hyperparameter optimization" (arXiv:1502.07943).
What grows from rung to rung is the number of seeds, never the rounds: the noise of gaussian-dp follows from the
rounds of the whole run, so a shorter run is another candidate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev
from typing import Generic, TypeVar

SMALL = 0.003
"""A lead that never counts: docs/tuning_gaussian_dp.md settled the recipes by the same."""
T = TypeVar("T", bound=Hashable)
Run = Callable[[Sequence[T], Sequence[int]], Mapping[T, Sequence[float]]]
"""Accuracies of candidates by seed, in the order of the seeds; none for one that was stopped."""


@dataclass(frozen=True)
class Rung:
    """So many seeds for each candidate in all, after which so many go on."""

    seeds: int
    keep: int


@dataclass(frozen=True)
class Outcome(Generic[T]):
    """The finalists, best first, and when each of the others went."""

    finalists: list[T]
    scores: dict[T, list[float]]
    gone: dict[T, int]  # the rung, from 1 on, after which a candidate did not go on


def halve(
    candidates: Sequence[T],
    run: Run[T],
    rungs: Sequence[Rung],
    protected: Callable[[T, T], bool] = lambda one, leader: False,
) -> Outcome[T]:
    """Run the rungs.

    Args:
        candidates: all of them, each once.
        run: trains candidates with seeds, or says what came of it before.
        rungs: how many seeds and survivors.
        protected: whether one goes on whatever its score, given which one leads.

    >>> truth = {"a": 0.5, "b": 0.7, "c": 0.6}
    >>> found = halve(list("abc"), lambda some, seeds: {one: [truth[one]] * len(seeds) for one in some}, [Rung(1, 2)])
    >>> found.finalists, found.gone
    (['b', 'c'], {'a': 1})
    """
    alive, gone = list(dict.fromkeys(candidates)), dict[T, int]()
    scores: dict[T, list[float]] = {}
    for number, rung in enumerate(rungs, 1):
        found = run(alive, range(rung.seeds))
        scores |= {one: list(values) for one, values in found.items()}
        ranked = sorted((one for one in alive if scores[one]), key=lambda one: -mean(scores[one]))
        kept = ranked[: rung.keep]
        kept += [one for one in ranked[rung.keep :] if protected(one, ranked[0])]
        gone |= {one: number for one in alive if one not in kept}
        alive = kept
    return Outcome(alive, scores, gone)


def within_noise(best: Sequence[float], other: Sequence[float]) -> bool:
    """Whether the lead of ``best``, run by run, is at most one standard error of its own mean, or ``SMALL``.

    The one-standard-error rule of Breiman et al. (1984): the simpler one is taken unless another is clearly better.
    Seeds do not show which records happened to be there: a lead of a few records is none.

    >>> within_noise([0.9, 0.92, 0.91], [0.9, 0.91, 0.91]), within_noise([0.9, 0.92, 0.91], [0.8, 0.81, 0.81])
    (True, False)
    """
    lead = [a - b for a, b in zip(best, other, strict=False)]
    error = stdev(lead) / math.sqrt(len(lead)) if len(lead) > 1 else 0.0
    return mean(lead) <= max(SMALL, error) * (1 + 1e-9)


def preferred(outcome: Outcome[T], order: Callable[[T], tuple[float, ...]]) -> T:
    """The best, or what comes first in an ``order`` of those that noise cannot tell from it.

    >>> outcome = Outcome(["b", "a"], {"a": [0.5, 0.6, 0.6], "b": [0.5, 0.62, 0.6]}, {})
    >>> preferred(outcome, lambda one: (one != "a",))
    'a'
    """
    best = outcome.finalists[0]
    alike = [one for one in outcome.finalists if within_noise(outcome.scores[best], outcome.scores[one])]
    return min(alike, key=order)  # the first of several, which is the better one
