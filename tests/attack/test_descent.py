"""The search behind the inversion attacks: independence of targets, two optimisers, restarts, costs that fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.attack.attack import Hooks, Knowledge
from equipoise.attack.descent import LBFGS, Search, _better, optimise, total_variation
from equipoise.attack.dlg import SEARCH as DLG
from equipoise.attack.invgrad import invgrad
from equipoise.attack.likelihood import SEARCH as MAP
from equipoise.attack.registry import find
from equipoise.attack.results import Inversion
from equipoise.attack.view import Server, View
from equipoise.errors import AttackError
from equipoise.models.batched import Batched
from tests.attack.inversions import ATTACKS, QUICK, case, five, seeded, tanh_model

NAN, INF = float("nan"), float("inf")

# --- one target and another --------------------------------------------------------------------------------


def assert_same(actual: Inversion, expected: Inversion, count: int) -> None:
    for part in ("images", "cost", "stopped", "labels"):
        one, two = getattr(actual, part), getattr(expected, part)
        assert (one is None) == (two is None)
        same = one is None or torch.equal(one[:count], two[:count])
        assert same, part


@pytest.mark.parametrize("name", ["none", "pl-learn"])
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("batch", [1, 4])
def test_a_target_does_not_depend_on_the_others(batch: int, attack: str, name: str) -> None:
    known, run = five(name, 0.02, batch), ATTACKS[attack]
    everything = run(known.server, known.view, QUICK[attack])
    for count in (1, 3):
        assert_same(run(known.server, known.view.rows(slice(count)), QUICK[attack]), everything, count)


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("batch", [1, 4])
def test_a_target_does_not_depend_on_chunks(batch: int, attack: str) -> None:
    known, run = five("pl-learn", 0.02, batch), ATTACKS[attack]
    whole = run(known.server, known.view, QUICK[attack])
    assert_same(run(known.server, known.view, replace(QUICK[attack], chunk=2)), whole, 5)


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


@pytest.mark.slow
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
    result = optimise(server, view, costs, search)
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
    torch.testing.assert_close(result.images, point.detach(), rtol=0, atol=1e-6)
    torch.testing.assert_close(result.cost, function(result.images))
    assert bool((result.images.abs() > 0.8).any()) != clamped


def test_the_box_has_a_side_for_every_channel() -> None:
    server, view = box(2)
    server = replace(server, low=torch.tensor([[[-0.1]]]), high=torch.tensor([[[0.2]]], dtype=torch.float64))
    result = optimise(server, view, Recorder(bowl(2)), Search(iterations=20, tv=0.0))
    assert float(result.images.min()) == pytest.approx(-0.1)
    assert float(result.images.max()) == pytest.approx(0.2)


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
    result = descend(function, start, 250)
    assert (function(result) < 1e-14 * function(start)).all()
    assert (result - goal).abs().max() < 1e-5
    for row in (0, 3):
        one = slice(row, row + 1)
        alone = descend(partial(function, picked=one), start[one], 250)
        torch.testing.assert_close(alone, result[one], rtol=0, atol=1e-5)


def rosenbrock(rows: Tensor) -> Tensor:
    x, y = rows[:, 0], rows[:, 1]
    return (1 - x).square() + 100 * (y - x.square()).square()


def test_lbfgs_takes_rosenbrocks_valley_row_by_row() -> None:
    start = torch.tensor([[-1.2, 1.0], [0.0, 0.0], [3.0, -2.0], [1.0, 1.0], [-2.0, 4.5]], dtype=torch.float64)
    result = descend(rosenbrock, start, 150)
    torch.testing.assert_close(result, torch.ones_like(start), rtol=0, atol=1e-6)
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
    result = optimise(server, view, Recorder(bowl(3)), search)
    assert result.cost.max() < 1e-10


# --- restarts ----------------------------------------------------------------------------------------------


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
    actual = _better(inversion([first, 7.0], 1, labels), inversion([second, 9.0], 2, labels))
    assert actual.images[:, 0, 0].tolist() == [winner, 1]
    assert actual.stopped is not None
    assert actual.stopped.tolist() == [winner, 1]
    expected = torch.tensor([first if winner == 1 else second, 7.0])
    assert torch.equal(actual.cost.nan_to_num(-1), expected.nan_to_num(-1))
    assert (actual.labels is not None) == labels
    if actual.labels is not None:
        assert actual.labels[:, 0].tolist() == [winner, 1]


def waves(images: Tensor) -> Tensor:
    """Many local minima."""
    return (torch.cos(7 * images) + images.square()).flatten(1).sum(1)


def test_restarts_keep_the_best_of_every_target() -> None:
    server, view = box(5)
    costs = Recorder(waves)
    result = optimise(server, view, costs, Search(iterations=15, lr=0.1, tv=0.0, restarts=4))
    ends = torch.stack([images[:5] for images in costs.seen[15::16]])  # each restart ends with one more call
    tried = torch.stack([waves(images) for images in ends])
    assert len(tried) == 4
    assert len(tried.argmin(0).unique()) > 1, "no restart is the best for every target"
    assert torch.equal(result.cost, tried.min(0).values)
    for row, best in enumerate(tried.argmin(0).tolist()):
        assert torch.equal(result.images[row], ends[best, row])


def test_one_restart_that_fails_does_not_spoil_the_others() -> None:
    server, view = box(2)
    function, calls = bowl(2), 0

    def failing_first(images: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return function(images) * (NAN if calls <= 6 else 1.0)  # five iterations and the end of the first restart

    costs = Recorder(failing_first)
    result = optimise(server, view, costs, Search(iterations=5, lr=0.1, tv=0.0, restarts=2))
    assert result.stopped is not None
    assert result.stopped.tolist() == [0, 0]
    assert torch.isfinite(result.cost).all()
    assert torch.equal(result.images, costs.seen[11][:2]), "the second restart's"


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
    result = optimise(server, view, failing, search, Hooks(lambda rows, iteration, images: kept.append(images.clone())))
    healthy = optimise(server, view, Failing(None, 99), search)
    assert result.stopped is not None
    assert result.stopped.tolist() == [0, 3, 0]
    for row in (0, 2):
        assert torch.equal(result.images[row], healthy.images[row])
        assert torch.equal(result.cost[row], healthy.cost[row])
    assert torch.isfinite(result.images).all()
    assert not torch.equal(result.images[1], healthy.images[1])
    assert bool(torch.isfinite(result.cost[1])) == (what == "gradient")
    if optimiser == "adam":
        assert torch.equal(result.images[1], kept[1][1])
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


# --- what cannot be matched --------------------------------------------------------------------------------


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_release_that_did_not_move_spoils_no_other(attack: str) -> None:
    """Its cosine with anything is undefined, and every image matches it equally."""
    known = case(1, 3)
    released = known.view.released.clone()
    released[1] = known.view.previous[1]
    search = Search(iterations=2)
    whole = ATTACKS[attack](known.server, known.view, search).images
    result = ATTACKS[attack](known.server, replace(known.view, released=released), search)
    assert torch.equal(result.images[[0, 2]], whole[[0, 2]])
    assert torch.isfinite(result.images).all()


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


@pytest.mark.parametrize("name", ATTACKS)
def test_the_options_and_hooks_of_an_audit_reach_the_search(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own options; iterations are one of InvGrad alone."""
    known, hooks, seen = five("none", 0.0), Hooks(step=print), list[Any]()

    def recorded(server: Server, view: View, cost: Any, search: Search, hooks: Hooks, prior: float = 1.0) -> Inversion:
        seen.append((view.labels, cost.func, search, hooks, prior))
        return Inversion(known.truth, torch.zeros(5))

    monkeypatch.setattr(sys.modules[ATTACKS[name].__module__], "optimise", recorded)
    given = {"iterations": 3, "lr": 0.3, "signed": False, "tv": 0.5, "restarts": 2, "seed": 7, "samples": 99}
    usual = {"dlg": DLG, "idlg": DLG, "likelihood": MAP, "unrolled": MAP}
    search = replace(usual[name], restarts=2, seed=7) if name in usual else Search(
        iterations=3, lr=0.3, signed=False, tv=0.5, restarts=2, seed=7
    )  # fmt: skip
    find(name).run(known.server, known.view, Knowledge(), given, hooks)
    ATTACKS[name](known.server, known.view, search, hooks)
    (labels, *actual), (expected_labels, *expected) = seen
    assert actual == expected
    assert (labels is None) == (expected_labels is None) == (name == "dlg")


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
        Hooks(lambda rows, iteration, images: seen.append((rows.tolist(), iteration, images.clone())), steps.append),
    )
    assert [part[:2] for part in seen] == [(rows, i) for rows in ([0, 1], [2, 3], [4]) for i in (1, 2, 3, 4)]
    assert all(images.shape == (len(rows), 2, 1, 5, 5) for rows, _, images in seen)
    assert not any(images.requires_grad for _, _, images in seen)
    assert steps == [2] * 12 + [2] * 12 + [1] * 12


def test_watch_sees_the_images_that_are_returned() -> None:
    server, view = box(3)
    seen: list[Tensor] = []
    result = optimise(
        server,
        view,
        Recorder(waves),
        Search(iterations=5, lr=0.1),
        Hooks(lambda rows, i, images: seen.append(images.clone())),
    )
    assert torch.equal(result.images, seen[-1])
    assert all(not torch.equal(one, two) for one, two in pairwise(seen))


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_reports_its_progress(attack: str) -> None:
    known = five("pl-learn", 0.02)
    seen: list[tuple[int, tuple[int, ...]]] = []
    steps: list[int] = []
    search = replace(QUICK[attack], iterations=2)
    result = ATTACKS[attack](
        known.server,
        known.view.rows(slice(3)),
        search,
        Hooks(lambda rows, iteration, images: seen.append((iteration, tuple(images.shape))), steps.append),
    )
    assert seen == [(1, (3, 4, 1, 28, 28)), (2, (3, 4, 1, 28, 28))]
    assert steps == [3, 3]
    assert result.images.shape == (3, 4, 1, 28, 28)
    assert result.cost.shape == (3,)
    assert not result.images.requires_grad
    assert not result.cost.requires_grad
