"""The attacker of the proof: it knows every other record of a client, and asks about one more.

A release of a mechanism with ``whole_run`` is ``previous - rate * (sum + noise)``: the sum of all units' clipped
gradients, and Gaussian noise of standard deviation sigma * C in every coordinate. Whoever knows the other records
subtracts their part exactly, and is left with the *residual*: noise, plus the gradient u of the record in question if
that took part. Noise is the same in all directions, so in units of C the likelihood ratio of "it was in the data"
against "nothing was added" is the best that anyone can decide by (Neyman and Pearson):

    log(1 - q + q exp((<residual, u> - |u|^2 / 2) / sigma^2)),

where every record takes part with probability q (1: always). Ratios of independent releases multiply, so their logs
add up over the rounds of a run.

This is the game that the limits of ``privacy/limits.py`` are proved for, and it is granted far more than any server
knows: these figures are what to hold against a limit, not what a server gets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What is public of a release beside the weights.

    >>> Terms(clip=1.0, sigma=5.0, rate=0.01).sampling_rate
    1.0
    """

    clip: float  # C
    sigma: float  # the noise multiplier of this release
    rate: float  # what the noised sum is multiplied by: eta / (q * divisor)
    sampling_rate: float = 1.0  # q


def residuals(previous: Tensor, released: Tensor, others: Tensor, terms: Terms) -> Tensor:
    """What releases ``[N, P]`` hold beside the sum of the known ``others`` (``[P]`` or ``[N, P]``), in units of C.

    >>> terms = Terms(clip=2.0, sigma=5.0, rate=0.5)
    >>> residuals(torch.zeros(1), torch.tensor([[-3.0]]), torch.tensor([2.0]), terms).tolist()
    [[2.0]]
    """
    total = (previous.double() - released.double()) / terms.rate
    return (total - others.double()) / terms.clip


def log_ratios(products: Tensor, squares: Tensor, terms: Terms) -> Tensor:
    """Log-likelihood ratios from ``<residual, u>`` and ``|u|^2``, both in units of C: higher where u is more likely in.

    >>> log_ratios(torch.tensor([1.0, 0.0]), torch.ones(2), Terms(clip=1.0, sigma=1.0, rate=1.0)).tolist()
    [0.5, -0.5]
    """
    certain = (products.double() - squares.double() / 2) / terms.sigma**2
    return _mixed(certain, terms.sampling_rate)


def _mixed(certain: Tensor, rate: float) -> Tensor:
    """The log-likelihood ratio where the record takes part with probability ``rate``."""
    if rate >= 1:
        return certain
    return torch.logaddexp(torch.full_like(certain, math.log1p(-rate)), certain + math.log(rate))
