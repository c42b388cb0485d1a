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

from equipoise.attack.limiter import Limiter
from equipoise.attack.multi_round import (
    WINDOW,
    Candidates,
    Combined,
    Observation,
    Scores,
    _Bench,
    against_others,
    combine,
    multi_round,
    undistorted,
)
from equipoise.attack.simulate import respond
from equipoise.attack.view import Server
from equipoise.errors import AttackError, DataError, ReleaseError
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import get_mechanism
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP
from equipoise.statistics import ranks
from tests.attack.candidates import SHAPE, images_of

CLASSES, CANDIDATES, EXAMPLES = 2, 20, 12
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
        plain = respond(undistorted(server), start, images[rows].unsqueeze(0), labels[rows].unsqueeze(0), None)[0]
        present = torch.zeros(len(images), dtype=torch.bool)
        present[rows] = True
        yield Observation(round_number, start, released, present, plain)


def scores_of(server: Server, observations: Any, **options: Any) -> Scores:
    given = {"public": PUBLIC, "candidates": Candidates(POOL, CANDIDATE_LABELS, CHOICES), "around": 32}
    return multi_round(server, observations, **{**given, **options})


def combined(server: Server, observations: Any, chance: float | None = None, **options: Any) -> Combined:
    result = scores_of(server, observations, **options)
    return combine(result.own, result.learned, result.present, CHOICES, chance or server.examples / EXAMPLES)


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
    result = combined(server, rounds_of(server, weights, 150))
    assert found_by(result.single) < 0.45
    assert found_by(result.known) > 0.8
    assert found_by(result.unknown) > chance()
    assert float(ranks(result.known).log.mean()) < float(ranks(result.single).log.mean()) - 0.5


@pytest.mark.slow
@pytest.mark.parametrize(("name", "scale"), [("gs-static", 1000.0), ("pl-learn", 1000.0)])
def test_what_large_noise_hides_is_there_without_it(name: str, scale: float) -> None:
    """The positive control: nearly all are found in the same releases undistorted, and chance is left in these."""
    server, weights = server_of(name, scale)
    result = scores_of(server, rounds_of(server, weights, 50))
    own = combine(result.own, result.learned, result.present, CHOICES, 1 / 3)
    plain = combine(result.undistorted, None, result.present, CHOICES, 1 / 3)
    assert found_by(own.known) < chance()
    assert found_by(own.unknown) < chance()
    assert found_by(plain.known) > 0.9
    assert found_by(plain.unknown) > 0.7
    assert found_by(plain.elsewhere) < chance(), "rounds that do not hold an example say nothing of it"


def test_one_release_without_noise_is_enough() -> None:
    server, weights = server_of("none", 0.0, batch=1)
    observations = list(rounds_of(server, weights, 20))
    took = torch.stack([one.present for one in observations]).any(0)
    result = combined(server, observations)
    assert found_by(result.single[took]) > 0.9
    assert found_by(result.known[took]) > 0.9


def test_without_distortion_the_release_is_its_own_control() -> None:
    server, weights = server_of("none", 0.0)
    result = scores_of(server, rounds_of(server, weights, 3))
    assert torch.equal(result.own, result.undistorted)


@pytest.mark.parametrize(("name", "scale"), [("none", 0.0), ("gs-static", 0.01)])
def test_examples_that_never_take_part_are_not_found(name: str, scale: float) -> None:
    server, weights = server_of(name, scale)
    observations = [
        replace(one, present=torch.zeros(EXAMPLES, dtype=torch.bool))
        for one in rounds_of(server, weights, 60, images_of(KINDS, 55))
    ]
    result = combined(server, observations)
    assert found_by(result.unknown) < chance()
    for table in (result.known, result.single, result.elsewhere):
        assert torch.equal(table, torch.zeros_like(table))
    assert found_by(result.known) == pytest.approx(1 / CANDIDATES), "a constant score names each one as often"


def test_undistorted_clients_still_clip() -> None:
    """What the control leaves out is the distortion alone."""
    server, weights = server_of("gs-static", 0.05)
    clipped = replace(server, protection=replace(server.protection, clip=1e-3))
    loose, tight = (next(rounds_of(one, weights, 1)).undistorted for one in (server, clipped))
    assert loose is not None
    assert tight is not None
    start = weights * (1 + 1e-3)
    assert float((tight - start).norm()) == pytest.approx(server.eta * 1e-3, rel=1e-2)
    assert float((loose - start).norm()) > 2 * server.eta * 1e-3


@pytest.mark.parametrize("bare", [True, False])
def test_what_shared_companions_add_is_taken_off(bare: bool) -> None:
    """All candidates have the same companions, which are not those of the release: they must not blur the scores."""
    server, weights = server_of("gs-static", 0.05)
    one = next(rounds_of(server, weights, 1))
    bench = _Bench(server, PUBLIC, Candidates(POOL, CANDIDATE_LABELS, CHOICES), 32, 1, 0)
    result = bench.undistorted(one, torch.arange(33 * 4).view(33, 4))
    moved = result.clone()
    local = torch.Generator().manual_seed(6)
    moved[32:] += result.std() * torch.rand(len(weights), generator=local)
    limiter = (
        None if bare else Limiter(torch.randn(8, len(weights), generator=torch.Generator().manual_seed(7)), weights)
    )
    scores = [bench.likelihoods(one.released - one.previous, table, limiter) for table in (result, moved)]
    torch.testing.assert_close(scores[0], scores[1], rtol=1e-2, atol=1e-2 * float(scores[0].std()))


def test_coordinates_that_companions_leave_alone_do_not_outvote_the_others() -> None:
    """Undistorted: an image that moves such a coordinate a little must not beat the one that explains all others."""
    server, weights = server_of("gs-static", 0.05)
    bench = _Bench(server, PUBLIC, Candidates(POOL, CANDIDATE_LABELS, CHOICES), 32, 1, 0)
    companions = torch.randn(32, len(weights), generator=torch.Generator().manual_seed(6))
    companions[:, -1] = 0.0
    truth = 3 * torch.randn(len(weights), generator=torch.Generator().manual_seed(7))
    truth[-1] = 0.0
    other = torch.zeros_like(truth)
    other[-1] = 1e-3
    result = torch.cat([companions, companions, companions.mean(0) + torch.stack([truth, other])])
    scores = bench.likelihoods(companions.mean(0) + truth + other, result, None)
    assert scores[0] > scores[1]
    assert scores.abs().max() < 1e6, "nor may it weigh so much that no other round counts"


# --- coordinates that are withheld -------------------------------------------------------------------------------


def test_what_a_release_withholds_does_not_change_a_score() -> None:
    """Nothing is read from these coordinates of a candidate's response, however much it would move them."""
    server, weights = server_of("pruning", 10.0)
    one = next(rounds_of(server, weights, 1))
    update = one.released - one.previous
    shown = update != 0
    assert 0.05 < float(shown.double().mean()) < 0.2
    bench = _Bench(server, PUBLIC, Candidates(POOL, CANDIDATE_LABELS, CHOICES), 32, 1, 0)
    result = bench.undistorted(one, torch.arange(33 * 4).view(33, 4))
    candidates = torch.arange(len(result)).unsqueeze(1) >= 64
    noise = result.std() * torch.randn(result.shape, generator=torch.Generator().manual_seed(6))
    hidden, open_ = (torch.where(candidates & where, result + noise, result) for where in (~shown, shown))
    before, same, other = (bench.likelihoods(update, table, None, shown) for table in (result, hidden, open_))
    assert float(before.std()) > 0
    assert torch.equal(same, before)
    assert not torch.allclose(other, before, rtol=0.1)
    assert not torch.allclose(
        bench.likelihoods(update, hidden, None), bench.likelihoods(update, result, None), rtol=0.1
    )
    moved = torch.where(shown, update, update + 1)
    assert torch.equal(bench.likelihoods(moved, result, None, shown), before), "nor of the update"


def test_pruned_releases_are_scored_by_what_they_show() -> None:
    """The known schedule has these scores; they are the ones of the mechanism itself, without simulating it."""
    server, weights = server_of("pruning", 10.0)
    observations = list(rounds_of(server, weights, 40))
    result = scores_of(server, observations, every=False)
    assert result.learned is not None
    assert torch.equal(result.own, torch.zeros_like(result.own)), "nobody looks at scores that take 0 for a value"
    combined_scores = combine(result.own, result.learned, result.present, CHOICES, 1 / 3)
    assert found_by(combined_scores.known) > 0.5
    whole = scores_of(server, observations)
    assert whole.learned is not None
    asked = torch.isin(CANDIDATE_LABELS, KINDS[observations[0].present])
    torch.testing.assert_close(whole.learned[0, asked], result.learned[0, asked])


@pytest.mark.parametrize(
    ("name", "scale", "way"),
    [
        ("none", 0.0, None), ("gs-static", 0.05, None), ("pl-learn", 0.5, "simulated"), ("outpost", 8.0, "simulated"),
        ("pruning", 10.0, "shown"),
    ],
)  # fmt: skip
def test_a_mechanism_is_simulated_where_noise_is_not_all_and_read_where_it_only_withholds(
    name: str, scale: float, way: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, weights = server_of(name, scale)
    observations = list(rounds_of(server, weights, 2))
    ways: list[str] = []
    likelihoods, simulated = _Bench.likelihoods, _Bench.of_the_mechanism

    def watched(bench: _Bench, update: Tensor, result: Tensor, limiter: Any, shown: Tensor | None = None) -> Tensor:
        if shown is not None:
            one = observations[len(ways)]
            assert torch.equal(update, one.released - one.previous)
            assert torch.equal(shown, update != 0)
            ways.append("shown")
        return likelihoods(bench, update, result, limiter, shown)

    def asked(bench: _Bench, *given: Any) -> Tensor:
        ways.append("simulated")
        return simulated(bench, *given)

    monkeypatch.setattr(_Bench, "likelihoods", watched)
    monkeypatch.setattr(_Bench, "of_the_mechanism", asked)
    result = scores_of(server, observations)
    assert ways == [way] * 2 if way else not ways
    assert (result.learned is None) == (way is None)


# --- sums ----------------------------------------------------------------------------------------------------

SCORES = 5 * torch.randn(7, EXAMPLES * CANDIDATES, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
PRESENT = torch.rand(7, EXAMPLES, generator=torch.Generator().manual_seed(3)) < 0.3
PRESENT[:, 0], PRESENT[:, 1] = False, torch.arange(7) == 4


def differences(table: Tensor) -> Tensor:
    """Scores are up to a constant for each example."""
    return table - table[:, :1]


def test_scores_of_the_rounds_that_hold_an_example_are_summed_and_no_others() -> None:
    result = combine(SCORES, None, PRESENT, CHOICES, 0.1)
    for example in range(EXAMPLES):
        rounds = PRESENT[:, example].nonzero().flatten().tolist()
        mine = SCORES[:, CHOICES[example]]
        known, single = mine[rounds].sum(0), mine[rounds[:1]].sum(0)
        torch.testing.assert_close(differences(result.known)[example], known - known[0])
        torch.testing.assert_close(differences(result.single)[example], single - single[0])
    torch.testing.assert_close(result.known[1], result.single[1])
    assert not torch.allclose(result.known, result.single)


def test_as_many_other_rounds_are_those_that_do_not_hold_an_example() -> None:
    """Every candidate scores in one round alone, so that the sums tell which rounds were counted."""
    choices = torch.arange(7).expand(EXAMPLES, 7)
    result = combine(7 * torch.eye(7, dtype=torch.float64), None, PRESENT, choices, 0.1).elsewhere
    for example in range(EXAMPLES):
        held = PRESENT[:, example]
        counted = result[example] > result[example].mean()
        assert not bool((counted & held).any())
        assert int(counted.sum()) == min(int(held.sum()), int((~held).sum()))


def test_a_learner_is_simulated_for_the_labels_of_a_round_and_counts_there_alone() -> None:
    server, weights = server_of("pl-learn", 0.5)
    only = [
        replace(one, present=torch.arange(EXAMPLES) == 2 * i) for i, one in enumerate(rounds_of(server, weights, 2))
    ]
    result = scores_of(server, only)
    assert result.learned is not None
    same = torch.isin(CANDIDATE_LABELS, KINDS[:1])
    assert bool((result.learned[:, same] != 0).all())
    assert bool((result.learned[:, ~same] == 0).all())
    table = combine(result.own, result.learned, result.present, CHOICES, 0.1)
    assert torch.equal(table.known[2], result.learned[1, CHOICES[2]])
    assert not torch.allclose(
        differences(table.known), differences(combine(result.own, None, result.present, CHOICES, 0.1).known)
    )


def test_a_ratio_is_against_the_mean_of_all_other_candidates() -> None:
    expected = SCORES.clone()
    for candidate in range(SCORES.shape[1]):
        rest = torch.cat([SCORES[:, :candidate], SCORES[:, candidate + 1 :]], 1)
        expected[:, candidate] -= rest.exp().mean(1).log()
    torch.testing.assert_close(against_others(SCORES), expected)
    assert torch.isfinite(against_others(1e4 * SCORES)).all()


def test_the_unknown_schedule_weighs_a_round_by_its_chance() -> None:
    for q in (0.01, 0.5, 0.99):
        result = combine(SCORES, None, PRESENT, CHOICES, q).unknown
        torch.testing.assert_close(result, (1 - q + q * against_others(SCORES).exp()).log().sum(0)[CHOICES])


def test_one_release_beyond_doubt_outweighs_many_that_say_little() -> None:
    """Against a mean that holds the candidate itself no ratio would exceed the number of candidates."""
    scores = torch.randn(300, 20, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    scores[17, 3] += 500
    result = combine(scores, None, torch.zeros(300, 1, dtype=torch.bool), torch.arange(20).unsqueeze(0), 0.004)
    assert int(result.unknown.argmax()) == 3


@pytest.mark.parametrize("name", ["none", "gs-static", "pl-learn"])
def test_a_round_does_not_depend_on_the_rounds_beside_it(name: str) -> None:
    server, weights = server_of(name, 0.05)
    observations = list(rounds_of(server, weights, 4))
    whole = scores_of(server, observations)
    each = torch.cat([scores_of(server, [one]).own for one in observations])
    torch.testing.assert_close(each, whole.own, rtol=1e-5, atol=1e-5)
    assert whole.present.sum() == 4 * server.examples


def test_the_same_seed_gives_the_same_bits() -> None:
    server, weights = server_of("pl-learn", 0.5)
    observations = list(rounds_of(server, weights, 3))
    result = scores_of(server, observations, seed=1)
    assert torch.equal(scores_of(server, iter(observations), seed=1).own, result.own)
    assert not torch.equal(scores_of(server, observations, seed=2).own, result.own)


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

    few = {"candidates": Candidates(POOL[:4], CANDIDATE_LABELS[:4], CHOICES[:1, :4]), "around": 4}
    assert len(scores_of(server, passing(), **few).own) == 3 * WINDOW
    assert most <= 2 * WINDOW + 1


# --- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0.0, 1.0, -0.1, 1.5, math.nan])
def test_an_impossible_chance_is_refused(wrong: float) -> None:
    with pytest.raises(AttackError, match="chance of taking part"):
        combine(SCORES, None, PRESENT, CHOICES, wrong)


def test_no_releases_are_refused() -> None:
    server, _ = server_of("none", 0.0)
    with pytest.raises(AttackError, match="no releases"):
        scores_of(server, [])


def test_a_release_that_is_not_finite_is_refused() -> None:
    server, weights = server_of("none", 0.0)
    one = next(rounds_of(server, weights, 1))
    with pytest.raises(ReleaseError, match="not finite"):
        scores_of(server, [replace(one, released=one.released * math.nan)])
    with pytest.raises(ReleaseError, match="Expected the released weights"):
        scores_of(server, [replace(one, released=one.released[:-1])])


def test_public_data_of_another_shape_are_refused() -> None:
    server, weights = server_of("none", 0.0)
    with pytest.raises(DataError, match="shape"):
        scores_of(server, rounds_of(server, weights, 1), public=(PUBLIC[0][..., :5], LABELS))


def test_tokens_that_recur_are_found_as_pictures_are() -> None:
    """Sequences are records like any other: no gradient with respect to an input is taken."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = torch.nn.Sequential(torch.nn.Embedding(30, 6), torch.nn.Flatten(), torch.nn.Linear(48, CLASSES))
    server = Server(Batched(model), (8,), CLASSES, 4, tokens=True)
    weights, local = server.batched.layout.flatten(model.state_dict()), torch.Generator().manual_seed(2)
    pool, public = (torch.randint(30, (count, 8), generator=local) for count in (len(POOL), len(LABELS)))
    truth = pool[CHOICES[:, 0]]
    result = combined(
        server, rounds_of(server, weights, 12, truth), public=(public, LABELS),
        candidates=Candidates(pool, CANDIDATE_LABELS, CHOICES),
    )  # fmt: skip
    assert found_by(result.known) > 0.5, "of 12 examples, at other seeds 9 to 12; guessing finds at most 3"
