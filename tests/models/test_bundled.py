"""The bundled models: the paper's, and two small ones."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from equipoise.errors import ConfigError
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP, MODELS, LeNetTanh, LeNetZhu, build


def test_the_papers_model_has_13426_parameters() -> None:
    for fast in (True, False):
        assert Batched(LeNetZhu(), fast=fast).layout.size == 13_426
    assert sum(p.numel() for p in LeNetZhu().parameters()) == 13_426


def test_the_papers_model_layer_by_layer() -> None:
    model = LeNetZhu()
    convs = [layer for layer in model if isinstance(layer, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.kernel_size, c.stride, c.padding) for c in convs] == [
        (1, 12, (5, 5), (2, 2), (2, 2)),
        (12, 12, (5, 5), (2, 2), (2, 2)),
        (12, 12, (5, 5), (1, 1), (2, 2)),
    ]
    assert sum(isinstance(layer, nn.Sigmoid) for layer in model) == 3
    assert model.fc.weight.shape == (10, 588)


def test_the_papers_model_with_tanh_differs_in_that_alone() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(3)
        tanh = LeNetTanh()
        torch.manual_seed(3)
        paper = LeNetZhu()
    expected = {nn.Sigmoid: nn.Tanh}
    assert [type(layer) for layer in tanh] == [expected.get(type(layer), type(layer)) for layer in paper]
    assert all(torch.equal(one, two) for one, two in zip(tanh.parameters(), paper.parameters(), strict=True))


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    assert all(isinstance(build(name), nn.Module) for name in MODELS)
    with pytest.raises(ConfigError, match=r"Unknown model 'lenet-zu'. Did you mean 'lenet-zhu'\?"):
        build("lenet-zu")


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 30), (2, 1, 5)])
@pytest.mark.parametrize("name", MODELS)
def test_every_model_fits_images_of_any_shape(name: str, shape: tuple[int, int, int]) -> None:
    model = build(name, shape, classes=7)
    assert model(torch.zeros(2, *shape)).shape == (2, 7)
    assert Batched(model)._layers is not None, "every bundled model runs through the hand-written layers"


def test_the_size_of_the_small_models() -> None:
    sizes = {name: sum(p.numel() for p in build(name).parameters()) for name in MODELS}
    assert sizes == {
        "lenet-zhu": 13_426, "lenet-tanh": 13_426, "mlp": 50_890, "small-cnn": 20_490, "scatter-linear": 39_700,
    }  # fmt: skip
    assert sum(p.numel() for p in MLP((1, 2, 3), classes=3, hidden=5).parameters()) == 53
