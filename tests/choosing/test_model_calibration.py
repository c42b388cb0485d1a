"""What a budget means on a model: norms that are known, and a budget that does what it was sought for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from equipoise.choosing.identification import Identification
from equipoise.choosing.model_calibration import ModelCalibration
from equipoise.data.dataset import Dataset
from equipoise.engine.settings import Settings
from equipoise.errors import ConfigError, DataError
from equipoise.mechanism.protection import Protection
from equipoise.runs.config import resolve
from equipoise.runs.folder import RunFolder
from equipoise.runs.run import Run
from tests.helpers import write_dataset

SETTINGS = Settings.flat(model="mlp", init="torch")


@pytest.fixture(autouse=True)
def _small(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.engine.datasets.load_with", lambda name, **_: few)


class Known(Identification):
    """Finds everything up to a known scale of the noise, and nothing beyond."""

    def __init__(self, limit: float):
        self.limit, self.asked = limit, 0

    @property
    def candidates(self) -> int:
        return 100

    def rate(self, protection: Protection) -> float:
        self.asked += 1
        return 1.0 if float(protection.scale) < self.limit else 0.0


def test_the_noise_of_a_leakage_budget_has_the_norm_that_it_asks_for_on_every_model() -> None:
    rows = ModelCalibration.of(SETTINGS, "mnist", "pl-identical").ratios(0.98)
    assert [row["tensor"] for row in rows] == ["fc1.weight", "fc1.bias", "fc2.weight", "fc2.bias", "whole"]
    *tensors, whole = rows
    assert whole["noise"] == pytest.approx(7.99975, rel=1e-4)
    assert whole["numbers"] == sum(row["numbers"] for row in tensors) == 50_890
    assert sum(row["noise"] ** 2 for row in tensors) ** 0.5 == pytest.approx(whole["noise"], rel=0.01)
    for row in rows:
        assert row["ratio"] == pytest.approx(row["noise"] / row["update"])


def test_updates_follow_the_learning_rate_and_noise_does_not() -> None:
    def whole(eta: float) -> dict[str, Any]:
        return ModelCalibration.of(SETTINGS.replace(eta=eta), "mnist", "pl-identical").ratios(0.98)[-1]

    one, ten = whole(0.01), whole(0.1)
    assert ten["update"] == pytest.approx(10 * one["update"], rel=1e-3)
    assert ten["noise"] == pytest.approx(one["noise"], rel=1e-4)


def test_the_learned_part_counts_as_noise() -> None:
    ratio = ModelCalibration.of(SETTINGS, "mnist", "pl-learn").ratios(0.99)[-1]
    assert 3.99 < ratio["noise"] < 8.01


@pytest.mark.parametrize(
    ("mechanism", "limit", "budget"), [("pl-identical", 8.0, 0.98), ("ls-static", 0.125, 80.0), ("pl-learn", 8.0, 0.98)]
)
def test_the_budget_is_the_loosest_that_keeps_the_wanted_share(mechanism: str, limit: float, budget: float) -> None:
    on, seen, steps = ModelCalibration.of(SETTINGS, "mnist", mechanism), Known(limit), list[int]()
    found = on.budget_for(0.05, seen, steps.append)
    assert steps == list(range(1, seen.asked + 1))
    assert limit <= found["scale"] < (1.4 if mechanism == "pl-learn" else 1.01) * limit
    measure = SETTINGS.protection.measure(mechanism)
    assert measure is not None
    assert measure.lower(found["budget"]) >= found["scale"], "rounded to the strict side"
    if mechanism != "pl-learn":
        assert found["budget"] == pytest.approx(budget, rel=0.01)
    size = on._at(found["scale"]).noise_norm(50_890)
    assert found["times_update"] == pytest.approx(size / on.ratios(budget)[-1]["update"], rel=1e-3)


def test_a_scale_beyond_all_budgets_has_none() -> None:
    found = ModelCalibration.of(SETTINGS, "mnist", "pl-identical").budget_for(0.05, Known(1000.0))
    assert found["budget"] is None
    assert found["scale"] >= 1000.0


@pytest.mark.parametrize("wanted", [0.01, 0.0, -1.0, 1.0, 2.0, float("nan")])
def test_a_share_below_chance_cannot_be_wanted(wanted: float) -> None:
    with pytest.raises(ConfigError, match=r"to lie between chance, 1/100, and 1.* above 0.01, for example 0.015"):
        ModelCalibration.of(SETTINGS, "mnist", "pl-identical").budget_for(wanted, Known(1.0))


def test_a_search_on_the_filter_itself() -> None:
    on = ModelCalibration.of(SETTINGS, "mnist", "pl-identical")
    seen = on.identification(places=1)
    found = on.budget_for(0.2, seen)
    assert seen.rate(on._at(found["scale"])) <= 0.2 < seen.rate(on._at(found["scale"] / 2))


def test_what_has_no_budget_or_a_proof_is_refused() -> None:
    with pytest.raises(ConfigError, match="'none' has no budget to calibrate"):
        ModelCalibration.of(SETTINGS, "mnist", "none")
    with pytest.raises(ConfigError, match="equipoise guarantee"):
        ModelCalibration.of(SETTINGS, "mnist", "gaussian-dp")
    for name in ("pruning", "outpost"):
        with pytest.raises(ConfigError, match=f"'{name}' shapes the update instead"):
            ModelCalibration.of(SETTINGS, "mnist", name).budget_for(0.05, Known(1.0))


def test_what_pruning_takes_away_is_less_than_the_update() -> None:
    whole = ModelCalibration.of(SETTINGS, "mnist", "pruning").ratios(0.1)[-1]
    assert 0.05 < whole["ratio"] < 1


def test_data_without_a_public_part_are_refused(few: Dataset, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from equipoise.data.loading import load

    private = load(write_dataset(tmp_path / "private"))
    monkeypatch.setattr("equipoise.engine.datasets.load_with", lambda name, **_: private)
    with pytest.raises(DataError, match=r"no public part to measure on.* public_fraction=0\.1"):
        ModelCalibration.of(SETTINGS, "private", "pl-identical")


def test_the_weights_of_a_run(tmp_path: Path) -> None:
    overrides = {"model": "mlp", "rounds": 3, "init": "torch"}
    config = resolve(overrides=overrides, sweep={"mechanisms": ["none"], "seeds": [4]})
    run = Run(tmp_path / "run", config)
    run.execute()
    on = ModelCalibration.of(config.settings, "mnist", "pl-identical", run=RunFolder(tmp_path / "run"))
    assert (on.weights == run.sweep.models()[0]).all()
    assert on.where == "the weights of run after round 3"
    first = ModelCalibration.of(config.settings, "mnist", "pl-identical", seed=4)
    assert first.where == "the first weights of seed 4"
    assert not (first.weights == on.weights).all()


def test_the_pace_is_that_of_one_update(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 26.0])
    on = ModelCalibration.of(SETTINGS, "mnist", "pl-identical")
    monkeypatch.setattr("equipoise.choosing.model_calibration.time.monotonic", lambda: next(clock))
    assert on.pace() == 0.5
