"""A forward simulation of the whole release: equal to the real one, differentiable, and inverted where it can be."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.attack.likelihood import SEARCH
from equipoise.attack.unrolled import drift, unrolled
from equipoise.attack.view import Server
from equipoise.mechanism.distortion import draw_bounds
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.records import of_units
from equipoise.mechanism.registry import MECHANISMS, get_mechanism
from equipoise.mechanism.release import Noise, observed_release
from equipoise.mechanism.units import EachRecord, Records, Units
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP, LeNetZhu
from equipoise.randomness import system_words
from tests.attack.inversions import CLASS_MEAN, case, laplace, seeded, tanh_model


@pytest.mark.slow
def test_it_wins_without_protection() -> None:
    known = case(1, 2)
    result = unrolled(known.server, known.view, replace(SEARCH, iterations=250))
    assert known.errors(result).max() < CLASS_MEAN / 4


@pytest.mark.slow
def test_it_wins_against_a_tiny_learned_distortion() -> None:
    known = case(1, 2, "pl-learn", 0.02, steps=2)
    result = known.errors(unrolled(known.server, known.view, replace(SEARCH, iterations=200)))
    assert result.max() < 0.8 * CLASS_MEAN
    assert (result < known.flat() * 0.7).all()


def test_it_loses_against_a_large_learned_distortion() -> None:
    known = case(1, 2, "pl-learn", 64.0, steps=2)
    result = known.errors(unrolled(known.server, known.view, replace(SEARCH, iterations=50)))
    assert (result > 0.98 * known.flat()).all()
    assert result.mean() > 2 * CLASS_MEAN


# --- the simulated release ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Simulated:
    server: Server
    previous: Tensor
    images: Tensor
    labels: Tensor
    noise: Tensor

    def objectives(self) -> list[Any]:
        size, steps = self.server.batch, range(self.server.local_steps)
        if self.server.protection.mechanism.whole_run:
            records = Records(self.images.flatten(0, 1), self.labels.flatten())
            rows = torch.arange(self.labels.numel()).view(self.labels.shape)
            return [of_units(Units(EachRecord(self.server.batched, records, 4), list(rows)))]
        parts = [slice(step * size, (step + 1) * size) for step in steps]
        return [self.server.batched.at(self.images[:, part], self.labels[:, part]) for part in parts]


def simulated(
    make: Callable[[], nn.Module], shape: tuple[int, ...], classes: int, name: str, steps: int, **protection: Any
) -> Simulated:
    models = [seeded(make, seed).double() for seed in range(3)]
    batched, local = Batched(models[0]), torch.Generator().manual_seed(8)
    previous = torch.stack([batched.layout.flatten(model.state_dict()) for model in models])
    kind = get_mechanism(name)
    if kind.whole_run:  # no multiple of the batch
        protection = {"divisor": 3.0, **protection}
    guarded = Protection(kind, 0.7 if kind.on_sphere else 0.01, gamma=0.3, negative_norm=0.05, steps=4, **protection)
    server = Server(batched, shape, classes, 2, eta=0.2, protection=guarded, local_steps=steps)
    images = torch.randn(3, server.examples, *shape, dtype=torch.float64, generator=local)
    labels = torch.randint(0, classes, (3, server.examples), generator=local)
    noise = laplace(tuple(previous.shape), torch.float64, kind.noise)
    return Simulated(server, previous, images, labels, noise)


CLIPS = {"unclipped": None, "l2 clip": ("l2", 0.05), "l1 clip": ("l1", 0.5)}
CASES = [  # laplace-dp makes one local step, with a clip
    (name, steps, clip)
    for name, steps, clip in product(MECHANISMS, (1, 2), CLIPS)
    if not (get_mechanism(name).per_example and (steps > 1 or clip == "unclipped"))
]


@pytest.mark.parametrize(("name", "steps", "clipping"), CASES)
@pytest.mark.parametrize("make", ["lenet", "mlp"])
def test_the_drift_is_that_of_a_real_release(name: str, steps: int, clipping: str, make: str) -> None:
    shape, clip = (1, 8, 8), CLIPS[clipping]
    model = {"lenet": partial(LeNetZhu, shape, 4), "mlp": partial(MLP, shape, 4, 7)}[make]
    bounds = {} if clip is None else {"clip_norm": clip[0], "clip": clip[1]}
    this = simulated(model, shape, 4, name, steps, **bounds)
    protection, kind = this.server.protection, this.server.protection.mechanism
    noise: Noise = this.noise if kind.distorts else None
    if kind.formal:  # real noise is drawn as integers; the drift is the same to half of their steps
        noise, protection = [system_words] * 3, replace(protection, batch=this.server.batch)
    made, alpha = observed_release(this.objectives(), this.previous, noise, 0.2, protection)
    record = made.record
    assert bool(record.accepted.all())
    assert (record.clipped > 0).all() == (clip is not None and (kind.clips or kind.per_example))
    initial = draw_bounds(this.noise, protection)[0] if kind.distorts else torch.zeros_like(this.previous)
    if kind.shaping is not None:  # where noise goes is known from the update alone
        without = observed_release(this.objectives(), this.previous, 0 * this.noise, 0.2, protection)[0]
        initial = made.parameters - without.parameters
        assert (float(initial.norm()) > 0) == kind.draws
    initial, most = (alpha, 1e-3) if kind.formal else (initial, 1e-12)
    if kind.learns:
        assert ((alpha - initial).norm(dim=1) > 1e-3 * initial.norm(dim=1)).all(), "the learner moved"
    moved = drift(this.server, this.previous, this.images, this.labels, this.noise)
    expected = made.parameters - this.previous
    distance = (moved + initial - expected).norm(dim=1) / expected.norm(dim=1)
    assert distance.max() < most
    whole = (this.previous + initial + moved - made.parameters).norm(dim=1) / made.parameters.norm(dim=1)
    assert whole.max() < most


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("steps", [1, 2])
def test_the_drift_can_be_differentiated(name: str, steps: int) -> None:
    this = simulated(tanh_model, (1, 5, 5), 4, name, steps, clip=0.05)
    along = laplace(tuple(this.previous.shape), torch.float64, "gaussian", seed=4)

    def follow(images: Tensor) -> Tensor:
        return (drift(this.server, this.previous, images, this.labels, this.noise) * along).sum(1)

    assert torch.autograd.gradcheck(follow, (this.images.clone().requires_grad_(),), fast_mode=True)
