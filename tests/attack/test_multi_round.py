"""Releases of many rounds: what one hides, all of them together show, but only of examples that took part."""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.attack.multi_round import WINDOW, Combined, Observation, multi_round
from equipoise.attack.simulate import respond
from equipoise.attack.view import Server
from equipoise.errors import AttackError, DataError, ReleaseError
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import get_mechanism
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP
from equipoise.statistics import ranks

SHAPE, CLASSES, CANDIDATES, EXAMPLES = (1, 6, 6), 2, 20, 12


def images_of(labels: Tensor, seed: int) -> Tensor:
    """Images with something of their class and much of their own."""
    patterns = torch.rand(CLASSES, *SHAPE, generator=torch.Generator().manual_seed(77))
    own = torch.rand(*labels.shape, *SHAPE, generator=torch.Generator().manual_seed(seed))
    return 0.3 * patterns[labels] + 0.7 * own


LABELS = torch.arange(400) % CLASSES
PUBLIC = (images_of(LABELS, 9), LABELS)
KINDS = torch.arange(EXAMPLES) % CLASSES
"""Labels of the client's examples."""
CANDIDATE_LABELS = KINDS.repeat_interleave(CANDIDATES)
POOL = images_of(CANDIDATE_LABELS, 8)
"""Every example, followed by 19 decoys of its own."""
CHOICES = torch.arange(EXAMPLES * CANDIDATES).view(EXAMPLES, CANDIDATES)
TRUTH = POOL[CHOICES[:, 0]]


def server_of(name: str, scale: float, batch: int = 4) -> tuple[Server, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = MLP(SHAPE, CLASSES, hidden=8)
    protection = Protection(get_mechanism(name), scale, steps=3)
    server = Server(Batched(model), SHAPE, CLASSES, batch, protection=protection)
    return server, server.batched.layout.flatten(model.state_dict())


def rounds_of(
    server: Server, weights: Tensor, count: int, images: Tensor = TRUTH, labels: Tensor = KINDS
) -> Iterator[Observation]:
    """A client that draws its batch from ``images`` in every round, at weights that move a little."""
    for round_number in range(1, count + 1):
        local = torch.Generator().manual_seed(round_number)
        rows = torch.randperm(len(images), generator=local)[: server.examples]
        start = weights * (1 + 1e-3 * round_number)
        kind = server.protection.mechanism
        drawn = standard_noise(torch.rand(1, len(weights), generator=local), kind.noise) if kind.distorts else None
        released = respond(server, start, images[rows].unsqueeze(0), labels[rows].unsqueeze(0), drawn)[0]
        present = torch.zeros(len(images), dtype=torch.bool)
        present[rows] = True
        yield Observation(round_number, start, released, present)


def combine(server: Server, observations: Any, **options: Any) -> Combined:
    given = {"public": PUBLIC, "candidates": POOL, "labels": CANDIDATE_LABELS, "choices": CHOICES, "around": 32}
    return multi_round(server, observations, **{**given, "chance": server.examples / EXAMPLES, **options})


def found_by(table: Tensor) -> float:
    return float(ranks(table).first.mean())


def chance(count: int = EXAMPLES, deviations: float = 4.0) -> float:
    """What guessing does not exceed."""
    p = 1 / CANDIDATES
    return p + deviations * math.sqrt(p * (1 - p) / count)


# --- known answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "scale"),
    [("gs-static", 0.03), ("ls-static", 0.02), pytest.param("pl-learn", 1.0, marks=pytest.mark.slow)],
)
def test_many_releases_show_what_one_hides(name: str, scale: float) -> None:
    server, weights = server_of(name, scale)
    result = combine(server, rounds_of(server, weights, 150))
    assert result.seen == 150
    assert int(result.rounds.sum()) == 150 * server.examples
    assert found_by(result.single) < 0.45
    assert found_by(result.known) > 0.8
    assert found_by(result.unknown) > chance()
    assert float(ranks(result.known).log.mean()) < float(ranks(result.single).log.mean()) - 0.5


def test_one_release_without_noise_is_enough() -> None:
    server, weights = server_of("none", 0.0, batch=1)
    result = combine(server, rounds_of(server, weights, 20))
    took = result.rounds > 0
    assert found_by(result.single[took]) > 0.9
    assert found_by(result.known[took]) > 0.9


@pytest.mark.parametrize("name", ["gs-static", "pl-learn"])
def test_large_noise_leaves_chance_after_all_rounds(name: str) -> None:
    server, weights = server_of(name, 1000.0)
    result = combine(server, rounds_of(server, weights, 50))
    assert found_by(result.known) < chance()
    assert found_by(result.unknown) < chance()


@pytest.mark.parametrize(("name", "scale"), [("none", 0.0), ("gs-static", 0.01)])
def test_examples_that_never_take_part_are_not_found(name: str, scale: float) -> None:
    server, weights = server_of(name, scale)
    others = images_of(KINDS, 55)
    observations = (replace(one, present=None) for one in rounds_of(server, weights, 60, others))
    result = combine(server, observations)
    assert found_by(result.unknown) < chance()
    assert result.rounds.tolist() == [0] * EXAMPLES
    assert torch.equal(result.known, torch.zeros_like(result.known))
    assert torch.equal(result.single, torch.zeros_like(result.single))
    assert found_by(result.known) == pytest.approx(1 / CANDIDATES), "a constant score names each one as often"


def test_an_example_in_every_release_is_found_without_the_schedule() -> None:
    """One example per release, always the same: the unknown schedule costs little."""
    server, weights = server_of("gs-static", 0.1, batch=1)
    observations = [list(rounds_of(server, weights, 60, TRUTH[i : i + 1], KINDS[i : i + 1])) for i in range(4)]
    for example, mine in enumerate(observations):
        only = {"choices": CHOICES[example : example + 1], "chance": 0.9}
        result = combine(server, mine, **only)
        assert result.rounds.tolist() == [60]
        assert found_by(result.known) == 1.0
        assert found_by(result.unknown) == 1.0


# --- sums ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["none", "gs-static", "pl-learn"])
def test_ratios_add_up_over_rounds(name: str) -> None:
    server, weights = server_of(name, 0.05)
    observations = list(rounds_of(server, weights, 6))
    whole = combine(server, observations)
    each = [combine(server, [one]) for one in observations]
    torch.testing.assert_close(sum(one.known for one in each), whole.known, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(sum(one.unknown for one in each), whole.unknown, rtol=1e-5, atol=1e-5)
    assert torch.equal(sum(one.rounds for one in each), whole.rounds)
    for example in range(EXAMPLES):
        mine = [one for one in each if int(one.rounds[example])]
        first = mine[0].known[example] if mine else torch.zeros(CANDIDATES, dtype=torch.float64)
        torch.testing.assert_close(whole.single[example], first, rtol=1e-5, atol=1e-5)


def test_the_unknown_schedule_weighs_a_round_by_its_chance() -> None:
    """log(1 - q + q exp(ratio)) of the ratio that a known schedule would count in full."""
    server, weights = server_of("gs-static", 0.05)
    one = next(rounds_of(server, weights, 1))
    everyone = replace(one, present=torch.ones(EXAMPLES, dtype=torch.bool))
    for q in (0.01, 0.5, 0.99):
        result = combine(server, [everyone], chance=q)
        torch.testing.assert_close(result.unknown, (1 - q + q * result.known.exp()).log(), rtol=1e-9, atol=1e-9)


def test_a_ratio_is_against_the_mean_candidate_of_its_label() -> None:
    server, weights = server_of("gs-static", 0.05)
    one = replace(next(rounds_of(server, weights, 1)), present=torch.ones(EXAMPLES, dtype=torch.bool))
    result = combine(server, [one]).known
    for label in range(CLASSES):
        assert float(result[label == KINDS].exp().mean()) == pytest.approx(1)


def test_no_rounds_say_nothing() -> None:
    server, _ = server_of("gs-static", 0.05)
    result = combine(server, [])
    assert result.seen == 0
    assert torch.equal(result.unknown, torch.zeros_like(result.unknown))


def test_the_same_seed_gives_the_same_bits() -> None:
    server, weights = server_of("pl-learn", 0.5)
    observations = list(rounds_of(server, weights, 3))
    result = combine(server, observations, seed=1)
    assert torch.equal(combine(server, iter(observations), seed=1).unknown, result.unknown)
    assert not torch.equal(combine(server, observations, seed=2).unknown, result.unknown)


def test_releases_are_let_go_of_as_they_pass() -> None:
    server, weights = server_of("gs-static", 0.1, batch=1)
    alive: list[weakref.ref[Observation]] = []
    most = 0

    def passing() -> Iterator[Observation]:
        nonlocal most
        for one in rounds_of(server, weights, 3 * WINDOW):
            alive.append(weakref.ref(one))
            most = max(most, sum(ref() is not None for ref in alive))
            yield one

    assert combine(server, passing(), choices=CHOICES[:, :2], around=4).seen == 3 * WINDOW
    assert most <= 2 * WINDOW + 1


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_an_impossible_chance_is_refused(wrong: float) -> None:
    server, weights = server_of("none", 0.0)
    with pytest.raises(AttackError, match="chance of taking part"):
        combine(server, rounds_of(server, weights, 1), chance=wrong)


def test_a_release_that_is_not_finite_is_refused() -> None:
    server, weights = server_of("none", 0.0)
    one = next(rounds_of(server, weights, 1))
    with pytest.raises(ReleaseError, match="not finite"):
        combine(server, [replace(one, released=one.released * math.nan)])
    with pytest.raises(ReleaseError, match="Expected the released weights"):
        combine(server, [replace(one, released=one.released[:-1])])


def test_public_data_of_another_shape_are_refused() -> None:
    server, weights = server_of("none", 0.0)
    with pytest.raises(DataError, match="shape"):
        combine(server, rounds_of(server, weights, 1), public=(PUBLIC[0][..., :5], LABELS))
