"""The client that games are played with: the mechanism's own releases, from which the known records can be taken."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise.attack.known_others import residuals
from equipoise.auditing.limit_client import Ahead, PlayedClient, terms_of
from equipoise.auditing.limit_games import Game, deal
from equipoise.mechanism import linear_units
from equipoise.mechanism.linear_units import LinearRecords
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.run_budget import GaussianSettings
from equipoise.models.batched import Batched
from equipoise.randomness import experiment_key, first_words, keyed_words
from tests.auditing.stand_in_client import CLASSES, SIZE, materials

ETA = 0.4


def client_of(linear: bool, rate: float = 1.0, sigma: float = 2.0) -> tuple[PlayedClient, Game, Tensor]:
    noise = {"rounds": [1, 3], "values": [1.0, 2.0]}
    own = GaussianSettings(
        rounds=4, clip=0.5, sampling_rate=rate, divisor=20.0, sigmas=[[1e6, sigma]], noise_schedule=noise
    )
    settings = ProtectionSettings(eta=ETA, gaussian=own)
    game = deal(materials(), 20, 10, seed=0)
    game = replace(game, images=game.images / game.images.norm(dim=1, keepdim=True))
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIZE, CLASSES))
    batched = Batched(model)
    client = PlayedClient.of(
        batched, game, CLASSES, linear=linear, eta=ETA, seed=5,
        protection=lambda number: settings.at("gaussian-dp", 1e6, number),
    )  # fmt: skip
    weights = torch.randn(batched.layout.size, generator=torch.Generator().manual_seed(2))
    return client, game, weights


def test_terms_are_those_of_the_round() -> None:
    client, _, _ = client_of(linear=False, rate=0.5)
    terms = client.terms(1)
    assert (terms.clip, terms.sampling_rate) == (0.5, 0.5)
    assert terms.sigma == pytest.approx(2.0)
    assert terms.rate == pytest.approx(ETA / (0.5 * 20.0))
    assert client.terms(3).sigma == pytest.approx(4.0)
    assert terms == terms_of(client.protection(1), ETA)


@pytest.mark.parametrize("linear", [False, True])
def test_what_a_record_adds_is_its_clipped_gradient(linear: bool) -> None:
    client, game, weights = client_of(linear)
    units = client.units(weights, torch.arange(20))
    model = nn.Linear(SIZE, CLASSES)
    torch.nn.utils.vector_to_parameters(weights, model.parameters())
    for row, unit in enumerate(units):
        loss = torch.nn.functional.cross_entropy(model(game.images[row : row + 1]), game.labels[row : row + 1])
        gradient = torch.cat([part.flatten() for part in torch.autograd.grad(loss, list(model.parameters()))]).double()
        expected = gradient * min(1.0, 0.5 / float(gradient.norm()))
        assert float((unit - expected).norm()) < 0.002
        assert float(unit.norm()) <= 0.5


@pytest.mark.parametrize("linear", [False, True])
def test_of_a_release_only_noise_is_left_without_the_known_records(linear: bool) -> None:
    client, game, weights = client_of(linear)
    terms, known = client.terms(1), client.units(weights, game.others)
    released, took_part = client.releases(weights, [game.others] * 60, range(60), 1)
    left = residuals(weights, released, known.sum(0), terms)
    assert all(torch.equal(row, game.others) for row in took_part)
    assert float(left.std()) == pytest.approx(terms.sigma, rel=0.03)
    assert abs(float(left.mean())) < 0.1
    assert len(left.unique(dim=0)) == 60, "every stream has noise of its own"
    other, _ = client.releases(weights, [game.others] * 60, range(60), 2)
    assert not torch.equal(other, released)


@pytest.mark.parametrize("linear", [False, True])
def test_a_target_moves_a_release_by_its_unit(linear: bool) -> None:
    """The same noise with it and without it: nothing else differs."""
    client, game, weights = client_of(linear)
    terms = client.terms(1)
    inside, _ = client.releases(weights, [torch.cat([game.others, game.truth[3:4]])], [7], 1)
    outside, _ = client.releases(weights, [game.others], [7], 1)
    moved = (outside - inside).double() / terms.rate
    assert float((moved - client.units(weights, game.truth[3:4])).abs().max()) < 1e-4  # float32 weights
    again, _ = client.releases(weights, [game.others], [7], 1)
    assert torch.equal(again, outside)


@pytest.mark.slow
def test_it_is_known_who_took_part() -> None:
    client, game, weights = client_of(linear=False, rate=0.5, sigma=0.05)
    released, took_part = client.releases(weights, [game.others] * 200, range(200), 1)
    counts = torch.tensor([len(row) for row in took_part])
    assert 0.4 < float(counts.double().mean()) / len(game.others) < 0.6
    sums = torch.stack([client.units(weights, row).sum(0) for row in took_part])
    left = residuals(weights, released, sums, client.terms(1))
    assert float(left.std()) == pytest.approx(0.05, rel=0.03)
    wrong = residuals(weights, released, client.units(weights, game.others).sum(0), client.terms(1))
    assert float(wrong.std()) > 0.1


# --- shortcuts, which change nothing --------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [0.5, 0.01])
def test_sums_of_many_clients_at_one_set_of_weights_are_those_of_each_by_itself(clip: float) -> None:
    client, game, weights = client_of(linear=True)
    pool = client.pool
    assert isinstance(pool, LinearRecords)
    rows = [torch.cat([game.others, torch.tensor([target])]) for target in range(20)] + [game.others] * 2
    together, share = pool.total(rows, weights.expand(len(rows), -1), clip)
    assert linear_units._overlapping(rows)
    alone = [pool.total([row], weights.view(1, -1), clip) for row in rows]
    assert torch.equal(together, torch.cat([total for total, _ in alone]))
    assert torch.allclose(share, torch.cat([part for _, part in alone]))
    assert len(share.unique()) > 1 or clip < 0.1


def test_what_records_add_alone_is_the_sum_of_one() -> None:
    client, _, weights = client_of(linear=True)
    pool = client.pool
    assert isinstance(pool, LinearRecords)
    rows = torch.arange(20)
    one_by_one = [pool.total([row], weights.view(1, -1), 0.5)[0] for row in rows.view(-1, 1)]
    assert torch.equal(pool.each(rows, weights.view(1, -1), 0.5), torch.cat(one_by_one))


def test_clients_with_records_of_their_own_are_looked_at_one_by_one() -> None:
    rows = torch.arange(12).view(4, 3)
    assert not linear_units._overlapping(list(rows))
    assert not linear_units._overlapping([rows[0], rows[0]])
    assert linear_units._overlapping([rows[0], rows[0], rows[0]])
    assert not linear_units._overlapping([rows[0, :0]] * 3)


def test_words_at_hand_are_the_same_words() -> None:
    key = experiment_key(3, "audit/noise")
    table = first_words(key, [4, 9], 2, 10).numpy().view(np.uint64)
    for row, stream in zip(table, (4, 9), strict=True):
        ahead = Ahead(row, partial(keyed_words, key, stream, 2))
        expected = keyed_words(key, stream, 2)(20).tolist()
        assert [*ahead(3).tolist(), *ahead(7).tolist(), *ahead(2).tolist(), *ahead(8).tolist()] == expected
        early = Ahead(row, partial(keyed_words, key, stream, 2))  # asked for more than are at hand
        assert [*early(4).tolist(), *early(9).tolist(), *early(1).tolist()] == expected[:14]
