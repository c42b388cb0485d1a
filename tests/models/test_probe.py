"""A user's own frozen network under a linear head."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.models.check import check_model
from equipoise.models.features import features_of
from equipoise.models.probe import linear_probe

SHAPE = (2, 6, 6)


def network(*more: nn.Module) -> nn.Sequential:
    made = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5), *more)
    made[1].running_mean.fill_(0.1)
    return made


def test_the_network_is_copied_frozen_and_normalised() -> None:
    own = network()
    model = linear_probe(own, 3, SHAPE)
    assert own.training, "the user's own stays as it was"
    assert all(p.requires_grad for p in own.parameters())
    assert list(model.state_dict()) == ["head.weight", "head.bias"]
    assert model.head.weight.shape == (3, 64)
    assert not model.head.weight.any()
    x = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    features = features_of(model, x)
    assert torch.allclose(features.norm(dim=1), torch.full((5,), 8.0))
    plain = own.eval()(x).flatten(1)
    assert torch.allclose(features, 8 * plain / plain.norm(dim=1, keepdim=True), atol=1e-5)
    with torch.no_grad():
        own[0].weight.zero_()
    assert torch.equal(features_of(model, x), features), "what becomes of it later changes nothing"
    check_model(model, x, 3)


def test_features_of_zeros_and_of_any_size_are_stable() -> None:
    model = linear_probe(nn.Sequential(nn.Flatten(), nn.Linear(72, 4, bias=False)), 3, SHAPE)
    x = torch.randn(1, *SHAPE, generator=torch.Generator().manual_seed(1))
    features = features_of(model, torch.cat([x * 0, x * 1e-18, x, x * 1e12]))
    assert torch.equal(features[0], torch.zeros(4))
    assert torch.allclose(features[1:], features[2].expand(3, 4), atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_networks_of_other_precision(dtype: torch.dtype) -> None:
    model = linear_probe(nn.Sequential(nn.Flatten(), nn.Linear(72, 4)).to(dtype), 3, SHAPE)
    expected = torch.float64 if dtype == torch.float64 else torch.float32
    assert model.head.weight.dtype == expected
    assert model(torch.rand(2, *SHAPE, dtype=dtype)).dtype == expected


def test_a_network_without_parameters_will_do() -> None:
    assert linear_probe(nn.Flatten(), 3, SHAPE).head.in_features == 72


class Centred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x - x.mean(0)


@pytest.mark.parametrize(
    ("module", "label"),
    [
        (nn.BatchNorm2d(4, track_running_stats=False), r"'4' \(BatchNorm2d\) mixes the images of a batch"),
        (Centred(), r"'4' \(Centred\) mixes the images"),
        (nn.Sequential(nn.ReLU(), Centred()), r"'4.1' \(Centred\) mixes the images"),
    ],
)
def test_what_mixes_examples_is_refused_by_name(module: nn.Module, label: str) -> None:
    with pytest.raises(ModelError, match=label):
        linear_probe(network(module, nn.Flatten()), 3, SHAPE)
