"""Trials train what they say, once, and stop what is clearly behind."""

from __future__ import annotations

from dataclasses import replace
from statistics import mean

import pytest

from equipoise.choosing import trials as module
from equipoise.choosing.candidates import Candidate
from equipoise.choosing.standins import of_dataset
from equipoise.choosing.trials import Trial, Trials
from equipoise.engine.settings import Settings
from tests.choosing.toys import toy

BASE = Candidate("mlp", 4, 1.0, 0.5)


def trials(**more: object) -> Trials:
    return Trials(of_dataset(toy(), 4, 50), Settings.flat(clients=4), **more)  # type: ignore[arg-type]


def test_a_result_does_not_depend_on_what_shares_its_sweep() -> None:
    several = [Trial(replace(BASE, multiplier=m), epsilon) for m in (0.5, 1.0, 2.0) for epsilon in (1.0, 4.0)]
    together, alone = trials().run(several, [0, 1, 2]), {}
    for trial in several:
        alone |= trials().run([trial], [0, 1, 2])
    assert together == alone
    assert len({tuple(score.choosing.values()) for score in together.values()}) > 1


def test_nothing_is_trained_twice() -> None:
    steps: list[float] = []
    own = trials(on_step=lambda what, seconds: steps.append(seconds))
    first = own.run([Trial(BASE, 2.0)], [0, 1])
    done = len(steps)
    assert done == 1 + BASE.rounds
    own.run([Trial(BASE, 2.0)], [0, 1])
    assert len(steps) == done
    more = own.run([Trial(BASE, 2.0)], [0, 1, 2])[Trial(BASE, 2.0)]
    assert list(more.choosing) == [0, 1, 2]
    assert first == {Trial(BASE, 2.0): more}


def test_a_multiple_of_the_rate_is_that_rate() -> None:
    own, double = trials(), replace(BASE, multiplier=2.0)
    rate = own.server_rate(Trial(BASE, 2.0))
    assert own.server_rate(Trial(double, 2.0)) == pytest.approx(2 * rate)
    fixed = replace(BASE, rate=2 * rate)
    assert own.server_rate(Trial(fixed, 2.0)) == 2 * rate
    sweep, other = own._sweep([Trial(double, 2.0)], [0]), own._sweep([Trial(fixed, 2.0)], [0])
    assert sweep.tables([1]).server_rate.item() == pytest.approx(other.tables([1]).server_rate.item())


def test_the_rate_of_stand_ins_is_that_of_the_real_federation() -> None:
    own, trial = trials(), Trial(BASE, 2.0)
    assert own._sweep([trial], [0]).tables([1]).server_rate.item() == pytest.approx(own.server_rate(trial), rel=1e-6)


def test_another_model_that_is_clearly_behind_is_stopped_after_a_quarter() -> None:
    good, bad = Trial(BASE, 1000.0), Trial(replace(BASE, multiplier=-5.0), 1000.0)
    assert mean(trials().run([good], [0, 1])[good].choosing.values()) > 0.5
    own = trials()
    own.run([good], [0, 1])
    own._first = "another"
    rounds: list[float] = []
    own.on_step = lambda what, seconds: rounds.append(seconds)
    own.pace["mlp"] = 1.0
    found = own.run([bad], [0, 1])[bad]
    assert found.behind is not None
    assert found.behind > module.BEHIND
    assert not found.choosing
    assert sum(rounds) == BASE.rounds * 2, "what is skipped counts as done"
    assert len(rounds) == 3
    own = trials()
    own.run([good], [0, 1])
    assert own.run([bad], [0, 1])[bad].choosing, "the first model is never stopped"


def test_the_first_model_is_known_where_it_has_one_round() -> None:
    own = trials()
    own.run([Trial(replace(BASE, rounds=1), 1000.0)], [0])
    assert own._first == "mlp", "a quarter of one round is all of it"


def test_pace_is_measured_by_model() -> None:
    own = trials()
    own.measure([BASE], 2.0)
    assert own.pace["mlp"] > 0
    assert own.seconds([Trial(BASE, 2.0)], 3) == pytest.approx(12 * own.pace["mlp"])
    assert not own.scores
