"""The most probable inputs: they win where the noise is small, and its prior alone is left where it is large."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from equipoise.attack.descent import Search
from equipoise.attack.invgrad import invgrad
from equipoise.attack.likelihood import SEARCH, likelihood, noise_likelihood
from tests.attack.inversions import CLASS_MEAN, case


@pytest.mark.slow
def test_it_wins_under_small_laplace_noise() -> None:
    known = case(1, 4, "ls-static", 1e-5)
    mine = known.errors(likelihood(known.server, known.view, replace(SEARCH, iterations=150)))
    other = known.errors(invgrad(known.server, known.view, Search(iterations=150, lr=0.1)))
    assert mine.max() < 0.02
    assert mine.mean() < other.mean() / 4
    assert (mine < other).all()


@pytest.mark.parametrize(("name", "scale"), [("pl-identical", 64.0), ("gs-static", 1.0)])
def test_it_loses_under_large_noise(name: str, scale: float) -> None:
    """Its prior alone gives flat images, which beat black ones on bright digits, but never the best grey."""
    known = case(1, 4, name, scale)
    result = known.errors(likelihood(known.server, known.view, replace(SEARCH, iterations=50)))
    assert (result > 0.98 * known.flat()).all()
    assert result.mean() > 2 * CLASS_MEAN


@pytest.mark.parametrize(
    ("name", "scale", "density"),
    [
        ("ls-static", 0.3, lambda x: x.abs() / 0.3),  # -log of exp(-|x| / b) / (2 b), up to a constant
        ("gs-static", 0.3, lambda x: x.square() / (2 * 0.3**2)),
    ],
)
def test_the_likelihood_is_that_of_the_noise(name: str, scale: float, density: Any) -> None:
    """Its scale is estimated from one draw for 13,426 weights."""
    known = case(1, 2, name, scale)
    rest = torch.linspace(-2, 2, 50).view(2, 25)
    result = noise_likelihood(known.server, known.view.released)(rest, rest)
    torch.testing.assert_close(result, density(rest).sum(1), rtol=0.05, atol=0)


def test_without_noise_a_thousandth_of_the_update_stands_in_for_its_scale() -> None:
    known = case(1, 2)
    rest, update = torch.full((2, 4), 0.002), torch.tensor([[1.0, -1.0, 3.0, 3.0], [4.0, 4.0, 4.0, -4.0]])
    result = noise_likelihood(known.server, known.view.released)(rest, update)
    assert result.tolist() == pytest.approx([4 * 1.0**2 / 2, 4 * 0.5**2 / 2], rel=1e-5)
