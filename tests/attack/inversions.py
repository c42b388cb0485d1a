"""What the tests of inversion attacks share: releases of public images whose truth is known, and cheap searches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn

from equipoise.attack.attack import Attack
from equipoise.attack.descent import Search, inverting
from equipoise.attack.dlg import SEARCH as DLG
from equipoise.attack.dlg import dlg, idlg
from equipoise.attack.invgrad import invgrad
from equipoise.attack.likelihood import SEARCH as MAP
from equipoise.attack.likelihood import likelihood
from equipoise.attack.results import Inversion
from equipoise.attack.simulate import gradients
from equipoise.attack.unrolled import unrolled
from equipoise.attack.view import Server, View
from equipoise.auditing.image_scores import match, mse
from equipoise.data.loading import load
from equipoise.mechanism.noise import standard_noise
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import get_mechanism
from equipoise.mechanism.release import release
from equipoise.models.batched import Batched
from equipoise.models.bundled import LeNetZhu

CLASS_MEAN = 0.54
"""MSE of guessing the mean image of the right class, in normalised units."""
LOW, HIGH = (0 - 0.1307) / 0.3081, (1 - 0.1307) / 0.3081
ATTACKS = {"invgrad": invgrad, "dlg": dlg, "idlg": idlg, "likelihood": likelihood, "unrolled": unrolled}
QUICK = {
    "invgrad": Search(iterations=6, lr=0.1),
    "dlg": replace(DLG, iterations=6),
    "idlg": replace(DLG, iterations=6),
    "likelihood": replace(MAP, iterations=6),
    "unrolled": replace(MAP, iterations=4),
}


def short_searches() -> dict[str, Attack]:
    """With one iteration: the attacks whose number of iterations is no option."""
    first, most_probable = replace(DLG, iterations=1), replace(MAP, iterations=1)
    attacks = (
        inverting("dlg", dlg, first, needs=()), inverting("idlg", idlg, first, needs=()),
        inverting("likelihood", likelihood, most_probable),
        inverting("unrolled", unrolled, most_probable, gradients=gradients),
    )  # fmt: skip
    return {attack.name: attack for attack in attacks}


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

    def errors(self, result: Inversion) -> Tensor:
        """MSE of every target in the best order of its images."""
        cost = mse(result.images[:, :, None], self.truth[:, None])
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
    targets = load("mnist").public_pool.take(slice(2000, None))
    picked = torch.tensor(rows or range(count * batch))
    images = targets.inputs[picked].view(count, batch, 1, 28, 28)
    labels = targets.labels[picked].view(count, batch)
    model = seeded(LeNetZhu)
    batched = Batched(model)
    protection = Protection(get_mechanism(name), scale, steps=steps)
    previous = batched.layout.flatten(model.state_dict()).repeat(count, 1)
    noise = laplace(tuple(previous.shape))
    made = release([batched.at(images, labels)], previous, noise, 0.1, protection, utility=False)
    server = Server(batched, (1, 28, 28), 10, batch, LOW, HIGH, eta=0.1, protection=protection)
    return Case(server, View(previous, made.parameters, labels), images)


@cache
def five(name: str, scale: float, batch: int = 4) -> Case:
    """Five releases of unlike images from unlike weights."""
    models = [seeded(LeNetZhu, seed) for seed in range(5)]
    batched, targets = Batched(models[0]), load("mnist").public_pool.take(slice(2000, None))
    images = targets.inputs[: 5 * batch].view(5, batch, 1, 28, 28)
    labels = targets.labels[: 5 * batch].view(5, batch)
    protection = Protection(get_mechanism(name), scale, steps=2)
    previous = torch.stack([batched.layout.flatten(model.state_dict()) for model in models])
    noise = laplace(tuple(previous.shape))
    made = release([batched.at(images, labels)], previous, noise, 0.1, protection, utility=False)
    return Case(
        Server(batched, (1, 28, 28), 10, batch, LOW, HIGH, eta=0.1, protection=protection),
        View(previous, made.parameters, labels),
        images,
    )


def tanh_model() -> nn.Module:
    """A small model for inputs of 5 x 5 pixels and four classes, smooth in all of them."""
    return nn.Sequential(nn.Conv2d(1, 2, 3, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(8, 4))
