"""Inversion attacks: known answers, independence of targets, the simulated release, the two optimisers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import pairwise, product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.attack import DLG, MAP, descent
from equipoise.attack.descent import LBFGS, Search, _better, optimise, total_variation
from equipoise.attack.dlg import dlg, idlg
from equipoise.attack.invgrad import invgrad
from equipoise.attack.likelihood import likelihood
from equipoise.attack.results import Inversion
from equipoise.attack.unrolled import drift, unrolled
from equipoise.attack.view import Server, View
from equipoise.auditing.scores import match, mse
from equipoise.data.loading import load
from equipoise.errors import AttackError, ModelError
from equipoise.mechanism.distortion import draw_bounds
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import MECHANISMS, mechanism
from equipoise.mechanism.release import observed_release, release
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP, LeNetZhu

CLASS_MEAN = 0.54
"""MSE of guessing the mean image of the right class, in normalised units."""
LOW, HIGH = (0 - 0.1307) / 0.3081, (1 - 0.1307) / 0.3081
NAN, INF = float("nan"), float("inf")
ATTACKS = {"invgrad": invgrad, "dlg": dlg, "idlg": idlg, "likelihood": likelihood, "unrolled": unrolled}


def seeded(make: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()


def laplace(
    shape: tuple[int, ...], dtype: torch.dtype = torch.float32, family: str = "laplace", seed: int = 1
) -> Tensor:
    numbers = torch.rand(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return standard_noise(numbers, family).to(dtype)


@dataclass(frozen=True)
class Case:
    server: Server
    view: View
    truth: Tensor  # [N, E, ...]

    @property
    def labels(self) -> Tensor:
        assert self.view.labels is not None
        return self.view.labels

    def errors(self, found: Inversion) -> Tensor:
        """MSE of every target in the best order of its images."""
        cost = mse(found.images[:, :, None], self.truth[:, None])
        order = match(cost, torch.zeros(cost.shape[:2], dtype=torch.int64))
        return cost.gather(1, order[:, None]).mean((1, 2))

    def black(self) -> Tensor:
        return mse(torch.full_like(self.truth, LOW), self.truth).mean(1)

    def flat(self) -> Tensor:
        """MSE of the best grey for every image."""
        return self.truth.flatten(2).var(2, correction=0).mean(1)


@cache
def case(
    batch: int, count: int, name: str = "none", scale: float = 0.0, steps: int = 3, rows: tuple[int, ...] = ()
) -> Case:
    """Releases of public images from LeNet-Zhu as PyTorch initialises it."""
    targets = load("mnist").public_targets
    picked = torch.tensor(rows or range(count * batch))
    images = targets.images[picked].view(count, batch, 1, 28, 28)
    labels = targets.labels[picked].view(count, batch)
    model = seeded(LeNetZhu)
    batched = Batched(model)
    protection = Protection(mechanism(name), scale, steps=steps)
    previous = batched.layout.flatten(model.state_dict()).repeat(count, 1)
    noise = laplace(tuple(previous.shape))
    made = release([batched.at(images, labels)], previous, noise, 0.1, protection, utility=False)
    server = Server(batched, (1, 28, 28), 10, batch, LOW, HIGH, 0.1, protection)
    return Case(server, View(previous, made.parameters, labels), images)


# --- known answers -----------------------------------------------------------------------------------------

INVERTING = Search(iterations=200, lr=0.1)


@pytest.mark.parametrize("batch", [1, 4])
def test_inverting_gradients_wins_without_protection(batch: int) -> None:
    known = case(batch, 2)
    found = invgrad(known.server, known.view, INVERTING)
    assert known.errors(found).max() < CLASS_MEAN / 4
    assert found.cost.max() < 1e-4
    assert found.stopped is not None
    assert found.stopped.tolist() == [0, 0]
    assert found.labels is None
    assert found.images.min() >= LOW - 1e-6
    assert found.images.max() <= HIGH + 1e-6


@pytest.mark.parametrize("attack", [dlg, idlg])
@pytest.mark.parametrize("batch", [1, 4])
def test_deep_leakage_wins_without_protection(attack: Any, batch: int) -> None:
    known = case(batch, 2)
    found = attack(known.server, replace(known.view, labels=None), replace(DLG, iterations=120))
    assert known.errors(found).max() < 0.05
    assert torch.equal(found.labels.sort(1).values, known.labels.sort(1).values)


@pytest.mark.parametrize("batch", [1, 4])
@pytest.mark.parametrize("attack", [invgrad, dlg, idlg])
def test_matching_gradients_loses_under_noise(attack: Any, batch: int) -> None:
    known = case(batch, 4, "pl-identical", 64.0)
    found = attack(known.server, known.view, replace(INVERTING if attack is invgrad else DLG, iterations=40))
    assert known.errors(found).mean() > known.black().mean()
    assert known.errors(found).mean() > known.flat().mean()


def test_idlg_reads_repeated_labels() -> None:
    """The bundled rows cycle through the ten classes."""
    known = case(4, 3, rows=(3, 13, 7, 1, 5, 15, 25, 35, 0, 9, 19, 10))
    assert known.labels.tolist() == [[3, 3, 7, 1], [5, 5, 5, 5], [0, 9, 9, 0]]
    found = idlg(known.server, replace(known.view, labels=None), replace(DLG, iterations=1))
    assert found.labels is not None
    assert found.labels.tolist() == [[1, 3, 3, 7], [5, 5, 5, 5], [0, 0, 9, 9]]


def test_idlg_finds_no_labels_under_noise() -> None:
    known = case(1, 10, "pl-identical", 64.0)
    found = idlg(known.server, replace(known.view, labels=None), replace(DLG, iterations=1))
    assert found.labels is not None
    assert (found.labels == known.labels).sum() <= 4


def test_the_likelihood_wins_under_small_laplace_noise() -> None:
    known = case(1, 4, "ls-static", 1e-5)
    mine = known.errors(likelihood(known.server, known.view, replace(MAP, iterations=150)))
    other = known.errors(invgrad(known.server, known.view, replace(INVERTING, iterations=150)))
    assert mine.max() < 0.02
    assert mine.mean() < other.mean() / 4
    assert (mine < other).all()


@pytest.mark.parametrize(("name", "scale"), [("pl-identical", 64.0), ("gs-static", 1.0)])
def test_the_likelihood_loses_under_large_noise(name: str, scale: float) -> None:
    """Its prior alone gives flat images, which beat black ones on bright digits, but never the best grey."""
    known = case(1, 4, name, scale)
    found = known.errors(likelihood(known.server, known.view, replace(MAP, iterations=50)))
    assert (found > 0.98 * known.flat()).all()
    assert found.mean() > 2 * CLASS_MEAN


def test_the_unrolled_attack_wins_without_protection() -> None:
    known = case(1, 2)
    found = unrolled(known.server, known.view, replace(MAP, iterations=250))
    assert known.errors(found).max() < CLASS_MEAN / 4


def test_the_unrolled_attack_wins_against_a_tiny_learned_distortion() -> None:
    known = case(1, 2, "pl-learn", 0.02, steps=2)
    found = known.errors(unrolled(known.server, known.view, replace(MAP, iterations=200)))
    assert found.max() < 0.8 * CLASS_MEAN
    assert (found < known.flat() * 0.7).all()


def test_the_unrolled_attack_loses_against_a_large_learned_distortion() -> None:
    known = case(1, 2, "pl-learn", 64.0, steps=2)
    found = known.errors(unrolled(known.server, known.view, replace(MAP, iterations=50)))
    assert (found > 0.98 * known.flat()).all()
    assert found.mean() > 2 * CLASS_MEAN


# --- the simulated release ---------------------------------------------------------------------------------


def tanh_model() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 4))


@dataclass(frozen=True)
class Simulated:
    server: Server
    previous: Tensor
    images: Tensor
    labels: Tensor
    noise: Tensor

    def objectives(self) -> list[Any]:
        size, steps = self.server.batch, range(self.server.local_steps)
        parts = [slice(step * size, (step + 1) * size) for step in steps]
        return [self.server.batched.at(self.images[:, part], self.labels[:, part]) for part in parts]


def simulated(
    make: Callable[[], nn.Module], shape: tuple[int, ...], classes: int, name: str, steps: int, **protection: Any
) -> Simulated:
    models = [seeded(make, seed).double() for seed in range(3)]
    batched, local = Batched(models[0]), torch.Generator().manual_seed(8)
    previous = torch.stack([batched.layout.flatten(model.state_dict()) for model in models])
    kind = mechanism(name)
    guarded = Protection(kind, 0.7 if kind.on_sphere else 0.01, lr=0.3, negative_norm=0.05, steps=4, **protection)
    server = Server(batched, shape, classes, 2, eta=0.2, protection=guarded, local_steps=steps)
    images = torch.randn(3, server.examples, *shape, dtype=torch.float64, generator=local)
    labels = torch.randint(0, classes, (3, server.examples), generator=local)
    noise = laplace(tuple(previous.shape), torch.float64, kind.noise)
    return Simulated(server, previous, images, labels, noise)


CLIPS = {"unclipped": None, "l2 clip": ("l2", 0.05), "l1 clip": ("l1", 0.5)}
CASES = [  # laplace-dp makes one local step, with a clip
    (name, steps, clip)
    for name, steps, clip in product(MECHANISMS, (1, 2), CLIPS)
    if not (mechanism(name).per_example and (steps > 1 or clip == "unclipped"))
]


@pytest.mark.parametrize(("name", "steps", "clipping"), CASES)
@pytest.mark.parametrize("make", ["lenet", "mlp"])
def test_the_drift_is_that_of_a_real_release(name: str, steps: int, clipping: str, make: str) -> None:
    shape, clip = (1, 8, 8), CLIPS[clipping]
    model = {"lenet": partial(LeNetZhu, shape, 4), "mlp": partial(MLP, shape, 4, 7)}[make]
    bounds = {} if clip is None else {"clip_norm": clip[0], "clip": clip[1]}
    this = simulated(model, shape, 4, name, steps, **bounds)
    protection, kind = this.server.protection, this.server.protection.mechanism
    noise = this.noise if kind.distorts else None
    made, alpha = observed_release(this.objectives(), this.previous, noise, 0.2, protection)
    record = made.record
    assert bool(record.accepted.all())
    assert (record.clipped > 0).all() == (clip is not None and (kind.clips or kind.per_example))
    initial = draw_bounds(this.noise, protection)[0] if kind.distorts else torch.zeros_like(this.previous)
    if kind.learns:
        assert ((alpha - initial).norm(dim=1) > 1e-3 * initial.norm(dim=1)).all(), "the learner moved"
    moved = drift(this.server, this.previous, this.images, this.labels, this.noise)
    expected = made.parameters - this.previous
    distance = (moved + initial - expected).norm(dim=1) / expected.norm(dim=1)
    assert distance.max() < 1e-12
    whole = (this.previous + initial + moved - made.parameters).norm(dim=1) / made.parameters.norm(dim=1)
    assert whole.max() < 1e-12


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("steps", [1, 2])
def test_the_drift_can_be_differentiated(name: str, steps: int) -> None:
    this = simulated(tanh_model, (1, 5, 5), 4, name, steps, clip=0.05)
    along = laplace(tuple(this.previous.shape), torch.float64, "gaussian", seed=4)

    def follow(images: Tensor) -> Tensor:
        return (drift(this.server, this.previous, images, this.labels, this.noise) * along).sum(1)

    assert torch.autograd.gradcheck(follow, (this.images.clone().requires_grad_(),), fast_mode=True)


# --- one target and another --------------------------------------------------------------------------------


@cache
def five(name: str, scale: float, batch: int = 4) -> Case:
    """Five releases of unlike images from unlike weights."""
    models = [seeded(LeNetZhu, seed) for seed in range(5)]
    batched, targets = Batched(models[0]), load("mnist").public_targets
    images = targets.images[: 5 * batch].view(5, batch, 1, 28, 28)
    labels = targets.labels[: 5 * batch].view(5, batch)
    protection = Protection(mechanism(name), scale, steps=2)
    previous = torch.stack([batched.layout.flatten(model.state_dict()) for model in models])
    noise = laplace(tuple(previous.shape))
    made = release([batched.at(images, labels)], previous, noise, 0.1, protection, utility=False)
    return Case(
        Server(batched, (1, 28, 28), 10, batch, LOW, HIGH, 0.1, protection),
        View(previous, made.parameters, labels),
        images,
    )


SETTINGS = {
    "invgrad": Search(iterations=6, lr=0.1),
    "dlg": replace(DLG, iterations=6),
    "idlg": replace(DLG, iterations=6),
    "likelihood": replace(MAP, iterations=6),
    "unrolled": replace(MAP, iterations=4),
}


def assert_same(found: Inversion, expected: Inversion, count: int) -> None:
    for part in ("images", "cost", "stopped", "labels"):
        one, two = getattr(found, part), getattr(expected, part)
        assert (one is None) == (two is None)
        same = one is None or torch.equal(one[:count], two[:count])
        assert same, part


@pytest.mark.parametrize("name", ["none", "pl-learn"])
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("batch", [1, 4])
def test_a_target_does_not_depend_on_the_others(batch: int, attack: str, name: str) -> None:
    known, run = five(name, 0.02, batch), ATTACKS[attack]
    everything = run(known.server, known.view, SETTINGS[attack])
    for count in (1, 3):
        assert_same(run(known.server, known.view.rows(slice(count)), SETTINGS[attack]), everything, count)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("batch", [1, 4])
def test_a_target_does_not_depend_on_chunks(batch: int, attack: str) -> None:
    known, run = five("pl-learn", 0.02, batch), ATTACKS[attack]
    whole = run(known.server, known.view, SETTINGS[attack])
    assert_same(run(known.server, known.view, replace(SETTINGS[attack], chunk=2)), whole, 5)


def test_every_target_seed_and_restart_has_its_own_start() -> None:
    server, view = box(3)
    starts = []
    for seed in (0, 1):
        costs = Recorder(lambda images: images.square().flatten(1).sum(1))
        optimise(server, view, costs, Search(iterations=1, tv=0.0, seed=seed, restarts=2))
        starts += [costs.seen[0][:3], costs.seen[2][:3]]  # an iteration has one call, and the end has one
    rows = torch.cat(starts).flatten(1)
    assert len(rows.unique(dim=0)) == len(rows) == 12
    assert abs(float(rows.mean())) < 0.3
    assert 0.7 < float(rows.std()) < 1.3


# --- the search --------------------------------------------------------------------------------------------


def box(count: int, examples: int = 2, dtype: torch.dtype = torch.float64, low: float = -0.5, high: float = 0.8) -> Any:
    """A server and a view for costs that do not look at releases."""
    model = seeded(tanh_model).to(dtype)
    batched = Batched(model)
    previous = batched.layout.flatten(model.state_dict()).repeat(count, 1)
    labels = torch.zeros(count, examples, dtype=torch.int64)
    return Server(batched, (1, 5, 5), 4, examples, low, high), View(previous, previous + 0.1, labels)


class Recorder:
    """A cost of the images alone, and every image it was asked about."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        self.function, self.seen = function, list[Tensor]()

    def __call__(self, images: Tensor, labels: Tensor, view: View) -> Tensor:
        assert len(images) == len(labels) == len(view)
        self.seen.append(images.detach().clone())
        return self.function(images)


def bowl(count: int, examples: int = 2) -> Callable[[Tensor], Tensor]:
    """A quadratic of unlike curvatures, row by row; some of its minima lie outside the box."""
    local = torch.Generator().manual_seed(3)
    goal = torch.randn(count, examples, 1, 5, 5, dtype=torch.float64, generator=local)
    weight = torch.rand(count, examples, 1, 5, 5, dtype=torch.float64, generator=local) * 4 + 0.1

    def cost(images: Tensor) -> Tensor:
        rows = torch.arange(len(images)).clamp_max(count - 1)  # a batch may be filled up with its last row
        return ((images - goal[rows]).square() * weight[rows]).flatten(1).sum(1)

    return cost


@pytest.mark.parametrize(
    ("iterations", "milestones", "signed", "clamped"),
    [
        (1600, [599, 999, 1401], True, True),
        (80, [29, 49, 70], True, False),
        (80, [29, 49, 70], False, True),
        (80, [29, 49, 70], False, False),
        (80, [], True, True),
        (80, [], False, False),
    ],
)
def test_adam_is_that_of_torch(iterations: int, milestones: list[int], signed: bool, clamped: bool) -> None:
    (server, view), function = box(2), bowl(2)
    costs = Recorder(function)
    search = Search(iterations=iterations, lr=0.05, signed=signed, tv=0.0, boxed=clamped, decay=bool(milestones))
    found = optimise(server, view, costs, search)
    point = costs.seen[0][:2].clone().requires_grad_()
    adam = torch.optim.Adam([point], lr=0.05)
    schedule = torch.optim.lr_scheduler.MultiStepLR(adam, milestones, gamma=0.1)
    for iteration in range(iterations):
        torch.testing.assert_close(costs.seen[iteration][:2], point.detach(), rtol=0, atol=1e-6)
        (gradient,) = torch.autograd.grad(function(point).sum(), point)
        point.grad = gradient.sign() if signed else gradient
        adam.step()
        schedule.step()
        if clamped:
            with torch.no_grad():
                point.clamp_(-0.5, 0.8)
    assert len(costs.seen) == iterations + 1
    torch.testing.assert_close(found.images, point.detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(found.cost, function(found.images))
    assert bool((found.images.abs() > 0.8).any()) != clamped


def test_the_box_has_a_side_for_every_channel() -> None:
    server, view = box(2)
    server = replace(server, low=torch.tensor([[[-0.1]]]), high=torch.tensor([[[0.2]]], dtype=torch.float64))
    found = optimise(server, view, Recorder(bowl(2)), Search(iterations=20, tv=0.0))
    assert float(found.images.min()) == pytest.approx(-0.1)
    assert float(found.images.max()) == pytest.approx(0.2)


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
def test_the_prior_smooths(optimiser: Any) -> None:
    (server, view), function = box(2), bowl(2)
    search = Search(iterations=60, lr=0.05, signed=False, boxed=False, optimiser=optimiser)
    rough, smooth, doubled = (
        optimise(server, view, Recorder(function), replace(search, tv=tv), prior=prior)
        for tv, prior in ((0.0, 1.0), (50.0, 1.0), (25.0, 2.0))
    )
    assert (total_variation(smooth.images) < 0.7 * total_variation(rough.images)).all()
    assert torch.equal(smooth.images, doubled.images)
    torch.testing.assert_close(smooth.cost, function(smooth.images))  # without the prior


def descend(function: Callable[[Tensor], Tensor], start: Tensor, iterations: int, lr: float = 1.0) -> Tensor:
    """L-BFGS by itself on rows ``[R, n]``."""
    method, point = LBFGS(Search(lr=lr), start), start
    for iteration in range(1, iterations + 1):
        at = point.detach().requires_grad_()
        total = function(at)
        (gradient,) = torch.autograd.grad(total.sum(), at)
        point = method.step(point, total.detach(), gradient, iteration)
    return method.best(point)


def test_lbfgs_minimises_an_ill_conditioned_quadratic(generator: torch.Generator) -> None:
    size, count = 12, 4
    curvature = torch.logspace(0, 4, size, dtype=torch.float64)
    turned = torch.linalg.qr(torch.randn(count, size, size, dtype=torch.float64, generator=generator))[0]
    goal = torch.randn(count, size, dtype=torch.float64, generator=generator)
    matrix = turned @ torch.diag(curvature) @ turned.mT

    def function(rows: Tensor, picked: slice = slice(None)) -> Tensor:
        away = rows - goal[picked]
        return torch.einsum("ri,rij,rj->r", away, matrix[picked], away) / 2

    start = torch.randn(count, size, dtype=torch.float64, generator=generator)
    found = descend(function, start, 250)
    assert (function(found) < 1e-14 * function(start)).all()
    assert (found - goal).abs().max() < 1e-5
    for row in (0, 3):
        one = slice(row, row + 1)
        alone = descend(partial(function, picked=one), start[one], 250)
        torch.testing.assert_close(alone, found[one], rtol=0, atol=1e-5)


def rosenbrock(rows: Tensor) -> Tensor:
    x, y = rows[:, 0], rows[:, 1]
    return (1 - x).square() + 100 * (y - x.square()).square()


def test_lbfgs_takes_rosenbrocks_valley_row_by_row() -> None:
    start = torch.tensor([[-1.2, 1.0], [0.0, 0.0], [3.0, -2.0], [1.0, 1.0], [-2.0, 4.5]], dtype=torch.float64)
    found = descend(rosenbrock, start, 150)
    torch.testing.assert_close(found, torch.ones_like(start), rtol=0, atol=1e-6)
    for iterations in (1, 5, 20):  # on the way each row is where it would be alone
        whole = descend(rosenbrock, start, iterations)
        alone = torch.cat([descend(rosenbrock, row.unsqueeze(0), iterations) for row in start])
        torch.testing.assert_close(whole, alone, rtol=1e-9, atol=1e-12)


def test_lbfgs_never_ends_above_its_start() -> None:
    """Every accepted step lowers the cost, and a step into a wall of infinite cost is halved."""
    hits = 0

    def function(rows: Tensor) -> Tensor:
        nonlocal hits
        walled = torch.where(rows[:, 0].abs() > 2, INF, 0.0)
        hits += int(walled.isinf().sum())
        return rosenbrock(rows) + walled

    start = torch.tensor([[-1.9, -1.0], [1.9, 1.0], [1.9, 5.0]], dtype=torch.float64)
    costs = [function(descend(function, start, iterations)) for iterations in range(1, 40)]
    assert hits > 0
    for before, after in pairwise(costs):
        assert (after <= before).all()
    assert torch.isfinite(costs[-1]).all()
    assert (costs[-1] < 0.6 * function(start)).all()


def test_lbfgs_through_the_search() -> None:
    server, view = box(3)
    search = Search(iterations=60, tv=0.0, boxed=False, optimiser="lbfgs")
    found = optimise(server, view, Recorder(bowl(3)), search)
    assert found.cost.max() < 1e-10


# --- restarts ----------------------------------------------------------------------------------------------


def inversion(costs: list[float], mark: int, labels: bool = False) -> Inversion:
    count = len(costs)
    return Inversion(
        torch.full((count, 1, 2), float(mark)),
        torch.tensor(costs),
        torch.full((count,), mark),
        torch.full((count, 3), mark) if labels else None,
    )


@pytest.mark.parametrize(
    ("first", "second", "winner"),
    [
        (1.0, 0.5, 2),
        (0.5, 1.0, 1),
        (0.5, 0.5, 1),
        (NAN, 3.0, 2),
        (3.0, NAN, 1),
        (INF, 3.0, 2),
        (3.0, INF, 1),
        (NAN, NAN, 1),
        (3.0, -INF, 1),
        (-INF, 3.0, 2),
    ],
)
@pytest.mark.parametrize("labels", [True, False])
def test_the_better_of_two_restarts(first: float, second: float, winner: int, labels: bool) -> None:
    found = _better(inversion([first, 7.0], 1, labels), inversion([second, 9.0], 2, labels))
    assert found.images[:, 0, 0].tolist() == [winner, 1]
    assert found.stopped is not None
    assert found.stopped.tolist() == [winner, 1]
    expected = torch.tensor([first if winner == 1 else second, 7.0])
    assert torch.equal(found.cost.nan_to_num(-1), expected.nan_to_num(-1))
    assert (found.labels is not None) == labels
    if found.labels is not None:
        assert found.labels[:, 0].tolist() == [winner, 1]


def waves(images: Tensor) -> Tensor:
    """Many local minima."""
    return (torch.cos(7 * images) + images.square()).flatten(1).sum(1)


def test_restarts_keep_the_best_of_every_target() -> None:
    server, view = box(5)
    search = Search(iterations=15, lr=0.1, tv=0.0)
    rows = torch.arange(5)
    tries = [
        descent._restart(server, view, rows, Recorder(waves), search, 1.0, number, None, None) for number in range(4)
    ]
    costs = torch.stack([one.cost for one in tries])
    assert len(costs.argmin(0).unique()) > 1, "no restart is the best for every target"
    found = optimise(server, view, Recorder(waves), replace(search, restarts=4))
    assert torch.equal(found.cost, costs.min(0).values)
    for row, best in enumerate(costs.argmin(0).tolist()):
        assert torch.equal(found.images[row], tries[best].images[row])


def test_one_restart_that_fails_does_not_spoil_the_others() -> None:
    server, view = box(2)
    search, function = Search(iterations=5, lr=0.1, tv=0.0), bowl(2)
    calls = 0

    def cost(images: Tensor, labels: Tensor, view: View) -> Tensor:
        nonlocal calls
        calls += 1
        return function(images) * (NAN if calls <= 6 else 1.0)  # five iterations and the end of the first restart

    found = optimise(server, view, cost, replace(search, restarts=2))
    assert found.stopped is not None
    assert found.stopped.tolist() == [0, 0]
    assert torch.isfinite(found.cost).all()
    second = descent._restart(server, view, torch.arange(2), Recorder(function), search, 1.0, 1, None, None)
    assert torch.equal(found.images, second.images)


# --- costs that cease to be finite -------------------------------------------------------------------------


class Failing:
    """A healthy cost, but for some rows (None: all) it or its gradient is not finite from some iteration on."""

    def __init__(self, rows: list[int] | None, since: int, what: str = "cost"):
        self.rows, self.since, self.what, self.calls = rows, since, what, 0

    def __call__(self, images: Tensor, labels: Tensor, view: View) -> Tensor:
        self.calls += 1
        healthy = waves(images)
        if self.calls < self.since:
            return healthy
        rows = torch.arange(len(images)) if self.rows is None else torch.tensor(self.rows)
        if self.what == "gradient":  # the slope of a square root at zero
            return healthy.index_add(0, rows, (0 * healthy[rows]).sqrt())
        factor = torch.ones_like(healthy).index_fill(0, rows, NAN if self.what == "cost" else INF)
        return healthy * factor


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
@pytest.mark.parametrize("what", ["cost", "infinite cost", "gradient"])
def test_a_target_that_fails_stops_and_says_when(what: str, optimiser: Any) -> None:
    server, view = box(3)
    search = Search(iterations=8, lr=0.1, tv=0.01, signed=False, optimiser=optimiser)
    kept: list[Tensor] = []
    failing = Failing([1], 3, what)
    found = optimise(server, view, failing, search, lambda rows, iteration, images: kept.append(images.clone()))
    healthy = optimise(server, view, Failing(None, 99), search)
    assert found.stopped is not None
    assert found.stopped.tolist() == [0, 3, 0]
    for row in (0, 2):
        assert torch.equal(found.images[row], healthy.images[row])
        assert torch.equal(found.cost[row], healthy.cost[row])
    assert torch.isfinite(found.images).all()
    assert not torch.equal(found.images[1], healthy.images[1])
    assert bool(torch.isfinite(found.cost[1])) == (what == "gradient")
    if optimiser == "adam":
        assert torch.equal(found.images[1], kept[1][1])
    for images in kept[2:]:
        assert torch.equal(images[1], kept[1][1])
    assert len(kept) == 8


def test_if_all_targets_fail_the_attack_says_so() -> None:
    server, view = box(3)
    search = Search(iterations=8, lr=0.1)
    with pytest.raises(AttackError, match="first at iteration 4") as caught:
        optimise(server, view, Failing(None, 4), search)
    assert "smaller lr" in caught.value.remedy
    with pytest.raises(AttackError, match="first at iteration 1"):
        optimise(server, view, Failing(None, 1), replace(search, chunk=2))


def test_one_release_of_huge_weights() -> None:
    known = five("none", 0.0)
    released = known.view.released[:3].clone()
    released[1, 5] = 3e38  # finite, but not once it is divided by the learning rate
    found = invgrad(known.server, replace(known.view.rows(slice(3)), released=released), SETTINGS["invgrad"])
    healthy = invgrad(known.server, known.view.rows(slice(3)), SETTINGS["invgrad"])
    assert found.stopped is not None
    assert found.stopped.tolist() == [0, 1, 0]
    assert torch.isfinite(found.images).all()
    for row in (0, 2):
        assert torch.equal(found.images[row], healthy.images[row])


# --- what cannot be matched --------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_release_that_did_not_move_is_refused(attack: str) -> None:
    """Its cosine with anything is undefined, and every image matches it equally."""
    known = case(1, 3)
    released = known.view.released.clone()
    released[1] = known.view.previous[1]
    search = Search(iterations=1)
    with pytest.raises(AttackError, match=r"Release\(s\) 1 equal the weights they started from") as caught:
        ATTACKS[attack](known.server, replace(known.view, released=released), search)
    assert "leave them out" in caught.value.remedy
    still = replace(known.view, released=known.view.previous)
    with pytest.raises(AttackError, match=r"Release\(s\) 0, 1, 2 equal"):
        ATTACKS[attack](known.server, still, search)
    others = known.view.rows(torch.tensor([0, 2]))
    assert torch.isfinite(ATTACKS[attack](known.server, others, search).images).all()


def picky(outputs: Tensor, labels: Tensor) -> Tensor:
    """Squared error, of whole labels alone."""
    return (outputs - torch.eye(3, dtype=outputs.dtype)[labels]).square().sum(1).mean()


def fussy(outputs: Tensor, labels: Tensor) -> Tensor:
    """The same in other words, which fail differently on probabilities."""
    return -outputs.log_softmax(1).gather(1, labels.unsqueeze(1)).mean()


@pytest.mark.parametrize("loss", [picky, fussy])
def test_a_loss_that_takes_no_label_probabilities_is_refused_by_dlg(loss: Any) -> None:
    """It searches for labels too; attacks that are granted them can use such a loss."""
    model = seeded(lambda: MLP((1, 4, 4), 3, hidden=5))
    server = Server(Batched(model, loss), (1, 4, 4), 3, 2)
    previous = server.batched.layout.flatten(model.state_dict()).repeat(2, 1)
    moved = previous + 0.01 * laplace(tuple(previous.shape))
    view, search = View(previous, moved, torch.tensor([[0, 1], [2, 2]])), Search(iterations=1)
    with pytest.raises(ModelError, match="label probabilities, which dlg needs") as caught:
        dlg(server, view, search)
    assert len(caught.value.remedy) > 10
    assert torch.isfinite(invgrad(server, view, search).images).all()


# --- total variation ---------------------------------------------------------------------------------------


def test_total_variation_by_hand() -> None:
    image = torch.tensor([[0.0, 1.0], [3.0, 7.0]])
    assert total_variation(image.view(1, 1, 1, 2, 2)).tolist() == [4.5 + 2.5]
    ramp = torch.arange(4.0).expand(3, 4)  # 1 from column to column, 0 from row to row
    both = torch.stack([ramp, 2 * ramp, torch.full_like(ramp, 9.0), -ramp]).view(2, 2, 1, 3, 4)
    assert total_variation(both).tolist() == [1.5, 0.5]
    assert total_variation(ramp.T.reshape(1, 1, 1, 4, 3)).tolist() == [1.0]


def test_total_variation_knows_no_neighbours_across_images_or_channels(generator: torch.Generator) -> None:
    flat = torch.rand(3, 2, 4, 1, 1, generator=generator).expand(-1, -1, -1, 5, 6)
    assert total_variation(flat).tolist() == [0, 0, 0]
    images = torch.rand(3, 2, 4, 5, 6, generator=generator)
    torch.testing.assert_close(total_variation(images + flat), total_variation(images))


# --- settings and progress ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"iterations": 0},
        {"iterations": -3},
        {"restarts": 0},
        {"lr": 0.0},
        {"lr": -0.1},
        {"lr": INF},
        {"lr": NAN},
        {"tv": -1e-5},
        {"tv": INF},
        {"tv": NAN},
    ],
    ids=str,
)
def test_search_settings_are_checked(change: dict[str, Any]) -> None:
    ((name, value),) = change.items()
    with pytest.raises(AttackError, match=f"{name}={value!r}") as caught:
        Search(**change).check()
    assert caught.value.remedy
    known = five("none", 0.0)
    with pytest.raises(AttackError, match=name):
        invgrad(known.server, known.view, Search(**change))


def test_all_wrong_settings_are_named() -> None:
    with pytest.raises(AttackError, match=r"iterations=0, restarts=-1, lr=0, tv=-2"):
        Search(iterations=0, restarts=-1, lr=0, tv=-2).check()


@pytest.mark.parametrize("search", [Search(), DLG, MAP, Search(iterations=1, restarts=1, tv=0.0)])
def test_good_settings_pass(search: Search) -> None:
    search.check()


@pytest.mark.parametrize("optimiser", ["adam", "lbfgs"])
def test_watch_sees_every_iteration_of_the_first_restart(optimiser: Any) -> None:
    server, view = box(5)
    search = Search(iterations=4, lr=0.1, tv=0.0, restarts=3, chunk=2, optimiser=optimiser)
    seen: list[tuple[list[int], int, Tensor]] = []
    steps: list[int] = []
    optimise(
        server,
        view,
        Recorder(waves),
        search,
        lambda rows, iteration, images: seen.append((rows.tolist(), iteration, images.clone())),
        steps.append,
    )
    assert [part[:2] for part in seen] == [(rows, i) for rows in ([0, 1], [2, 3], [4]) for i in (1, 2, 3, 4)]
    assert all(images.shape == (len(rows), 2, 1, 5, 5) for rows, _, images in seen)
    assert not any(images.requires_grad for _, _, images in seen)
    assert steps == [2] * 12 + [2] * 12 + [1] * 12


def test_watch_sees_the_images_that_are_returned() -> None:
    server, view = box(3)
    seen: list[Tensor] = []
    found = optimise(
        server, view, Recorder(waves), Search(iterations=5, lr=0.1), lambda rows, i, images: seen.append(images.clone())
    )
    assert torch.equal(found.images, seen[-1])
    assert all(not torch.equal(one, two) for one, two in pairwise(seen))


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_reports_its_progress(attack: str) -> None:
    known = five("pl-learn", 0.02)
    seen: list[tuple[int, tuple[int, ...]]] = []
    steps: list[int] = []
    search = replace(SETTINGS[attack], iterations=2)
    found = ATTACKS[attack](
        known.server,
        known.view.rows(slice(3)),
        search,
        lambda rows, iteration, images: seen.append((iteration, tuple(images.shape))),
        steps.append,
    )
    assert seen == [(1, (3, 4, 1, 28, 28)), (2, (3, 4, 1, 28, 28))]
    assert steps == [3, 3]
    assert found.images.shape == (3, 4, 1, 28, 28)
    assert found.cost.shape == (3,)
    assert not found.images.requires_grad
    assert not found.cost.requires_grad
