"""F along a run: value, gradient and curvature at snapshots, and rounds repeated from them; all federations at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor

from ..engine.sweep import Sweep
from ..engine.tables import default_chunk
from ..mechanism.intensity import intensity
from ..mechanism.registry import mechanism
from ..mechanism.release import local_step
from .context import Row, Scene, average, largest
from .estimates import bias_ratio, curvature, descent_ratio, deviations


@dataclass
class Repeats:
    """The round after a snapshot, N times: ``[N, F]`` each. Distortions as they move the model."""

    decrease: Tensor  # F(W) - F(W_t) on examples drawn afresh, the same for both
    distortion: Tensor  # |Delta_t|^2
    clipped: Tensor
    refused: Tensor


@dataclass
class Outer:
    """What is known of F along a run; tensors over federations."""

    loss: dict[int, Tensor] = field(default_factory=dict)  # [F]
    slope: dict[int, Tensor] = field(default_factory=dict)  # [F, P]
    bends: list[Tensor] = field(default_factory=list)  # [F] each: L_F from below
    variance: dict[int, list[Row]] = field(default_factory=dict)
    bias: dict[int, list[float]] = field(default_factory=dict)

    def smoothness(self, index: int) -> Row:
        return largest(torch.stack(self.bends)[:, index])

    def squared(self, when: int, index: int) -> float:
        return float(intensity(self.slope[when][index : index + 1].double())) ** 2


def look(scene: Scene, outer: Outer, when: int, params: Tensor) -> None:
    """F, its gradient and curvature, and the variance of mini-batch gradients, at one set of weights."""
    outer.loss[when], outer.slope[when] = scene.losses(params), scene.gradients(params)
    options, names = scene.options, scene.sweep.parts
    few = {name: _subset(scene, name, options.examples, options.seed + when) for name in names}
    epsilon = 1e-4 if params.dtype == torch.float64 else 2e-3
    probe = partial(curvature, epsilon=epsilon, seed=options.seed)
    _, along = probe(partial(scene.gradients, rows=few), params, options.power)  # a direction, from some examples
    outer.bends.append(probe(scene.gradients, params, 1, start=along)[0])  # its curvature, from all of them
    scene.tell(f"gradients and curvature of F at {when}", 1.0 * len(params))
    outer.variance[when], outer.bias[when] = [], []
    for i in range(len(params)):
        squares, mean = samples(scene, when, i, params[i], outer.slope[when][i])
        outer.variance[when].append(average(squares))
        outer.bias[when].append(bias_ratio(mean, outer.slope[when][i], float(squares.mean()), len(squares)))
    scene.tell(f"mini-batch gradients at {when}", 0.3 * len(params))


def _subset(scene: Scene, name: str, count: int, seed: int) -> Tensor:
    rows = scene.examples(name)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    return rows[order[:count].to(rows.device)]


def between(outer: Outer, places: dict[int, Tensor]) -> None:
    """Gradients at two snapshots, set against the way between them."""
    rounds = sorted(places)
    for i, one in enumerate(rounds):
        for other in rounds[i + 1 :]:
            apart = intensity((places[one] - places[other]).double())
            moved = intensity((outer.slope[one] - outer.slope[other]).double())
            outer.bends.append(torch.where(apart > 0, moved / apart.clamp_min(1e-300), 0.0))


def samples(scene: Scene, when: int, index: int, params: Tensor, full: Tensor) -> tuple[Tensor, Tensor]:
    """Squared deviations ``[N]`` of the aggregated gradients of fresh rounds from the full one, and their mean."""
    sweep = scene.sweep.at(when, scene.sweep.state.params)
    s, fed, slots = sweep.settings, sweep.federations[index], sweep.draws.slots
    kind = mechanism(fed.mechanism)
    protection = s.protection(kind, 0.0, 0.0, 0.0)  # only its clip matters
    first = list(sweep.datasets).index(fed.dataset) * sweep.draws.streams + sweep.draws.seeds.index(fed.seed) * slots
    pixels = sweep.images[0].numel() * s.batch
    size = max(1, default_chunk(len(params), pixels, sweep.dtype, sweep.device) // slots)
    squares, total = [], torch.zeros_like(params, dtype=torch.float64)
    for start in range(0, scene.options.samples, size):
        rounds = [when + 1 + j for j in range(start, min(start + size, scene.options.samples))]
        tables = sweep.tables(rounds)
        examples = tables.batches[:, first : first + slots].flatten(0, 1)
        objective = sweep.batched.at(sweep.images[examples], sweep.labels[examples])
        here = params.expand(len(examples), -1).contiguous()
        moved, _ = local_step([objective], here, 1.0, protection)  # one step of size 1 shows the (clipped) gradient
        share = tables.weights[:, index].to(moved)
        each = (here - moved).view(len(rounds), slots, -1)
        mean = (each * (share / share.sum(1, keepdim=True)).unsqueeze(-1)).sum(1)
        squares.append(deviations(mean, full))
        total += mean.double().sum(0)
    return torch.cat(squares), (total / scene.options.samples).to(full)


def repeats(scene: Scene, outer: Outer, when: int, eta: float) -> Repeats:
    """The round after ``when`` again and again, for all federations at once."""
    params, options = scene.weights[when], scene.options
    sweep = scene.sweep.at(when, params, eta)
    rounds = list(range(when + 1, when + 1 + options.repeats))
    tables = sweep.tables(rounds)
    falls = []
    for i, number in enumerate(rounds):
        new = sweep.round(tables, torch.tensor([i], device=sweep.device), sweep.noise_table(number))
        chosen = {name: _subset(scene, name, options.examples, options.seed + number) for name in sweep.parts}
        falls.append(scene.losses(params, chosen) - scene.losses(new, chosen))
        if i == 0:  # with F over all examples, what its smoothness must be at least
            before, after = outer.loss[when], scene.losses(new)
            outer.bends.append(descent_ratio(before, after, outer.slope[when].double(), (new - params).double()))
        scene.tell(f"round {when + 1} repeated with eta {eta:.3g}", 0.1 * len(params))
    moved = tables.server_rate * tables.distortion.double()
    share = tables.accepted.double().mean(2)
    return Repeats(torch.stack(falls), moved.square(), tables.clipped.double().mean(2), 1 - share)


@dataclass
class Short:
    """A run of a few rounds with a small eta: ``[T, F]`` gradients and distortions, ``[F]`` losses."""

    eta: float
    squared: Tensor
    distortion: Tensor
    first: Tensor
    last: Tensor
    clipped: Tensor
    refused: Tensor


def short_run(scene: Scene, outer: Outer, eta: float) -> Short:
    """Train from the first weights with the given eta, looking at F in every round."""
    params = scene.sweep.state.params
    sweep: Sweep = scene.sweep.at(0, params, eta)
    rounds = list(range(1, scene.options.short + 1))
    tables = sweep.tables(rounds)
    squared, slope, loss = [], outer.slope[0], outer.loss[0]
    for i, number in enumerate(rounds):
        squared.append(intensity(slope.double()).square())
        new = sweep.round(tables, torch.tensor([i], device=sweep.device), sweep.noise_table(number))
        after, value = scene.gradients(new), scene.losses(new)
        move = (new - sweep.state.params).double()
        length = intensity(move).clamp_min(1e-300)
        outer.bends.append(torch.where(length > 1e-300, intensity((after - slope).double()) / length, 0.0))
        outer.bends.append(descent_ratio(loss, value, slope.double(), move))
        slope, loss, sweep.state.params = after, value, new
        scene.tell(f"short run with eta {eta:.3g}", 0.5 * len(params))
    moved = tables.server_rate * tables.distortion.double()
    clipped, refused = tables.clipped.double().mean((0, 2)), 1 - tables.accepted.double().mean((0, 2))
    return Short(eta, torch.stack(squared), moved.square(), outer.loss[0], loss, clipped, refused)
