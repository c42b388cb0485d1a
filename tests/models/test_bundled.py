"""The bundled models: the paper's, and others for pictures, tables and tokens."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from equipoise.errors import ConfigError
from equipoise.models.batched import Batched
from equipoise.models.bundled import (
    DEFAULT,
    IMAGE_MODELS,
    MLP,
    NUMBER_MODELS,
    TOKEN_MODELS,
    LeNetTanh,
    LeNetZhu,
    build,
)
from equipoise.models.routes import NAMES


def test_the_papers_model_has_13426_parameters() -> None:
    for route in NAMES:
        assert Batched(LeNetZhu(), route=route).layout.size == 13_426
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
    with pytest.raises(ConfigError, match=r"Unknown model 'lenet-zu'. Did you mean 'lenet-zhu'\?"):
        build("lenet-zu")


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 17, 30), (2, 1, 5)])
@pytest.mark.parametrize("name", [*IMAGE_MODELS, *NUMBER_MODELS])
def test_every_model_for_pictures_fits_images_of_any_shape(name: str, shape: tuple[int, int, int]) -> None:
    model = build(name, shape, classes=7)
    assert model(torch.zeros(2, *shape)).shape == (2, 7)
    assert (Batched(model).route == "layers") == (name != "resnet-gn"), "the others run through hand-written layers"


def test_the_size_of_the_small_models() -> None:
    pictures = [*IMAGE_MODELS, *NUMBER_MODELS]
    sizes = {name: sum(p.numel() for p in build(name).parameters()) for name in pictures}
    assert sizes == {
        "lenet-zhu": 13_426, "lenet-tanh": 13_426, "mlp": 50_890, "small-cnn": 20_490, "scatter-linear": 39_700,
        "resnet-gn": 77_562,
    }  # fmt: skip
    assert sum(p.numel() for p in MLP((1, 2, 3), classes=3, hidden=5).parameters()) == 53


@pytest.mark.parametrize("name", TOKEN_MODELS)
def test_a_model_for_tokens_has_their_vocabulary_and_classes(name: str) -> None:
    model = build(name, (6,), classes=3, vocabulary=11)
    assert model(torch.tensor([[10, 3, 0, 0, 0, 0], [1, 2, 3, 4, 5, 6]])).shape == (2, 3)


def test_the_default_of_every_kind_can_be_built() -> None:
    data = {"image": ((1, 28, 28), None), "table": ((30,), None), "tokens": ((16,), 50)}
    for kind, (shape, vocabulary) in data.items():
        assert isinstance(build(DEFAULT[kind], shape, 2, vocabulary), nn.Module)  # type: ignore[index]


@pytest.mark.parametrize(
    ("name", "shape", "vocabulary", "words"),
    [
        ("lenet-zhu", (30,), None, r"is for pictures, and the data are numbers of shape \(30,\)\. Use mlp\."),
        ("lenet-zhu", (30,), 9, r"is for pictures, and the data are tokens\. Use transformer or lstm\."),
        ("mlp", (30,), 9, r"is for numbers, and the data are tokens\. Use transformer or lstm\."),
        ("lstm", (30,), None, r"is for tokens, and the data are numbers of shape \(30,\)\. Use mlp\."),
        ("lstm", (1, 8, 8), None, r"Use mlp, lenet-zhu, lenet-tanh, small-cnn, scatter-linear or resnet-gn\."),
    ],
)
def test_a_model_for_other_data_is_refused_with_one_that_fits(
    name: str, shape: tuple[int, ...], vocabulary: int | None, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        build(name, shape, 2, vocabulary)
