"""Gaussian log-likelihoods of updates around the responses of candidates: what ``bench.py`` decides by."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .limiter import Limiter


@dataclass(frozen=True)
class Products:
    """All that the likelihood needs of n updates and their responses: inner products, in units of the noise."""

    cross: Tensor  # [limits, n, U]: update . response
    seen: Tensor  # [limits, n, S]: update . companions' directions
    expected: Tensor  # [n or 1, U, S]: response . companions' directions
    own: Tensor  # [n or 1, U]: |response|^2
    gram: Tensor | None = None  # [n, S, S]: of the companions' directions, where updates show different coordinates

    @staticmethod
    def joined(parts: list[Products]) -> Products:
        axes = {"cross": 1, "seen": 1, "expected": 0, "own": 0}
        if parts[0].gram is not None:
            axes["gram"] = 0
        return Products(**{name: torch.cat([getattr(p, name) for p in parts], axis) for name, axis in axes.items()})


class Filter:
    """Gaussian log-likelihood: the companions' covariance ``spread`` ``[S, P]`` plus noise."""

    def __init__(self, spread: Tensor, limiter: Limiter, freedom: int):
        self.limiter, self.freedom = limiter, freedom
        self.spread = spread / limiter.sd
        self.gram = self.spread.double() @ self.spread.double().T
        self.unit = float(self.spread.square().mean())  # the companions' variance per coordinate

    def products(self, updates: Tensor, means: Tensor, shown: Tensor | None = None) -> Products:
        """Of updates ``[n, P]`` and responses ``[n or 1, U, P]``, both about the centre.

        ``shown`` ``[n, P]`` marks the coordinates that each update has; nothing is then read from the others.
        """
        gram = None
        if shown is not None:
            updates, means = updates * shown, means * shown.unsqueeze(1)
            masked = [(self.spread * row).double() for row in shown]
            gram = torch.stack([part @ part.T for part in masked])
        expected = means / self.limiter.sd
        limited = torch.stack([self.limiter.cut(updates, which) for which in range(len(self.limiter))])
        cross = torch.einsum("lnp,nup->lnu", limited, expected.expand(len(updates), -1, -1))
        return Products(
            cross.double(),
            (limited @ self.spread.T).double(),
            (expected @ self.spread.T).double(),
            expected.square().sum(-1).double(),
            gram,
        )

    def likelihood(self, products: Products, which: int, floor: float) -> Tensor:
        """Log-likelihoods ``[n, U]`` with the noise that one limit leaves, and a share of the companions' variance."""
        noise = self.limiter.limits[which][2] + floor * self.unit or 1.0  # nothing varies: any unit serves
        inner = (self.gram if products.gram is None else products.gram) / noise
        inner.diagonal(dim1=-2, dim2=-1).add_(self.freedom)
        expected = products.expected.transpose(1, 2)  # [., S, U]
        solved = torch.linalg.solve(inner, expected)
        cross = products.cross[which] - (products.seen[which].unsqueeze(1) @ solved).squeeze(1) / noise
        own = products.own - (expected * solved).sum(1) / noise
        score: Tensor = (cross - own / 2) / noise
        return score
