"""How a sweep is laid out: every client in exactly one block, and tables that hold what the settings say."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.engine.draws import Draws
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.tables import Block, Tables, blocks, build_tables, default_chunk
from equipoise.mechanism.registry import get_mechanism

CPU = torch.device("cpu")
ORDER = ["none", "pl-learn", "ls-static"]


def sorted_federations(counts: list[int]) -> list[Federation]:
    """So many federations of each mechanism, alternating between two datasets and two seeds."""
    return [
        Federation("ab"[i % 2], name, None if name == "none" else 0.9 + i / 1000, seed=1 + i // 2 % 2)
        for name, count in zip(ORDER, counts, strict=True)
        for i in range(count)
    ]


# --- blocks ------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 7), min_size=3, max_size=3), st.integers(1, 6), st.integers(1, 30))
def test_every_client_of_every_federation_is_in_exactly_one_block(counts: list[int], clients: int, chunk: int) -> None:
    federations = sorted_federations(counts)
    draws = Draws([1, 2], clients, None)
    seen = []
    for block in blocks(federations, ["a", "b"], draws, chunk, CPU):
        places = [
            (f, k)
            for f in range(block.federations.start, block.federations.stop)
            for k in range(block.slots.start, block.slots.stop)
        ]
        assert len(places) == len(block.rows) == len(block.data) == block.shape[0] * block.shape[1]
        assert len(places) <= chunk
        for (f, k), row, data in zip(places, block.rows.tolist(), block.data.tolist(), strict=True):
            fed = federations[f]
            assert block.mechanism is get_mechanism(fed.mechanism), "one mechanism to a block"
            assert row == (fed.seed - 1) * clients + k
            assert data == row + 2 * clients * "ab".index(fed.dataset)
        seen += places
    assert sorted(seen) == [(f, k) for f in range(len(federations)) for k in range(clients)]


@pytest.mark.parametrize(
    ("federations", "clients", "chunk", "sizes"),
    [
        (6, 4, 100, [24]),
        (6, 4, 16, [12, 12]),  # not 16 and 8: no small remainder is left over
        (5, 4, 8, [8, 8, 4]),
        (2, 10, 4, [4, 4, 2, 4, 4, 2]),  # part of a federation at a time
        (3, 4, 4, [4, 4, 4]),
    ],
)
def test_blocks_are_of_about_one_size(federations: int, clients: int, chunk: int, sizes: list[int]) -> None:
    draws = Draws([1], clients, None)
    rows = [Federation("a", "none")] * federations
    assert [len(block.rows) for block in blocks(rows, ["a"], draws, chunk, CPU)] == sizes


def test_an_odd_number_of_rows_is_made_even_by_the_last_one() -> None:
    def block(count: int) -> Block:
        return Block(slice(0, 1), slice(0, count), get_mechanism("none"), torch.arange(count), torch.arange(count))

    rows = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    assert block(3).even(rows).tolist() == [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [5.0, 6.0]]
    assert torch.equal(block(2).even(rows[:2]), rows[:2])


def test_the_number_of_clients_at_once_is_even_and_fits_the_memory() -> None:
    assert default_chunk(13_426, 4 * 784, torch.float32, CPU) == 96
    assert default_chunk(13_426, 4 * 784, torch.float32, torch.device("cuda")) == 4096
    assert default_chunk(10**6, 0, torch.float32, CPU) == (512 << 20) // (4 * 10**7) // 2 * 2 == 12
    assert default_chunk(10**6, 0, torch.float64, CPU) == 6
    assert default_chunk(10**12, 0, torch.float32, CPU) == 2, "at least one pair"


# --- tables ------------------------------------------------------------------------------------------------


def parts() -> dict[str, list[Tensor]]:
    """Client k of dataset a has 10 + k examples from 0 on; dataset b follows."""
    sizes = [10, 11, 12, 13]
    everyone = torch.arange(2 * sum(sizes)).split(sizes * 2)
    return {"a": list(everyone[:4]), "b": list(everyone[4:])}


def tables_of(settings: Settings, federations: list[Federation], rounds: list[int]) -> tuple[Tables, Draws]:
    draws = Draws(
        list(dict.fromkeys(fed.seed for fed in federations)),
        settings.protection.clients,
        settings.training.participants,
    )
    shares = {"a": torch.tensor([0.1, 0.2, 0.3, 0.4]), "b": torch.tensor([0.25] * 4)}
    made = build_tables(
        rounds,
        settings,
        federations,
        draws,
        parts=parts(),
        shares=shares,
        parameters=100,
        dtype=torch.float64,
        device=CPU,
    )
    return made, draws


def test_the_tables_hold_what_the_settings_say_for_round_federation_and_client() -> None:
    plan = {"rounds": [1, 3], "values": [80, [80, 100, 200, 400]]}
    settings = Settings.flat(
        gamma=[0.1, 0.2, 0.3, 0.4], negative_norm={"rounds": [1, 3], "values": [0.5, 0.0]}, batch=3
    )
    federations = [Federation("a", "none"), Federation("b", "ls-static", plan)]
    made, _ = tables_of(settings, federations, [2, 3])
    assert made.scale.tolist() == [[[0.0] * 4, [0.125] * 4], [[0.0] * 4, [0.125, 0.1, 0.05, 0.025]]]
    assert made.gamma.tolist() == [[[0.1, 0.2, 0.3, 0.4]] * 2] * 2
    assert made.negative_norm.tolist() == [[[0.5] * 4] * 2, [[0.0] * 4] * 2]
    torch.testing.assert_close(made.weights[1, :, 3], torch.tensor([0.4, 0.25], dtype=torch.float64))
    assert made.server_rate.tolist() == [[1.0, 1.0], [1.0, 1.0]]
    assert made.batches.shape == (2, 8, 3), "both datasets, one after the other"
    for name in ("utility_loss", "intensity", "clipped", "accepted"):
        assert getattr(made, name).shape == (2, 2, 4)
        assert not getattr(made, name).any(), "to be written round by round"
    assert made.accepted.dtype == torch.bool


def test_slots_hold_the_values_of_the_clients_that_take_part() -> None:
    settings = Settings.flat(gamma=[0.1, 0.2, 0.3, 0.4], participants=2, batch=3, local_steps=2)
    federations = [Federation("a", "pl-learn", [0.96, 0.97, 0.98, 0.99], seed) for seed in (5, 9)]
    rounds = list(range(1, 9))
    made, draws = tables_of(settings, federations, rounds)
    who = draws.participants(rounds)  # [rounds, seeds, slots]
    lowers = torch.tensor(settings.protection.scales("pl-learn", federations[0].budget, [1])[0], dtype=torch.float64)
    assert torch.equal(made.scale, lowers[who])
    assert torch.equal(made.gamma, torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)[who])
    torch.testing.assert_close(made.weights, torch.tensor([0.1, 0.2, 0.3, 0.4]).double()[who])
    assert made.batches.shape == (8, 2 * 2 * 2, 6), "two datasets, two seeds, two slots; two steps of three"
    owned = [set(part.tolist()) for part in parts()["a"]]
    for i in range(8):
        for stream, client in enumerate(who[i].flatten().tolist()):
            assert set(made.batches[i, stream].tolist()) <= owned[client]


def test_the_tables_of_a_round_do_not_depend_on_the_rounds_beside_it() -> None:
    settings = Settings.flat(
        participants=3, batch=3, server_rate="auto", gamma={"rounds": [1, 4], "values": [0.1, 0.2]}
    )
    federations = [Federation("a", "pl-learn", {"rounds": [1, 5], "values": [0.96, 0.98]})]
    whole, _ = tables_of(settings, federations, [3, 4, 5])
    for i, round_number in enumerate([3, 4, 5]):
        alone, _ = tables_of(settings, federations, [round_number])
        for part in fields(Tables):
            assert torch.equal(getattr(alone, part.name)[0], getattr(whole, part.name)[i]), (round_number, part.name)
    assert whole.server_rate[:, 0].tolist() == pytest.approx([1 / 15.99975, 1 / 15.99975, 1 / 7.99975])


def test_tables_take_over_shorter_ones_and_give_copies() -> None:
    settings, federations = Settings.flat(batch=3), [Federation("a", "pl-learn", 0.98)]
    long, _ = tables_of(settings, federations, [1, 2, 3])
    short, _ = tables_of(settings.replace(gamma=0.7), federations, [8, 9])
    kept = long.head(3)
    long.copy_(short)
    for part in fields(Tables):
        now, new, old = (getattr(tables, part.name) for tables in (long, short, kept))
        assert torch.equal(now[:2], new), part.name
        assert torch.equal(now[2:], old[2:]), part.name
    head: Any = long.head(2)
    head.gamma.zero_()
    assert torch.equal(long.gamma[:2], short.gamma), "a head is a copy"


# --- what a block takes of tables ----------------------------------------------------------------------------


def test_a_block_has_its_rows_of_noise_and_its_models() -> None:
    """Of one federation they are views: nothing is copied."""
    table, params = torch.arange(12.0).view(6, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    pair = [Federation("a", "ls-static", 80, seed) for seed in (2, 1)]
    same = [Federation("a", "ls-static", budget) for budget in (80, 200)]
    for federations, seeds, chunk in ((pair[:1], [1, 2], 9), (pair, [1, 2], 9), (same, [1], 9), (pair, [1, 2], 2)):
        for block in blocks(federations, ["a"], Draws(seeds, 3, None), chunk, CPU, paired=False):
            assert torch.equal(block.noise(table), table[block.rows])
            expected = params[block.federations].repeat_interleave(block.shape[1], 0)
            assert torch.equal(block.start(params), expected)
            alone = block.shape[0] == 1
            assert (block.start(params).untyped_storage().data_ptr() == params.untyped_storage().data_ptr()) == alone
            assert (block.noise(table).untyped_storage().data_ptr() == table.untyped_storage().data_ptr()) == alone
    (odd,) = blocks(pair[:1], ["a"], Draws([1, 2], 3, None), 9, CPU, paired=True)
    assert odd.start(params).shape == (4, 2), "an even number, where replicas share kernels"
