"""Stand-in clients are made of public records alone, and get the noise of the real ones."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from equipoise.choosing.standins import StandIns, of_dataset, rounded, units_of
from equipoise.data.dataset import Dataset
from equipoise.data.splits import Split
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.engine.tables import Block
from equipoise.errors import DataError
from equipoise.mechanism.run_budget import GaussianSettings
from tests.choosing.toys import poisoned, toy


def rows(split: Split) -> set[bytes]:
    return {row.numpy().tobytes() for row in split.inputs}


@pytest.mark.parametrize(("public", "folds"), [(160, 6), (2400, 1)])
def test_what_is_reported_is_in_no_fold_and_no_record_trains_and_chooses(public: int, folds: int) -> None:
    data = toy(public)
    found = of_dataset(data, 4, 50)
    assert len(found.folds) == folds
    for fold in found.folds.values():
        train, held, test = rows(fold.train), rows(fold.validation), rows(fold.test)
        assert not train & held
        assert not train & test
        assert not held & test
        assert fold.public is None
        assert set(fold.train.labels.tolist()) == set(fold.validation.labels.tolist()) == {0, 1}
        assert data.public is not None
        assert train | held | test <= rows(data.public)
    assert found.reported == public // 4
    assert len(set().union(*(rows(fold.validation) for fold in found.folds.values()))) == (
        public // 4 if folds == 1 else public * 3 // 4
    )


def test_a_stand_in_never_has_more_records_than_a_client() -> None:
    assert of_dataset(toy(2400), 4, 50).per_client == 50
    assert of_dataset(toy(2400), 4, 5000).per_client == 300
    assert all(len(fold.train) == 200 for fold in of_dataset(toy(2400), 4, 50).folds.values())


def noise(data: Dataset, gaussian: GaussianSettings, budget: float) -> float:
    """The standard deviation of what clients release in one round, beside which what they learn is nothing."""
    settings = Settings.flat(model="mlp", init="torch", rounds=1, eta=1.0, server_rate=1.0, snapshots=[])
    sweep = Sweep(settings.replace(gaussian=gaussian), [Federation("toy", "gaussian-dp", budget, 3)], {"toy": data})
    start, released = sweep.state.params.clone(), []

    def keep(block: Block, parameters: torch.Tensor) -> None:
        released.append(parameters - start)

    sweep.on_releases = keep
    sweep.train(1)
    return float(torch.cat(released).std())


def test_a_stand_ins_mean_has_the_noise_of_a_real_clients() -> None:
    data = toy(train=320)
    stand_ins = of_dataset(data, 4, 80)
    assert stand_ins.per_client == 25, "fewer records than the real ones"
    real = GaussianSettings(rounds=1, divisor=80.0)
    worth, own = stand_ins.budget(real, 0.05)
    (fold, *_) = stand_ins.folds.values()
    expected = noise(data, real, 0.05)
    assert noise(fold, own, worth) == pytest.approx(expected, rel=0.05)
    assert noise(fold, replace(real, divisor=25.0), 0.05) == pytest.approx(expected * 80 / 25, rel=0.05), (
        "without another multiplier there would be so much more"
    )


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 8.0])
@pytest.mark.parametrize("rate", [1.0, 0.5])
def test_the_budget_of_stand_ins_is_worth_their_noise(epsilon: float, rate: float) -> None:
    stand_ins = of_dataset(toy(), 4, 50)
    real = GaussianSettings(rounds=10, divisor=50.0, sampling_rate=rate)
    worth, own = stand_ins.budget(real, epsilon)
    assert own.sigma(worth) == pytest.approx(real.sigma(epsilon) * stand_ins.per_client / 50)
    assert worth > epsilon


def test_nothing_of_the_clients_is_looked_at() -> None:
    clean, spoilt = of_dataset(toy(), 4, 50), of_dataset(poisoned(toy()), 4, 50)
    for one, other in zip(clean.folds.values(), spoilt.folds.values(), strict=True):
        assert torch.equal(one.train.inputs, other.train.inputs)
        assert torch.equal(one.validation.inputs, other.validation.inputs)
        assert torch.equal(one.test.inputs, other.test.inputs)


def test_clients_own_training_records_where_that_was_agreed_to_and_nothing_else_of_theirs() -> None:
    data = toy(public=0)
    with pytest.raises(DataError, match="no public") as error:
        of_dataset(data, 4, 50)
    assert "public_fraction" in error.value.remedy
    assert "--on-private-records" in error.value.remedy
    found = of_dataset(data, 4, 50, private=True)
    seen = set().union(
        *(rows(part) for fold in found.folds.values() for part in (fold.train, fold.validation, fold.test))
    )
    assert seen == rows(data.train)
    assert found.what == "training records of the clients"


def test_too_few_records_are_refused() -> None:
    with pytest.raises(DataError, match="72 public records, too few to choose on: 4 clients take at least 80"):
        of_dataset(toy(public=72), 4, 50)
    with pytest.raises(DataError, match="20 clients take at least 160"):
        of_dataset(toy(public=152), 20, 50)


def test_noise_that_is_nothing_to_so_few_records_is_refused() -> None:
    stand_ins = of_dataset(toy(), 4, 10**6)
    with pytest.raises(DataError, match="25 records each, far fewer than the 1,000,000"):
        stand_ins.budget(GaussianSettings(rounds=10, divisor=1e6), 4.0)


def test_rows_of_one_group_stay_together() -> None:
    data = toy(public=0, train=400)
    grouped = replace(data, train=Split(data.train.inputs, data.train.labels, torch.arange(len(data.train)) // 3))
    assert units_of(grouped.train)[1] == 134
    found = of_dataset(grouped, 4, 30, private=True)
    for fold in found.folds.values():
        parts = [part.groups for part in (fold.train, fold.validation, fold.test)]
        sets = [set(part.tolist()) for part in parts if part is not None]
        assert len(sets) == 3
        assert not (sets[0] & sets[1])
        assert not (sets[0] & sets[2])
        assert not (sets[1] & sets[2])
        assert len(sets[0]) == found.per_client * 4


def test_folds_take_turns() -> None:
    found = of_dataset(toy(), 4, 50)
    assert isinstance(found, StandIns)
    assert [found.fold(seed) for seed in (0, 5, 6)] == [list(found.folds)[place] for place in (0, 5, 0)]


def test_a_number_that_may_be_public_has_two_digits_and_is_not_the_exact_one_below_a_hundred() -> None:
    assert [rounded(count) for count in (9, 87, 199, 1_999, 12_345)] == [9, 80, 190, 1_900, 12_000]
