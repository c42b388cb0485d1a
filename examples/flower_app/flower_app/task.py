"""What is yours: the model, the data, the test. Replace all of it; keep the signatures or change their callers."""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional

from equipoise import FeatureModel, load, partition, scatter_linear

TESTED = 1000
"""Test images that the server looks at after each round."""


def Net() -> FeatureModel:
    """A linear head, zero at first, on fixed features of 28 x 28 images: little to noise, so that privacy costs little.

    Nothing is learned for the features, and each is a function of one image alone. Of other images:
    ``scatter_linear((channels, height, width), classes)``; on a frozen network of your own: ``FeatureModel(network,
    head)``. Any other module trains too, with more noise for more parameters.
    """
    return scatter_linear((1, 28, 28), classes=10)


def load_data(client: int, clients: int) -> tuple[Tensor, Tensor]:
    """All images and labels of this client: its share of the bundled MNIST. In your app: what only this machine has."""
    train = load("mnist").train
    mine = partition(train.labels, clients)[client]
    return train.inputs[mine], train.labels[mine]


@cache
def test_features() -> tuple[Tensor, Tensor]:
    """Features and labels of test images, which no client has: computed once, as nothing in them is learned."""
    test, model = load("mnist").test, Net()
    parts = [model.features(images) for images in test.inputs[:TESTED].split(100)]
    return torch.cat(parts), test.labels[:TESTED]


def test_model(model: FeatureModel) -> tuple[float, float]:
    """Accuracy and loss."""
    features, labels = test_features()
    with torch.no_grad():
        logits = model.head(features)
    accuracy = (logits.argmax(1) == labels).float().mean()
    return float(accuracy), float(functional.cross_entropy(logits, labels))
