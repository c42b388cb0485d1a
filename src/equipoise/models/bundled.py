"""Small models by name, for pictures, tables and tokens. Any other ``nn.Module`` works too; see ``check.check_model``.

Those in this file are plain sequences, which ``layers.py`` can run for many sets of parameters at once;
``scatter-linear`` is in ``features.py``, ``resnet-gn`` in ``residual.py``, those for tokens in ``text.py``.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable

from torch import nn

from ..errors import ConfigError, closest
from .features import scatter_linear
from .inputs import Kind
from .residual import ResNetGN
from .text import LSTM, Transformer

Shape = tuple[int, ...]
"""Of one input: channels, height and width of a picture, the features of a row, the length of a sequence."""

DEFAULT: dict[Kind, str] = {"image": "lenet-zhu", "table": "mlp", "tokens": "transformer"}
"""The model where nobody names one."""


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

    def __init__(self, shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10) -> None:
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

    def __init__(self, shape: tuple[int, int, int] = (1, 28, 28), classes: int = 10) -> None:
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


IMAGE_MODELS: dict[str, Callable[[tuple[int, int, int], int], nn.Module]] = {
    "lenet-zhu": LeNetZhu,
    "lenet-tanh": LeNetTanh,
    "small-cnn": SmallCNN,
    "scatter-linear": scatter_linear,
    "resnet-gn": ResNetGN,
}
NUMBER_MODELS: dict[str, Callable[[Shape, int], nn.Module]] = {"mlp": MLP}
"""For inputs of any shape, so long as they are numbers: tables, and pictures."""
TOKEN_MODELS: dict[str, Callable[[Shape, int, int], nn.Module]] = {"transformer": Transformer, "lstm": LSTM}
MODELS = (*IMAGE_MODELS, *NUMBER_MODELS, *TOKEN_MODELS)
"""All bundled names."""
OWN_INIT = ("resnet-gn", *TOKEN_MODELS)
"""Models that need their own initialisation: U(-0.5, 0.5), the paper's, suits the others."""


def build(name: str, shape: Shape = (1, 28, 28), classes: int = 10, vocabulary: int | None = None) -> nn.Module:
    """A bundled model by name, for inputs of the given shape; ``vocabulary`` says that these are tokens, and how many.

    >>> type(build("lenet-zhu")).__name__, build("mlp", (30,), 2).fc1.in_features
    ('LeNetZhu', 30)
    >>> build("lstm", (30,), 2)
    Traceback (most recent call last):
    equipoise.errors.ConfigError: The model 'lstm' is for tokens, and the data are numbers of shape (30,). Use mlp.
    """
    if name not in MODELS:
        raise ConfigError(f"Unknown model {name!r}.{closest(name, list(MODELS))}", f"Known: {', '.join(MODELS)}.")
    what = f"numbers of shape {tuple(shape)}" if vocabulary is None else "tokens"
    if name in TOKEN_MODELS:
        if vocabulary is None:
            raise _unfit(name, "tokens", what, ["mlp", *(IMAGE_MODELS if len(shape) == 3 else ())])
        return TOKEN_MODELS[name](shape, classes, vocabulary)
    if vocabulary is not None:
        raise _unfit(name, "pictures" if name in IMAGE_MODELS else "numbers", what, [*TOKEN_MODELS])
    if name in NUMBER_MODELS:
        return NUMBER_MODELS[name](shape, classes)
    if len(shape) != 3:
        raise _unfit(name, "pictures", what, [*NUMBER_MODELS])
    channels, height, width = shape
    return IMAGE_MODELS[name]((channels, height, width), classes)


def _unfit(name: str, takes: str, are: str, others: list[str]) -> ConfigError:
    *most, last = others
    one_of = f"{', '.join(most)} or {last}" if most else last
    return ConfigError(f"The model {name!r} is for {takes}, and the data are {are}.", f"Use {one_of}.")
