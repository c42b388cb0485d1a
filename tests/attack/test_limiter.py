"""Updates cut off at a few noise scales: what theory says of gain and variance, and what they are worth."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from equipoise.attack.limiter import LIMITS, Limiter
from equipoise.mechanism.noise import standard_noise


def laplace_theory(k: float) -> tuple[float, float]:
    """Gain and variance after cutting standard Laplace noise off at k standard deviations, in their units."""
    if k == math.inf:
        return 1.0, 1.0
    cut = k * math.sqrt(2)
    gain = 1 - math.exp(-cut)
    return gain, (1 - math.exp(-cut) * (cut + 1)) / gain**2


def gaussian_theory(k: float) -> tuple[float, float]:
    if k == math.inf:
        return 1.0, 1.0
    gain = math.erf(k / math.sqrt(2))
    density = math.exp(-(k**2) / 2) / math.sqrt(2 * math.pi)
    return gain, (gain - 2 * k * density + k**2 * (1 - gain)) / gain**2


@pytest.mark.parametrize(("family", "theory"), [("laplace", laplace_theory), ("gaussian", gaussian_theory)])
def test_limits_do_to_noise_what_theory_says(family: str, theory: Any) -> None:
    numbers = torch.rand(4000, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    scale = torch.linspace(0.1, 3, 60, dtype=torch.float64)
    limiter = Limiter(standard_noise(numbers, family) * scale, scale)
    variance = 2 if family == "laplace" else 1
    torch.testing.assert_close(limiter.sd, scale * math.sqrt(variance), rtol=0.1, atol=0)
    assert [actual[0] for actual in limiter.limits] == list(LIMITS)
    for (k, gain, left), expected in zip(limiter.limits, map(theory, LIMITS), strict=True):
        assert (gain, left) == pytest.approx(expected, rel=0.02), k


def test_limiting_helps_against_laplace_noise_and_not_against_gaussian() -> None:
    assert all(laplace_theory(k)[1] < 0.85 for k in LIMITS[1:])
    numbers = torch.rand(2000, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    left = {
        family: [after[2] for after in Limiter(standard_noise(numbers, family), numbers[0]).limits]
        for family in ("laplace", "gaussian")
    }
    assert max(left["laplace"][1:]) < 0.85
    assert min(left["gaussian"]) == left["gaussian"][0] == pytest.approx(1)


def test_a_weak_signal_keeps_its_size() -> None:
    numbers = torch.rand(4000, 60, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    noise = standard_noise(numbers, "laplace")
    limiter = Limiter(noise, noise[0])
    for which in range(len(limiter)):
        moved = (limiter.cut(noise + 0.05, which) - limiter.cut(noise - 0.05, which)) * limiter.sd
        assert float(moved.mean()) == pytest.approx(0.1, rel=0.03)


def test_few_draws_of_noise_share_one_scale() -> None:
    scale = torch.tensor([1.0, 3.0])
    few = Limiter(torch.ones(31, 2) * scale, scale)
    assert torch.allclose(few.sd, torch.tensor(math.sqrt(5)))
    assert torch.allclose(Limiter(torch.ones(32, 2) * scale, scale).sd, scale)


def test_without_noise_there_is_nothing_to_limit() -> None:
    limiter = Limiter(None, torch.zeros(3))
    assert limiter.limits == [(math.inf, 1.0, 0.0)]
    updates = torch.tensor([[-5.0, 0.0, 1e6]])
    assert torch.equal(limiter.cut(updates, 0), updates)
