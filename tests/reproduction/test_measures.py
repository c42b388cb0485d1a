"""Every measurement against a direct computation with plain PyTorch, on what the clients really release."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from equipoise.attack.descent import Search
from equipoise.attack.invgrad import invgrad
from equipoise.attack.view import View
from equipoise.engine.federation import Federation
from equipoise.engine.full_record import squared_gradients
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.engine.tables import Block
from equipoise.models.bundled import LeNetZhu
from equipoise.reproduction import measures
from equipoise.reproduction.plan import Scale
from tests.reproduction.conftest import Small

BEFORE = 2
"""Rounds that are trained before anything is measured."""
SETTINGS = Settings.flat(rounds=BEFORE + 1, steps=3, dtype="float64", snapshots=[])
FEDERATIONS = [
    Federation("mnist", "ls-learn", 200, 1),
    Federation("fmnist", "pl-learn", 0.98, 2),
    Federation("fmnist", "ls-learn", 200, 1),
    Federation("mnist", "pl-identical", 0.98, 1),
    Federation("mnist", "none", None, 1),
]
SCALE = Scale(
    name="tiny", seeds=(1, 2), rounds=3, evaluate_every=1, curve_every=1, gradient_every=1, full_every=1,
    iterations=2, attacked=2, pictured=2, inner_steps=(), inner_rates=(), baselines=False,
)  # fmt: skip


def trained(small: Small, settings: Settings = SETTINGS, federations: list[Federation] = FEDERATIONS) -> Sweep:
    sweep = Sweep(settings, federations, small)
    sweep.train(BEFORE)
    return sweep


@pytest.fixture(scope="module")
def sweep(small: Small) -> Sweep:
    """Two rounds in; nothing here takes a third."""
    return trained(small)


Sent = dict[tuple[int, int], Tensor]


@pytest.fixture(scope="module")
def sent(small: Small) -> Sent:
    """What every (federation, client) really sent in the round that comes next, by watching it being taken."""
    other, result = trained(small), {}

    def watch(block: Block, released: Tensor) -> None:
        rows = iter(released)
        for f in range(block.federations.start, block.federations.stop):
            for k in range(block.slots.start, block.slots.stop):
                result[f, k] = next(rows).clone()

    other.on_releases = watch
    other.train(BEFORE + 1)
    assert len(result) == len(FEDERATIONS) * 4
    return result


# --- the same in plain PyTorch ---------------------------------------------------------------------------------------


def model(sweep: Sweep, flat: Tensor) -> LeNetZhu:
    """The network itself, with these weights: nothing of the batched engine but the order of its numbers."""
    network = LeNetZhu().double()
    network.load_state_dict(sweep.batched.layout.unflatten(flat))
    return network


def data(sweep: Sweep, f: int, client: int) -> tuple[Tensor, Tensor]:
    """All training data of a client, from the dataset itself."""
    split = sweep.datasets[sweep.federations[f].dataset].train
    part = sweep.parts[sweep.federations[f].dataset][client]
    offset = 0 if sweep.federations[f].dataset == "mnist" else len(sweep.datasets["mnist"].train)
    return split.inputs[part - offset].double(), split.labels[part - offset]


def loss(network: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(network(images), labels)


def batch(sweep: Sweep, f: int, client: int, round_number: int) -> Tensor:
    """The examples that a client draws in a round, from the keyed draws themselves."""
    fed = sweep.federations[f]
    rows = sweep.draws.batches([round_number], sweep.settings.protection.batch, sweep.parts[fed.dataset], "uniform")
    return rows[0, sweep.draws.seeds.index(fed.seed) * 4 + client]


def local(sweep: Sweep, f: int, client: int) -> Tensor:
    """A client's undistorted model in the coming round: one step of gradient descent on its mini-batch."""
    start = sweep.state.params[f]
    network = model(sweep, start)
    rows = batch(sweep, f, client, BEFORE + 1)
    loss(network, sweep.inputs[rows], sweep.labels[rows]).backward()
    gradients = {name: parameter.grad for name, parameter in network.named_parameters()}
    return start - sweep.settings.protection.eta * sweep.batched.layout.flatten(gradients)


def everyone(sweep: Sweep) -> Iterator[tuple[int, int]]:
    return ((f, k) for f in range(len(sweep.federations)) for k in range(4))


# --- curves ----------------------------------------------------------------------------------------------------------


def test_client_curves_are_those_of_the_plain_model(sweep: Sweep) -> None:
    result = measures.client_curves(sweep)
    for f, k in everyone(sweep):
        network, name = model(sweep, sweep.state.params[f]), sweep.federations[f].dataset
        assert result[f]["training_loss"][k] == pytest.approx(loss(network, *data(sweep, f, k)).item(), rel=1e-9)
        test = sweep.datasets[name].test
        mine = sweep.test_parts[name, ""][k]
        right = (network(test.inputs[mine].double()).argmax(1) == test.labels[mine]).double().mean()
        assert result[f]["accuracy"][k] == pytest.approx(float(right))


def test_squared_gradients_are_autograds(sweep: Sweep) -> None:
    result = squared_gradients(sweep)
    for f, federation in enumerate(sweep.federations):
        network, split = model(sweep, sweep.state.params[f]), sweep.datasets[federation.dataset].train
        loss(network, split.inputs.double(), split.labels).backward()
        square = sum(float(p.grad.square().sum()) for p in network.parameters() if p.grad is not None)
        assert result[f] == pytest.approx(square, rel=1e-9)


# --- the coming round ------------------------------------------------------------------------------------------------


def test_full_utility_is_what_the_distortion_adds_to_the_loss_on_all_data(sweep: Sweep, sent: Sent) -> None:
    result = measures.full_utility(sweep)
    for f, k in everyone(sweep):
        images, labels = data(sweep, f, k)
        assert len(images) == 20, "all of its data, not its mini-batch of four"
        after, before = (loss(model(sweep, w), images, labels).item() for w in (sent[f, k], local(sweep, f, k)))
        assert result[f][k] == pytest.approx(after - before, rel=1e-6, abs=1e-9)
    assert all(abs(value) > 1e-3 for f in range(4) for value in result[f])
    assert result[4] == [0.0] * 4, "no protection, no distortion"


def drawn(sweep: Sweep, f: int, client: int) -> Tensor:
    """The initial distortion, from standard noise and the calibration by hand."""
    fed = sweep.federations[f]
    stream = sweep.draws.seeds.index(fed.seed) * 4 + client
    noise = sweep.draw([BEFORE + 1], "laplace")[0, stream]
    if fed.mechanism.startswith("ls"):
        return noise * (10 / fed.budget)  # sensitivity / budget
    return noise / noise.norm() * 7.99975  # the lower bound of 0.98


def test_tensor_sizes_are_those_of_the_draw_and_of_the_release(sweep: Sweep, sent: Sent) -> None:
    result = measures.tensor_sizes(sweep)
    names = [name for name, _ in LeNetZhu().named_parameters()]
    for f, k in everyone(sweep):
        if sweep.federations[f].mechanism == "none":
            continue
        assert list(result[f]) == names
        pair = drawn(sweep, f, k), sent[f, k] - local(sweep, f, k)
        for place, flat in enumerate(pair):
            for name, tensor in sweep.batched.layout.unflatten(flat).items():
                here = {key: values[k][place] for key, values in result[f][name].items()}
                assert here["size"] == pytest.approx(float(tensor.abs().mean()), rel=1e-6)
                assert here["mean"] == pytest.approx(float(tensor.mean()), rel=1e-5, abs=1e-9)
                assert here["deviation"] == pytest.approx(float(tensor.std()), rel=1e-6)
    learned, static = (sweep.federations.index(FEDERATIONS[i]) for i in (0, 3))
    before, after = result[learned]["conv1.weight"]["size"][0]
    assert abs(after / before - 1) > 1e-3, "learning changes it"
    before, after = result[static]["conv1.weight"]["size"][0]
    assert after == pytest.approx(before, rel=1e-9), "a static mechanism does not"
    assert result[4] == {}


def test_looking_at_a_round_does_not_take_it(sweep: Sweep) -> None:
    before, tally = sweep.state.params.clone(), sweep.state.tally.total.clone()
    measures.full_utility(sweep)
    measures.tensor_sizes(sweep)
    measures.attacked_releases(sweep, 2)
    assert sweep.state.round == BEFORE
    assert torch.equal(sweep.state.params, before)
    assert torch.equal(sweep.state.tally.total, tally)


def test_clients_that_are_worked_on_in_several_blocks_come_in_order(sweep: Sweep, small: Small) -> None:
    other = trained(small, SETTINGS.replace(chunk=2))
    assert len(other.blocks) > len(sweep.blocks)
    assert measures.full_utility(other) == [pytest.approx(row, rel=1e-9) for row in measures.full_utility(sweep)]
    for one, two in zip(measures.tensor_sizes(other), measures.tensor_sizes(sweep), strict=True):
        assert [row["size"] for row in one.values()] == [
            [pytest.approx(pair, rel=1e-9) for pair in row["size"]] for row in two.values()
        ]
    for name, mine in measures.attacked_releases(sweep, 2).items():
        again = measures.attacked_releases(other, 2)[name]
        assert sorted(again.federations) == sorted(mine.federations)


# --- inversions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("clients", [1, 2, 4])
def test_the_releases_of_the_round_after_the_last_are_attacked(sweep: Sweep, sent: Sent, clients: int) -> None:
    result = measures.attacked_releases(sweep, clients)
    assert set(result) == {"mnist", "fmnist"}
    for name, mine in result.items():
        own = [f for f, fed in enumerate(sweep.federations) if fed.dataset == name]
        assert sorted(mine.federations) == sorted(own * clients)
        for f in own:
            rows = [i for i, other in enumerate(mine.federations) if other == f]
            for k, i in enumerate(rows):
                assert torch.allclose(mine.released[i], sent[f, k], rtol=1e-12, atol=0)
                assert mine.examples[i].tolist() == batch(sweep, f, k, BEFORE + 1).tolist()
                assert mine.examples[i].tolist() != batch(sweep, f, k, BEFORE).tolist()
                assert set(mine.examples[i].tolist()) <= set(sweep.parts[name][k].tolist()), "its own images"


def test_an_inversion_is_invgrad_from_one_starting_point(sweep: Sweep, sent: Sent) -> None:
    """The errors of one federation, by an attack on each of its releases alone."""
    result, guesses = measures.inversions(sweep, SCALE, lambda what, done, total: None)
    for f in (sweep.federations.index(FEDERATIONS[i]) for i in (1, 4)):
        name = sweep.federations[f].dataset
        server, materials = measures.server_and_materials(sweep, name)
        assert len(result[f]["mse"]) == SCALE.attacked
        for k in range(SCALE.attacked):
            rows = batch(sweep, f, k, BEFORE + 1)
            labels, truth = sweep.labels[rows], sweep.inputs[rows]
            view = View(sweep.state.params[f : f + 1], sent[f, k].unsqueeze(0), labels.unsqueeze(0))
            images = invgrad(server, view, Search(iterations=SCALE.iterations, seed=0)).images  # target 0's own start
            guess, values, _ = measures.errors(images, truth.unsqueeze(0), labels.unsqueeze(0), materials)
            assert result[f]["mse"][k] == pytest.approx(values["mse"][0].tolist(), rel=1e-6)
            assert result[f]["ssim"][k] == pytest.approx(values["ssim"][0].tolist(), rel=1e-6)
            by_hand = (guess[0] - truth).square().flatten(1).mean(1)
            assert result[f]["mse"][k] == pytest.approx(by_hand.tolist(), rel=1e-6)
    assert set(guesses) == {"mnist", "fmnist"}
    assert set(guesses["mnist"]) == {"black", "noise", "class_mean", "another_image"}


def test_the_attacker_knows_the_settings_and_takes_no_defence_into_account(sweep: Sweep) -> None:
    server, materials = measures.server_and_materials(sweep, "fmnist")
    assert server.protection.mechanism.name == "none"
    assert (server.eta, server.batch, server.local_steps) == (0.1, 4, 1)
    assert materials.to_pixels(torch.as_tensor(server.low)).item() == pytest.approx(0, abs=1e-6)
    assert materials.to_pixels(torch.as_tensor(server.high)).item() == pytest.approx(1, abs=1e-6)


def test_the_same_release_gives_the_same_images_wherever_it_stands(small: Small) -> None:
    """Without steps a learned distortion is the static one: two federations with the same releases."""
    twins = [Federation("mnist", "pl-identical", 0.98, 1), Federation("mnist", "pl-learn", 0.98, 1)]
    sweep = trained(small, SETTINGS.replace(steps=0), twins)
    result, _ = measures.inversions(sweep, SCALE, lambda what, done, total: None)
    assert result[0] == result[1]
    assert result[0]["mse"][0] != result[0]["mse"][1], "clients differ in data and noise"


def test_guesses_without_an_update_are_scored_on_the_attacked_batches(sweep: Sweep) -> None:
    _, guesses = measures.inversions(sweep, replace(SCALE, iterations=1), lambda what, done, total: None)
    for name, mine in measures.attacked_releases(sweep, SCALE.attacked).items():
        server, _ = measures.server_and_materials(sweep, name)
        truth = sweep.inputs[mine.examples]
        by_hand = (truth - torch.as_tensor(server.low)).square().mean()
        assert guesses[name]["black"]["mse"] == pytest.approx(float(by_hand), rel=1e-6)
        distance = (truth - torch.as_tensor(server.low)).flatten(2).norm(dim=2)
        assert guesses[name]["black"]["leakage"] == pytest.approx(1 - float(distance.mean()) / 56, rel=1e-6)


def test_images_of_the_same_label_may_swap_and_others_may_not(sweep: Sweep) -> None:
    _, materials = measures.server_and_materials(sweep, "mnist")
    truth = sweep.inputs[:4].unsqueeze(0)
    swapped = truth[:, [1, 0, 2, 3]]
    same, other = torch.tensor([[5, 5, 6, 7]]), torch.tensor([[5, 4, 6, 7]])
    guess, values, _ = measures.errors(swapped, truth, same, materials)
    assert torch.equal(guess, truth)
    assert values["mse"].tolist() == [[0.0] * 4]
    assert values["ssim"][0].tolist() == pytest.approx([1.0] * 4)
    _, values, assigned = measures.errors(swapped, truth, other, materials)
    assert assigned.tolist() == [[0, 1, 2, 3]]
    assert values["mse"][0, 0] > 0.1


def test_progress_ends_where_it_said(sweep: Sweep) -> None:
    told: list[tuple[str, int, int]] = []
    measures.inversions(sweep, SCALE, lambda what, done, total: told.append((what, done, total)))
    assert {what for what, _, _ in told} == {"attacking 6 releases on mnist", "attacking 4 releases on fmnist"}
    for what in {what for what, _, _ in told}:
        steps = [(done, total) for name, done, total in told if name == what]
        assert steps[-1][0] == steps[-1][1] == int(what.split()[1]) * SCALE.iterations
        assert [done for done, _ in steps] == sorted(done for done, _ in steps)


# --- pictures --------------------------------------------------------------------------------------------------------


def test_pictures_are_of_public_images_under_every_defence_alike(sweep: Sweep) -> None:
    result, originals = measures.pictures(sweep, SCALE, lambda what, done, total: None)
    for f, federation in enumerate(sweep.federations):
        public = sweep.datasets[federation.dataset].public_pool.inputs
        shown = torch.tensor(originals[federation.dataset]["pixels"])
        known = sweep.datasets[federation.dataset].pixels(public).mul(255).round()
        assert all(bool((known == image).flatten(1).all(1).any()) for image in shown)
        assert [len(row) for row in result[f]["mse"]] == [4] * SCALE.pictured
        assert torch.tensor(result[f]["pixels"]).shape == (4, 1, 28, 28)
    for f in (sweep.federations.index(FEDERATIONS[i]) for i in (3, 4)):  # others of MNIST stand before these
        alone = Sweep(SETTINGS, [sweep.federations[f]], sweep.datasets)
        alone.state.params, alone.state.round = sweep.state.params[f : f + 1], BEFORE
        (one,), _ = measures.pictures(alone, SCALE, lambda what, done, total: None)
        for key in ("mse", "ssim"):
            assert np.array(result[f][key]) == pytest.approx(np.array(one[key]), rel=1e-6)


# --- where a search starts -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def repeated(sweep: Sweep, sent: Sent) -> tuple[Any, View]:
    """One release four times over."""
    f = sweep.federations.index(FEDERATIONS[4])
    rows = batch(sweep, f, 0, BEFORE + 1)
    server, _ = measures.server_and_materials(sweep, sweep.federations[f].dataset)
    one = View(sweep.state.params[f : f + 1], sent[f, 0].unsqueeze(0), sweep.labels[rows].unsqueeze(0))
    assert one.labels is not None
    return server, View(one.previous.expand(4, -1), one.released.expand(4, -1), one.labels.expand(4, -1))


@pytest.mark.parametrize(
    ("starts", "classes"), [(0, [0, 1, 2, 3]), (1, [0, 0, 0, 0]), (2, [0, 1, 0, 1]), (3, [0, 1, 2, 0])]
)
@pytest.mark.parametrize("chunk", [0, 2])
def test_starting_points_repeat_after_so_many_targets(
    repeated: tuple[Any, View], starts: int, classes: list[int], chunk: int
) -> None:
    server, view = repeated
    images = invgrad(server, view, Search(iterations=2, starts=starts, chunk=chunk)).images
    first = [next(j for j in range(4) if torch.equal(images[i], images[j])) for i in range(4)]
    assert first == classes


def test_a_search_refuses_a_negative_number_of_starting_points() -> None:
    with pytest.raises(Exception, match="starts=-1"):
        Search(starts=-1).check()
