"""What was chosen, in numbers, in three sentences and as the settings of a run."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, field
from statistics import mean
from typing import Any

from ..data.bundle import BUNDLED
from ..engine.datasets import folder_name
from ..engine.settings import Settings
from ..mechanism.registry import get_mechanism
from ..privacy.guarantee import percent_up
from ..runs.config import Config, SweepBlock
from ..statistics import interval
from .limit import CANDIDATES, Limit

ROWS = 1.959964
"""Standard errors on either side of a share of many records, for 95 %."""
NOT_CLAIMED = (
    "that your clients' data will give this accuracy, anything about replacing a {unit} by another, or about a "
    "seeded run"
)
UNITS = {"record": ("record", "records"), "group": ("group of records", "groups of records")}
"""One and several of each unit, in words."""


@dataclass(frozen=True)
class Expected:
    """An accuracy to expect: of whole runs on records that played no part in choosing."""

    accuracy: float
    low: float
    high: float
    seeds: int
    records: int
    what: str  # whose records these are

    @classmethod
    def of(cls, accuracies: list[float], records: int, what: str) -> Expected:
        """95 %: what seeds change (Student), and which records happen to be there.

        >>> found = Expected.of([0.92, 0.93, 0.91], 1500, "public records")
        >>> round(found.accuracy, 3), round(found.low, 3), round(found.high, 3)
        (0.92, 0.892, 0.948)
        """
        share = mean(accuracies)
        seeds = interval(accuracies)
        by_seeds = (seeds[1] - share) if seeds is not None else 0.0
        half = math.hypot(by_seeds, ROWS * math.sqrt(share * (1 - share) / records))
        return cls(share, max(0.0, share - half), min(1.0, share + half), len(accuracies), records, what)

    def words(self) -> str:
        return f"{self.accuracy:.1%} (95% interval {100 * self.low:.1f} to {self.high:.1%})"


@dataclass(frozen=True)
class Rejected:
    """What was not chosen, and why; ``accuracy`` on the records that choose, where it was trained."""

    what: str
    why: str
    accuracy: float | None = None
    seeds: int = 0


@dataclass(frozen=True)
class Point:
    """The choice at another budget: what a looser or stricter one would give."""

    epsilon: float
    accuracy: float
    interval: tuple[float, float]
    identified: float  # at most, of 200, over the whole run: proved


@dataclass(frozen=True, kw_only=True)
class Decision:
    """What to deploy, what to expect of it, and what was rejected.

    ``met`` is false where nothing meets the limit: the rest is then what comes nearest.

    >>> from equipoise import choose
    >>> found = choose("breast-cancer", epsilon=8, quick=True, settings={"rounds": 3, "server_rate": 0.2})
    >>> found.mechanism, found.budget, found.expected.records, len(found.sentences())
    ('gaussian-dp', 8.0, 50, 3)
    """

    met: bool
    limit: Limit
    dataset: str  # as it was named, or a dataset's own name
    settings: Settings  # of the real federation, whole
    mechanism: str
    budget: float
    sigma: float | None  # noise over clip, of a release; None without a guarantee
    records: int
    expected: Expected
    unprotected: float
    identified: float  # at most, proved, over a whole run; without a guarantee the measured share for one release
    rejected: list[Rejected]
    curve: list[Point] = field(default_factory=list)
    shortfall: str = ""  # why the limit is not met
    largest_class: float = 0.0  # accuracy of always saying the same
    private: bool = False
    unit: str = "record"  # whose presence the guarantee hides, or "group": all records of one person, say
    not_covered: tuple[str, ...] = ()  # what was measured on private rows before anything was protected
    quick: bool = False
    seed: int = 1
    seconds: float = 0.0
    changes: str = "recommended"

    @property
    def proved(self) -> bool:
        return get_mechanism(self.mechanism).formal

    @property
    def label(self) -> str:
        """The dataset without any path."""
        return self.dataset if self.dataset in BUNDLED else folder_name(self.dataset)

    def config(self) -> Config:
        """The run to deploy, as ``equipoise train`` takes it."""
        named = self.dataset if self.dataset in BUNDLED else os.path.abspath(self.dataset)  # wherever it is read from
        block = SweepBlock([named], [self.mechanism], [self.budget], [self.seed])
        return Config(self.settings, [block])

    def sentences(self) -> list[str]:
        """What to deploy; what accuracy to expect; what is proved and what is not claimed."""
        return [self._deploy(), self._expect(), self._claim()]

    def _deploy(self) -> str:
        training, own = self.settings.training, self.settings.protection
        rate = training.server_rate if isinstance(training.server_rate, str) else f"{training.server_rate:.4g}"
        server = f"server rate {rate}, momentum {training.server_momentum:g}"
        who = f"{own.clients} clients with about {self.records:,} {UNITS[self.unit][1]} each"
        lead = "Deploy" if self.met else "Nearest, not to be deployed as if it met the limit:"
        if not self.proved:
            return (
                f"{lead} {self.mechanism} at budget {self.budget:g} with {training.model}: {training.rounds:,} rounds, "
                f"batch {own.batch}, {server}, for {who}."
            )
        share = own.gaussian.sampling_rate
        several = UNITS[self.unit][1]
        batch = f"all {several} in each" if share == 1 else f"{share:.0%} of the {several} in each"
        return (
            f"{lead} {self.mechanism} with epsilon {self.budget:g}, delta {own.gaussian.delta:g}, for the whole run "
            f"and adding or removing one {UNITS[self.unit][0]}: {training.model}, {training.rounds} rounds with "
            f"{batch}, clip {own.gaussian.clip:g}, noise multiplier {self.sigma:.5g}, {server}, for {who}."
        )

    def _expect(self) -> str:
        found = self.expected
        seeds = f"{found.seeds} seeded runs" if found.seeds > 1 else "one seeded run"
        return (
            f"Expect an accuracy of {found.words()}, measured with stand-in clients in {seeds} on {found.records:,} "
            f"{found.what} that played no part in choosing; without protection it was {self.unprotected:.1%}, and "
            "always "
            f"naming the largest class gives {self.largest_class:.1%}."
        )

    def _claim(self) -> str:
        if not self.proved:
            return (
                f"Nothing is proved: a matched filter is expected to identify {self.identified:.1%} of records from "
                "one "
                "release, and what the whole run gives away was not bounded. Not claimed: any epsilon, or that a "
                "better "
                f"attack does not exist{self._uncovered()}."
            )
        one, several = UNITS[self.unit]
        told = (
            f"Proved, for noise that nobody knows: over the whole run no attacker identifies more than "
            f"{percent_up(self.identified)} of {several} among {CANDIDATES} (a guess: {1 / CANDIDATES:.1%}), "
            f"even if it knows all others. Not claimed: {NOT_CLAIMED.format(unit=one)}{self._uncovered()}"
        )
        return told + (
            "; nor is the choice covered, which looked at clients' own training records." if self.private else "."
        )

    def _uncovered(self) -> str:
        """What no epsilon says anything of, as the end of a sentence."""
        if not self.not_covered:
            return ""
        return f"; nor is covered what was measured on private rows: {'; '.join(self.not_covered)}"

    def plain(self) -> dict[str, Any]:
        """All of it for JSON."""
        own = self.settings
        gaussian = own.protection.gaussian
        chosen = {
            "mechanism": self.mechanism, "budget": self.budget, "model": own.training.model,
            "rounds": own.training.rounds, "server_rate": own.training.server_rate,
            "server_momentum": own.training.server_momentum, "clients": own.protection.clients, "records": self.records,
            "changes": self.changes,
        }  # fmt: skip
        if self.proved:
            chosen |= {
                "delta": gaussian.delta, "relation": "add/remove", "unit": self.unit, "clip": gaussian.clip,
                "sampling_rate": gaussian.sampling_rate, "divisor": gaussian.divisor, "sigma": self.sigma,
            }  # fmt: skip
        else:
            chosen |= {"batch": own.protection.batch}
        identified: dict[str, Any] = {"candidates": CANDIDATES, "share": self.identified, "proved": self.proved}
        identified |= {"scope": "run" if self.proved else "release"}
        return {
            "met": self.met, "shortfall": self.shortfall, "limit": asdict(self.limit), "dataset": self.label,
            "chosen": chosen, "expected": asdict(self.expected), "unprotected": self.unprotected,
            "largest_class": self.largest_class, "identified": identified,
            "curve": [asdict(point) for point in self.curve], "rejected": [asdict(one) for one in self.rejected],
            "sentences": self.sentences(), "on_private_records": self.private, "not_covered": list(self.not_covered),
            "quick": self.quick, "seed": self.seed, "seconds": round(self.seconds, 1),
        }  # fmt: skip
