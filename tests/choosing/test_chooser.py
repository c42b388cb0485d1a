"""The search under each kind of limit, and what is told before it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from equipoise.choosing.candidates import recipe
from equipoise.choosing.chooser import Chooser, Search, Silent
from equipoise.choosing.decision import Expected
from equipoise.choosing.limit import EPSILONS, Limit
from equipoise.choosing.standins import of_dataset
from equipoise.choosing.trials import Score, Trial
from equipoise.engine.settings import Settings
from equipoise.errors import DataError
from equipoise.mechanism.run_budget import GaussianSettings
from equipoise.privacy.gaussian import SIGMAS
from tests.choosing.toys import FAST, Told, toy


def chooser(limit: Limit, told: Any = None, records: int = 50, **fixed: Any) -> Chooser:
    search = Search(limit=limit, settings=Settings.flat(clients=4), models=["mlp"], fixed={**FAST, **fixed}, quick=True)
    return Chooser(search, of_dataset(toy(), 4, records), told or Silent())


class Curve:
    """Stands for training: accuracies that rise with the budget, and with how near a multiple of the rate is to 1.4."""

    def __init__(self, own: Chooser):
        self.own, self.asked = own, list[float]()
        self.scores: dict[Trial, Score] = {}

    def run(self, trials: Any, seeds: Any) -> dict[Trial, Score]:
        for trial in trials:
            self.asked.append(trial.epsilon)
            reached = 0.95 - 0.1 / trial.epsilon - 0.02 * abs(trial.candidate.multiplier - 1.4)
            score = self.scores.setdefault(trial, Score())
            score.choosing |= {seed: reached + 0.001 * (seed % 3) for seed in seeds}
            score.reporting |= {seed: reached + 0.001 * (seed % 3) for seed in seeds}
        return {trial: self.scores[trial] for trial in trials}


@pytest.mark.parametrize(("wanted", "epsilon"), [(0.40, 0.35), (0.80, 1.4), (0.85, 2.8), (0.88, 5.6)])
def test_for_an_accuracy_the_smallest_budget_that_is_sure_to_reach_it(wanted: float, epsilon: float) -> None:
    own = chooser(Limit("accuracy", wanted))
    own.trials = curve = Curve(own)  # type: ignore[assignment]
    found, met = own.for_accuracy()
    assert (found.epsilon, met, found.candidate.multiplier) == (epsilon, True, 1.4)
    stricter = EPSILONS[EPSILONS.index(epsilon) - 1]
    assert Expected.of([0.951 - 0.1 / stricter], own.stand_ins.compared, "").low < wanted
    assert stricter in curve.asked


def test_an_accuracy_that_nothing_reaches_is_not_said_to_be_reached() -> None:
    own = chooser(Limit("accuracy", 0.99))
    own.trials = Curve(own)  # type: ignore[assignment]
    found, met = own.for_accuracy()
    assert (found.epsilon, met) == (EPSILONS[-1], False)


def test_the_budget_follows_from_the_limit() -> None:
    assert chooser(Limit("epsilon", 3.0)).search.epsilon() == 3.0
    assert chooser(Limit("identification", 0.02)).search.epsilon() == 2.09
    assert chooser(Limit("accuracy", 0.9)).search.epsilon() is None


def test_the_plan_is_told_before_anything_is_trained() -> None:
    told = Told()
    own = chooser(Limit("epsilon", 2.0), told)
    own.plan(1.0, ["a note"])
    assert not told.steps
    assert not own.trials.scores
    assert told.seconds > 1.0
    for words in ("epsilon at most 2", "4 clients", "5 candidates (mlp)", "a note", "This takes about"):
        assert words in told.text
    assert "4 stand-in clients with 25 records each get the noise of 50" in told.text


def test_what_was_planned_is_about_what_is_told_as_done() -> None:
    told = Told()
    own = chooser(Limit("epsilon", 2.0), told)
    own.plan(0.0)
    own.halve_at(2.0)
    done = sum(seconds for _, seconds in told.steps)
    assert 0.5 * told.seconds < done < 1.5 * told.seconds


def test_the_recipe_stays_to_the_end_while_its_model_leads() -> None:
    own = Chooser(
        Search(limit=Limit("epsilon", 2.0), settings=Settings.flat(clients=4), models=["mlp"], quick=True),
        of_dataset(toy(), 4, 50), Silent(),
    )  # fmt: skip

    class Recipe(Curve):
        def run(self, trials: Any, seeds: Any) -> dict[Trial, Score]:
            found = super().run(trials, seeds)
            for trial, score in found.items():
                if trial.candidate.recommended:
                    score.choosing = {seed: 0.2 for seed in seeds}
            return found

    own.trials = Recipe(own)  # type: ignore[assignment]
    chosen = own.halve_at(2.0)
    assert not chosen.candidate.recommended
    assert own.outcome is not None
    assert Trial(recipe("mlp"), 2.0) in own.outcome.finalists
    assert "points less than the choice" in own.why(Trial(recipe("mlp"), 2.0), chosen)


def test_a_tie_goes_to_the_recipe_then_to_fewer_rounds() -> None:
    own = Chooser(
        Search(limit=Limit("epsilon", 2.0), settings=Settings.flat(clients=4), models=["mlp"], quick=True),
        of_dataset(toy(), 4, 50), Silent(),
    )  # fmt: skip

    class Flat(Curve):
        def run(self, trials: Any, seeds: Any) -> dict[Trial, Score]:
            for trial in trials:
                self.scores[trial] = Score({seed: 0.9 for seed in seeds}, {seed: 0.9 for seed in seeds})
            return {trial: self.scores[trial] for trial in trials}

    own.trials = Flat(own)  # type: ignore[assignment]
    known = recipe("mlp")
    own.candidates = [replace(known, rounds=50), replace(known, rounds=25), known, replace(known, rounds=400)]
    assert own.halve_at(2.0).candidate == known
    own.candidates.remove(known)
    assert own.halve_at(2.0).candidate.rounds == 25


def test_an_accuracy_that_only_some_seeds_reach_is_not_sure() -> None:
    own = chooser(Limit("accuracy", 0.9))
    trial = Trial(own.candidates[0], 2.0)
    own.trials.scores[trial] = Score(
        {seed: 0.93 if seed % 2 else 0.88 for seed in own.most}, dict.fromkeys(own.most, 1.0)
    )
    assert not own._sure(trial, 0.9), "0.905 on average"
    assert own._sure(trial, 0.83)


def test_what_is_reported_makes_no_accuracy_sure_and_seeds_that_agree_share_their_records() -> None:
    own = chooser(Limit("accuracy", 0.9))
    assert own.stand_ins.compared == 120, "all folds take turns"
    good, bad = (Trial(own.candidates[0], epsilon) for epsilon in (2.0, 4.0))
    own.trials.scores[good] = Score(dict.fromkeys(own.most, 0.91), dict.fromkeys(own.most, 0.0))
    own.trials.scores[bad] = Score(dict.fromkeys(own.most, 0.5), dict.fromkeys(own.most, 1.0))
    assert not own._sure(good, 0.9), "120 records can be lucky by 5 points, whatever the seeds say"
    assert own._sure(good, 0.85)
    assert not own._sure(bad, 0.85)


def test_the_curve_is_the_choice_at_other_budgets() -> None:
    own = chooser(Limit("epsilon", 2.0), server_rate=0.1)
    (candidate,) = own.candidates
    chosen = Trial(candidate, 2.0)
    own.trials.run([chosen], own.most)
    assert [trial.epsilon for trial in own.curve(chosen)] == [0.5, 1.0, 2.0, 4.0, 8.0]
    assert all(trial.candidate == candidate for trial in own.curve(chosen))
    own.trials.run([huge := Trial(candidate, 900.0)], own.most)
    assert [trial.epsilon for trial in own.curve(huge)] == [225.0, 450.0, 900.0], "1800 promises nothing"


def test_budgets_whose_noise_is_nothing_to_stand_ins_are_left_out_and_told() -> None:
    told = Told()
    own = chooser(Limit("epsilon", 2.0), records=3000, server_rate=0.1)
    (candidate,) = own.candidates
    chosen = Trial(candidate, 2.0)
    own.trials.run([chosen], own.most)
    assert [trial.epsilon for trial in own.curve(chosen)] == [0.5, 1.0, 2.0, 4.0], "8 cannot be played"
    own = chooser(Limit("accuracy", 0.6), told, records=3000, server_rate=0.1)
    assert own.epsilons == [epsilon for epsilon in EPSILONS if epsilon <= max(own.epsilons)] != list(EPSILONS)
    own.plan(0.0)
    assert "not tried: epsilon" in told.text
    assert "8; stand-in clients with 25 records each cannot play them" in told.text
    own.trials = Curve(own)  # type: ignore[assignment]
    assert own.for_accuracy()[1]
    assert set(own.trials.asked) <= set(own.epsilons)  # type: ignore[attr-defined]


def test_where_no_budget_can_be_tried_the_error_says_what_helps() -> None:
    with pytest.raises(DataError, match=r"None of the epsilons 0\.05 to 8 can be tried.*25 records each") as error:
        chooser(Limit("accuracy", 0.6), records=10**6)
    assert "--records" in error.value.remedy
    with pytest.raises(DataError, match="25 records each, far fewer"):
        chooser(Limit("epsilon", 8.0), records=10**5)


def test_candidates_with_too_few_rounds_for_the_noise_are_left_out_and_told() -> None:
    told = Told()
    search = Search(limit=Limit("epsilon", 8.0), settings=Settings.flat(clients=4), models=["mlp"], quick=True)
    stand_ins = of_dataset(toy(), 4, 50)
    real = GaussianSettings(rounds=25, divisor=1.0)
    records = math.ceil(stand_ins.sigma(real, 8.0) / SIGMAS[0])
    own = Chooser(search, of_dataset(toy(), 4, records), told)
    assert {one.rounds for one in own.candidates} == {50, 100}
    own.plan(0.0)
    assert "not tried: 25 rounds; stand-in clients" in told.text
