"""A residual network for small pictures, with GroupNorm: nothing in it depends on the other pictures of a batch."""

from __future__ import annotations

import math

from torch import Tensor, nn

STAGES = 3
"""Of one block each; every stage after the first halves the sides and doubles the channels."""


def _norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(8, channels), channels)


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, which is a 1x1 convolution where the form changes."""

    def __init__(self, channels: int, wider: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, wider, 3, stride, padding=1, bias=False)
        self.norm1 = _norm(wider)
        self.conv2 = nn.Conv2d(wider, wider, 3, padding=1, bias=False)
        self.norm2 = _norm(wider)
        alike = channels == wider and stride == 1
        self.shortcut = nn.Identity() if alike else nn.Conv2d(channels, wider, 1, stride, bias=False)

    def forward(self, inputs: Tensor) -> Tensor:
        inner = self.norm2(self.conv2(nn.functional.relu(self.norm1(self.conv1(inputs)))))
        return nn.functional.relu(inner + self.shortcut(inputs))


class ResNetGN(nn.Module):
    """ResNet-8 (He et al., arXiv:1512.03385) with GroupNorm in place of BatchNorm, for pictures of about 32x32.

    ``width`` is the channels of the first stage: 16 gives 78 thousand parameters, 96 gives 2.8 million.

    >>> [sum(p.numel() for p in ResNetGN(width=width).parameters()) for width in (16, 96)]
    [77850, 2755690]
    """

    def __init__(self, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10, width: int = 16) -> None:
        super().__init__()
        self.conv = nn.Conv2d(shape[0], width, 3, padding=1, bias=False)
        self.norm = _norm(width)
        widths = [width * 2**stage for stage in range(STAGES)]
        inputs = [width, *widths[:-1]]
        self.blocks = nn.Sequential(
            *(Block(few, many, 1 if few == many else 2) for few, many in zip(inputs, widths, strict=True))
        )
        self.fc = nn.Linear(widths[-1], classes)

    def forward(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(nn.functional.relu(self.norm(self.conv(images))))
        outputs: Tensor = self.fc(features.mean((2, 3)))
        return outputs
