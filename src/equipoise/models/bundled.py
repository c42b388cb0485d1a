"""Small image models. Any other ``nn.Module`` works too; see ``check.check_model``.

Those without fixed features are plain sequences, which ``layers.py`` can run for many sets of parameters at once;
``scatter-linear`` has its own file, ``features.py``.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from torch import nn

from ..errors import ConfigError, closest
from .features import scatter_linear

Shape = tuple[int, int, int]
"""Channels, height, width."""


def _quarter(side: int) -> int:
    """The side of an image after two padded convolutions of stride 2."""
    return -(-side // 4)


def _sequence(**layers: nn.Module) -> OrderedDict[str, nn.Module]:
    return OrderedDict(layers)


class LeNetZhu(nn.Sequential):
    """The paper's model: three 5x5 convolutions with sigmoids and one linear layer; 13,426 parameters.

    >>> sum(p.numel() for p in LeNetZhu().parameters())
    13426
    """

    activation: type[nn.Module] = nn.Sigmoid

    def __init__(self, shape: Shape = (1, 28, 28), classes: int = 10) -> None:
        channels, height, width = shape
        super().__init__(
            _sequence(
                conv1=nn.Conv2d(channels, 12, 5, stride=2, padding=2),
                act1=self.activation(),
                conv2=nn.Conv2d(12, 12, 5, stride=2, padding=2),
                act2=self.activation(),
                conv3=nn.Conv2d(12, 12, 5, stride=1, padding=2),
                act3=self.activation(),
                flatten=nn.Flatten(),
                fc=nn.Linear(12 * _quarter(height) * _quarter(width), classes),
            )
        )


class LeNetTanh(LeNetZhu):
    """The paper's model with tanh: bounded like a sigmoid, but steep at zero, so that noised gradients get through.

    Papernot et al. (arXiv:2007.14191). torch's own initialisation suits it.
    """

    activation = nn.Tanh


class MLP(nn.Sequential):
    """One hidden layer; ``hidden`` sets the size (the growth benchmark goes to 10^7 parameters)."""

    def __init__(self, shape: Shape = (1, 28, 28), classes: int = 10, hidden: int = 64) -> None:
        super().__init__(
            _sequence(
                flatten=nn.Flatten(),
                fc1=nn.Linear(math.prod(shape), hidden),
                act1=nn.ReLU(),
                fc2=nn.Linear(hidden, classes),
            )
        )


class SmallCNN(nn.Sequential):
    """Two strided 3x3 convolutions with ReLU and a linear layer; about 20,000 parameters."""

    def __init__(self, shape: Shape = (1, 28, 28), classes: int = 10) -> None:
        channels, height, width = shape
        super().__init__(
            _sequence(
                conv1=nn.Conv2d(channels, 16, 3, stride=2, padding=1),
                act1=nn.ReLU(),
                conv2=nn.Conv2d(16, 32, 3, stride=2, padding=1),
                act2=nn.ReLU(),
                flatten=nn.Flatten(),
                fc=nn.Linear(32 * _quarter(height) * _quarter(width), classes),
            )
        )


MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {
    "lenet-zhu": LeNetZhu,
    "lenet-tanh": LeNetTanh,
    "mlp": MLP,
    "small-cnn": SmallCNN,
    "scatter-linear": scatter_linear,
}


def build(name: str, shape: Shape = (1, 28, 28), classes: int = 10) -> nn.Module:
    """A bundled model by name, for images of the given shape.

    >>> type(build("lenet-zhu")).__name__
    'LeNetZhu'
    """
    if name not in MODELS:
        raise ConfigError(f"Unknown model {name!r}.{closest(name, list(MODELS))}", f"Known: {', '.join(MODELS)}.")
    return MODELS[name](shape, classes)
