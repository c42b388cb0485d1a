"""How closely ``bounds_run`` looks at a run."""

from __future__ import annotations

from dataclasses import dataclass, fields

from ..errors import ConfigError

LEAST = {
    "subproblems": 2, "repeats": 2, "samples": 2, "examples": 1, "power": 1, "short": 1, "targets": 0, "iterations": 2,
    "seed": 0,
}  # fmt: skip


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
    targets: int = 8  # releases attacked per federation and snapshot; 0: no attack
    iterations: int | None = None  # of the attack; None: leakage.iterations of the run
    seed: int = 0

    def check(self) -> None:
        """Refuse what cannot be measured, all problems at once.

        >>> BoundsOptions(samples=1).check()
        Traceback (most recent call last):
        equipoise.errors.ConfigError: Impossible options: samples=1 (at least 2). See equipoise.BoundsOptions.
        """
        wrong = []
        for part in fields(self):
            value = getattr(self, part.name)
            if value is None and part.name in ("snapshots", "iterations"):
                continue
            if part.name == "snapshots":
                if not isinstance(value, list) or not value or not all(type(number) is int for number in value):
                    wrong.append(f"snapshots={value!r} (a list of rounds)")
            elif type(value) is not int:
                wrong.append(f"{part.name}={value!r} (a whole number)")
            elif value < LEAST[part.name]:
                wrong.append(f"{part.name}={value} (at least {LEAST[part.name]})")
        if type(self.targets) is int and self.targets == 1:
            wrong.append("targets=1 (0, or at least 2: one release has no interval)")
        if wrong:
            raise ConfigError(f"Impossible options: {', '.join(wrong)}.", "Change these; docs/bounds.md explains them.")
