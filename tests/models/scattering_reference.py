"""What kymatio 0.3.0 makes of a few images, for ``test_scattering.py``; kymatio is not installed where that runs.

Made by ``python tests/models/scattering_reference.py`` in an environment with torch 2.13.0, scipy and kymatio 0.3.0.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FILE = Path(__file__).with_name("scattering_reference.npz")
SHAPES = ((1, 28, 28), (3, 32, 32), (2, 13, 22), (1, 4, 5))


def images(shape: tuple[int, int, int], count: int = 1) -> Tensor:
    """Images with edges, waves and flat parts, by a formula rather than by a random generator."""
    channel, row, column = np.meshgrid(*(np.arange(side) for side in shape), indexing="ij")
    made = [
        np.sin(0.9 * row + 0.31 * column * (channel + 1) + number) * (row + 2 * column > 11)
        + 0.5 * ((row // 3 + column // 4 + number) % 2)
        for number in range(count)
    ]
    return torch.from_numpy(np.stack(made)).float()


def kymatio(shape: tuple[int, int, int]) -> Any:
    """kymatio's transform of float32 images of a shape; an ImportError where it is missing."""
    import scipy.special

    if not hasattr(scipy.special, "sph_harm"):  # gone from SciPy; kymatio imports it for its 3-D transform
        scipy.special.sph_harm = None
    from kymatio.torch import Scattering2D

    return Scattering2D(J=2, shape=shape[1:], L=8)


def key(shape: tuple[int, int, int]) -> str:
    return "x".join(str(side) for side in shape)


if __name__ == "__main__":
    outputs = {key(shape): kymatio(shape)(images(shape)).numpy() for shape in SHAPES}
    np.savez_compressed(FILE, **outputs)
