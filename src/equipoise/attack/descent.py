"""Descent on a cost per target, many targets at once: the loop behind every attack that searches for inputs.

No target influences another, and starting points are keyed by target, so neither the batch nor its chunks change a
result. A target whose cost ceases to be finite stops at its last finite inputs and says when; if that befalls all of
them, ``AttackError`` is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal

import torch
from torch import Tensor

from ..errors import AttackError
from ..mechanism.noise import standard_noise
from ..randomness import experiment_key, uniform
from .attack import UNWATCHED, Attack, Hooks, Knowledge, Option, Work
from .results import Inversion
from .view import Server, View, check_differentiable, even

Cost = Callable[[Tensor, Tensor, View], Tensor]
"""(images ``[R, E, ...]``, labels ``[R, E]`` or probabilities ``[R, E, classes]``, their releases) -> ``[R]``."""


CHUNK = {"cpu": 32, "cuda": 1024}


@dataclass(frozen=True, kw_only=True)
class Search:
    """How the inputs are searched for. The defaults are the paper's."""

    iterations: int = 1600
    lr: float = 1.0
    signed: bool = True  # the sign of the gradient instead of the gradient, before Adam
    tv: float = 1e-5  # weight of the total variation
    boxed: bool = True  # inputs are kept in their range
    decay: bool = True  # lr / 10 after 3/8, 5/8 and 7/8 of the iterations
    restarts: int = 1
    optimiser: Literal["adam", "lbfgs"] = "adam"
    seed: int = 0
    starts: int = 0  # targets after which the starting points repeat; 0: every target has its own
    chunk: int = 0  # targets at once; 0: by device

    def check(self) -> None:
        wrong = [f"{name}={getattr(self, name)!r}" for name in ("iterations", "restarts") if getattr(self, name) < 1]
        wrong += [f"{name}={getattr(self, name)!r}" for name in ("chunk", "starts") if getattr(self, name) < 0]
        wrong += [f"optimiser={self.optimiser!r}"] if self.optimiser not in ("adam", "lbfgs") else []
        wrong += [f"lr={self.lr!r}"] if not 0 < self.lr < float("inf") else []
        wrong += [f"tv={self.tv!r}"] if not 0 <= self.tv < float("inf") else []
        if wrong:
            raise AttackError(f"Impossible search settings: {', '.join(wrong)}.", "See attack.descent.Search.")


Inverting = Callable[[Server, View, Search, Hooks], Inversion]


def inverting(
    name: str,
    attack: Inverting,
    search: Search,
    own: Mapping[str, Option] = MappingProxyType({}),
    *,
    needs: Iterable[str] = ("inferred labels",),
    labels: Iterable[str] = (),
    gradients: Callable[[Server], float] = lambda server: 1.0,
) -> Attack:
    """An attack by search, with restarts as an option beside its ``own``, which are settings of the search too.

    ``gradients`` of a batch are what its cost takes; the gradient of the cost takes about four times as many. Inputs
    are moved little by little, so they must be numbers; ``labels`` is what these must be (``DATA``).

    >>> from equipoise.attack.invgrad import invgrad
    >>> slow = inverting("slow", invgrad, Search(lr=0.1), {"iterations": Option(5000)})
    >>> slow.work(None, torch.zeros(3, 1), None, {"iterations": 100, "restarts": 2, "seed": 0})
    Work(steps=600, gradients=4.0, products=0.0)
    """
    options = {**own, "restarts": Option(1, least=1)}

    def chosen(given: Mapping[str, Any]) -> Search:
        return replace(search, **{option: given[option] for option in (*options, "seed")})

    def run(server: Server, view: View, _: Knowledge, given: Mapping[str, Any], hooks: Hooks) -> Inversion:
        return attack(server, view, chosen(given), hooks)

    def work(server: Server, labels: Tensor, _: Knowledge, given: Mapping[str, Any]) -> Work:
        steps = chosen(given)
        return Work(steps.iterations * steps.restarts * len(labels), 4.0 * gradients(server))

    return Attack(name, run, frozenset(needs), options, work, frozenset({"numbers", *labels}))


def total_variation(images: Tensor) -> Tensor:
    """Anisotropic total variation ``[R, E, ..., H, W] -> [R]``, each direction a mean over its differences.

    Inputs that are not images, ``[R, E, F]``, have none.
    """
    total = images.new_zeros(len(images))
    if images.dim() < 4:
        return total
    for axis in (-2, -1):
        if images.shape[axis] > 1:
            total = total + images.diff(dim=axis).abs().flatten(1).mean(1)
    return total


def boxed(server: Server, images: Tensor) -> Tensor:
    """Inputs clamped to their range."""
    low, high = (torch.as_tensor(edge, dtype=images.dtype, device=images.device) for edge in (server.low, server.high))
    return images.clamp(low, high)


def optimise(
    server: Server,
    view: View,
    cost: Cost,
    search: Search,
    hooks: Hooks = UNWATCHED,
    prior: float = 1.0,
) -> Inversion:
    """Search for the inputs behind every release; ``hooks.step`` gets the number of targets that made a step.

    The prior is ``search.tv * prior *`` mean total variation: a cost that is a log-likelihood needs it as a sum.
    """
    search.check()
    check_differentiable(server, view.previous, soft=view.labels is None)
    size = search.chunk or CHUNK[view.released.device.type]
    parts = []
    for start in range(0, len(view), size):
        rows = torch.arange(start, min(start + size, len(view)))
        taken = torch.cat([rows, rows[-1:].expand(even(server, len(rows)) - len(rows))])
        problem = _Problem(server, view.rows(taken.to(view.released.device)), cost, search, prior)
        best: Inversion | None = None
        for restart in range(search.restarts):
            seen = hooks if restart == 0 else replace(hooks, watch=None)
            result = _restart(problem, rows, taken, restart, seen)
            best = result if best is None else _better(best, result)
        assert best is not None
        parts.append(best)
    joined = Inversion(
        torch.cat([part.images for part in parts]),
        torch.cat([part.cost for part in parts]),
        torch.cat([part.stopped for part in parts if part.stopped is not None]),
        None if parts[0].labels is None else torch.cat([part.labels for part in parts if part.labels is not None]),
    )
    assert joined.stopped is not None
    if bool((joined.stopped > 0).all()):
        raise AttackError(
            f"The cost of every target ceased to be finite, first at iteration {int(joined.stopped.min())}.",
            "Use a smaller lr, and check the scale of the weights and inputs.",
        )
    return joined


def _better(one: Inversion, other: Inversion) -> Inversion:
    """The restart of lower cost, target by target; a cost that is not finite never wins."""
    old, new = (torch.where(torch.isfinite(part.cost), part.cost, float("inf")) for part in (one, other))
    worse = new < old
    assert one.stopped is not None
    assert other.stopped is not None

    def pick(kept: Tensor | None, result: Tensor | None) -> Tensor | None:
        if kept is None or result is None:
            return None
        return torch.where(worse.view(-1, *[1] * (kept.dim() - 1)), result, kept)

    images, costs = pick(one.images, other.images), pick(one.cost, other.cost)
    assert images is not None
    assert costs is not None
    return Inversion(images, costs, pick(one.stopped, other.stopped), pick(one.labels, other.labels))


@dataclass(frozen=True)
class _Problem:
    """Some targets, filled up to an even number of replicas; the search is over one flat vector for each."""

    server: Server
    view: View
    cost: Cost
    search: Search
    prior: float

    @property
    def inputs(self) -> int:
        return self.server.examples * self.server.pixels

    @property
    def searched(self) -> int:
        """Numbers that are searched for: the inputs and, where the labels are not known, a logit for every class."""
        return self.inputs + (self.server.examples * self.server.classes if self.view.labels is None else 0)

    def images(self, flat: Tensor) -> Tensor:
        images: Tensor = flat[:, : self.inputs].unflatten(1, (self.server.examples, *self.server.shape))
        return images

    def labels(self, flat: Tensor) -> Tensor:
        """As known, or as probabilities."""
        if self.view.labels is not None:
            return self.view.labels
        logits: Tensor = flat[:, self.inputs :].unflatten(1, (self.server.examples, self.server.classes))
        return logits.softmax(-1)

    def slope(self, flat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Cost, cost with the prior, and the gradient of the latter."""
        flat = flat.detach().requires_grad_()
        images = self.images(flat)
        plain = self.cost(images, self.labels(flat), self.view)
        total = plain
        if self.search.tv:
            total = total + self.search.tv * self.prior * total_variation(images)
        (gradient,) = torch.autograd.grad(total.sum(), flat)
        return plain.detach(), total.detach(), gradient

    def settle(self, flat: Tensor) -> Tensor:
        """The inputs back in their range, if they are to be kept there."""
        if not self.search.boxed:
            return flat
        images = boxed(self.server, self.images(flat)).flatten(1)
        return images if self.searched == self.inputs else torch.cat([images, flat[:, self.inputs :]], 1)


def _restart(problem: _Problem, rows: Tensor, taken: Tensor, restart: int, hooks: Hooks) -> Inversion:
    """One descent from starting points of its own; ``taken`` are ``rows`` and what fills them up."""
    search, count, like = problem.search, len(rows), problem.view.released
    key = experiment_key(search.seed, "attack/start")
    starts = taken % search.starts if search.starts else taken
    numbers = uniform([key] * len(taken), starts.tolist(), [restart], problem.searched, like.dtype, like.device)[0]
    point = standard_noise(numbers, "gaussian")
    method = Adam(search, point) if search.optimiser == "adam" else LBFGS(search, point)
    stopped = torch.zeros(len(taken), dtype=torch.int64, device=like.device)
    for iteration in range(1, search.iterations + 1):
        _, total, gradient = problem.slope(point)
        healthy = torch.isfinite(total) & torch.isfinite(gradient).all(1)
        stopped = torch.where((stopped == 0) & ~healthy, iteration, stopped)
        moved = problem.settle(method.step(point, total, gradient, iteration))
        fine = (stopped == 0) & torch.isfinite(moved).all(1)
        point = torch.where(fine.unsqueeze(1), moved, point)
        if hooks.watch:
            hooks.watch(rows, iteration, problem.images(point)[:count])
        if hooks.step:
            hooks.step(count)
    point = method.best(point)
    plain, _, _ = problem.slope(point)
    guessed = problem.labels(point).argmax(-1)[:count] if problem.view.labels is None else None
    return Inversion(problem.images(point)[:count].detach(), plain[:count], stopped[:count], guessed)


class Adam:
    """Adam on every target by itself, optionally on the sign of the gradient."""

    def __init__(self, search: Search, point: Tensor):
        self.search = search
        self.mean, self.square = torch.zeros_like(point), torch.zeros_like(point)
        # as published: 599, 999 and 1401 of 1600
        self.drops = [int(search.iterations // part) for part in (2.667, 1.6, 1.142)] if search.decay else []

    def step(self, point: Tensor, total: Tensor, gradient: Tensor, iteration: int) -> Tensor:
        if self.search.signed:
            gradient = gradient.sign()
        self.mean.lerp_(gradient, 0.1)
        self.square.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        lr = self.search.lr * 0.1 ** sum(iteration > drop for drop in self.drops)
        size = (self.square / (1 - 0.999**iteration)).sqrt_().add_(1e-8)
        return point.addcdiv(self.mean, size, value=-lr / (1 - 0.9**iteration))

    def best(self, point: Tensor) -> Tensor:
        return point


class LBFGS:
    """L-BFGS on every target by itself: each evaluation either takes a target's step or halves it."""

    HISTORY = 20

    def __init__(self, search: Search, point: Tensor):
        self.lr = search.lr
        shape = (self.HISTORY, *point.shape)
        self.steps, self.bends = point.new_zeros(shape), point.new_zeros(shape)
        self.rate = point.new_zeros(self.HISTORY, len(point))  # 1 / <step, bend>; 0 where there is none
        self.here: Tensor | None = None

    def step(self, point: Tensor, total: Tensor, gradient: Tensor, iteration: int) -> Tensor:
        if self.here is None:
            self.here, self.total, self.gradient = point, total, gradient
            length = (self.lr / gradient.abs().sum(1).clamp_min(1e-30)).clamp_max(self.lr)
            self.length, self.direction = length, -gradient
            return self.here + self.length.unsqueeze(1) * self.direction
        fall = (self.gradient * self.direction).sum(1)
        taken = torch.isfinite(total) & (total <= self.total + 1e-4 * self.length * fall)
        wide = taken.unsqueeze(1)
        step, bend = point - self.here, gradient - self.gradient
        inner = (step * bend).sum(1)
        useful = taken & (inner > 1e-10 * (step.norm(dim=1) * bend.norm(dim=1)))
        rate = torch.where(useful, 1 / inner.clamp_min(1e-38), 0)
        self._remember(taken, step, bend, rate)
        self.here, self.total = torch.where(wide, point, self.here), torch.where(taken, total, self.total)
        self.gradient = torch.where(wide, gradient, self.gradient)
        direction = self._direction()
        downhill = (direction * self.gradient).sum(1, keepdim=True) < 0
        direction = torch.where(downhill, direction, -self.gradient)
        self.direction = torch.where(wide, direction, self.direction)
        self.length = torch.where(taken, self.lr, self.length / 2)
        return self.here + self.length.unsqueeze(1) * self.direction

    def _remember(self, taken: Tensor, step: Tensor, bend: Tensor, rate: Tensor) -> None:
        wide = taken.view(1, -1, 1)
        self.steps = torch.where(wide, torch.cat([self.steps[1:], step.unsqueeze(0)]), self.steps)
        self.bends = torch.where(wide, torch.cat([self.bends[1:], bend.unsqueeze(0)]), self.bends)
        self.rate = torch.where(taken, torch.cat([self.rate[1:], rate.unsqueeze(0)]), self.rate)

    def _direction(self) -> Tensor:
        """The two-loop recursion, for all targets."""
        result, shares = -self.gradient, []
        for step, bend, rate in zip(self.steps.flip(0), self.bends.flip(0), self.rate.flip(0), strict=True):
            share = rate * (step * result).sum(1)
            shares.append(share)
            result = result - share.unsqueeze(1) * bend
        newest = self.rate[-1] * self.bends[-1].square().sum(1)
        result = result * torch.where(newest > 0, 1 / newest.clamp_min(1e-38), 1).unsqueeze(1)
        for step, bend, rate, share in zip(self.steps, self.bends, self.rate, reversed(shares), strict=True):
            back = rate * (bend * result).sum(1)
            result = result + (share - back).unsqueeze(1) * step
        return result

    def best(self, point: Tensor) -> Tensor:
        return point if self.here is None else self.here
