"""The residual net: its sizes, and that it treats every picture and every set of parameters alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from equipoise.models.batched import Batched
from equipoise.models.check import check_model
from equipoise.models.residual import ResNetGN
from tests.models.reference import assert_replicas_alone


@pytest.mark.parametrize(("width", "size"), [(16, 77_850), (96, 2_755_690)])
def test_the_two_sizes_that_are_named(width: int, size: int) -> None:
    assert sum(p.numel() for p in ResNetGN(width=width).parameters()) == size


def test_replicas_give_what_each_gives_alone() -> None:
    torch.manual_seed(1)
    model = ResNetGN((3, 12, 12), classes=5, width=8)
    check_model(model, torch.rand(2, 3, 12, 12), 5)
    assert_replicas_alone(Batched(model), torch.randn(3, 4, 3, 12, 12), torch.randint(5, (3, 4)))


def test_no_picture_sees_another() -> None:
    model, images = ResNetGN(width=8), torch.rand(3, 3, 32, 32)
    assert torch.allclose(model(images)[1:2], model(images[1:2]), atol=1e-6)
    assert not any(isinstance(part, nn.modules.batchnorm._BatchNorm) for part in model.modules())


def test_a_width_that_eight_does_not_divide() -> None:
    assert ResNetGN((1, 9, 9), classes=2, width=6)(torch.rand(2, 1, 9, 9)).shape == (2, 2)
