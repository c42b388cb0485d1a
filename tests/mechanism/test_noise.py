"""Standard noise: of the stated scale and no other, symmetric, never infinite; and a family of one's own.

A Kolmogorov-Smirnov test accepts the stated scale and rejects 2/3 and 3/2 of it, with fixed seeds.
"""

from __future__ import annotations

import pytest
import torch
from scipy import stats
from torch import Tensor

from equipoise.errors import ConfigError
from equipoise.mechanism import noise, registry
from equipoise.mechanism.noise import NOISES, NoiseFamily, register_noise, standard_noise
from equipoise.mechanism.registry import Mechanism
from equipoise.randomness import experiment_key, uniform

ERROR_RATE = 1e-6
DTYPES = (torch.float32, torch.float64)
FAMILIES = {"laplace": stats.laplace, "gaussian": stats.norm}
WRONG = (2 / 3, 3 / 2)


def p_value(sample: Tensor, family: str, scale: float = 1.0) -> float:
    return float(stats.kstest(sample.double().numpy(), FAMILIES[family](scale=scale).cdf).pvalue)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_standard_noise_has_scale_one_and_no_other(family: str, dtype: torch.dtype) -> None:
    numbers = uniform([experiment_key(7, "noise")], [0], [1], 40_000, dtype)[0, 0]
    noise = standard_noise(numbers, family)
    assert noise.dtype == dtype
    assert p_value(noise, family) > ERROR_RATE
    for wrong in WRONG:
        assert p_value(noise * wrong, family) < ERROR_RATE
        assert p_value(noise, family, wrong) < ERROR_RATE


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", list(FAMILIES))
def test_standard_noise_is_the_inverse_distribution_function(family: str, dtype: torch.dtype) -> None:
    numbers = torch.linspace(0.01, 0.99, 999, dtype=dtype)
    expected = FAMILIES[family].ppf(numbers.double().numpy())
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    assert standard_noise(numbers, family).double().numpy() == pytest.approx(expected, abs=tolerance, rel=tolerance)


@pytest.mark.parametrize(("dtype", "bits"), [(torch.float32, 24), (torch.float64, 53)])
@pytest.mark.parametrize("family", list(FAMILIES))
def test_noise_is_finite_and_symmetric_up_to_the_last_possible_number(
    family: str, dtype: torch.dtype, bits: int
) -> None:
    steps = torch.tensor([0, 1, 2, 1000, 2 ** (bits - 2), 2 ** (bits - 1) - 1], dtype=torch.float64)
    mirrored = 2.0**bits - 1 - steps  # the generator's numbers are k * 2^-bits, k = 0 .. 2^bits - 1
    low = standard_noise((steps * 2.0**-bits).to(dtype), family)
    high = standard_noise((mirrored * 2.0**-bits).to(dtype), family)
    assert torch.isfinite(low).all()
    assert torch.isfinite(high).all()
    assert (low < 0).all()
    torch.testing.assert_close(low, -high, rtol=1e-6, atol=0)


def test_the_largest_values_are_the_documented_ones() -> None:
    assert -standard_noise(torch.zeros(1), "laplace").item() == pytest.approx(16.6, abs=0.05)
    assert -standard_noise(torch.zeros(1), "gaussian").item() == pytest.approx(5.4, abs=0.05)


def test_the_uniform_numbers_are_not_modified() -> None:
    numbers = torch.tensor([0.1, 0.9])
    for family in FAMILIES:
        standard_noise(numbers, family)
        assert numbers.tolist() == pytest.approx([0.1, 0.9])


@pytest.mark.parametrize("family", list(FAMILIES))
def test_variance_scale_and_likelihood_are_those_of_the_distribution(family: str) -> None:
    known, kind = FAMILIES[family], NOISES[family]
    numbers = uniform([experiment_key(8, "noise")], [0], [1], 40_000, torch.float64)[0]
    drawn = 3.0 * standard_noise(numbers, family)
    assert kind.variance == pytest.approx(known.var())
    assert kind.scale(drawn) == pytest.approx(3.0, rel=0.02)
    points = torch.tensor([[0.0, 0.0], [1.0, -2.0]], dtype=torch.float64)
    one, other = (-known.logpdf(row.numpy(), scale=3.0).sum() for row in points)
    misfit = kind.misfit(points, 3.0)
    assert float(misfit[1] - misfit[0]) == pytest.approx(other - one), "up to a constant"


def test_a_family_of_ones_own_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    logistic = NoiseFamily(
        lambda tail: torch.log(2 / tail - 1), 3.29, NOISES["laplace"].scale, NOISES["laplace"].misfit
    )
    with pytest.raises(ConfigError, match="Unknown noise 'logistic'"):
        Mechanism("mine", "leakage", noise="logistic")
    monkeypatch.setattr(noise, "_KNOWN", known := dict(NOISES))
    monkeypatch.setattr(noise, "NOISES", known)
    monkeypatch.setattr(registry, "NOISES", known)
    register_noise("logistic", logistic)
    assert Mechanism("mine", "leakage", noise="logistic").distorts
    numbers = uniform([experiment_key(9, "noise")], [0], [1], 40_000, torch.float64)[0, 0]
    assert stats.kstest(standard_noise(numbers, "logistic").numpy(), stats.logistic.cdf).pvalue > ERROR_RATE


@pytest.mark.parametrize("family", list(FAMILIES))
def test_noise_by_pieces_is_the_same_to_the_bit(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = uniform([experiment_key(7, "noise")], [0], [1], 5_000, torch.float32)[0, 0].view(50, 100)
    whole = standard_noise(numbers, family)
    monkeypatch.setattr(noise, "PIECE", 64)
    for order in (numbers, numbers.t().contiguous().t()):
        assert torch.equal(standard_noise(order, family), whole)
