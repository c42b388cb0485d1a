"""The search from a limit to a choice: which rungs, at which epsilon, and what came of it so far."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import mean
from typing import Any, Protocol

from ..engine.settings import Settings
from ..errors import BudgetError, DataError
from ..models.named import Factory
from .candidates import Candidate, candidates
from .decision import UNITS, Expected
from .halving import Outcome, Rung, halve, preferred
from .limit import EPSILONS, Limit, epsilon_for
from .standins import StandIns
from .trials import Score, Trial, Trials

HELP = "Give more public records, a smaller --records, or more rounds: --set rounds=100."
LOWEST = 0.01
"""Shown as the nearest, where no epsilon is so small that a limit on identification is proved."""


class Progress(Protocol):
    """Who is told what will be done, and then what was."""

    def planned(self, text: str, seconds: float, remarks: Sequence[str] = ()) -> None: ...

    def __call__(self, what: str, seconds: float) -> None: ...


class Silent:
    """Tells nobody."""

    def planned(self, text: str, seconds: float, remarks: Sequence[str] = ()) -> None:
        pass

    def __call__(self, what: str, seconds: float) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Search:
    """What is searched: a limit, models, and what a user fixed."""

    limit: Limit
    settings: Settings
    models: Sequence[str]
    fixed: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False
    seed: int = 1
    code: Factory | None = None

    def candidates(self) -> list[Candidate]:
        return candidates(self.models, self.fixed, quick=self.quick)

    def epsilon(self) -> float | None:
        """That of the real federation; None where none is so small. For an accuracy it is found on the way."""
        gaussian = self.settings.protection.gaussian
        if self.limit.kind == "epsilon":
            return self.limit.value
        if self.limit.kind == "identification":
            return epsilon_for(self.limit.value, gaussian, {one.rounds for one in self.candidates()})
        return None

    def rungs(self, count: int, folds: int) -> list[Rung]:
        """Seeds in all, and candidates that go on. Where few records take turns, half of the folds come first."""
        if self.quick:
            return [Rung(3, 6), Rung(6, 3), Rung(18, 3)] if folds > 1 else [Rung(1, 6), Rung(3, 3), Rung(6, 3)]
        some = max(8, count // 3)
        if folds > 1:
            return [Rung(3, some), Rung(6, 8), Rung(18, 3), Rung(48, 3)]
        return [Rung(1, some), Rung(3, 8), Rung(6, 3), Rung(12, 3)]


class Chooser:
    """The search while it runs. ``trials`` and ``leader`` are what is known so far."""

    def __init__(self, search: Search, stand_ins: StandIns, progress: Progress):
        self.search, self.stand_ins, self.progress = search, stand_ins, progress
        self.trials = Trials(
            stand_ins, search.settings, code=search.code, seed=search.seed, on_step=lambda *told: progress(*told)
        )
        self.epsilon = search.epsilon()
        self.left_out = ""  # what stand-ins cannot play, in words
        self.not_played: list[tuple[str, str]] = []  # budgets of the curve, with why not
        self.candidates, self.epsilons = self._playable(search.candidates())
        self.rungs = search.rungs(len(self.candidates), len(stand_ins.folds))
        self.outcome: Outcome[Trial] | None = None
        self.leader: Trial | None = None

    # -- what stand-ins can play -------------------------------------------------------------------------------------

    def _playable(self, found: list[Candidate]) -> tuple[list[Candidate], list[float]]:
        """Candidates and budgets whose noise is not nothing to stand-ins, nor more than there may be."""
        one_for_each = list({candidate.rounds: candidate for candidate in found}.values())
        told = EPSILONS if self.search.limit.kind == "accuracy" else (self.epsilon or LOWEST,)
        broken = {(e, one.rounds): self._broken(Trial(one, e)) for e in told for one in one_for_each}
        errors = [error for error in broken.values() if error is not None]
        some = (
            f"stand-in clients with {self.stand_ins.per_client:,} {UNITS[self.stand_ins.unit][1]} each cannot play them"
        )
        if self.search.limit.kind == "accuracy":
            whole = [e for e in told if not any(broken[e, one.rounds] for one in one_for_each)]
            if not whole:
                raise DataError(
                    f"None of the epsilons {told[0]:g} to {told[-1]:g} can be tried. {errors[0].cause}", HELP
                )
            if errors:
                dropped = ", ".join(f"{e:g}" for e in told if e not in whole)
                self.left_out = f"not tried: epsilon {dropped}; {some}."
            return found, whole
        kept = [one for one in found if not broken[told[0], one.rounds]]
        if not kept:
            raise errors[0]
        if errors:
            gone = sorted({one.rounds for one in found} - {one.rounds for one in kept})
            self.left_out = f"not tried: {', '.join(map(str, gone))} rounds; {some}."
        return kept, list(told)

    def _broken(self, trial: Trial) -> BudgetError | DataError | None:
        """Why stand-ins cannot have this budget, if they cannot."""
        try:
            self.stand_ins.budget(self.trials.real(trial.candidate).protection.gaussian, trial.epsilon)
        except (BudgetError, DataError) as error:  # more noise than there may be, or nothing to stand-ins
            return error
        return None

    # -- seeds -------------------------------------------------------------------------------------------------------

    @property
    def few(self) -> list[int]:
        """For what is only shown: each fold once, or three."""
        return list(range(max(3, len(self.stand_ins.folds))))

    @property
    def most(self) -> list[int]:
        """Those of the last rung."""
        return list(range(self.rungs[-1].seeds))

    # -- the plan ----------------------------------------------------------------------------------------------------

    def plan(self, more: float, notes: Sequence[str] = ()) -> None:
        """Measure the pace and tell what comes; ``more`` seconds are for what is not searched."""
        epsilon = self.epsilon or min(self.epsilons, key=lambda one: abs(one - 1))
        self.trials.measure(
            [replace(one, rounds=max(3, one.rounds)) for one in self.candidates], epsilon
        )  # three are timed
        first = [Trial(one, epsilon) for one in self.candidates]
        lead = [one for one in first if one.candidate.model == self.candidates[0].model]
        each = self.trials.seconds(lead, 1) / len(lead)
        seconds = more + self.trials.seconds(first, self.rungs[0].seeds) + each * (4 + 3) * len(self.few)
        alive, done = len(first), self.rungs[0].seeds
        for rung in self.rungs:
            seconds += each * min(alive, rung.keep + 1) * (rung.seeds - done)
            alive, done = min(alive, rung.keep + 1), rung.seeds
        if self.search.limit.kind == "accuracy":
            seconds += each * (len(self.epsilons) * len(self.few) + 2 * len(self.most))
        remarks = [note for note in notes if note.startswith("warning")]
        self.progress.planned(self._text(seconds, notes), seconds, remarks)

    def _text(self, seconds: float, notes: Sequence[str]) -> str:
        own, clients = self.stand_ins, self.search.settings.protection.clients
        several = UNITS[own.unit][1]
        rungs = ", ".join(f"{rung.seeds}" for rung in self.rungs)
        lines = [
            f"Wanted: {self.search.limit.words()}; {clients} clients with about {own.records:,} {several} each.",
            f"Tried on {own.what} of {own.name.split(',')[0]}: {clients} stand-in clients with {own.per_client:,} "
            f"{several} each get the noise of {own.records:,}.",
            f"{len(self.candidates)} candidates ({', '.join(self.search.models)}) in {len(self.rungs)} rungs of "
            f"{rungs} runs each; {own.reported:,} records are kept for the accuracy that is reported.",
            *notes,
            *([self.left_out] if self.left_out else []),
            f"This takes about {_minutes(seconds)}.",
        ]
        return "\n".join(lines)

    # -- the search --------------------------------------------------------------------------------------------------

    def halve_at(self, epsilon: float) -> Trial:
        """The best candidate at a budget; of those that noise cannot tell from it the recipe, then fewest rounds."""

        def run(alive: Sequence[Trial], seeds: Sequence[int]) -> Mapping[Trial, Sequence[float]]:
            found = self.trials.run(alive, seeds)
            self._lead(found)
            return {trial: _by_seed(score) for trial, score in found.items()}

        trials = [Trial(candidate, epsilon) for candidate in self.candidates]
        self.outcome = halve(trials, run, self.rungs, _recipe_of_leader)
        self.leader = preferred(self.outcome, lambda one: (not one.candidate.recommended, one.candidate.rounds))
        return self.leader

    def _lead(self, found: Mapping[Trial, Score]) -> None:
        trained = {trial: mean(score.choosing.values()) for trial, score in found.items() if score.choosing}
        if trained:
            self.leader = max(trained, key=lambda trial: trained[trial])

    def for_accuracy(self) -> tuple[Trial, bool]:
        """The smallest budget tried whose accuracy is sure to reach the limit, and whether there is one.

        The recipe of the first model at every budget says about where that is; the halving is done there; and what it
        chose is then tried at stricter or looser budgets, with all seeds.
        """
        wanted, first, tried = self.search.limit.value, self.candidates[0], self.epsilons
        curve = self.trials.run([Trial(first, epsilon) for epsilon in tried], self.few)
        reached = [trial.epsilon for trial, score in curve.items() if mean(score.choosing.values()) >= wanted]
        place = tried.index(reached[0]) if reached else len(tried) - 1
        chosen = self.halve_at(tried[place])
        if self._sure(chosen, wanted):
            while place > 0 and self._sure(stricter := Trial(chosen.candidate, tried[place - 1]), wanted):
                place, self.leader = place - 1, stricter
            return Trial(chosen.candidate, tried[place]), True
        while place + 1 < len(tried):
            place += 1
            looser = self.leader = Trial(chosen.candidate, tried[place])
            if self._sure(looser, wanted):
                return looser, True
        return Trial(chosen.candidate, tried[place]), False

    def _sure(self, trial: Trial, wanted: float) -> bool:
        """Whether the lower end reaches it on the records that choose: those that are reported decide nothing here."""
        (score,) = self.trials.run([trial], self.most).values()
        return self.on_choosing(score).low >= wanted

    def on_choosing(self, score: Score) -> Expected:
        """Accuracy and interval on the records that choose, which all seeds share."""
        return Expected.of(_by_seed(score), self.stand_ins.compared, self.stand_ins.what)

    def curve(self, chosen: Trial) -> list[Trial]:
        """The choice at a half and a quarter of its budget, and at two and four times as much."""
        around = [Trial(chosen.candidate, round(chosen.epsilon * factor, 6)) for factor in (0.25, 0.5, 2.0, 4.0)]
        errors = {trial: self._broken(trial) for trial in around}
        possible = [trial for trial, error in errors.items() if error is None]
        self.not_played = [
            (f"epsilon {trial.epsilon:g}", f"not tried: {error.cause}") for trial, error in errors.items() if error
        ]
        self.trials.run(possible, self.few)
        return sorted([*possible, chosen], key=lambda trial: trial.epsilon)

    # -- what was rejected -------------------------------------------------------------------------------------------

    def why(self, trial: Trial, chosen: Trial) -> str:
        """Why a candidate was not chosen."""
        score, outcome = self.trials.scores[trial], self.outcome
        if score.behind is not None:
            return f"{100 * score.behind:.0f} points behind the best after a quarter of its rounds: stopped"
        if outcome is None or trial in outcome.gone:
            runs = len(score.choosing)
            return f"behind after {runs} run{'' if runs == 1 else 's'}"
        known = Trial(chosen.candidate, trial.epsilon)  # for an accuracy, the choice may have another budget
        lead = 100 * (mean(_by_seed(self.trials.scores.get(known, score))) - mean(_by_seed(score)))
        if lead > 0:
            return f"{lead:.1f} points less than the choice"
        return "better by no more than noise; the choice is the recipe or has fewer rounds"


def _by_seed(score: Score) -> list[float]:
    return [score.choosing[seed] for seed in sorted(score.choosing)]


def _recipe_of_leader(trial: Trial, leader: Trial) -> bool:
    return trial.candidate.recommended and trial.candidate.model == leader.candidate.model


def _minutes(seconds: float) -> str:
    return f"{max(5, round(seconds / 5) * 5):.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
