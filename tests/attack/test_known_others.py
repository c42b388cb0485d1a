"""The attacker of the proof: residuals, and likelihood ratios against densities."""

from __future__ import annotations

import math

import pytest
import torch
from torch.distributions import MixtureSameFamily, MultivariateNormal

from equipoise.attack.known_others import Terms, log_ratios, residuals

TERMS = Terms(clip=0.5, sigma=1.7, rate=0.02)


def test_a_residual_is_noise_and_the_record_alone() -> None:
    others, record, noise = torch.randn(3, 2, 6, dtype=torch.float64)
    released = 1.0 - TERMS.rate * (others + record + noise)
    seen = residuals(torch.ones(6, dtype=torch.float64), released, others, TERMS)
    torch.testing.assert_close(seen, (record + noise) / TERMS.clip)


@pytest.mark.parametrize("rate", [1.0, 0.5, 0.1])
def test_the_ratio_is_that_of_the_densities(rate: float) -> None:
    terms = Terms(clip=1.0, sigma=1.3, rate=1.0, sampling_rate=rate)
    unit = torch.tensor([0.3, -0.8, 0.2], dtype=torch.float64)
    covariance = terms.sigma**2 * torch.eye(3, dtype=torch.float64)
    without = MultivariateNormal(torch.zeros(3, dtype=torch.float64), covariance)
    means = torch.stack([torch.zeros(3, dtype=torch.float64), unit])
    shares = torch.distributions.Categorical(torch.tensor([1 - rate, rate], dtype=torch.float64))
    with_it = MixtureSameFamily(shares, MultivariateNormal(means, covariance))
    seen = torch.randn(50, 3, dtype=torch.float64) * 3
    expected = with_it.log_prob(seen) - without.log_prob(seen)
    torch.testing.assert_close(log_ratios(seen @ unit, unit.square().sum(), terms), expected)


def test_a_record_that_certainly_took_part_far_away_does_not_overflow() -> None:
    terms = Terms(clip=1.0, sigma=0.01, rate=1.0, sampling_rate=0.25)
    far = log_ratios(torch.tensor([1e4, -1e4]), torch.tensor(1.0), terms)
    assert far[0] > 1e7
    assert far[1] == pytest.approx(math.log(0.75))
