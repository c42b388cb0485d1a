"""The search for a workable budget: on public data alone, from the loosest budget down to the first failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import sqrt
from statistics import mean, stdev
from typing import Any, NoReturn

import pytest
import torch
from scipy.stats import t as student

from equipoise.choosing import search as module
from equipoise.choosing.search import SearchResult, Trial, _strictest, public_dataset, search
from equipoise.data.dataset import Dataset, from_tensors
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.state import Event
from equipoise.errors import BudgetError, ConfigError, DataError
from equipoise.mechanism.budget import LaplaceBudget
from equipoise.mechanism.registry import MEASURES, MECHANISMS, Mechanism

QUICK = Settings.flat(rounds=60, model="mlp", init="torch", batch=8)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Small tensors: a second thread gains nothing, and waits where the machine is busy."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Untouchable:
    """Stands where private images are; any use of it fails the test."""

    def __getattribute__(self, name: str) -> NoReturn:
        raise AssertionError(f"private data was touched: {name}")

    def __len__(self) -> NoReturn:
        raise AssertionError("private data was counted")


@pytest.fixture
def guarded(mnist: Dataset) -> Dataset:
    """MNIST with its public part alone."""
    private: Any = Untouchable()
    return replace(mnist, train=private, validation=private, test=private)


# --- public data ------------------------------------------------------------------------------------------------


def test_a_real_search_touches_public_images_alone_and_finds_the_threshold(guarded: Dataset) -> None:
    seen: list[int] = []
    result = search(guarded, ["pl-identical"], QUICK, [0.99, 0.9, 0.999], [1, 2], keep=0.8, on_round=seen.append)
    assert seen == list(range(1, QUICK.training.rounds + 1))
    free, *trials = result.trials
    assert (free.mechanism, free.budget, free.seeds) == ("none", None, 2)
    assert [trial.budget for trial in trials] == [0.9, 0.99, 0.999], "from strict to loose"
    assert [trial.trains for trial in trials] == [False, True, True]
    assert result.strictest == {"pl-identical": 0.99}
    assert 0.1 < result.bar < free.accuracy
    assert result.bar == pytest.approx(0.1 + 0.8 * (free.accuracy - 0.1))


def test_the_public_part_becomes_a_dataset_of_its_own(guarded: Dataset, mnist: Dataset) -> None:
    public = public_dataset(guarded)
    assert (public.name, public.classes) == ("mnist", 10)
    assert torch.equal(public.train.inputs, mnist.public_attack.inputs)
    assert torch.equal(public.test.inputs, mnist.public_pool.inputs[:2000])
    assert torch.equal(public.test.labels, mnist.public_pool.labels[:2000])
    assert mnist.public is not None
    assert torch.equal(public.validation.inputs, mnist.public.inputs[5000:]), "and no image is in two of them"
    assert torch.equal(public.validation.labels, mnist.public.labels[5000:])


def test_without_public_images_there_is_nothing_to_search_on() -> None:
    pair = torch.rand(12, 1, 28, 28), torch.arange(12) % 2
    with pytest.raises(DataError, match=r"'mine' has no public part.*public_fraction"):
        search(from_tensors(pair, pair, name="mine"), ["pl-learn"], QUICK)


# --- the logic, with accuracies of our choice ---------------------------------------------------------------------


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, guarded: Dataset) -> Callable[..., tuple[SearchResult, list[Federation]]]:
    """Search with accuracies from a function of (mechanism, budget, seed) in the place of training."""

    def run(
        accuracy: Callable[[str, Any, int], float], *names: str, **more: Any
    ) -> tuple[SearchResult, list[Federation]]:
        asked: list[Federation] = []

        class Stub:
            def __init__(
                self,
                settings: Settings,
                federations: Sequence[Federation],
                datasets: dict[str, Dataset],
                model: None,
            ):
                assert (set(datasets), model) == ({"mnist"}, None)
                assert settings.evaluated() == [settings.training.rounds], "evaluated once, at the end"
                assert settings.run.snapshots == []
                asked.extend(federations)

            def run(self, on_round: Any) -> Iterator[Event]:
                yield Event(1, [], snapshot=False)
                rows = [{"mechanism": f.mechanism, "budget": f.budget, "accuracy": 0.0, "seed": f.seed} for f in asked]
                yield Event(2, [row | {"accuracy": 0.05} for row in rows], snapshot=False)  # not the last
                yield Event(3, [r | {"accuracy": accuracy(r["mechanism"], r["budget"], r["seed"])} for r in rows], True)

        monkeypatch.setattr(module, "Sweep", Stub)
        return search(guarded, list(names), Settings(), **more), asked

    return run


def threshold(at: float) -> Callable[[str, Any, int], float]:
    return lambda name, budget, seed: 0.9 if name == "none" or budget >= at else 0.2


def test_every_budget_of_the_grid_is_tried_with_every_seed(play: Any) -> None:
    result, asked = play(threshold(0.97), "pl-learn", "ls-learn", seeds=[4, 5])
    assert {f for f in asked if f.mechanism == "none"} == {Federation("mnist", "none", None, s) for s in (4, 5)}
    for name, measure in (("pl-learn", "leakage"), ("ls-learn", "laplace")):
        mine = [(f.budget, f.seed) for f in asked if f.mechanism == name]
        assert sorted(mine) == sorted((budget, seed) for budget in MEASURES[measure].grid for seed in (4, 5))
    assert result.strictest == {"pl-learn": 0.97, "ls-learn": 20}
    assert len(result.trials) == 1 + 2 * 8
    assert all(trial.seeds == 2 for trial in result.trials)


def test_budgets_can_be_given(play: Any) -> None:
    result, asked = play(threshold(0.95), "pl-learn", budgets=[0.99, 0.9, 0.95], seeds=[1])
    assert {f.budget for f in asked} == {None, 0.9, 0.95, 0.99}
    assert result.strictest == {"pl-learn": 0.95}


def test_a_budget_stricter_than_a_failure_does_not_count(play: Any) -> None:
    lucky = {0.9: 0.9, 0.95: 0.2, 0.97: 0.9, 0.99: 0.9, None: 0.9}
    result, _ = play(lambda name, budget, seed: lucky[budget], "pl-learn", budgets=[0.9, 0.95, 0.97, 0.99])
    assert [trial.trains for trial in result.trials] == [True, True, False, True, True]
    assert result.strictest == {"pl-learn": 0.97}


def test_none_of_the_budgets_may_train(play: Any) -> None:
    result, _ = play(threshold(2.0), "pl-learn", "pl-identical")
    assert result.strictest == {"pl-learn": None, "pl-identical": None}


def test_none_is_tried_once_and_has_no_strictest_budget(play: Any) -> None:
    result, asked = play(threshold(0), "none", "pl-learn", seeds=[1], budgets=[0.98])
    assert result.strictest == {"pl-learn": 0.98}
    assert asked == [Federation("mnist", "none", None, 1), Federation("mnist", "pl-learn", 0.98, 1)]


@pytest.mark.parametrize(("keep", "bar"), [(0.25, 0.3), (0.5, 0.5), (0.75, 0.7)])
def test_the_bar_lies_between_chance_and_training_without_protection(play: Any, keep: float, bar: float) -> None:
    result, _ = play(lambda name, budget, seed: 0.9 if name == "none" else 0.5, "pl-learn", keep=keep)
    assert result.bar == pytest.approx(bar)
    assert result.trials[1].trains == (result.bar <= 0.5)


@pytest.mark.parametrize("count", [2, 3, 5, 10, 11, 20, 40])
def test_intervals_are_students(play: Any, count: int) -> None:
    values = {seed: 0.5 + 0.01 * ((7 * seed) % 11) for seed in range(count)}
    result, _ = play(lambda name, budget, seed: values[seed], "pl-learn", budgets=[0.98], seeds=list(range(count)))
    trial = result.trials[1]
    assert trial.seeds == count
    assert trial.accuracy == pytest.approx(mean(values.values()))
    half = student.ppf(0.975, count - 1) * stdev(values.values()) / sqrt(count)
    assert trial.interval == pytest.approx((trial.accuracy - half, trial.accuracy + half), abs=5e-3 * half)


def test_one_seed_has_no_interval(play: Any) -> None:
    result, _ = play(threshold(0), "pl-learn", seeds=[1])
    assert all(trial.interval is None for trial in result.trials)


def test_the_strictest_is_the_last_before_the_first_failure() -> None:
    def trials(*passed: bool) -> list[Trial]:
        return [Trial("m", 0.9 + 0.01 * i, 1, 0.5, None, ok) for i, ok in enumerate(passed)]

    assert _strictest(trials(True, True, True), "m") == 0.9
    assert _strictest(trials(False, True, True), "m") == pytest.approx(0.91)
    assert _strictest(trials(True, False, True), "m") == pytest.approx(0.92)
    assert _strictest(trials(True, True, False), "m") is None
    assert _strictest(list(reversed(trials(False, True, True))), "m") == pytest.approx(0.91), "in any order"
    assert _strictest([*trials(True, True), Trial("other", 0.5, 1, 0.9, None, True)], "m") == 0.9
    assert _strictest([], "m") is None


# --- refusals -----------------------------------------------------------------------------------------------------


def test_an_unknown_mechanism_and_an_impossible_budget_are_refused(guarded: Dataset) -> None:
    with pytest.raises(ConfigError, match="Did you mean 'pl-learn'"):
        search(guarded, ["pl-lern"], QUICK)
    with pytest.raises(BudgetError, match=r"budget=1\.5"):
        search(guarded, ["pl-learn"], QUICK, [1.5])


@pytest.mark.parametrize("keep", [0.0, 1.0, -1.0, 2.0, float("nan")])
def test_a_share_outside_0_to_1_is_refused(guarded: Dataset, keep: float) -> None:
    with pytest.raises(ConfigError, match="keep="):
        search(guarded, ["pl-learn"], QUICK, [0.98], keep=keep)


def test_two_kinds_of_budget_do_not_share_a_grid(guarded: Dataset) -> None:
    with pytest.raises(ConfigError, match="two kinds of budget"):
        search(guarded, ["pl-learn", "ls-learn"], QUICK, [0.98])


def test_without_training_there_is_nothing_to_compare(play: Any) -> None:
    with pytest.raises(ConfigError, match=r"reach only 20\.0%.*--rounds"):
        play(lambda name, budget, seed: 0.2, "pl-learn")


def test_no_seed_at_all_is_refused(guarded: Dataset) -> None:
    for names in (["pl-learn"], ["none"]):
        with pytest.raises(ConfigError):
            search(guarded, names, QUICK, [0.98], seeds=[])


def test_a_measure_of_ones_own_has_no_grid(play: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MECHANISMS, "mine", Mechanism("mine", LaplaceBudget(sensitivity=2.0), norm="l1"))
    with pytest.raises(ConfigError, match="no grid for a measure of your own"):
        play(threshold(0), "mine")
    result, _ = play(threshold(50), "mine", budgets=[20, 50, 80])
    assert result.strictest == {"mine": 50}


def test_a_budget_at_the_edge_of_the_grid_may_not_be_the_strictest() -> None:
    def trial(budget: float, trains: bool) -> Trial:
        return Trial("pl-learn", budget, 3, 0.5, None, trains)

    trials = [trial(0.9, True), trial(0.95, True)]
    assert SearchResult(trials, 0.5, {"pl-learn": 0.9}).at_edge("pl-learn")
    assert not SearchResult(trials, 0.5, {"pl-learn": 0.95}).at_edge("pl-learn")
    assert not SearchResult(trials, 0.5, {"pl-learn": None}).at_edge("pl-learn")
