"""No result depends on how clients, federations or rounds are grouped, not in the last bit."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.data.dataset import Dataset
from equipoise.engine import sweep as module
from equipoise.engine.federation import Federation
from tests.engine.sweeps import EVERY, assert_same, rows_of, small, sweep_of, trained

ROUNDS, STEPS = 6, 4
"""Rounding shows in the first round that it differs in, and learning amplifies it a thousandfold in a few more."""


@pytest.fixture(scope="module")
def whole(few: Dataset) -> dict[str, Tensor]:
    """Every mechanism, one of them with two seeds, as many clients at once as fit."""
    return trained(few, two_seeds(), ROUNDS, steps=STEPS)


def two_seeds() -> list[Federation]:
    return EVERY + [replace(fed, seed=2) for fed in EVERY if fed.mechanism == "pl-learn"]


@pytest.mark.parametrize("chunk", [1, 3, 4, 64])
def test_the_chunk_size_changes_no_bit(few: Dataset, whole: dict[str, Tensor], chunk: int) -> None:
    result = trained(few, two_seeds(), ROUNDS, steps=STEPS, chunk=chunk)
    for label, params in result.items():
        assert float((params - whole[label]).abs().max()) <= 1e-5, f"{label}: more than rounding"
    assert_same(result, whole)


def test_nor_does_it_with_two_threads(few: Dataset) -> None:
    """The other tests run with one; the promise holds for any fixed number."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        federations = [fed for fed in EVERY if fed.mechanism == "ls-learn"]
        assert_same(trained(few, federations, 2, steps=2, chunk=1), trained(few, federations, 2, steps=2))
    finally:
        torch.set_num_threads(before)


def test_one_federation_at_a_time_gives_the_same_bits(few: Dataset, whole: dict[str, Tensor]) -> None:
    results: dict[str, Tensor] = {}
    for fed in two_seeds():
        results |= trained(few, [fed], ROUNDS, steps=STEPS)
    assert_same(results, whole)


def test_two_runs_give_the_same_bits_also_in_pieces(few: Dataset) -> None:
    first = trained(few, EVERY, 5, steps=STEPS)
    assert_same(trained(few, EVERY, 5, steps=STEPS), first)
    sweep = sweep_of(few, EVERY, rounds=5, steps=STEPS)
    for until in (1, 2, 4, 5):
        sweep.train(until)
    assert_same({f.label(): p for f, p in zip(sweep.federations, sweep.state.params, strict=True)}, first)


def test_a_federation_does_not_notice_its_neighbours(few: Dataset, whole: dict[str, Tensor]) -> None:
    mine = next(fed for fed in EVERY if fed.mechanism == "ls-learn")
    others = [Federation("few", "ls-learn", b, s) for b, s in ((80, 1), (800, 7), (200, 3))]
    result = trained(few, [others[0], Federation("few", "pl-learn", 0.96), mine, *others[1:]], ROUNDS, steps=STEPS)
    assert torch.equal(result[mine.label()], whole[mine.label()])


def test_noise_drawn_block_by_block_gives_the_same_bits(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """As it is for models whose noise does not fit into one table."""
    federations = [*EVERY, Federation("few", "pl-learn", 0.96, seed=2), Federation("few", "pl-learn", 0.99, seed=1)]
    change: dict[str, Any] = {"chunk": 8, "participants": 3}
    expected = trained(few, federations, 3, **change)
    monkeypatch.setitem(module.NOISE_TABLE, "cpu", 0)
    assert not sweep_of(few, federations, **change).noise_fits
    assert_same(trained(few, federations, 3, **change), expected)


def test_evaluating_and_recording_on_the_way_changes_no_bit(few: Dataset, whole: dict[str, Tensor]) -> None:
    fed = next(fed for fed in EVERY if fed.mechanism == "ls-static")
    sweep = sweep_of(few, [fed], rounds=ROUNDS, steps=STEPS, evaluate_every=2, full_every=3)
    rows_of(sweep)
    assert torch.equal(sweep.state.params[0], whole[fed.label()])


def test_seeds_and_budgets_matter(whole: dict[str, Tensor]) -> None:
    values = list(whole.values())
    for i, one in enumerate(values):
        for two in values[i + 1 :]:
            assert not torch.equal(one, two)


def test_recorded_numbers_do_not_depend_on_the_chunk_size_either(few: Dataset) -> None:
    change: dict[str, Any] = {"rounds": 3, "steps": 2, "evaluate_every": 2, "full_every": 2, "expected_draws": 2}
    result = [rows_of(sweep_of(few, EVERY, small(), chunk=chunk, **change)) for chunk in (1, 3, 64)]
    for other in result[1:]:
        assert repr(other) == repr(result[0]), "gaussian-dp has no utility losses: NaN, which equals nothing"


@pytest.mark.parametrize("change", [{"participants": 3}, {"local_steps": 2}, {"sampling": "passes"}, {"clients": 5}])
def test_chunks_with_other_settings(few: Dataset, change: dict[str, Any]) -> None:
    federations = [fed for fed in EVERY if fed.mechanism in ("none", "pl-learn", "ls-learn")]
    assert_same(trained(few, federations, 3, chunk=2, **change), trained(few, federations, 3, **change))
