"""No protection, and noise of which nothing is proved: measured on public records alone."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from equipoise.choosing import others as module
from equipoise.choosing.others import STATIC, measured, unprotected
from equipoise.choosing.standins import of_dataset
from equipoise.data.dataset import Dataset
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.errors import ConfigError
from tests.choosing.toys import poisoned, toy

SETTINGS = Settings.flat(clients=4)


def test_without_protection_a_toy_is_learned_at_the_best_rate() -> None:
    stand_ins = of_dataset(toy(), 4, 50)
    found = unprotected(stand_ins, SETTINGS, "mlp", 30, seeds=[0, 1])
    assert len(found) == 2
    assert min(found) > 0.9


def test_static_noise_is_measured_at_a_budget_that_keeps_the_share(caplog: pytest.LogCaptureFixture) -> None:
    data = toy()
    told: list[str] = []
    with caplog.at_level(logging.WARNING, logger="equipoise"):
        one = measured(
            data, of_dataset(data, 4, 50), SETTINGS, STATIC, 0.06, rounds=5, seeds=[0, 1],
            on_step=lambda what, seconds: told.append(what),
        )  # fmt: skip
    assert (one.mechanism, one.model, len(one.accuracies)) == (STATIC, "mlp", 2)
    assert 0 < one.identified <= 0.06 + 0.02
    assert one.candidates == 33
    assert {"measuring pl-identical", "training pl-identical"} == set(told)
    assert not caplog.records, "the constants are told of where such noise is chosen, not where it is tried"
    looser = measured(data, of_dataset(data, 4, 50), SETTINGS, STATIC, 0.11, rounds=5, seeds=[0, 1])
    assert looser.budget > one.budget
    assert looser.identified > one.identified


def test_no_record_of_a_client_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Dataset] = []

    class Watched(Sweep):
        def __init__(self, settings: Settings, federations: Any, datasets: dict[str, Dataset], *more: Any):
            given.extend(datasets.values())
            super().__init__(settings, federations, datasets, *more)

    monkeypatch.setattr(module, "Sweep", Watched)

    def once(data: Dataset) -> object:
        return measured(data, of_dataset(data, 4, 50), SETTINGS, STATIC, 0.2, rounds=2, seeds=[0])

    assert once(toy()) == once(poisoned(toy()))
    assert len(given) == 4
    for data in given:
        assert all(bool(part.inputs.isfinite().all()) for part in (data.train, data.validation, data.test))


def test_a_share_below_what_so_few_records_can_show_is_refused() -> None:
    data = toy()
    with pytest.raises(ConfigError, match="chance, 1/33"):
        measured(data, of_dataset(data, 4, 50), SETTINGS, STATIC, 0.02, rounds=2, seeds=[0])
