"""Public records alone: which of them train, which choose, and that no client's record has a say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from equipoise.choosing.public_alone import alone, public_alone
from equipoise.data.dataset import Dataset
from equipoise.data.splits import Split
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.errors import ConfigError, DataError

SETTINGS = Settings.flat(rounds=30, evaluate_every=7, clients=1, batch=8, model="mlp", init="torch")
FEDERATIONS = [Federation("few", "none", None, seed) for seed in (1, 2)]


def rows_of(few: Dataset, numbers: Any = None, settings: Settings = SETTINGS, federations: Any = None) -> list[Any]:
    given = FEDERATIONS if federations is None else federations
    return public_alone(settings, given, [40] if numbers is None else numbers, {"few": few})


def poisoned(split: Split) -> Split:
    return replace(split, inputs=torch.full_like(split.inputs, torch.nan), labels=(split.labels + 1) % 10)


def shown(split: Split) -> set[bytes]:
    """Its records, pixel by pixel, with their labels."""
    pairs = zip(split.inputs, split.labels.tolist(), strict=True)
    return {image.numpy().tobytes() + bytes([label]) for image, label in pairs}


def test_no_record_of_a_client_has_a_say(few: Dataset) -> None:
    other = replace(few, train=poisoned(few.train), validation=poisoned(few.validation))
    assert rows_of(other) == rows_of(few)
    pool = few.public_pool
    assert few.public is not None
    start = len(few.public_attack)
    images = few.public.inputs.clone()
    images[start : start + len(pool)] = torch.nan
    assert rows_of(replace(few, public=replace(few.public, inputs=images))) == rows_of(few), "nor one to attack with"


def test_the_records_that_train_do(few: Dataset) -> None:
    """So that the test above can fail."""
    assert few.public is not None
    images = few.public.inputs.clone()
    images[: len(few.public_attack)] = 0.0
    assert rows_of(replace(few, public=replace(few.public, inputs=images))) != rows_of(few)


@pytest.mark.parametrize("count", [1, 40, 300])
def test_so_many_public_records_train_and_others_are_for_tuning(few: Dataset, count: int) -> None:
    data = alone(few, count, seed=1)
    assert len(data.train) == count
    assert shown(data.train) <= shown(few.public_attack)
    assert len(shown(data.train)) == count
    assert torch.equal(data.validation.inputs, few.public_tuning.inputs)
    assert not shown(data.train) & shown(data.validation)
    assert not shown(data.train) & shown(few.public_pool)


def test_every_seed_is_another_draw_and_smaller_ones_are_within_larger_ones(few: Dataset) -> None:
    small, large, other = (shown(alone(few, count, seed).train) for count, seed in ((40, 1), (90, 1), (40, 2)))
    assert small < large
    assert small != other
    assert len(small & other) < 20, "of 300 records, 40 of which are drawn, about 5 are in both"


def test_each_federation_trains_on_the_draw_of_its_seed(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, int]] = []
    genuine = alone

    def watched(dataset: Dataset, count: int, seed: int) -> Dataset:
        seen.append((dataset.name, count, seed))
        return genuine(dataset, count, seed)

    monkeypatch.setattr("equipoise.choosing.public_alone.alone", watched)
    rows = rows_of(few, [40, 8])
    assert seen == [("few", 40, 1), ("few", 40, 2), ("few", 8, 1), ("few", 8, 2)]
    assert [(row["dataset"], row["public"], row["seed"]) for row in rows] == [
        ("few", 40, 1), ("few", 40, 2), ("few", 8, 1), ("few", 8, 2),
    ]  # fmt: skip
    together = {(row["seed"], row["public"]): row for row in rows}
    for federation in FEDERATIONS:
        assert rows_of(few, [8], federations=[federation]) == [together[federation.seed, 8]]


def test_the_numbers_are_those_of_a_sweep_on_these_records(few: Dataset) -> None:
    (row, _) = rows_of(few)
    sweep = Sweep(SETTINGS, FEDERATIONS[:1], {"few": alone(few, 40, 1)})
    last = [event.rows for event in sweep.run() if event.rows][-1][0]
    assert (row["accuracy"], row["tuning_accuracy"]) == (last["accuracy"], last["validation_accuracy"])
    assert row["accuracy"] > 0.2, "ten classes"


def test_tuning_accuracy_is_that_on_the_public_tuning_records(few: Dataset) -> None:
    rows = rows_of(replace(few, test=few.public_tuning))
    assert all(row["accuracy"] == row["tuning_accuracy"] for row in rows)
    assert any(row["accuracy"] != row["tuning_accuracy"] for row in rows_of(few)), "of other records it is another"


def test_the_same_seeds_give_the_same_rows(few: Dataset) -> None:
    assert rows_of(few) == rows_of(few)
    assert rows_of(few)[0]["accuracy"] != rows_of(few, federations=[Federation("few", "none", None, 9)])[0]["accuracy"]


def test_the_dataset_is_loaded_where_none_is_given(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("equipoise.engine.datasets.load_with", lambda *given, **more: few)
    assert public_alone(SETTINGS, FEDERATIONS, [40]) == rows_of(few)


def test_order_of_the_records_is_drawn_not_that_of_the_file(few: Dataset) -> None:
    """A file sorted by label would give a few classes alone."""
    assert few.public is not None
    order = few.public_attack.labels.argsort(stable=True)
    rest = torch.arange(len(order), len(few.public))
    sorted_by_label = replace(few, public=few.public.take(torch.cat([order, rest])))
    assert len(alone(sorted_by_label, 40, 1).train.labels.unique()) > 5


# --- what is refused ----------------------------------------------------------------------------------------------


def test_more_records_than_there_are_is_refused(few: Dataset) -> None:
    with pytest.raises(DataError, match="has 300 public records to train on, fewer than 301"):
        rows_of(few, [301])


@pytest.mark.parametrize("numbers", [[], [0], [-1], [2.5], [True], "40", 40, None, [40, "8"]], ids=str)
def test_what_is_no_list_of_numbers_is_refused(few: Dataset, numbers: Any) -> None:
    with pytest.raises(ConfigError, match=r"Expected public=.* to be a list of numbers"):
        public_alone(SETTINGS, FEDERATIONS, numbers, {"few": few})


@pytest.mark.parametrize(
    ("change", "federation"),
    [({"clients": 2}, FEDERATIONS[0]), ({}, Federation("few", "pl-identical", 0.98))],
    ids=["clients", "mechanism"],
)
def test_clients_or_protection_are_refused(few: Dataset, change: dict[str, Any], federation: Federation) -> None:
    with pytest.raises(ConfigError, match="has one client and no protection"):
        rows_of(few, settings=SETTINGS.replace(**change), federations=[FEDERATIONS[1], federation])
