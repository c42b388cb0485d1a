"""What a node reserves for a run before its first release: the whole (epsilon, delta), and all that it rests on.

A mechanism whose budget is of a whole run (``gaussian-dp``) is accounted with its sampling rate, noise multiplier and
rounds fixed beforehand: numbers that are chosen along the way are not covered. So a node writes them down first and
keeps to them; what a run that stops early did not use stays reserved. Over runs the epsilons and the deltas add up,
also where a later run was chosen in the light of an earlier one (Rogers et al., "Privacy odometers and filters", 2016),
and where several go on side by side (Vadhan and Zhang, "Concurrent composition theorems", 2023).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ..errors import is_count, is_finite

Noise = tuple[tuple[float, int], ...]
"""Pairs (relative noise multiplier, number of rounds), in the order of the rounds."""
RELATION = "add/remove"
"""Data sets are neighbours if one has one unit more than the other."""
SINGLE_RELATION = "replace one, unit: record"
"""Of the guarantee of a single release. Nodes divide by a public number: it holds for one record more or less too."""
UNITS = ("record", "group")
LONGEST_RUN = 64
MOST_PARTS = 100
"""Of a noise schedule: each takes time to account for."""


@dataclass(frozen=True, kw_only=True)
class Reservation:
    """The terms of one run on one data set.

    >>> one = Reservation(run="7", mechanism="gaussian-dp", epsilon=2.0, delta=1e-5, unit="record", sampling_rate=1.0,
    ...                   sigma=14.1, rounds=50, noise_schedule=((1.0, 50),), divisor=1000)
    >>> one.relation, Reservation.of(one.entry()) == one
    ('add/remove', True)
    """

    run: str  # as the platform numbers runs
    mechanism: str
    epsilon: float
    delta: float
    relation: str = RELATION
    unit: str
    sampling_rate: float
    sigma: float  # the noise multiplier, by the node's own accounting
    rounds: int  # the most releases of the run
    noise_schedule: Noise
    divisor: int  # of sums of gradients: the node's public number

    def entry(self) -> dict[str, Any]:
        """Its line of the ledger, without number and time."""
        return {"kind": "reserve", **asdict(self), "noise_schedule": [list(part) for part in self.noise_schedule]}

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Reservation:
        """That of a line that passed its check."""
        given = {name: entry[name] for name in TERMS}
        parts = tuple((float(level), int(rounds)) for level, rounds in given.pop("noise_schedule"))
        return cls(**given, noise_schedule=parts)

    def first(self, rounds: int) -> Noise:
        """The noise of its first rounds: as the schedule has it, cut off after these many.

        >>> one = dict(run="7", mechanism="gaussian-dp", epsilon=2.0, delta=1e-5, unit="record", sampling_rate=1.0)
        >>> Reservation(**one, sigma=9.0, rounds=5, noise_schedule=((1.0, 2), (0.5, 3)), divisor=1000).first(3)
        ((1.0, 2), (0.5, 1))
        """
        result, left = [], rounds
        for level, count in self.noise_schedule:
            if left > 0:
                result.append((level, min(count, left)))
                left -= count
        return tuple(result)

    def differences(self, other: Reservation) -> list[str]:
        """The names of the terms in which another asks for something else; the noise multiplier follows from them."""
        return [name for name in TERMS if name != "sigma" and getattr(self, name) != getattr(other, name)]


TERMS = tuple(part.name for part in fields(Reservation))


@dataclass
class Reserved:
    """A run of an account: what was reserved for it, and how many of its rounds were used."""

    terms: Reservation
    at: str
    used: int = 0


def sums(runs: Iterable[Reserved]) -> tuple[float, float]:
    """Epsilon and delta of all of them together: simple sums, valid for runs that were chosen one after the other."""
    listed = [run.terms for run in runs]
    return math.fsum(run.epsilon for run in listed), math.fsum(run.delta for run in listed)


def is_reservation(entry: Mapping[str, Any]) -> bool:
    """Whether the terms of a line have the types and the ranges that they must have; nothing is counted before."""
    texts = all(isinstance(entry[name], str) and entry[name] for name in ("run", "mechanism", "relation", "unit"))
    if not texts or len(entry["run"]) > LONGEST_RUN or entry["unit"] not in UNITS or entry["relation"] != RELATION:
        return False
    if not all(type(entry[name]) is float and is_finite(entry[name]) and entry[name] > 0 for name in NUMBERS):
        return False
    whole = all(is_count(entry[name]) and 1 <= entry[name] < 1 << 62 for name in ("rounds", "divisor"))
    if not whole or not entry["delta"] < 1 or not entry["sampling_rate"] <= 1:
        return False
    return _is_schedule(entry["noise_schedule"], entry["rounds"])


NUMBERS = ("epsilon", "delta", "sampling_rate", "sigma")


def _is_schedule(parts: Any, rounds: int) -> bool:
    if not isinstance(parts, list) or not 0 < len(parts) <= MOST_PARTS:
        return False
    total = 0
    for part in parts:
        if not isinstance(part, list) or len(part) != 2 or type(part[0]) is not float or not is_count(part[1]):
            return False
        if not is_finite(part[0]) or part[0] <= 0 or part[1] < 1:
            return False
        total += part[1]
    return total == rounds
