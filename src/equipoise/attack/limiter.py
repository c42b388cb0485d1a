"""What heavy-tailed noise is worth to an attacker: updates cut off at a few noise scales, with their gain put right.

The best statistic of weak signals in Laplace noise is nearly the sign of every coordinate; in Gaussian noise it is the
coordinate itself. Cutting off at a limit goes from one to the other, and the attacker tries several on simulations.
"""

from __future__ import annotations

import torch
from torch import Tensor

LIMITS = (float("inf"), 1.0, 0.25)
"""In standard deviations of the noise."""


ENOUGH = 32
"""Draws from which every coordinate gets a scale of its own; with fewer, all share one."""


class Limiter:
    """The noise of a mechanism as simulation shows it: ``half`` ``[n, P]`` are draws of the noise in an update."""

    def __init__(self, half: Tensor | None, like: Tensor):
        self.sd = torch.ones_like(like)
        if half is not None:
            each = half.square().mean(0) if len(half) >= ENOUGH else half.square().mean().expand_as(like)
            self.sd = each.sqrt()
        self.sd = self.sd.clamp_min(max(1e-6 * float(self.sd.mean()), 1e-30))
        self.limits: list[tuple[float, float, float]] = []  # limit, gain of a weak signal, noise variance after it
        if half is None:
            self.limits.append((LIMITS[0], 1.0, 0.0))
            return
        scaled = half / self.sd
        for limit in LIMITS:
            gain = max(float((scaled.abs() < limit).double().mean()), 1e-3)
            self.limits.append((limit, gain, float(scaled.clamp(-limit, limit).square().mean()) / gain**2))

    def __len__(self) -> int:
        return len(self.limits)

    def cut(self, updates: Tensor, which: int) -> Tensor:
        """Updates about their mean, in units of the noise, limited; a weak signal in them keeps its size."""
        limit, gain, _ = self.limits[which]
        return (updates / self.sd).clamp_(-limit, limit).div_(gain)
