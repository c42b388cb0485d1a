"""Sums of materialised gradients: each record in its slot, each unit by itself, whatever its companions are."""

from __future__ import annotations

import logging
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ConfigError
from equipoise.mechanism.l2_grid import L2Grid
from equipoise.mechanism.units import (
    LARGEST_SUM,
    EachRecord,
    Records,
    check_sum,
)
from equipoise.models.batched import Batched
from equipoise.randomness import experiment_key, keyed_words

N, CLIP, CLASSES = 9, 0.7, 3
GROUPS = torch.tensor([4, 4, 7, 1, 4, 7, 2, 2, 3])


def network() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, CLASSES))


def data(count: int = N) -> tuple[Tensor, Tensor]:
    draw = torch.Generator().manual_seed(6)
    return torch.randn(count, 1, 2, 2, generator=draw) * 2, torch.arange(count) % CLASSES


def pool_of(groups: Tensor | None = None, slots: int | None = 4, **change: Tensor) -> EachRecord:
    images, labels = data()
    records = Records(change.get("images", images), change.get("labels", labels), groups)
    return EachRecord(Batched(network()), records, CLASSES, slots)


def start_of(pool: EachRecord) -> Tensor:
    return pool.batched.layout.flatten(dict(network().named_parameters())).unsqueeze(0)


def total(pool: EachRecord, rows: list[int], clip: float = CLIP) -> list[int]:
    found = pool.total([torch.tensor(rows, dtype=torch.int64)], start_of(pool), clip)[0]
    assert all(value == int(value) for value in found[0].tolist())
    return [int(value) for value in found[0].tolist()]


def members(groups: Tensor | None) -> list[list[int]]:
    if groups is None:
        return [[i] for i in range(N)]
    return [[i for i in range(N) if groups[i] == unit] for unit in dict.fromkeys(groups.tolist())]


def plus(*lists: list[int]) -> list[int]:
    return [sum(column) for column in zip(*lists, strict=True)]


both = pytest.mark.parametrize("groups", [None, GROUPS], ids=["records", "groups"])


# -- a unit's integers are its own -----------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("slots", [1, 4, 64])
def test_a_sum_is_exactly_that_of_its_units(groups: Tensor | None, slots: int) -> None:
    pool, units = pool_of(groups, slots), members(groups)
    alone = [total(pool, unit) for unit in units]
    assert total(pool, list(range(N))) == plus(*alone)
    for left_out, unit in enumerate(units):
        rest = plus(*(part for number, part in enumerate(alone) if number != left_out))
        assert total(pool, [i for i in range(N) if i not in unit]) == rest
    most = (Fraction(CLIP) / Fraction(2) ** pool.grid(CLIP).exponent) ** 2
    assert all(0 < sum(value**2 for value in part) <= most for part in alone)


@both
@pytest.mark.parametrize("value", [0.0, 1e30, math.nan, math.inf])
def test_other_companions_change_no_bit_of_a_unit(groups: Tensor | None, value: float) -> None:
    (images, labels), changed = data(), members(groups)[1]
    images[changed], labels[changed] = value, 99
    after, before = pool_of(groups, images=images, labels=labels), pool_of(groups)
    others = [total(before, unit) for number, unit in enumerate(members(groups)) if number != 1]
    assert [total(after, unit) for number, unit in enumerate(members(groups)) if number != 1] == others
    assert total(after, list(range(N))) == plus(*others)


def test_clients_are_summed_as_if_each_were_the_only_one() -> None:
    pool, rows = pool_of(), [torch.tensor([0, 1, 2]), torch.tensor([], dtype=torch.int64), torch.arange(N)]
    start = start_of(pool) * torch.tensor([[1.0], [2.0], [3.0]])
    together, share = pool.total(rows, start, CLIP)
    for r, row in enumerate(rows):
        alone, own = pool.total([row], start[r : r + 1], CLIP)
        assert torch.equal(together[r], alone[0])
        assert torch.equal(share[r], own[0])
    assert not together[1].any()


@both
def test_clients_with_the_same_records_and_weights_are_computed_once(
    groups: Tensor | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool, calls = pool_of(groups, slots=64), []
    everyone, few = torch.arange(N), torch.tensor([1, 2])
    rows = [everyone, few, everyone.clone(), everyone, few.flip(0), few]
    start = start_of(pool).repeat(6, 1) * torch.tensor([[1.0], [1.0], [1.0], [2.0], [1.0], [1.0]])
    alone = [pool.total([row], start[r : r + 1], CLIP) for r, row in enumerate(rows)]
    each = pool.batched.each

    def counted(*given: Tensor) -> Tensor:
        calls.append(given)
        return each(*given)

    monkeypatch.setattr(pool.batched, "each", counted)
    found, share = pool.total(rows, start, CLIP)
    assert torch.equal(found, torch.cat([total for total, _ in alone]))
    assert torch.equal(share, torch.cat([own for _, own in alone]))
    assert len(calls) == 4, "all records at two sets of weights, two of them in two orders"
    assert not torch.equal(found[0], found[3])


# -- the right numbers -----------------------------------------------------------------------------------------------


@both
@pytest.mark.parametrize("clip", [0.3, 8.0])
def test_sums_are_those_of_torch_up_to_the_grid(groups: Tensor | None, clip: float) -> None:
    pool, (images, labels), model = pool_of(groups), data(), network()
    expected, clipped = torch.zeros(pool.batched.layout.size, dtype=torch.float64), 0
    for unit in members(groups):
        own = torch.zeros_like(expected)
        for i in unit:
            model.zero_grad()
            nn.functional.cross_entropy(model(images[i : i + 1]), labels[i : i + 1]).backward()
            grads = {name: part.grad for name, part in model.named_parameters() if part.grad is not None}
            own += pool.batched.layout.flatten(grads)
        clipped += float(own.norm()) > clip
        expected += own * min(1.0, clip / float(own.norm()))
    found, share = pool.total([torch.arange(N)], start_of(pool), clip)
    assert float((found[0] * pool.grid(clip).step - expected).norm()) < N * clip * 1.01 / 1000
    assert float(share) == pytest.approx(clipped / len(members(groups)))


@pytest.mark.parametrize("rows", [list(range(N)), [5, 2], []])
def test_each_is_what_every_record_adds(rows: list[int]) -> None:
    pool = pool_of()
    found = pool.each(torch.tensor(rows, dtype=torch.int64), start_of(pool), CLIP)
    assert found.shape == (len(rows), pool.batched.layout.size)
    assert found.tolist() == [total(pool, [i]) for i in rows]


# -- records that cannot be used ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("label", [-1, CLASSES, 10**12])
def test_labels_that_are_no_class_count_as_zero(label: int, caplog: pytest.LogCaptureFixture) -> None:
    labels = data()[1]
    labels[4] = label
    LABELS.clear()
    with caplog.at_level(logging.WARNING, "equipoise"):
        assert total(pool_of(labels=labels), list(range(N))) == total(pool_of(), [i for i in range(N) if i != 4])
    assert "1 of 9 records could not be computed with" in caplog.text
    assert str(label) not in " ".join(caplog.messages)
    assert set(range(CLASSES)) == LABELS, "a GPU ends the process at any other"


@both
def test_that_gradients_are_not_finite_is_said(groups: Tensor | None, caplog: pytest.LogCaptureFixture) -> None:
    images, changed = data()[0], members(groups)[1]
    images[changed] = math.nan
    with caplog.at_level(logging.WARNING, "equipoise"):
        total(pool_of(groups, images=images), list(range(N)))
        total(pool_of(groups), list(range(N)))
    assert [message.split(" could")[0] for message in caplog.messages] == ["1 of 9 records"], "a person counts once"


def test_a_record_that_cannot_be_computed_with_counts_as_zero_and_no_other() -> None:
    images, pool = data()[0], pool_of()
    expected = total(pool, [i for i in range(N) if i not in (2, 5)])
    REFUSED[:] = [float(images[2, 0, 0, 0]), float(images[5, 0, 0, 0])]
    try:
        assert total(pool, list(range(N))) == expected
        assert total(pool, [2, 5]) == [0] * pool.batched.layout.size
    finally:
        REFUSED.clear()


def test_weights_at_which_a_blank_record_fails_take_nothing_from_the_others() -> None:
    """A server may send such weights: then what one record adds must still not depend on another one."""
    images, pool = data()[0], pool_of()
    everyone, others = total(pool, list(range(N))), total(pool, [i for i in range(N) if i != 2])
    REFUSED[:] = [0.0]
    try:
        assert total(pool, list(range(N))) == everyone
        REFUSED.append(float(images[2, 0, 0, 0]))
        assert total(pool, list(range(N))) == others
    finally:
        REFUSED.clear()


REFUSED: list[float] = []
LABELS: set[int] = set()
"""All that were computed with."""


@pytest.fixture(autouse=True)
def _failing_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that holds a refused record fails as a whole, as it does where a kernel is handed nonsense."""
    true = Batched.each

    def each(self: Batched, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        LABELS.update(labels.flatten().tolist())
        if any(bool((images[..., 0, 0, 0] == value).any()) for value in REFUSED):
            raise RuntimeError("no such record")
        return true(self, params, images, labels)

    monkeypatch.setattr(Batched, "each", each)


# -- who is in the batch -----------------------------------------------------------------------------------------------


def test_units_are_numbered_by_first_appearance() -> None:
    records = Records(*data(), GROUPS)
    assert records.units(torch.tensor([3, 0, 1, 2, 4])).tolist() == [0, 1, 1, 2, 1]
    assert Records(*data()).units(torch.tensor([3, 3, 5])).tolist() == [0, 1, 2]


def test_all_records_of_a_person_are_drawn_together() -> None:
    records, everyone, seen = Records(*data(), GROUPS), torch.arange(N), set()
    for run in range(60):
        chosen = records.sampled(everyone, 0.5, keyed_words(experiment_key(1, "units"), run, 1)).tolist()
        for unit in members(GROUPS):
            assert set(unit) <= set(chosen) or not set(unit) & set(chosen)
        seen.add(tuple(chosen))
    assert len(seen) > 15


def test_one_word_is_drawn_for_every_unit_and_none_where_all_take_part() -> None:
    drawn: list[int] = []

    def words(count: int) -> Any:
        drawn.append(count)
        return np.zeros(count, np.uint64)

    records = Records(*data(), GROUPS)
    assert records.sampled(torch.arange(N), 0.5, words).tolist() == list(range(N))
    assert records.sampled(torch.tensor([], dtype=torch.int64), 0.5, words).tolist() == []
    assert records.sampled(torch.arange(N), 1.0, words).tolist() == list(range(N))
    assert [count for count in drawn if count] == [5]


def test_a_call_has_one_memory_order_whatever_that_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels are chosen by it: the trial of slots, and a call in which a record fails, have the plain one."""
    seen: list[bool] = []
    each = Batched.each

    def watched(self: Batched, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        seen.append(images.is_contiguous())
        return each(self, params, images, labels)

    wide = Records(torch.rand(N, 2, 2, 3).permute(0, 3, 1, 2), data()[1])
    monkeypatch.setattr(Batched, "each", watched)
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, CLASSES))
    own = EachRecord(Batched(model), wide, CLASSES, 4)
    own.total([torch.arange(N)], torch.zeros(1, own.batched.layout.size), CLIP)
    assert seen == [True] * 3


def test_more_records_than_add_up_exactly_are_refused() -> None:
    grid = L2Grid.of(1.0, 100)
    most = int(LARGEST_SUM / grid.most**0.5)
    check_sum(most - 1, grid)
    with pytest.raises(ConfigError, match="cannot be added exactly"):
        check_sum(most + 1, grid)
