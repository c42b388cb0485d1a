"""How closely ``bounds_run`` looks at a run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..errors import ConfigError, expected, is_count, is_whole, raise_all
from ..mechanism.protection import too_small, wrong_types

LEAST = {
    "subproblems": 2, "repeats": 2, "samples": 2, "examples": 1, "power": 1, "short": 1, "iterations": 2, "seed": 0,
}  # fmt: skip
"""Whole numbers with the least that each may be."""


@dataclass(frozen=True, kw_only=True)
class BoundsOptions:
    """How closely to look. The defaults suit two CPU cores and a minute or two."""

    snapshots: list[int] | None = None  # rounds of which there is one; None: all
    subproblems: int = 16  # inner trajectories per federation and snapshot
    repeats: int = 16  # rounds drawn afresh from a snapshot, for Lemma C.1
    samples: int = 64  # mini-batch gradients, for their variance
    examples: int = 256  # drawn afresh for every such round, to measure F before and after it
    power: int = 12  # power iterations for a curvature
    short: int = 6  # rounds of the short run with a smaller eta, where the run's own is too large
    targets: int = 8  # releases attacked per federation and snapshot: at least 2, or 0 for no attack
    iterations: int | None = None  # of the attack; None: leakage.iterations of the run
    seed: int = 0

    def check(self) -> None:
        """Refuse what cannot be measured, all problems at once.

        >>> BoundsOptions(samples=1).check()
        Traceback (most recent call last):
        equipoise.errors.ConfigError: Expected samples=1 to be >= 2. Give samples 2 or more.
        """
        raise_all([*self._choices(), *self._numbers()])

    def _choices(self) -> Iterator[ConfigError]:
        rounds = self.snapshots
        if rounds is not None and not (isinstance(rounds, list) and rounds and all(map(is_whole, rounds))):
            yield expected("snapshots", rounds, "a list of rounds", "Give rounds of which the run has a snapshot.")
        if not is_count(self.targets) or self.targets == 1:
            remedy = "Attack none or several: one release has no interval."
            yield expected("targets", self.targets, "0 or a whole number >= 2", remedy)

    def _numbers(self) -> Iterator[ConfigError]:
        least = {name: bound for name, bound in LEAST.items() if name != "iterations" or self.iterations is not None}
        for name, bound in least.items():
            yield from list(wrong_types(self, [name], (), {})) or too_small(self, {name: bound})
