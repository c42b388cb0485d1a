"""Subproblems on annuli with known constants, a check of Theorem 5.1 on them, and projections that are broken."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from equipoise.bounds.theory import distortion_bounds
from equipoise.bounds.trajectory import Trajectory, follow
from equipoise.mechanism import intensity
from equipoise.mechanism.distortion import on_inner_sphere

STEPS = 1000


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@dataclass(frozen=True)
class Problem:
    """R subproblems on annuli, with their L and a lower bound on phi over the annulus."""

    gradient: Callable[[Tensor], Tensor]
    loss: Callable[[Tensor], Tensor]
    init: Tensor
    lower: Tensor
    upper: Tensor
    smoothness: float  # of phi, the negative norm included
    infimum: Tensor  # [R]
    negative_norm: float = 0.0

    def run(self, gamma: float, steps: int = STEPS, gradient: Callable[[Tensor], Tensor] | None = None) -> Trajectory:
        return follow(
            gradient or self.gradient, self.loss, torch.zeros_like(self.init), self.init, self.lower, self.upper,
            steps=steps, gamma=gamma, negative_norm=self.negative_norm, exact=self.gradient,
        )  # fmt: skip


def quadratic(pull: float, negative_norm: float = 0.0, rows: int = 4, size: int = 6) -> Problem:
    """w'Aw/2 + b'w with eigenvalues of both signs; ``pull`` = |b| drives the iterates outwards."""
    basis = torch.linalg.qr(numbers(rows, size, size, seed=1))[0]
    eigen = torch.linspace(-1.0, 3.0, size, dtype=torch.float64).expand(rows, -1)
    matrix = basis @ torch.diag_embed(eigen) @ basis.transpose(1, 2)
    b = torch.nn.functional.normalize(numbers(rows, size, seed=2), dim=1) * pull
    lower, upper = torch.linspace(0.5, 1.5, rows).double(), torch.linspace(1.0, 4.0, rows).double()
    init, _, _ = on_inner_sphere(numbers(rows, size, seed=3), lower)

    def times(w: Tensor) -> Tensor:
        return torch.bmm(matrix, w.unsqueeze(2)).squeeze(2)

    # With a negative eigenvalue phi falls along every radius that is optimal, so its minimum lies on the outer sphere:
    # w(mu) = -(A + mu)^-1 b with |w(mu)| = upper and mu above the largest negative curvature, by bisection.
    turned = torch.bmm(basis.transpose(1, 2), b.unsqueeze(2)).squeeze(2)
    low, high = torch.full((rows, 1), 1.0).double(), torch.full((rows, 1), 1e4).double()
    for _ in range(200):
        middle = (low + high) / 2
        long = (turned / (eigen + middle)).norm(dim=1, keepdim=True) > upper.unsqueeze(1)
        low, high = torch.where(long, middle, low), torch.where(long, high, middle)
    best = -turned / (eigen + high)
    infimum = (eigen * best.square()).sum(1) / 2 + (turned * best).sum(1) - negative_norm * upper
    return Problem(
        lambda w: times(w) + b, lambda w: (w * times(w)).sum(1) / 2 + (b * w).sum(1), init, lower, upper,
        3.0 + negative_norm / float(lower.min()), infimum, negative_norm,
    )  # fmt: skip


def logistic(rows: int = 3, size: int = 5, examples: int = 40) -> Problem:
    """Mean logistic loss: never negative, and smooth with the largest eigenvalue of X'X / 4n."""
    x = numbers(rows, examples, size, seed=6)
    signs = torch.where(numbers(rows, examples, seed=7) > 0.3, 1.0, -1.0).double()
    signed = x * signs.unsqueeze(2)
    lower, upper = torch.full((rows,), 0.5).double(), torch.full((rows,), 2.0).double()
    init, _, _ = on_inner_sphere(numbers(rows, size, seed=8), lower)

    def margins(w: Tensor) -> Tensor:
        return torch.bmm(signed, w.unsqueeze(2)).squeeze(2)

    def gradient(w: Tensor) -> Tensor:
        return torch.bmm((-torch.sigmoid(-margins(w)) / examples).unsqueeze(1), signed).squeeze(1)

    def loss(w: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-margins(w)).mean(1)

    top = torch.linalg.eigvalsh(x.transpose(1, 2) @ x / (4 * examples)).max()
    return Problem(gradient, loss, init, lower, upper, float(top), torch.zeros(rows).double() - math.log(2))


PROBLEMS = {
    "quadratic": quadratic(1.0),
    "quadratic, pulled outwards": quadratic(20.0),
    "quadratic with a negative norm": quadratic(1.0, negative_norm=0.3),
    "logistic": logistic(),
}


def check_distortion(problem: Problem, seen: Trajectory, gamma: float, error: float | None = None) -> None:
    """Both bounds of the theorem, for every number of steps and every subproblem."""
    gap = (seen.phi[0] - problem.infimum).tolist()
    for name in ("residual", "stationarity"):
        sums = getattr(seen, name).cumsum(0)
        for m in range(1, len(sums) + 1):
            for r, mean in enumerate((sums[m - 1] / m).tolist()):
                bound = getattr(distortion_bounds(gap[r], gamma, problem.smoothness, m, error), name)
                assert mean <= bound * (1 + 1e-9), (name, m, r, mean, bound)


# --- projections that are none ----------------------------------------------------------------------------------

true_clip = intensity.scale_clip


def to_the_wrong_radius(
    alpha: Tensor, lower: Tensor, upper: Tensor, norm: str = "l2", out: Tensor | None = None
) -> Tensor:
    size = alpha.norm(dim=1)
    wanted = torch.where(size < lower, upper, size.minimum(upper))  # too small: thrown to the outer sphere
    return _into(out, alpha * (wanted / size).unsqueeze(1))


def flipped(alpha: Tensor, lower: Tensor, upper: Tensor, norm: str = "l2", out: Tensor | None = None) -> Tensor:
    return _into(out, -true_clip(alpha, lower, upper, "l2"))


def without_upper(alpha: Tensor, lower: Tensor, upper: Tensor, norm: str = "l2", out: Tensor | None = None) -> Tensor:
    return _into(out, true_clip(alpha, lower, torch.full_like(upper, 1e9), "l2"))


def without_lower(alpha: Tensor, lower: Tensor, upper: Tensor, norm: str = "l2", out: Tensor | None = None) -> Tensor:
    return _into(out, true_clip(alpha, torch.zeros_like(lower), upper, "l2"))


def radial_l1(alpha: Tensor, lower: Tensor, upper: Tensor, norm: str = "l2", out: Tensor | None = None) -> Tensor:
    return _into(out, true_clip(alpha, lower, upper, "l1"))


def _into(out: Tensor | None, value: Tensor) -> Tensor:
    return value if out is None else out.copy_(value)
