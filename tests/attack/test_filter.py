"""The likelihood of an update around a response: that of a Gaussian, in one piece or in several."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

from equipoise.attack.filter import Filter, Products
from equipoise.attack.limiter import LIMITS, Limiter


def random_filter(noisy: bool) -> tuple[Filter, Tensor, Tensor, Tensor]:
    """A filter of 5 directions in 9 dimensions, updates, responses, and the scale of the coordinates."""
    local = torch.Generator().manual_seed(3)
    spread, updates, means = (
        torch.randn(shape, dtype=torch.float64, generator=local) for shape in ((5, 9), (4, 9), (4, 6, 9))
    )
    half = torch.randn(40, 9, dtype=torch.float64, generator=local) * torch.linspace(0.3, 2, 9) if noisy else None
    limiter = Limiter(half, spread[0])
    return Filter(spread, limiter, 3), updates, means, spread


@pytest.mark.parametrize("noisy", [False, True])
@pytest.mark.parametrize("floor", [1e-4, 1e-2, 1.0])
@pytest.mark.parametrize("own_responses", [False, True])
def test_the_likelihood_is_that_of_a_gaussian(noisy: bool, floor: float, own_responses: bool) -> None:
    filter, updates, means, spread = random_filter(noisy)
    means = means if own_responses else means[:1]
    actual = filter.likelihood(filter.products(updates, means), 0, floor)
    sd = filter.limiter.sd
    assert (float((sd - 1).abs().max()) > 0.1) == noisy
    scaled = spread / sd
    variance = filter.limiter.limits[0][2] + floor * float(scaled.square().mean())
    covariance = scaled.T @ scaled / 3 + variance * torch.eye(9, dtype=torch.float64)
    covariance = sd.unsqueeze(1) * covariance * sd  # in the units of the updates
    expected = torch.tensor(
        [
            [multivariate_normal(mean.numpy(), covariance.numpy()).logpdf(update.numpy()) for mean in rows]
            for update, rows in zip(updates, means.expand(4, -1, -1), strict=True)
        ],
        dtype=torch.float64,
    )
    torch.testing.assert_close(actual - actual[:, :1], expected - expected[:, :1], rtol=1e-6, atol=1e-6)


def test_products_of_some_updates_join_to_those_of_all() -> None:
    filter, updates, means, _ = random_filter(noisy=True)
    whole = filter.products(updates, means)
    joined = Products.joined([filter.products(updates[rows], means[rows]) for rows in (slice(1), slice(1, 4))])
    for which in range(len(LIMITS)):
        torch.testing.assert_close(filter.likelihood(joined, which, 0.01), filter.likelihood(whole, which, 0.01))


def test_where_nothing_varies_the_nearest_response_is_the_likeliest() -> None:
    updates, means = torch.eye(3, 7, dtype=torch.float64), torch.eye(5, 7, dtype=torch.float64).unsqueeze(0)
    still = Filter(torch.zeros(4, 7, dtype=torch.float64), Limiter(None, updates[0]), 3)
    result = still.likelihood(still.products(updates, means), 0, 0.01)
    assert torch.isfinite(result).all()
    assert result.argmax(1).tolist() == [0, 1, 2]


def test_what_an_update_does_not_show_plays_no_part() -> None:
    """As a filter that was built on the coordinates that are shown, and on nothing else."""
    local = torch.Generator().manual_seed(8)
    spread, means, updates = (torch.randn(*shape, generator=local) for shape in ((6, 30), (4, 30), (2, 30)))
    shown = torch.rand(2, 30, generator=local) < 0.4
    quiet = Filter(spread, Limiter(None, spread[0]), 5)
    hidden = torch.where(shown, updates, 1e3)  # whatever stands there
    result = quiet.likelihood(quiet.products(hidden, means.unsqueeze(0), shown), 0, 1.0)
    for row, place in enumerate(shown):
        alone = Filter(spread[:, place], Limiter(None, spread[0, place]), 5)
        alone.unit = quiet.unit
        expected = alone.likelihood(alone.products(updates[row : row + 1, place], means[:, place].unsqueeze(0)), 0, 1.0)
        torch.testing.assert_close(result[row : row + 1], expected, rtol=1e-4, atol=1e-5)
