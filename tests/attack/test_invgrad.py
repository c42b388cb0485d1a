"""Inverting Gradients: it wins where nothing protects, loses under noise, and survives one broken release."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from equipoise.attack.descent import Search
from equipoise.attack.invgrad import invgrad
from tests.attack.inversions import CLASS_MEAN, HIGH, LOW, QUICK, case, five

INVERTING = Search(iterations=200, lr=0.1)


@pytest.mark.parametrize("batch", [1, 4])
def test_it_wins_without_protection(batch: int) -> None:
    known = case(batch, 2)
    result = invgrad(known.server, known.view, INVERTING)
    assert known.errors(result).max() < CLASS_MEAN / 4
    assert result.cost.max() < 1e-4
    assert result.stopped is not None
    assert result.stopped.tolist() == [0, 0]
    assert result.labels is None
    assert result.images.min() >= LOW - 1e-6
    assert result.images.max() <= HIGH + 1e-6


@pytest.mark.parametrize("batch", [1, 4])
def test_it_loses_under_noise(batch: int) -> None:
    known = case(batch, 4, "pl-identical", 64.0)
    result = invgrad(known.server, known.view, replace(INVERTING, iterations=40))
    assert known.errors(result).mean() > known.black().mean()
    assert known.errors(result).mean() > known.flat().mean()


def test_one_release_of_huge_weights() -> None:
    known = five("none", 0.0)
    released = known.view.released[:3].clone()
    released[1, 5] = 3e38  # finite, but not once it is divided by the learning rate
    result = invgrad(known.server, replace(known.view.rows(slice(3)), released=released), QUICK["invgrad"])
    healthy = invgrad(known.server, known.view.rows(slice(3)), QUICK["invgrad"])
    assert result.stopped is not None
    assert result.stopped.tolist() == [0, 1, 0]
    assert torch.isfinite(result.images).all()
    for row in (0, 2):
        assert torch.equal(result.images[row], healthy.images[row])
