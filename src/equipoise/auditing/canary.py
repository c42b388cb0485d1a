"""Whole runs of ``gaussian-dp`` with a canary in the data and without it: would we notice if the code lied?

The mechanism's own code releases a tiny model of a made-up client, round after round, in many runs. The canary is a
record whose gradient has the norm C (or more, which the clip has to take off) in one direction; the others' gradients
point against it, so that a sum that is divided by the number of records shows it too. The weights that the server sends
change sign from round to round, and every gradient with them: noise that is used again cancels. They may be of any
size; records are such that gradients are not.

With x_t, what a release holds along the canary's direction beside the known others, in units of C, the score of a run
is the log-likelihood ratio

    sum over rounds of log(1 - q + q exp((2 x_t - 1) / (2 sigma^2))).

A release that is not finite, or is the received weights themselves, is a missing one, and has a score of its own, which
may decide alone. The rule: one half of the runs chooses the threshold that looks worst for the mechanism; on the other
half the audit *fails* if the lower bound of the true positive rate exceeds the proved limit at the upper bound of the
false positive rate, each exact and one-sided at 2.5 %. Honest code fails with a probability of at most 5 %.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from ..mechanism.protection import ProtectionSettings
from ..mechanism.records import of_units
from ..mechanism.release import release
from ..mechanism.run_budget import GaussianSettings
from ..mechanism.units import EachRecord, Records, Units
from ..models.batched import Batched
from ..privacy.gaussian import noise_multiplier
from ..privacy.limits import limit
from ..randomness import experiment_key, keyed_words
from .limit_comparison import lower_bound, upper_bound

SIZE = 4
"""Parameters of the model; along the first lies the canary."""
ALPHA = 0.025
"""With which each of the two bounds may be missed."""


@dataclass(frozen=True, kw_only=True)
class Canary:
    """Runs to be played, and what their mechanism claims.

    >>> Canary(runs=2, rounds=2, others=1).sigma > 1
    True
    """

    epsilon: float = 4.0
    delta: float = 1e-5
    rounds: int = 8
    sampling_rate: float = 1.0
    others: int = 15  # records of the client beside the canary
    divisor: float | None = None  # public; by default as many as there are others
    length: float = 1.0  # of the canary's gradient before it is clipped, in units of C; it may be NaN
    weight: float = 1.0  # size of the weights that the server sends
    missing: float = -math.inf  # score of a missing release: by default it tells that there is no canary
    runs: int = 500  # with the canary, and as many without
    clip: float = field(default=1.0, init=False)

    @property
    def sigma(self) -> float:
        """The noise multiplier that the claim takes."""
        return noise_multiplier(self.epsilon, self.delta, self.rounds, self.sampling_rate)

    @property
    def settings(self) -> ProtectionSettings:
        divisor = max(1.0, float(self.others)) if self.divisor is None else self.divisor
        own = GaussianSettings(
            delta=self.delta, clip=self.clip, sampling_rate=self.sampling_rate, divisor=divisor, rounds=self.rounds
        )
        return ProtectionSettings(eta=1.0, gaussian=own)

    def limit(self, rate: float) -> float:
        """The most that any test finds at this false positive rate."""
        return limit(rate, self.sigma, self.rounds, self.sampling_rate)


def scores(canary: Canary, seed: int) -> tuple[Tensor, Tensor]:
    """Of runs with the canary and of runs without it: ``[runs]`` each."""
    torch.manual_seed(0)  # the weights that a layer draws are not used
    pool = EachRecord(Batched(nn.Linear(SIZE, 1, bias=False), _loss), _records(canary))
    everyone = torch.arange(canary.others + 1)  # the canary is the last
    data = [everyone] * canary.runs + [everyone[:-1]] * canary.runs
    total = torch.zeros(2 * canary.runs, dtype=torch.float64)
    for number in range(1, canary.rounds + 1):
        total += _round(canary, pool, data, number, seed)
    return total[: canary.runs], total[canary.runs :]


def _loss(outputs: Tensor, labels: Tensor) -> Tensor:
    """Half of the squared output, upwards for the label 1 and downwards for 0."""
    return ((2 * labels - 1) * outputs.squeeze(-1).square() / 2).mean()


def _records(canary: Canary) -> Records:
    """Others whose gradient is -C where the canary's is +C times its length, at weights along the first axis."""
    lengths = torch.full((canary.others + 1,), canary.clip)
    lengths[-1] *= canary.length
    images = torch.zeros(canary.others + 1, SIZE)
    images[:, 0] = (lengths / canary.weight).sqrt()
    return Records(images, torch.tensor([0] * canary.others + [1]))


def _round(canary: Canary, pool: EachRecord, data: list[Tensor], number: int, seed: int) -> Tensor:
    """The log-likelihood ratios of one round, run by run."""
    sign, protection = (-1.0) ** number, canary.settings.at("gaussian-dp", canary.epsilon, number)
    start = torch.zeros(len(data), SIZE)
    start[:, 0] = sign * canary.weight
    key = experiment_key(seed, "audit/canary")
    words, again = ([keyed_words(key, run, number) for run in range(len(data))] for _ in range(2))
    released = release([of_units(Units(pool, data))], start, words, 1.0, protection, utility=False).parameters
    pairs = zip(data, again, strict=True)  # the same words: the same batches
    took_part = [pool.records.sampled(rows, canary.sampling_rate, source) for rows, source in pairs]
    known = torch.tensor([int((rows < canary.others).sum()) for rows in took_part])  # granted to the attacker
    per_unit = 1.0 / (canary.sampling_rate * canary.settings.gaussian.divisor)
    along = (start - released).double()[:, 0] * sign / per_unit / canary.clip + known
    certain = (2 * along - 1) / (2 * canary.sigma**2)
    if canary.sampling_rate < 1:
        rate = torch.tensor(canary.sampling_rate, dtype=torch.float64)
        certain = torch.logaddexp((-rate).log1p(), rate.log() + certain)
    missing = ~torch.isfinite(released).all(1) | (released == start).all(1)
    return certain.masked_fill(missing, canary.missing)


def judged(canary: Canary, inside: Tensor, outside: Tensor) -> dict[str, Any]:
    """What the scores of runs with the canary and without it come to, by the rule."""
    first, second = ((inside[part], outside[part]) for part in (slice(0, None, 2), slice(1, None, 2)))
    threshold = max(torch.cat(first).unique().tolist(), key=lambda one: _excess(canary, *first, one)[0])
    excess, true, false = _excess(canary, *second, threshold)
    most = upper_bound(false, len(second[1]), ALPHA)
    return {
        "threshold": threshold, "runs": len(second[0]), "true_alarms": true, "false_alarms": false,
        "tpr_lower": lower_bound(true, len(second[0]), ALPHA), "fpr_upper": most, "limit": canary.limit(most),
        "fails": excess > 0,
    }  # fmt: skip


def _excess(canary: Canary, inside: Tensor, outside: Tensor, threshold: float) -> tuple[float, int, int]:
    """By how much the true positive rate at least exceeds the limit, and the true and false alarms behind that."""
    true, false = int((inside > threshold).sum()), int((outside > threshold).sum())
    limited = canary.limit(upper_bound(false, len(outside), ALPHA))
    return lower_bound(true, len(inside), ALPHA) - limited, true, false


def canary_audit(canary: Canary, seed: int = 0) -> dict[str, Any]:
    """Play the runs and judge them: ``fails`` is true if the code cannot be doing what it claims."""
    return judged(canary, *scores(canary, seed))
