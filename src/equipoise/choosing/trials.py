"""Training candidates on stand-in clients, many at once: what differs only in rate, budget and seed shares a sweep.

A candidate of another model than the leader's costs up to ten times as much, and is stopped after a quarter of its
rounds if it is clearly behind by then: its noise is that of the whole run from the first round on, so that nothing
but the rest of the training is left out. ``BEHIND`` was measured: docs/choose.md.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..engine.federation import Federation
from ..engine.settings import Settings
from ..engine.sweep import Sweep
from ..engine.tables import Tables
from ..mechanism.run_budget import GaussianSettings
from ..models.named import Factory
from .candidates import Candidate
from .standins import StandIns

BEHIND = 0.1
"""Accuracy that a candidate may be behind the best after a quarter of its rounds, and be trained on."""
APART = 100_000
"""Between the seeds of two multipliers: runs of one sweep must differ in budget or seed."""
AT_ONCE = 32
"""Federations of a sweep: progress is told, and memory kept, sweep by sweep."""
Step = Callable[[str, float], None]


@dataclass(frozen=True)
class Trial:
    """A candidate at a budget, that of the real federation."""

    candidate: Candidate
    epsilon: float


@dataclass
class Score:
    """Accuracies of one trial, by seed: on the records that choose, and on those that are reported."""

    choosing: dict[int, float] = field(default_factory=dict)
    reporting: dict[int, float] = field(default_factory=dict)
    behind: float | None = None  # by so much when it was stopped after a quarter

    def add(self, seed: int, row: dict[str, Any]) -> None:
        self.choosing[seed], self.reporting[seed] = row["validation_accuracy"], row["accuracy"]


class Rates(Sweep):
    """A sweep whose federations each have a rate of their own, as a multiple of what the settings say."""

    multiples: Sequence[float] = ()

    def tables(self, rounds: list[int]) -> Tables:
        result = super().tables(rounds)
        own = result.server_rate.new_tensor([self.multiples[place] for place in self.order])
        return replace(result, server_rate=result.server_rate * own)


class Trials:
    """Every trial that was run, with its scores so far."""

    def __init__(
        self, stand_ins: StandIns, settings: Settings, *, code: Factory | None = None, seed: int = 1,
        on_step: Step = lambda what, seconds: None, most_behind: float = BEHIND,
    ):  # fmt: skip
        """
        Args:
            stand_ins: whose records are trained on.
            settings: what is alike in all candidates, as for the real federation.
            code: what builds the model, where that is none of the bundled ones.
            seed: all randomness follows from it.
            on_step: told what is done, and the seconds that it was planned to take.
            most_behind: accuracy that another model may be behind after a quarter of its rounds.
        """
        self.most_behind = most_behind
        self.stand_ins, self.settings, self.code, self.seed, self.on_step = stand_ins, settings, code, seed, on_step
        self.scores: dict[Trial, Score] = {}
        self.pace: dict[str, float] = {}  # seconds of a round of one federation, by model
        self._after_a_quarter: dict[float, float] = {}  # of the best so far, by budget
        self._first = ""  # the model that was trained first, which nothing stops

    # -- settings ----------------------------------------------------------------------------------------------------

    def real(self, candidate: Candidate) -> Settings:
        """The settings of the real federation, but for the rate."""
        keys = candidate.keys()
        own = replace(
            self.settings.protection.gaussian, **keys.pop("gaussian"), rounds=candidate.rounds, sigmas=[],
            divisor=float(self.stand_ins.records),
        )  # fmt: skip
        return self.settings.replace(**keys, gaussian=own)

    def server_rate(self, trial: Trial) -> float:
        """What the server of the real federation multiplies the mean update with."""
        return _rate(self.real(trial.candidate), trial, trial.epsilon)

    def _stand_in(self, shared: Settings, epsilons: Iterable[float]) -> tuple[dict[float, float], Settings]:
        """By budget what to ask of stand-ins, and their settings."""
        asked = {epsilon: self.stand_ins.budget(shared.protection.gaussian, epsilon) for epsilon in epsilons}
        gaussian: GaussianSettings = next(iter(asked.values()))[1]
        pairs = [pair for _, own in asked.values() for pair in own.sigmas]
        worth = {epsilon: one for epsilon, (one, _) in asked.items()}
        return worth, shared.replace(gaussian=replace(gaussian, sigmas=pairs))

    # -- training ----------------------------------------------------------------------------------------------------

    def measure(self, candidates: Sequence[Candidate], epsilon: float) -> None:
        """How long a round takes, by model."""
        for candidate in candidates:
            if candidate.model not in self.pace:
                some = [Trial(replace(candidate, multiplier=m), epsilon) for m in (0.7, 1.0, 1.4, 2.0)]
                sweep = self._sweep(some, [0])
                sweep.train(1)
                began = time.monotonic()
                sweep.train(3)
                self.pace[candidate.model] = (time.monotonic() - began) / (2 * len(some))

    def seconds(self, trials: Sequence[Trial], seeds: int) -> float:
        """What these will take, about."""
        return sum(one.candidate.rounds * self.pace.get(one.candidate.model, 0.0) for one in trials) * seeds

    def run(self, trials: Sequence[Trial], seeds: Sequence[int]) -> dict[Trial, Score]:
        """Train what was not trained yet; all scores of these trials. Their order decides who can stop whom."""
        for group in _groups(trials):
            waiting = {trial: [s for s in seeds if s not in self._score(trial).choosing] for trial in group}
            group = [trial for trial, own in waiting.items() if own and self._score(trial).behind is None]
            new = sorted({s for trial in group for s in waiting[trial]})
            width = max(1, AT_ONCE // max(1, len(new)))
            for first in range(0, len(group), width):
                self._run_group(group[first : first + width], new)
        return {trial: self._score(trial) for trial in trials}

    def _score(self, trial: Trial) -> Score:
        return self.scores.setdefault(trial, Score())

    def _run_group(self, group: Sequence[Trial], seeds: Sequence[int]) -> None:
        sweep, candidate = self._sweep(group, seeds), group[0].candidate
        names = [(trial, seed) for trial in group for seed in seeds]
        what = f"{candidate.model}, {candidate.rounds} rounds: {len(names)} runs"
        each = self.pace.get(candidate.model, 0.0) * len(names)
        done = 0
        self._first = self._first or candidate.model

        def step(round_number: int) -> None:
            nonlocal done
            self.on_step(what, each * (round_number - done))
            done = round_number

        step(0)
        for event in sweep.run(step):
            if not event.rows:
                continue
            if event.round == candidate.rounds:
                for (trial, seed), row in zip(names, event.rows, strict=True):
                    self._score(trial).add(seed, row)
            elif event.round == _quarter(candidate) and self._stopped(group, len(seeds), event.rows):
                step(candidate.rounds)
                return

    def _stopped(self, group: Sequence[Trial], seeds: int, rows: Sequence[dict[str, Any]]) -> bool:
        """Whether all of a group are clearly behind the best that other trials had after a quarter of their rounds."""
        behind = {}
        for place, trial in enumerate(group):
            own = [row["validation_accuracy"] for row in rows[place * seeds : (place + 1) * seeds]]
            reached = sum(own) / seeds
            best = self._after_a_quarter.get(trial.epsilon, reached)
            self._after_a_quarter[trial.epsilon] = max(best, reached)
            behind[trial] = best - reached
        tried = any(self._score(trial).choosing for trial in group)
        if tried or group[0].candidate.model == self._first or min(behind.values()) <= self.most_behind:
            return False
        for trial, gap in behind.items():
            self._score(trial).behind = gap
        return True

    def _sweep(self, trials: Sequence[Trial], seeds: Sequence[int]) -> Rates:
        shared = self.real(trials[0].candidate).replace(evaluate_every=_quarter(trials[0].candidate))
        worth, settings = self._stand_in(shared, dict.fromkeys(trial.epsilon for trial in trials))
        federations = [
            Federation(self.stand_ins.fold(seed), "gaussian-dp", worth[trial.epsilon], self._seed(trial, seed))
            for trial in trials
            for seed in seeds
        ]
        rate = trials[0].candidate.rate
        used = {fed.dataset: self.stand_ins.folds[fed.dataset] for fed in federations}
        sweep = Rates(settings if rate is None else settings.replace(server_rate=rate), federations, used, self.code)
        sweep.multiples = [trial.candidate.multiplier for trial in trials for _ in seeds]
        return sweep

    def _seed(self, trial: Trial, seed: int) -> int:
        """Of a run: the same for a candidate whatever shares its sweep, another for each multiplier of the rate."""
        return self.seed * 1_000_000_000 + round(100 * trial.candidate.multiplier) * APART + seed


def _quarter(candidate: Candidate) -> int:
    return math.ceil(candidate.rounds / 4)


def _rate(settings: Settings, trial: Trial, budget: float) -> float:
    if trial.candidate.rate is not None:
        return trial.candidate.rate
    (ruled,) = settings.server_rates(Federation(mechanism="gaussian-dp", budget=budget), [1], 1)
    return ruled * trial.candidate.multiplier


def _groups(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Those that can share a sweep, in the order of the first of each."""
    groups: dict[Candidate, list[Trial]] = {}
    for trial in dict.fromkeys(trials):
        groups.setdefault(replace(trial.candidate, multiplier=1.0), []).append(trial)
    return list(groups.values())
