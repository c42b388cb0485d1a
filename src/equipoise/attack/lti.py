"""Learning to invert: simulate the whole mechanism on public batches, then regress images on updates.

The attacker knows the weights it sent, the labels and the mechanism. It runs the mechanism on public images with those
labels as often as it likes, and learns the map from update to images by kernel ridge regression. Each public batch is
simulated with noise and with its negative: the mean of the two, in which most noise is gone, is what is learned from;
kernel, penalty and limit (``limit.py``) are chosen on single, noisy releases that were held out. Whatever the mechanism
is, the attack adapts to it by itself.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import AttackError
from .invert import Inversion, boxed
from .limit import Limiter
from .simulate import simulate
from .view import Public, Server, View, check, check_public, groups, restore_order

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
    found = images.new_empty(len(view), server.examples, *server.shape)
    cost = images.new_empty(len(view))
    for rows, previous, labels in groups(view):
        predict, error = learn(server, previous, (images, classes), labels, samples, seed, on_release)
        guess = predict(view.released[rows] - previous).view(len(rows), server.examples, *server.shape)
        found[rows] = boxed(server, restore_order(guess, view.labels[rows]))
        cost[rows] = error
    return Inversion(found, cost)


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
    many = labels.expand(samples, -1)
    updates, chosen = simulate(server, previous, public, many, seed, "lti", on_release)
    clean, half = updates, None
    if server.protection.mechanism.distorts:
        opposite, _ = simulate(server, previous, public, many, seed, "lti", on_release, sign=-1.0)
        clean, half = (updates + opposite) / 2, (updates - opposite) / 2
    targets = public[0][chosen].flatten(1)
    kept = samples - max(1, int(HELD_OUT * samples))
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
        rows = [regression.against(limiter.cut(noisy, which)) for which in range(len(limiter))]
        for penalty in PENALTIES:
            weights = regression.solve(penalty)
            for which, row in enumerate(rows):
                error = float((row @ weights + regression.mean - targets[kept:]).square().mean())
                if best is None or error < best[0]:  # never true of NaN
                    best = (error, kernel, penalty, which)
    if best is None or best[0] != best[0]:
        raise AttackError(
            "No penalty gave a finite prediction: the simulated releases are not finite.", "Use a smaller eta or gamma."
        )
    final = Regression(clean, targets, best[1])
    weights, which = final.solve(best[2]), best[3]

    def predict(new: Tensor) -> Tensor:
        return final.against(limiter.cut(new - centre, which)) @ weights + final.mean

    return predict, best[0]


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
        """Weights ``[n, Q]``; where rounding spoils the factorisation the penalty is raised until it holds."""
        while True:
            ridge = self.gram.clone()
            ridge.diagonal().add_(penalty * self.unit)
            factor, failed = torch.linalg.cholesky_ex(ridge)
            if not bool(failed) or penalty > 1e6:
                return torch.cholesky_solve(self.targets, factor).to(self.features.dtype)
            penalty *= 10
