"""A guarantee with what it means: (epsilon, delta) of a whole run, and what any attacker can achieve at best."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import ConfigError, expected
from . import CANDIDATES
from .gaussian import RELATION, Noise, epsilon_of, noise_multiplier, rounded_up
from .limits import advantage, blind_success, limit

UNITS = {
    "record": ("one record", "all other records", "the record"),
    "group": ("all records of one group", "all records of the other groups", "the group"),
}
"""What a guarantee protects: one of it, all others, and it, in words."""
RATES = ("0.001", "0.01", "0.1")
"""False-positive rates of membership, as the keys of JSON."""


@dataclass(frozen=True)
class Identification:
    """The most that any attacker achieves who picks one of ``candidates`` equally likely records.

    >>> from equipoise import guarantee
    >>> guarantee(epsilon=2.0, rounds=50).identification.candidates
    200
    """

    candidates: int
    run: float
    release: float
    release_known: float


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """(epsilon, delta) of a whole run, the noise that gives it, and the proved limits of any attacker.

    Args:
        epsilon: of the whole run, for ``relation`` and ``unit``.
        delta: of the whole run.
        relation: "add/remove": with the unit or without it.
        unit: "record", or "group" where all records of a group are clipped together.
        sampling_rate: q; 1 if every release is made of all units.
        sigma: noise multiplier: the noise of a release is sigma times the clip norm.
        rounds: releases that the guarantee is for.
        identification: limits of picking the right one of several candidates.
        membership_tpr: limits of the true-positive rate by false-positive rate, for the whole run.
        advantage: limit of the true-positive rate minus the false-positive rate, for the whole run.

    >>> from equipoise import guarantee
    >>> found = guarantee(epsilon=2.0, delta=1e-5, rounds=50)
    >>> found.sigma, found.relation, round(found.identification.run, 4), round(found.membership_tpr["0.01"], 4)
    (14.09839, 'add/remove', 0.019, 0.034)
    """

    epsilon: float
    delta: float
    relation: str
    unit: str
    sampling_rate: float
    sigma: float
    rounds: int
    identification: Identification
    membership_tpr: dict[str, float]
    advantage: float

    def plain(self) -> dict[str, Any]:
        """As JSON has it.

        >>> from equipoise import guarantee
        >>> list(guarantee(epsilon=2.0, rounds=50).plain())[:4]
        ['epsilon', 'delta', 'relation', 'unit']
        """
        return asdict(self)

    def sentences(self) -> list[str]:
        """What the numbers mean, for people: limits are rounded up."""
        one, others, it = UNITS[self.unit]
        found, blind = self.identification, blind_success(self.identification.candidates)
        known = f", and {percent_up(found.release_known)} if told that {it} was drawn for it"
        return [
            f"An attacker who knows {others} and sees every one of the {self.rounds:,} releases picks the right one of "
            f"{found.candidates:,} equally likely candidates with a probability of at most {percent_up(found.run)}. "
            f"Without any release it is {percent_up(blind)}.",
            f"One release alone gives the attacker at most {percent_up(found.release)}"
            f"{known if self.sampling_rate < 1 else ''}.",
            f"Asked whether {it} was in the data at all, and allowed false alarms in 1 % of the cases where it was "
            f"not, it notices {it} in at most {percent_up(self.membership_tpr['0.01'])} of those where it was. However "
            f"many false alarms it is allowed, hits exceed them by at most {percent_up(self.advantage)}.",
            f"That is epsilon {rounded_up(self.epsilon):.7g} at delta {self.delta:g} for the whole run, relation "
            f"{self.relation}, unit {self.unit}: adding or removing {one} makes no outcome more than "
            f"{_times_up(self.epsilon)} times as likely, up to a probability of {_one_in(self.delta)}.",
        ]


def guarantee(
    *,
    rounds: int,
    epsilon: float | None = None,
    delta: float = 1e-5,
    sampling_rate: float = 1.0,
    candidates: int = CANDIDATES,
    unit: str = "record",
    sigma: float | None = None,
    schedule: Noise | None = None,
) -> Guarantee:
    """What ``gaussian-dp`` promises for a whole run, and the most that any attacker can make of all its releases.

    Args:
        rounds: releases of the run, T.
        epsilon: of the whole run; or give ``sigma``, and get the epsilon that it is worth.
        delta: of the whole run.
        sampling_rate: q; 1 if every release is made of all units, less for Poisson sampling.
        candidates: equally likely records that the attacker picks one of.
        unit: "record", or "group" where all records of a group are clipped together.
        sigma: noise multiplier, instead of ``epsilon``.
        schedule: relative noise of the rounds, as pairs (multiplier, number of rounds); the same noise without.

    Returns:
        The guarantee with its proved limits. They hold for the numbers that a run sends, with noise that nobody
        knows: a seeded run has none.

    >>> found = guarantee(epsilon=2.0, delta=1e-5, rounds=50, candidates=200)
    >>> round(found.identification.run, 4), round(found.identification.release, 4)
    (0.019, 0.0061)
    """
    if unit not in UNITS:
        raise expected("unit", unit, " or ".join(UNITS), "A person with several records is a group.")
    kappa = blind_success(candidates)
    if sigma is None:
        if epsilon is None:
            raise ConfigError("Expected epsilon or sigma.", "Give one of them, for example epsilon 2.")
        sigma = noise_multiplier(epsilon, delta, rounds, sampling_rate, schedule)
    elif epsilon is not None:
        raise ConfigError("Expected epsilon or sigma, not both.", "Leave out one of them: it follows from the other.")
    else:
        epsilon = epsilon_of(sigma, delta, rounds, sampling_rate, schedule)
    run = sigma, rounds, sampling_rate
    return Guarantee(
        epsilon=float(epsilon), delta=float(delta), relation=RELATION, unit=unit, sampling_rate=float(sampling_rate),
        sigma=float(sigma), rounds=rounds,
        identification=Identification(
            candidates,
            limit(kappa, *run, "run", schedule),
            limit(kappa, *run, "release", schedule),
            limit(kappa, *run, "release_known", schedule),
        ),
        membership_tpr={rate: limit(float(rate), *run, "run", schedule) for rate in RATES},
        advantage=advantage(*run, schedule),
    )  # fmt: skip


def percent_up(share: float) -> str:
    """A limit in percent, rounded up to three digits: what is printed is a limit too.

    >>> percent_up(0.0190271), percent_up(0.25), percent_up(1 / 3), percent_up(1.0), percent_up(0.999999)
    ('1.91 %', '25 %', '33.4 %', '100 %', '100 %')
    """
    return f"{100 * share_up(share):.4g} %"


def share_up(share: float) -> float:
    """A limit that is no smaller, of three digits: the one that ``percent_up`` prints.

    >>> share_up(0.0190271), share_up(0.03), share_up(0.999999), share_up(0.0)
    (0.0191, 0.03, 1.0, 0.0)
    """
    if share <= 0:
        return 0.0
    places = min(2 - math.floor(math.log10(share)), 300)  # beyond them a float has no three digits left
    return min(1.0, round(max(1, math.ceil(share * 10.0**places - 1e-9)) * 10.0**-places, places))


def _times_up(epsilon: float) -> str:
    """e^epsilon, rounded up.

    >>> _times_up(2.0), _times_up(0.01), _times_up(500.0)
    ('7.39', '1.02', 'e^500')
    """
    return f"{math.ceil(100 * math.exp(epsilon)) / 100:,.2f}" if epsilon < 12 else f"e^{rounded_up(epsilon):.7g}"


def _one_in(delta: float) -> str:
    """
    >>> _one_in(1e-5), _one_in(1.5e-5), _one_in(0.3)
    ('1 in 100,000', '1 in 66,666', '0.3')
    """
    return f"1 in {math.floor(1 / delta * (1 + 1e-12)):,}" if delta <= 0.01 else f"{delta:g}"
