"""Participants, mini-batches and noise: who is drawn, from what, and that grouping rounds changes nothing."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from equipoise.engine.draws import Draws
from equipoise.errors import DataError
from equipoise.randomness import experiment_key, keyed_words

CPU = torch.device("cpu")


def parts_of(*sizes: int) -> list[Tensor]:
    """Interleaved rather than contiguous rows, so that an index into the wrong part is noticed."""
    order = torch.randperm(sum(sizes), generator=torch.Generator().manual_seed(sum(sizes)))
    return [part.sort().values for part in order.split(list(sizes))]


# --- participants ------------------------------------------------------------------------------------------


def test_everyone_takes_part_by_default() -> None:
    draws = Draws([1, 2], clients=3, participants=None)
    assert draws.participants([4, 5]).tolist() == [[[0, 1, 2]] * 2] * 2
    assert draws.streams == 6


@given(st.integers(2, 9), st.data())
def test_participants_are_ascending_distinct_clients(clients: int, data: st.DataObject) -> None:
    slots = data.draw(st.integers(1, clients - 1))
    who = Draws([1, 5], clients, slots).participants(list(range(1, 21)))
    assert who.shape == (20, 2, slots)
    for row in who.flatten(0, 1).tolist():
        assert row == sorted(set(row))
        assert set(row) <= set(range(clients))


def test_every_group_of_participants_is_equally_likely() -> None:
    who = Draws([1], clients=5, participants=2).participants(list(range(1, 8001)))[:, 0]
    counts = Counter(map(tuple, who.tolist()))
    assert len(counts) == math.comb(5, 2)
    assert stats.chisquare(list(counts.values())).pvalue > 1e-6


def test_seeds_draw_their_own_participants() -> None:
    who = Draws([1, 2], clients=10, participants=3).participants(list(range(1, 31)))
    assert not torch.equal(who[:, 0], who[:, 1])
    assert torch.equal(who[:, 1], Draws([2], 10, 3).participants(list(range(1, 31)))[:, 0])


# --- mini-batches ------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(
    st.sampled_from(["uniform", "passes"]),
    st.lists(st.integers(5, 30), min_size=2, max_size=5),
    st.booleans(),
    st.integers(1, 5),
)
def test_a_batch_holds_distinct_examples_of_its_own_client(
    sampling: str, sizes: list[int], everyone: bool, batch: int
) -> None:
    parts = parts_of(*sizes)
    draws = Draws([1, 2], len(sizes), None if everyone else len(sizes) - 1)
    rounds = list(range(1, 13))
    examples = draws.batches(rounds, batch, parts, sampling)
    who = draws.participants(rounds).flatten(1)
    assert examples.shape == (12, draws.streams, batch)
    for i, j in torch.cartesian_prod(torch.arange(12), torch.arange(draws.streams)).tolist():
        row = examples[i, j].tolist()
        assert len(set(row)) == batch
        assert set(row) <= set(parts[int(who[i, j])].tolist())


def test_uniform_batches_prefer_no_example() -> None:
    parts = parts_of(20, 30)
    examples = Draws([1], 2, None).batches(list(range(1, 2001)), 4, parts, "uniform")
    for client, part in enumerate(parts):
        counts = Counter(examples[:, client].flatten().tolist())
        assert stats.chisquare([counts[i] for i in part.tolist()]).pvalue > 1e-6


def test_a_pass_visits_every_example_exactly_once_in_a_new_order() -> None:
    parts = parts_of(20, 12)
    examples = Draws([3], 2, None).batches(list(range(1, 31)), 4, parts, "passes")
    for client, part in enumerate(parts):
        per_pass = len(part) // 4
        passes = [examples[i : i + per_pass, client].flatten() for i in range(0, 30 - per_pass + 1, per_pass)]
        for one in passes:
            assert torch.equal(one.sort().values, part)
        assert len({tuple(one.tolist()) for one in passes}) == len(passes)


def test_a_remainder_below_one_batch_is_dropped() -> None:
    parts = parts_of(11)
    examples = Draws([3], 1, None).batches([1, 2, 3, 4], 4, parts, "passes")[:, 0]
    for one in (examples[:2], examples[2:]):
        assert len(set(one.flatten().tolist())) == 8


def test_clients_and_seeds_draw_differently() -> None:
    parts = [torch.arange(100), torch.arange(100, 200)]
    for sampling in ("uniform", "passes"):
        examples = Draws([1, 2], 2, None).batches([1], 20, parts, sampling)[0]
        places = [tuple((row % 100).tolist()) for row in examples]
        assert len(set(places)) == 4


@pytest.mark.parametrize("sampling", ["uniform", "passes"])
@pytest.mark.parametrize("participants", [None, 2])
def test_grouping_rounds_or_seeds_changes_nothing(sampling: str, participants: int | None) -> None:
    parts, rounds = parts_of(15, 20, 25), list(range(1, 21))
    draws = Draws([1, 2], 3, participants)
    together = draws.batches(rounds, 3, parts, sampling)
    one_by_one = torch.cat([draws.batches([t], 3, parts, sampling) for t in rounds])
    assert torch.equal(together, one_by_one)
    backwards = draws.batches(rounds[::-1], 3, parts, sampling)
    assert torch.equal(together, backwards.flip(0))
    alone = Draws([2], 3, participants).batches(rounds, 3, parts, sampling)
    assert torch.equal(together[:, draws.slots :], alone)


def test_a_client_draws_the_same_whoever_else_takes_part() -> None:
    parts, rounds = parts_of(15, 20, 25), list(range(1, 21))
    everyone, some = Draws([1], 3, None), Draws([1], 3, 2)
    who = some.participants(rounds)[:, 0]
    all_batches, some_batches = (d.batches(rounds, 3, parts, "uniform") for d in (everyone, some))
    all_noise = everyone.noise(rounds, range(3), 10, "laplace", torch.float32, CPU)
    some_noise = some.noise(rounds, range(2), 10, "laplace", torch.float32, CPU)
    for i in range(20):
        assert torch.equal(some_batches[i], all_batches[i, who[i]])
        assert torch.equal(some_noise[i], all_noise[i, who[i]])


@pytest.mark.parametrize("sampling", ["uniform", "passes"])
def test_too_small_a_client_is_refused(sampling: str) -> None:
    draws = Draws([1], 2, None)
    with pytest.raises(DataError, match=r"has 3 examples, fewer than the 4 of one round") as caught:
        draws.batches([1], 4, parts_of(10, 3), sampling)
    assert "smaller batch" in caught.value.remedy
    assert "partition=identical, or a larger dirichlet" in caught.value.remedy
    assert draws.batches([1], 3, parts_of(10, 3), sampling).shape == (1, 2, 3), "exactly enough is enough"


# --- noise -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [10, 600])
@pytest.mark.parametrize("participants", [None, 2])
@pytest.mark.parametrize("family", ["laplace", "gaussian"])
def test_noise_depends_on_seed_client_and_round_alone(count: int, participants: int | None, family: str) -> None:
    draws = Draws([1, 2], 3, participants)
    rounds, rows = [1, 2, 3, 4, 5], list(range(draws.streams))
    together = draws.noise(rounds, rows, count, family, torch.float32, CPU)
    assert together.shape == (5, draws.streams, count)
    for i, round_number in enumerate(rounds):
        for row in rows:
            alone = draws.noise([round_number], [row], count, family, torch.float32, CPU)
            assert torch.equal(together[i, row], alone[0, 0])
    assert len({float(x) for x in together[..., 0].flatten()}) == 5 * draws.streams


def test_words_are_those_of_the_client_behind_a_stream() -> None:
    """Of a formal mechanism, which draws integers: keyed as all noise is, whatever the order of the rows."""
    draws = Draws([1, 2], clients=5, participants=2)
    clients = draws.participants([6]).flatten(1)[0].tolist()
    for row, source in zip([3, 0], draws.words(6, [3, 0]), strict=True):
        expected = keyed_words(experiment_key([1, 2][row // 2], "noise"), clients[row], 6)
        assert source(4).tolist() == expected(4).tolist()
