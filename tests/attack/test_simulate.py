"""The attacker's own run of a mechanism: the client's bits, whatever the chunks, with draws keyed by row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.attack import simulate as module
from equipoise.attack.simulate import Companions, chunk, noise, paired, pieces, respond, signs, simulate
from equipoise.attack.view import Server
from equipoise.mechanism.distortion import draw_bounds
from equipoise.mechanism.grid import Grid
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.noised_sum import update_per_gradient
from equipoise.mechanism.protection import NO_PROTECTION, Protection
from equipoise.mechanism.records import of_units
from equipoise.mechanism.registry import MECHANISMS, get_mechanism
from equipoise.mechanism.release import observed_release, release
from equipoise.mechanism.units import EachRecord, Records, Units
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP
from equipoise.randomness import experiment_key, system_words, uniform

SHAPE, CLASSES = (1, 6, 6), 4


def server_of(
    name: str = "pl-learn", batch: int = 4, steps: int = 1, dtype: torch.dtype = torch.float32, **protection: Any
) -> tuple[Server, Tensor]:
    """A server with a small model, and the model's weights."""
    with torch.random.fork_rng():
        torch.manual_seed(3)
        model = MLP(SHAPE, CLASSES, hidden=8).to(dtype)
    kind = get_mechanism(name)
    if kind.whole_run:  # no multiple of the batch
        protection = {"divisor": 2.5, **protection}
    guarded = Protection(kind, 0.7 if kind.on_sphere else 0.01, steps=3, gamma=0.3, **protection)
    batched = Batched(model)
    weights = batched.layout.flatten(model.state_dict())
    return Server(batched, SHAPE, CLASSES, batch, eta=0.2, protection=guarded, local_steps=steps), weights


def batch_of(count: int, examples: int, dtype: torch.dtype = torch.float32, seed: int = 5) -> tuple[Tensor, Tensor]:
    local = torch.Generator().manual_seed(seed)
    images = torch.rand(count, examples, *SHAPE, dtype=dtype, generator=local)
    return images, torch.randint(0, CLASSES, (count, examples), generator=local)


def public_of(count: int = 40, dtype: torch.dtype = torch.float32, seed: int = 9) -> tuple[Tensor, Tensor]:
    local = torch.Generator().manual_seed(seed)
    return torch.rand(count, *SHAPE, dtype=dtype, generator=local), torch.arange(count) % CLASSES


def drawn_for(server: Server, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor | None:
    kind = server.protection.mechanism
    numbers = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    return standard_noise(numbers, kind.noise).to(dtype) if kind.distorts else None


def units_of(batched: Batched, images: Tensor, labels: Tensor) -> Units:
    """The examples of every row as the records of a client."""
    rows = torch.arange(labels.numel()).view(labels.shape)
    return Units(EachRecord(batched, Records(images.flatten(0, 1), labels.flatten()), CLASSES), list(rows))


# --- the client's own release --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "batch", "steps"),
    [
        (name, batch, steps)
        for name in MECHANISMS
        for batch, steps in ((4, 1), (2, 3), (1, 1))
        if steps == 1 or not get_mechanism(name).per_example  # laplace-dp makes one local step
    ],
)
def test_a_response_is_the_release_of_a_client(name: str, batch: int, steps: int) -> None:
    server, weights = server_of(name, batch, steps, torch.float64, clip=0.5)
    images, labels = batch_of(3, server.examples, torch.float64)
    drawn = drawn_for(server, (3, len(weights)), torch.float64)
    parts = [slice(i * batch, (i + 1) * batch) for i in range(steps)]
    objectives = [server.batched.at(images[:, part], labels[:, part]) for part in parts]
    actual = respond(server, weights, images, labels, drawn)
    assert actual.shape == (3, len(weights))
    if server.protection.mechanism.formal:  # with noise of its own, and to the steps of its grid
        protection, words = replace(server.protection, batch=batch), [system_words] * 3
        step = Grid.of(server.eta, 0.5, batch, len(weights)).step
        if protection.mechanism.whole_run:
            units = units_of(server.batched, images, labels)
            objectives = [of_units(units)]
            step = units.pool.grid(0.5).step * update_per_gradient(server.eta, protection)
        made, alpha = observed_release(objectives, weights.repeat(3, 1), words, server.eta, protection)
        assert drawn is not None
        clean = actual - draw_bounds(drawn, server.protection)[0]
        torch.testing.assert_close(clean, made.parameters - alpha, rtol=0, atol=1.01 * batch * step)
    else:
        expected = release(objectives, weights.repeat(3, 1), drawn, server.eta, server.protection).parameters
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)
    assert (actual - weights).abs().max() > 1e-3
    one_each = respond(server, weights.repeat(3, 1), images, labels, drawn)
    assert torch.equal(one_each, actual)


def test_every_row_may_have_its_own_start() -> None:
    server, weights = server_of(dtype=torch.float64)
    starts = torch.stack([weights, weights * 0.5, -weights])
    images, labels = batch_of(3, 4, torch.float64)
    drawn = drawn_for(server, (3, len(weights)), torch.float64)
    assert drawn is not None
    together = respond(server, starts, images, labels, drawn)
    for i in range(3):
        alone = respond(server, starts[i], images[i : i + 1], labels[i : i + 1], drawn[i : i + 1])
        torch.testing.assert_close(alone[0], together[i], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", MECHANISMS)
def test_a_response_has_the_same_bits_in_any_chunk(name: str) -> None:
    server, weights = server_of(name, clip=0.5)
    images, labels = batch_of(11, 4)
    drawn = drawn_for(server, (11, len(weights)))
    whole = respond(server, weights, images, labels, drawn)
    for size in (1, 2, 3, 7):
        rows = [slice(i, i + size) for i in range(0, 11, size)]
        parts = [respond(server, weights, images[r], labels[r], None if drawn is None else drawn[r]) for r in rows]
        assert torch.equal(torch.cat(parts), whole), size


@pytest.mark.parametrize("name", ["none", "pl-learn", "ls-static", "gs-learn"])
def test_a_simulation_has_the_same_bits_in_any_chunk(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    server, weights = server_of(name)
    labels = batch_of(21, 4)[1]
    whole, rows = simulate(server, weights, public_of(), labels, 1, "test")
    for size in (1, 4, 9):
        monkeypatch.setattr(module, "chunk", lambda *_, size=size: size)
        again, same = simulate(server, weights, public_of(), labels, 1, "test")
        assert torch.equal(same, rows)
        assert torch.equal(again, whole), size


def test_a_simulation_is_of_the_public_rows_it_names() -> None:
    server, weights = server_of("gs-learn", dtype=torch.float64)
    images, classes = public_of(dtype=torch.float64)
    labels, told = batch_of(6, 4)[1], list[int]()
    updates, rows = simulate(server, weights, (images, classes), labels, 1, "test", told.append)
    assert torch.equal(classes[rows], labels)
    assert sum(told) == 6
    drawn = noise(server, experiment_key(1, "attack/test/noise"), torch.arange(6), weights)
    expected = respond(server, weights, images[rows], labels, drawn) - weights
    torch.testing.assert_close(updates, expected, rtol=0, atol=1e-12)
    other = simulate(server, weights, (images, classes), labels, 1, "another purpose")[1]
    assert not torch.equal(other, rows)


@pytest.mark.parametrize("name", ["ls-static", "gs-static", "pl-identical"])
def test_the_opposite_sign_negates_all_noise(name: str) -> None:
    """Without a learner the noise is all there is between the two, and their mean has none."""
    server, weights = server_of(name, dtype=torch.float64)
    labels, public = batch_of(8, 4)[1], public_of(dtype=torch.float64)
    plus, rows = simulate(server, weights, public, labels, 1, "test")
    minus, same = simulate(server, weights, public, labels, 1, "test", sign=-1.0)
    clean, _ = simulate(replace(server, protection=NO_PROTECTION), weights, public, labels, 1, "test")
    assert torch.equal(rows, same)
    torch.testing.assert_close((plus + minus) / 2, clean, rtol=0, atol=1e-12)
    drawn = noise(server, experiment_key(1, "attack/test/noise"), torch.arange(8), weights)
    assert drawn is not None
    torch.testing.assert_close((plus - minus) / 2, draw_bounds(drawn, server.protection)[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "name",
    ["none", "ls-static", "gs-static", "pl-identical", "laplace-dp", "pl-learn", "gs-learn", "pruning", "outpost"],
)
def test_a_pair_tells_the_update_and_its_noise_apart(name: str) -> None:
    """As the two releases of opposite noise do; where nothing is learned one without noise serves as well."""
    server, weights = server_of(name, dtype=torch.float64, **({"clip": 1.0} if name == "laplace-dp" else {}))
    labels, public = batch_of(8, 4)[1], public_of(dtype=torch.float64)
    told: list[int] = []
    clean, added, rows = paired(server, weights, public, labels, 1, "test", told.append)
    plus, same = simulate(server, weights, public, labels, 1, "test")
    minus, _ = simulate(server, weights, public, labels, 1, "test", sign=-1.0)
    assert torch.equal(rows, same)
    torch.testing.assert_close(clean, (plus + minus) / 2, rtol=0, atol=1e-12)
    torch.testing.assert_close(added, (plus - minus) / 2, rtol=0, atol=1e-12)
    assert sum(told) == 8 * signs(server)


def test_a_learner_answers_opposite_noise_differently() -> None:
    server, weights = server_of("pl-learn", dtype=torch.float64)
    labels, public = batch_of(8, 4)[1], public_of(dtype=torch.float64)
    plus, _ = simulate(server, weights, public, labels, 1, "test")
    minus, _ = simulate(server, weights, public, labels, 1, "test", sign=-1.0)
    clean, _ = simulate(replace(server, protection=NO_PROTECTION), weights, public, labels, 1, "test")
    assert ((plus + minus) / 2 - clean).norm(dim=1).min() > 1e-3


# --- noise ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pl-learn", "gs-static"])
def test_noise_is_keyed_by_row(name: str) -> None:
    server, weights = server_of(name)
    key = experiment_key(0, "test")
    everything = noise(server, key, torch.arange(20), weights)
    some = torch.tensor([13, 2, 7])
    result = noise(server, key, some, weights)
    assert everything is not None
    assert result is not None
    assert torch.equal(result, everything[some])
    assert len(everything.unique(dim=0)) == 20
    tagged, other = noise(server, key, some, weights, tag=1), noise(server, experiment_key(1, "test"), some, weights)
    assert tagged is not None
    assert other is not None
    assert not torch.equal(tagged, result)
    assert not torch.equal(other, result)


@pytest.mark.parametrize(("name", "variance", "fourth"), [("ls-static", 2.0, 24.0), ("gs-static", 1.0, 3.0)])
def test_noise_is_of_the_family_of_the_mechanism(name: str, variance: float, fourth: float) -> None:
    server, weights = server_of(name)
    result = noise(server, experiment_key(0, "test"), torch.arange(400), weights)
    assert result is not None
    assert result.dtype == weights.dtype
    assert float(result.square().mean()) == pytest.approx(variance, rel=0.03)
    assert float(result.pow(4).mean()) == pytest.approx(fourth, rel=0.1)


def test_there_is_no_noise_without_distortion() -> None:
    for name in ("none", "pruning"):
        server, weights = server_of(name, 4.0)
        assert noise(server, experiment_key(0, "test"), torch.arange(3), weights) is None, name


# --- companions ----------------------------------------------------------------------------------------------


def test_companions_have_the_labels_that_were_asked_for() -> None:
    public = public_of(40)
    shuffled = public[1][torch.randperm(40, generator=torch.Generator().manual_seed(1))]
    asked = batch_of(200, 5)[1]
    rows = Companions((public[0], shuffled), 0, "test").draw(asked, torch.arange(200))
    assert torch.equal(shuffled[rows], asked)


def test_companions_are_distinct_where_there_are_enough() -> None:
    labels = torch.tensor([0] * 3 + [1] * 20 + [2])
    pool = Companions((torch.zeros(24, *SHAPE), labels), 0, "test")
    asked = torch.tensor([[0, 1, 0, 1, 0, 1]]).expand(500, -1)  # all three images of label 0
    result = pool.draw(asked, torch.arange(500))
    assert all(len(set(row)) == 6 for row in result.tolist())
    assert torch.equal(result[:, ::2].sort(1).values, torch.tensor([0, 1, 2]).expand(500, -1))
    alone = pool.draw(torch.tensor([[2, 2]]), torch.arange(1))
    assert alone.tolist() == [[23, 23]]


@pytest.mark.parametrize("images", [8, 88, 400])  # of each label: too few, just enough, many
def test_a_large_batch_is_drawn_as_with_every_pass_that_could_be_needed(images: int) -> None:
    """Passes end as soon as nothing in a column is taken: the ones left out would have changed nothing."""
    labels, rows = torch.arange(images) % 2, torch.arange(30)
    pool, asked = Companions((torch.zeros(images, *SHAPE), labels), 0, "test"), torch.arange(44).expand(30, -1) % 2
    result, half = pool.draw(asked, rows), images // 2
    numbers = uniform([pool.key] * 30, rows.tolist(), [0], 44, torch.float64)[0]
    for row, drawn in zip((numbers * half).long().tolist(), result.tolist(), strict=True):
        for here in range(44):
            for _ in range(here):
                row[here] = (row[here] + (row[here] in row[here % 2 : here : 2])) % half
        assert drawn == [2 * place + here % 2 for here, place in enumerate(row)]
        assert images < 88 or len(set(drawn)) == 44


def test_companions_are_keyed_by_row() -> None:
    pool, asked = Companions(public_of(40), 3, "test"), batch_of(30, 4)[1]
    everything = pool.draw(asked, torch.arange(30))
    some = torch.tensor([29, 0, 11])
    assert torch.equal(pool.draw(asked[some], some), everything[some])
    assert not torch.equal(Companions(public_of(40), 4, "test").draw(asked, torch.arange(30)), everything)
    assert not torch.equal(Companions(public_of(40), 3, "other").draw(asked, torch.arange(30)), everything)


@pytest.mark.parametrize("examples", [1, 4])
def test_companions_are_uniform_in_every_place(examples: int) -> None:
    """Chi-square of 4,000 draws over ten images, at every place of the batch: 9 degrees of freedom."""
    pool, count = Companions(public_of(40), 0, "test"), 4000
    result = pool.draw(torch.full((count, examples), 2), torch.arange(count))
    for place in range(examples):
        seen = torch.bincount(result[:, place], minlength=40)[2::4].double()
        assert int(seen.sum()) == count
        assert float(((seen - count / 10).square() / (count / 10)).sum()) < 33.7  # exceeded once in 10,000 times


# --- chunks --------------------------------------------------------------------------------------------------


def test_chunks_are_whole_and_in_order() -> None:
    parts = list(pieces(10, 4, torch.device("cpu")))
    assert [part.tolist() for part in parts] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert list(pieces(0, 4, torch.device("cpu"))) == []


def test_a_chunk_fits_into_its_room_and_is_a_multiple_of_eight(monkeypatch: pytest.MonkeyPatch) -> None:
    server, weights = server_of()
    assert chunk(server, weights) == 64
    each = 4 * (12 * len(weights) + 60 * 4 * 36)
    monkeypatch.setitem(module.ROOM, "cpu", 29 * each)
    assert chunk(server, weights) == 24
    monkeypatch.setitem(module.ROOM, "cpu", 1)
    assert chunk(server, weights) == 8


# --- workers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["pl-learn", "pl-identical", "none"])
@pytest.mark.parametrize("count", [32, 37, 64])
def test_releases_dealt_to_workers_are_the_same_bits(name: str, count: int) -> None:
    server, weights = server_of(name)
    images, labels = batch_of(count, 4)
    drawn = drawn_for(server, (count, len(weights)))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = respond(server, weights, images, labels, drawn)
        torch.set_num_threads(2)
        shares = module.workers.shares(count, module.LEAST, 8)
        assert len(shares) == 2
        dealt = respond(server, weights, images, labels, drawn)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(dealt, alone)


def test_a_model_whose_modules_are_called_is_not_dealt_to_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    server, weights = server_of()
    plain = replace(server, batched=Batched(server.batched.model, route="vmap"))
    assert server.batched.thread_safe
    assert not plain.batched.thread_safe
    monkeypatch.setattr(module.workers, "mapped", lambda *given: pytest.fail("dealt"))
    images, labels = batch_of(64, 4)
    respond(plain, weights, images, labels, drawn_for(plain, (64, len(weights))))
