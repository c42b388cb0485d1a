"""``choose`` from a limit to a decision: what it rests on, what it does not touch, and that it is the same again."""

from __future__ import annotations

import dataclasses
from statistics import mean
from typing import Any

import pytest
import torch
from torch import nn

import equipoise
from equipoise.choosing import choose as module
from equipoise.choosing.choose import choosing
from equipoise.choosing.decision import Decision
from equipoise.choosing.limit import CANDIDATES, EPSILONS
from equipoise.choosing.trials import Score
from equipoise.data.splits import Split
from equipoise.engine.federation import Federation
from equipoise.engine.sweep import Sweep
from equipoise.errors import ConfigError, DataError
from equipoise.privacy.gaussian import epsilon_of
from tests.choosing.toys import Told, chosen, poisoned, toy

ONE: dict[str, Any] = {"server_rate": 0.3}
"""Leaves one candidate."""


def core(found: Decision) -> dict[str, Any]:
    return {**found.plain(), "seconds": 0}


def test_under_an_epsilon_the_choice_keeps_it_and_says_what_to_expect() -> None:
    found = chosen(epsilon=8)
    assert found.met
    assert (found.mechanism, found.budget) == ("gaussian-dp", 8.0)
    own = found.settings.protection.gaussian
    assert found.sigma is not None
    assert epsilon_of(found.sigma, own.delta, found.settings.training.rounds) <= 8
    assert own.divisor == found.records == 50
    assert found.expected.low < found.expected.accuracy < found.expected.high
    assert found.expected.records == 40
    assert found.unprotected > 0.8
    deploy, expect, claim = found.sentences()
    assert "Deploy gaussian-dp with epsilon 8, delta 1e-05" in deploy
    assert "adding or removing one record" in deploy
    assert "40 public records that played no part in choosing" in expect
    assert "Proved" in claim
    assert "Not claimed" in claim
    assert {"pl-identical (static noise)", "pl-learn (the paper's learner)", "none"} <= {r.what for r in found.rejected}
    whys = {one.what: one.why for one in found.rejected}
    assert "no epsilon can be stated" in whys["pl-learn (the paper's learner)"]
    assert all(whys.values())


@pytest.mark.slow
def test_the_server_rate_that_is_deployed_is_the_one_that_was_tried() -> None:
    asked = choosing(toy(), epsilon=8, quick=True, settings={"rounds": 3})
    found = asked.run()
    leader = asked.chooser.leader
    assert leader is not None
    real = Sweep(found.settings, [Federation("toy", "gaussian-dp", 8.0)], {"toy": toy()})
    tried = asked.chooser.trials._sweep([leader], [0])
    assert real.tables([1]).server_rate.item() == pytest.approx(tried.tables([1]).server_rate.item(), rel=1e-4)


def test_the_accuracy_that_is_expected_is_that_of_records_which_chose_nothing() -> None:
    asked = choosing(toy(), epsilon=8, quick=True, settings={"rounds": 3})
    found = asked.run()
    assert asked.chooser.leader is not None
    score = asked.chooser.trials.scores[asked.chooser.leader]
    assert found.expected.accuracy == mean(score.reporting.values()) != mean(score.choosing.values())
    assert len(score.reporting) == found.expected.seeds == 18


def test_nothing_of_the_clients_is_touched() -> None:
    clean = chosen(toy(), epsilon=4)
    assert core(clean) == core(chosen(poisoned(toy()), epsilon=4))


@pytest.mark.slow
def test_the_same_seed_gives_the_same_decision_and_another_another() -> None:
    first = chosen(epsilon=4, seed=3)
    assert core(first) == core(chosen(epsilon=4, seed=3))
    assert first.expected != chosen(epsilon=4, seed=4).expected


@pytest.mark.slow
def test_under_an_identification_rate_the_proved_limit_is_kept() -> None:
    found = chosen(identification=0.05, settings=ONE)
    assert found.met
    assert found.identified <= 0.05
    assert found.identified > 0.045, "and not by much more than is asked"
    assert "identified" in " ".join(one.why for one in found.rejected if "pl-" in one.what) or any(
        "could not be measured" in one.why for one in found.rejected
    )
    assert {one.what for one in found.rejected} >= {"pl-learn (the paper's learner)"}


@pytest.mark.parametrize("agreed", [False, True])
def test_noise_without_a_proof_is_chosen_only_where_that_was_agreed_to(
    agreed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def better(*about: Any, **more: Any) -> module.Unproved:
        return module.Unproved("pl-identical", "mlp", 0.97, 0.011, 80, (0.9, 0.9), (1.0, 1.0))

    monkeypatch.setattr(module, "measured", better)
    found = chosen(identification=0.006, measured_only=agreed, settings=ONE)
    row = next((one for one in found.rejected if "pl-identical" in one.what), None)
    if agreed:
        assert (found.mechanism, found.budget, found.sigma, found.proved) == ("pl-identical", 0.97, None, False)
        assert found.expected.accuracy == 0.9, "what is told is not what it was picked by"
        assert "Nothing is proved" in found.sentences()[2]
        assert "not bounded" in found.sentences()[2]
        assert not any("delta" in sentence for sentence in found.sentences())
        assert "delta" not in found.plain()["chosen"]
        assert row is None
        assert any(one.what.startswith("mlp") for one in found.rejected), "what is proved is listed as rejected"
    else:
        assert found.mechanism == "gaussian-dp"
        assert row is not None
        assert "--measured-only-ok" in row.why
        assert row.accuracy == 1.0
        assert "a whole run is not bounded" in row.why


def test_noise_without_a_proof_that_is_no_better_is_rejected_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def alike(*about: Any, **more: Any) -> module.Unproved:
        return module.Unproved("pl-identical", "mlp", 0.97, 0.011, 80, (1.0, 1.0), (0.6, 0.6))

    monkeypatch.setattr(module, "measured", alike)
    found = chosen(identification=0.3, measured_only=True, settings=ONE)
    assert found.mechanism == "gaussian-dp"


@pytest.mark.slow
def test_for_an_accuracy_a_small_epsilon_is_found() -> None:
    found = chosen(accuracy=0.7, settings=ONE)
    assert found.met
    assert found.budget in EPSILONS
    assert found.expected.accuracy >= 0.7
    assert "epsilon" in found.sentences()[0]
    stricter = [one for one in found.rejected if one.what.startswith("epsilon")]
    nearest = f"epsilon {EPSILONS[EPSILONS.index(found.budget) - 1]:g}"
    assert "not sure to reach the limit" in {one.what: one.why for one in stricter}[nearest]


def test_where_nothing_meets_the_limit_the_nearest_is_shown_and_not_called_a_choice() -> None:
    found = chosen(accuracy=0.999, settings=ONE)
    assert not found.met
    assert "No epsilon up to 8 is sure to reach an accuracy of at least 99.9%" in found.shortfall
    assert found.sentences()[0].startswith("Nearest, not to be deployed")
    assert found.plain()["met"] is False


def test_the_records_that_are_reported_can_refuse_an_accuracy_and_choose_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    real = Score.add

    def worse(own: Score, seed: int, row: dict[str, Any]) -> None:
        real(own, seed, {**row, "accuracy": row["accuracy"] - 0.3})

    before = chosen(accuracy=0.7, settings=ONE)
    monkeypatch.setattr(Score, "add", worse)
    found = chosen(accuracy=0.7, settings=ONE)
    assert before.met
    assert (found.met, found.budget) == (False, before.budget), "the same choice, and not confirmed"
    assert found.expected.low < 0.7
    assert "on those that are kept for the report it is not" in found.shortfall
    assert found.expected.words() in found.shortfall
    assert found.sentences()[0].startswith("Nearest, not to be deployed")


@pytest.mark.slow
def test_what_stand_ins_cannot_play_is_listed_and_loses_no_decision() -> None:
    found = chosen(epsilon=2, settings=ONE, records=3000)
    assert [point.epsilon for point in found.curve] == [0.5, 1.0, 2.0, 4.0]
    why = {one.what: one.why for one in found.rejected}["epsilon 8"]
    assert why.startswith("not tried: Stand-in clients have 25 records each, far fewer than the 3,000")
    found = chosen(accuracy=0.6, settings=ONE, records=3000)
    assert "not tried: epsilon" in {one.what: one.why for one in found.rejected}["out of reach"]


def test_an_accuracy_that_any_guess_reaches_is_no_limit() -> None:
    with pytest.raises(ConfigError, match=r"above 0\.5, which always naming the largest class of 'toy' reaches"):
        choosing(toy(), accuracy=0.5)


@pytest.mark.parametrize("dealt", [{"sizes": [1, 2, 3, 4]}, {"partition": "dirichlet"}], ids=str)
def test_clients_that_differ_in_size_are_played_too(dealt: dict[str, Any]) -> None:
    assert chosen(toy(public=400), epsilon=8, settings={**ONE, **dealt}).unprotected > 0.7


def test_a_budget_that_leaves_nothing_to_learn_from_is_no_choice() -> None:
    found = chosen(epsilon=0.001, settings=ONE)
    assert not found.met
    assert "no better than always naming the largest class" in found.shortfall


def test_the_json_has_all_that_is_told() -> None:
    plain = chosen(epsilon=8, settings=ONE).plain()
    assert set(plain) == {
        "met", "shortfall", "limit", "dataset", "chosen", "expected", "unprotected", "largest_class", "identified",
        "curve", "rejected", "sentences", "on_private_records", "not_covered", "quick", "seed", "seconds",
    }  # fmt: skip
    assert plain["limit"] == {"kind": "epsilon", "value": 8.0}
    assert plain["identified"]["candidates"] == CANDIDATES
    assert plain["identified"]["proved"] is True
    assert plain["chosen"]["relation"] == "add/remove"
    assert plain["chosen"]["unit"] == "record"
    assert [set(point) for point in plain["curve"]] == [{"epsilon", "accuracy", "interval", "identified"}] * 5


@pytest.mark.slow
def test_clients_own_records_only_where_that_was_agreed_to_and_with_a_warning() -> None:
    with pytest.raises(DataError, match="no public"):
        chosen(toy(public=0), epsilon=4)
    told = Told()
    found = chosen(toy(public=0), epsilon=4, on_private_records=True, progress=told, settings=ONE)
    assert "no epsilon covers that" in told.text
    assert found.private
    assert "clients' own training records" in found.sentences()[2]
    both = chosen(toy(), epsilon=4, on_private_records=True, settings=ONE)
    assert not both.private, "public records are used where there are any"


def test_what_was_measured_on_private_rows_is_told_before_and_after() -> None:
    told = Told()
    moments = "mean and std of the columns (say mean=, std=)"
    found = chosen(dataclasses.replace(toy(), fitted=(moments,)), epsilon=4, progress=told, settings=ONE)
    assert f"warning: not covered by any epsilon, as it was measured on private rows: {moments}." in told.text
    assert told.remarks, "on stderr where the plan is not shown"
    assert f"nor is covered what was measured on private rows: {moments}" in found.sentences()[2]
    assert found.plain()["not_covered"] == [moments]
    clean = chosen(epsilon=4, progress=told, settings=ONE)
    assert "private rows" not in told.text + clean.sentences()[2]
    assert clean.plain()["not_covered"] == []


@pytest.mark.slow
def test_where_the_data_name_groups_the_guarantee_is_one_for_groups() -> None:
    def paired(split: Split) -> Split:
        return Split(split.inputs, split.labels, torch.arange(len(split)) // 2)

    data = toy(public=400)
    assert data.public is not None
    grouped = dataclasses.replace(data, train=paired(data.train), public=paired(data.public))
    found = chosen(grouped, epsilon=8, settings=ONE)
    deploy, _, claim = found.sentences()
    assert found.unit == found.plain()["chosen"]["unit"] == "group"
    assert "adding or removing one group of records" in deploy
    assert "% of groups of records among 200" in claim
    assert "replacing a group of records by another" in claim


def test_an_interrupted_search_says_what_leads() -> None:
    asked = choosing(toy(), epsilon=8, quick=True, settings={"rounds": 3})
    assert asked.so_far() is None
    calls = 0

    def interrupt(what: str, seconds: float) -> None:
        nonlocal calls
        calls += 1
        if calls > 8:
            raise KeyboardInterrupt

    asked.chooser.trials.on_step = interrupt
    with pytest.raises(KeyboardInterrupt):
        asked.run()
    words = asked.so_far()
    assert words is not None
    assert "best so far, not decided" in words
    assert "epsilon 8" in words


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"seed": -1}, "seed=-1"),
        ({"records": 0}, "records=0"),
        ({"clients": 0}, "clients"),
        ({"model": "lenet"}, "Unknown model"),
        ({"settings": {"gaussian.sigmas": []}}, "sigmas follows"),
        ({"settings": {"gaussian": {"rounds": 3}}}, "rounds follows"),
        ({"settings": {"model": "mlp"}}, "model is no setting of choose"),
        ({"settings": {"gaussian.divisor": 0.5}}, "gaussian.divisor=0.5"),
        ({"settings": {"gaussian.divisor": 70.5}}, "gaussian.divisor=70.5"),
        ({"settings": {"gaussian": {"divisor": 70}}, "records": 50}, "Both records=50 and gaussian.divisor=70"),
        ({"settings": {"eta": 0.5}}, "eta is no setting of choose"),
        ({"settings": {"batch": 8}}, "plays no part"),
        ({"settings": {"rouns": 8}}, "rouns"),
        ({"epsilom": 2}, "Did you mean 'epsilon'"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused(asked: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        choosing(toy(), epsilon=2, **asked)
    assert str(error.value)


def test_records_follow_from_the_data_or_are_told() -> None:
    assert choosing(toy(train=300), epsilon=2).stand_ins.records == 70
    assert choosing(toy(), epsilon=2, records=500).stand_ins.records == 500
    assert choosing(toy(), epsilon=2, settings={"gaussian.divisor": 70}).stand_ins.records == 70
    assert choosing(toy(), epsilon=2, settings={"gaussian": {"divisor": 70}}).stand_ins.records == 70


@pytest.mark.slow
def test_that_the_divisor_follows_from_the_records_is_told_where_nobody_said_it() -> None:
    told = Told()
    chosen(epsilon=8, progress=told, settings=ONE)
    assert "no --records: the divisor 50, which is published, follows from the number of training records" in told.text
    chosen(epsilon=8, progress=told, settings=ONE, records=50)
    assert "--records" not in told.text


@pytest.mark.slow
def test_a_model_of_ones_own_is_compared_too() -> None:
    def net(shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Linear(shape[0], classes))

    found = chosen(epsilon=8, model="app:net", code=net, settings=ONE)
    assert found.settings.training.model == "app:net"
    assert found.expected.accuracy > 0.6


def test_it_is_a_verb_of_the_package() -> None:
    assert equipoise.choose is module.choose
    found = equipoise.choose(toy(), epsilon=8, quick=True, settings={"rounds": 2, **ONE})
    assert isinstance(found, equipoise.Decision)
    assert dataclasses.is_dataclass(found)
