"""Learning to invert: simulate the whole mechanism on public batches, then regress images on updates.

The attacker knows the weights it sent, the labels and the mechanism. It runs the mechanism on public images with those
labels as often as it likes, and learns the map from update to images by kernel ridge regression. Each public batch is
simulated with noise and with its negative: the mean of the two, in which most noise is gone, is what is learned from;
kernel, penalty and limit (``limiter.py``) are chosen on single, noisy releases of other images. Whatever the mechanism
is, the attack adapts to it by itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import AttackError
from .attack import Attack, Hooks, Knowledge, Option, Work, held
from .descent import boxed
from .limiter import LIMITS, Limiter
from .results import Inversion
from .simulate import gradients, paired, signs
from .view import Public, Server, View, check, check_public, groups, ordered_labels, restore_order

PENALTIES = tuple(10.0**power for power in range(-7, 4))  # of the kernel's mean diagonal
KERNELS = ("linear", "rbf")
HELD_OUT = 0.2


def lti(
    server: Server,
    view: View,
    public: Public,
    samples: int = 2000,
    seed: int = 0,
    on_release: Callable[[int], None] | None = None,
) -> Inversion:
    """Reconstructions from ``samples`` simulated releases for every set of previous weights and labels.

    The cost of a release is the held-out mean squared error of its regression.
    """
    check(server, view)
    assert view.labels is not None
    images, classes = check_public(server, public, view.labels)
    if samples < 10:
        raise AttackError(f"Expected at least 10 simulated releases, got {samples}.", "Use 2000 or so.")
    result = images.new_empty(len(view), server.examples, *server.shape)
    cost = images.new_empty(len(view))
    for rows, previous, labels in groups(server, view):
        predict, error = learn(server, previous, (images, classes), labels, samples, seed, on_release)
        guess = predict(view.released[rows] - previous).view(len(rows), server.examples, *server.shape)
        result[rows] = boxed(server, restore_order(server, guess, view.labels[rows]))
        cost[rows] = error
    return Inversion(result, cost)


def learn(
    server: Server,
    previous: Tensor,
    public: Public,
    labels: Tensor,
    samples: int,
    seed: int,
    on_release: Callable[[int], None] | None = None,
) -> tuple[Callable[[Tensor], Tensor], float]:
    """A predictor of the images ``[n, E*pixels]`` behind updates ``[n, P]``, and its held-out error."""
    kept = samples - max(1, int(HELD_OUT * samples))
    parts = []
    for purpose, rows, count in zip(
        ("lti", "lti/held out"), _split(public[1]), (kept, samples - kept), strict=True
    ):  # no image serves both to learn from and to choose by
        own, many = (public[0][rows], public[1][rows]), labels.expand(count, -1)
        clean, noise, chosen = paired(server, previous, own, many, seed, purpose, on_release)
        parts.append((clean, noise, own[0][chosen].flatten(1)))
    clean, noise, targets = (torch.cat([part[i] for part in parts]) for i in range(3))
    half = noise if server.protection.mechanism.draws else None
    updates = clean + noise
    centre, limiter = clean.mean(0), Limiter(half, previous)
    noisy = updates[kept:] - centre
    clean = (clean - centre).div_(limiter.sd)
    if half is None:  # no noise sets the scale of the coordinates: their own spread does
        limiter.sd = clean.square().mean(0).sqrt()
        limiter.sd.clamp_min_(max(1e-3 * float(limiter.sd.mean()), 1e-30))
        clean = clean.div_(limiter.sd)
    best: tuple[float, str, float, int] | None = None
    for kernel in KERNELS:
        regression = Regression(clean[:kept], targets[:kept], kernel)
        held = [regression.against(limiter.cut(noisy, which)) for which in range(len(limiter))]
        for penalty in PENALTIES:
            for which, guess in enumerate(regression.predictions(held, penalty)):
                error = float((guess - targets[kept:]).square().mean())
                if math.isfinite(error) and (best is None or error < best[0]):
                    best = (error, kernel, penalty, which)
    if best is None:
        raise AttackError(
            "No penalty gave a finite prediction: the simulated releases are not finite.", "Use a smaller eta or gamma."
        )
    final = Regression(clean, targets, best[1])
    weights, which = final.solve(best[2]), best[3]

    def predict(new: Tensor) -> Tensor:
        return final.against(limiter.cut(new - centre, which)) @ weights + final.mean

    return predict, best[0]


def _split(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Public rows to learn from, and one in five of every label to hold out; all of both where a label has fewer."""
    order = labels.argsort(stable=True)
    counts = torch.bincount(labels)
    place = torch.arange(len(labels), device=labels.device) - (counts.cumsum(0) - counts)[labels[order]]
    few = (counts < 5)[labels[order]]
    held = place % 5 == 4
    return order[~held | few], order[held | few]


class Regression:
    """Kernel ridge regression of targets ``[n, Q]`` on features ``[n, P]``."""

    def __init__(self, features: Tensor, targets: Tensor, kernel: str):
        self.kernel, self.features, self.mean = kernel, features, targets.mean(0)
        self.targets = (targets - self.mean).double()
        self.norms = features.square().sum(1).double()
        self.width = 2 * float(self.norms.mean())  # of the squared distance between two rows
        self.gram = self.against(features).double()
        self.unit = max(float(self.gram.diagonal().mean()), 1e-300)

    def against(self, rows: Tensor) -> Tensor:
        """The kernel between ``rows`` and the features."""
        inner = rows @ self.features.T
        if self.kernel == "linear":
            return inner
        distance = rows.square().sum(1).double().unsqueeze(1) + self.norms - 2 * inner.double()
        return (-distance / self.width).exp().to(rows.dtype)

    def solve(self, penalty: float) -> Tensor:
        """Weights ``[n, Q]``."""
        return torch.cholesky_solve(self.targets, self._factor(penalty)).to(self.features.dtype)

    def predictions(self, rows: list[Tensor], penalty: float) -> list[Tensor]:
        """What rows of ``against`` ``[m, n]`` predict; there are fewer of them than columns of the targets."""
        solved = torch.cholesky_solve(torch.cat(rows).double().T, self._factor(penalty)).T.to(self.features.dtype)
        guesses = solved @ self.targets.to(self.features.dtype) + self.mean
        return list(guesses.split([len(part) for part in rows]))

    def _factor(self, penalty: float) -> Tensor:
        """Where rounding spoils the factorisation the penalty is raised until it holds."""
        while True:
            ridge = self.gram.clone()
            ridge.diagonal().add_(penalty * self.unit)
            factor: Tensor
            factor, failed = torch.linalg.cholesky_ex(ridge)
            if not bool(failed) or penalty > 1e6:
                return factor
            penalty *= 10


def _run(server: Server, view: View, knowledge: Knowledge, options: Mapping[str, Any], hooks: Hooks) -> Inversion:
    return lti(server, view, held(knowledge, "public"), options["samples"], options["seed"], hooks.step)


def _work(server: Server, labels: Tensor, knowledge: Knowledge, options: Mapping[str, Any]) -> Work:
    sets, samples = len(ordered_labels(server, labels).unique(dim=0)), options["samples"]
    held = int(HELD_OUT * samples)
    kept, size, pixels = samples - held, server.batched.layout.size, server.examples * server.pixels
    cut = held * (len(LIMITS) if server.protection.mechanism.draws else 1)
    tried = kept**2 * size + kept * cut * size + len(PENALTIES) * (kept**3 / 6 + kept**2 * cut + kept * cut * pixels)
    return Work(sets * samples * signs(server), gradients(server), sets * len(KERNELS) * tried)


DATA = frozenset({"numbers", "classes"})  # what it learns has a place for each class
LTI = Attack("lti", _run, frozenset({"public", "inferred labels"}), {"samples": Option(500, least=10)}, _work, DATA)
