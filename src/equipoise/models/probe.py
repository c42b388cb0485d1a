"""A linear head on the features of a user's own frozen network."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from .check import check_features
from .features import FeatureModel, Shape, zero_head
from .scattering import to_norm


def linear_probe(network: nn.Module, classes: int, shape: Shape) -> FeatureModel:
    """A linear head, zero at first, on features from a frozen copy of a network of yours, all scaled to one norm.

    What the network was trained on is yours to answer for: its weights are taken as public, and no budget covers them.
    It is copied, put in eval mode (so that BatchNorm and dropout are functions of one record) and tried on
    random pixels.

    Args:
        network: maps images ``[B, *shape]`` to any float tensor ``[B, ...]``.
        classes: outputs of the head.
        shape: channels, height and width of an image.

    Returns:
        The model. A network that mixes the images of a batch, is random or changes raises ``ModelError``.

    >>> model = linear_probe(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()), 10, (1, 8, 8))
    >>> model.head
    Linear(in_features=144, out_features=10, bias=True)
    """
    features = OneNorm(copy.deepcopy(network)).eval().requires_grad_(False)
    like = next((p for p in features.parameters() if p.is_floating_point()), torch.empty(0))
    pixels = torch.randn(3, *shape, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)
    check_features(features.network, pixels)
    with torch.no_grad():
        found = features(pixels)
    return FeatureModel(features, zero_head(found.shape[1], classes).to(found.device, found.dtype))


class OneNorm(nn.Module):
    """The outputs of a network, each scaled to the Euclidean norm ``NORM``; zeros stay zeros.

    A head's gradient is then bounded whatever the network puts out, and one clip fits every network.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        outputs: Tensor = self.network(images).flatten(1)
        return to_norm(outputs if outputs.dtype == torch.float64 else outputs.float())
