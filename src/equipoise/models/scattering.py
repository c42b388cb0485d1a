"""Scattering features: two layers of fixed wavelets and moduli, which need no training and so cost no privacy.

An image x is reflected at its borders, and three orders of averages are taken (J = 2 scales, L = 8 directions):

    S0 = x * phi        S1 = |x * psi_a| * phi        S2 = ||x * psi_a| * psi_b| * phi,  b coarser than a

``psi`` are Morlet wavelets, ``phi`` is a Gaussian, and ``*`` is the circular convolution, a product in the Fourier
domain; an average is kept at every fourth pixel. That makes 1 + 16 + 64 = 81 maps a channel, a quarter as wide and
as high as the image. Bruna & Mallat, "Invariant Scattering Convolution Networks" (arXiv:1203.1513); with private
linear heads: Tramèr & Boneh (arXiv:2011.11660). The numbers are those of kymatio 0.3.0 (a test compares them).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

Shape = tuple[int, int, int]
SCALES, DIRECTIONS, MAPS, GROUPS = 2, 8, 81, 27
STEP = 4
"""An average is kept at every fourth pixel, 2^J."""
PI = 3.1415
"""Of the height of every filter, as the reference has it; it cancels when the maps are normalised."""
NORM = 8.0
"""Of all features: beside the 1 of the bias they are long, so that little of a clipped gradient is the bias's."""
COPIES = range(-2, 3)
"""Periods over which a filter is summed: farther away it is zero in double precision, or nearly so."""


class Bank(NamedTuple):
    """The filters for images of one padded size ``[H, W]``: wavelets by their spectra, averages by matrices."""

    fine: Tensor  # [8, H, W], wavelets of scale 0: real, because a wave at -x is the conjugate of that at x
    coarse: Tensor  # [8, H, W], wavelets of scale 1
    rows: Tensor  # [H / 4 - 2, H], averages of the columns of a map, at every fourth pixel
    columns: Tensor  # [W / 4 - 2, W], of its rows
    half_rows: Tensor  # [H / 4 - 2, H / 2], the same of a map that has every second pixel
    half_columns: Tensor  # [W / 4 - 2, W / 2]


def padded(side: int) -> int:
    """The length to which a side is padded: a multiple of 4, with at least one kept average to spare at either end.

    >>> padded(28), padded(33), padded(1)
    (36, 40, 12)
    """
    return ((max(side, STEP) + STEP) // STEP + 1) * STEP


def reflected(side: int) -> Tensor:
    """Which pixel of a side stands at each place of the padded one: mirrored at the ends, as often as needed.

    >>> reflected(4).tolist()
    [2, 3, 2, 1, 0, 1, 2, 3, 2, 1, 0, 1]
    """
    spare, period = padded(side) - side, max(2 * (side - 1), 1)
    place = (torch.arange(padded(side)) - spare // 2) % period
    return torch.minimum(place, period - place)


def filter_bank(height: int, width: int) -> Bank:
    """All filters for images of a padded size, in float64.

    A wavelet of scale j has a Gaussian of width 0.8 * 2^j, twice as long across its direction as along it, and
    the frequency 3/4 pi / 2^j. The average has the width of the coarser scale.
    """
    angles = [(DIRECTIONS // 2 - 1 - turn) * math.pi / DIRECTIONS for turn in range(DIRECTIONS)]
    fine, coarse = (
        torch.stack([_morlet((height, width), 0.8 * 2**scale, angle, 0.75 * math.pi / 2**scale) for angle in angles])
        for scale in range(SCALES)
    )
    return Bank(fine, coarse, *(_average(side, halved) for halved in (False, True) for side in (height, width)))


def _gabor(size: tuple[int, int], width: float, angle: float, frequency: float, slant: float) -> Tensor:
    """A Gaussian times a plane wave along ``angle``, on a torus of the given size; ``1 / slant`` as long across."""
    row, column = torch.meshgrid(*(_periods(side) for side in size), indexing="ij")
    along = row * math.cos(angle) + column * math.sin(angle)
    across = column * math.cos(angle) - row * math.sin(angle)
    envelope = torch.exp(-(along.square() + (slant * across).square()) / (2 * width**2))
    wave = envelope * torch.exp(1j * frequency * along) * (slant / (2 * PI * width**2))
    return wave.view(len(COPIES), size[0], len(COPIES), size[1]).sum((0, 2))


def _periods(side: int) -> Tensor:
    return torch.arange(COPIES[0] * side, (COPIES[-1] + 1) * side, dtype=torch.float64)


def _morlet(size: tuple[int, int], width: float, angle: float, frequency: float) -> Tensor:
    """The spectrum of a Gabor wave less as much of its envelope as makes its sum zero: blind to flat grey."""
    wave, envelope = (_gabor(size, width, angle, one, slant=4 / DIRECTIONS) for one in (frequency, 0.0))
    spectrum: Tensor = torch.fft.fft2(wave - envelope * (wave.sum() / envelope.sum()))
    return spectrum.real


def _average(side: int, halved: bool) -> Tensor:
    """One direction of the convolution with the Gaussian, which is a product of two, as the matrix of what is kept.

    Of a map of every second pixel the Gaussian has the lower half of its frequencies. The first and the last
    average lie in the padding, and are not kept.
    """
    width = 0.8 * 2 ** (SCALES - 1)
    bell = torch.exp(-_periods(side).square() / (2 * width**2)).view(len(COPIES), side).sum(0)
    spectrum = torch.fft.fft(bell / math.sqrt(2 * PI * width**2))
    if halved:
        spectrum = torch.cat([spectrum[: side // 4], spectrum[-(side // 4) :]])
    kernel: Tensor = torch.fft.ifft(spectrum).real
    step = STEP // 2 if halved else STEP
    kept = torch.arange(step, len(kernel) - step, step)
    return kernel[(kept[:, None] - torch.arange(len(kernel))) % len(kernel)]


def scatter(images: Tensor, bank: Bank) -> Tensor:
    """All averages ``[..., 81, H / 4 - 2, W / 4 - 2]`` of padded images ``[..., H, W]``: by order, scale, direction."""
    spectrum = torch.fft.fft2(images).unsqueeze(-3)
    fine = torch.fft.ifft2(spectrum * bank.fine).abs()  # [..., 8, H, W]
    coarse = _every_second(spectrum * bank.coarse).abs()  # [..., 8, H / 2, W / 2]
    second = _every_second(torch.fft.fft2(fine).unsqueeze(-3) * bank.coarse).abs()  # [..., 8, 8, H / 2, W / 2]
    whole = bank.rows @ torch.cat([images.unsqueeze(-3), fine], -3) @ bank.columns.T
    halves = bank.half_rows @ torch.cat([coarse, second.flatten(-4, -3)], -3) @ bank.half_columns.T
    return torch.cat([whole, halves], -3)


def _every_second(spectrum: Tensor) -> Tensor:
    """Every second pixel, in both directions, of the maps with these spectra: a mean over periods, inverted."""
    half_height, half_width = spectrum.shape[-2] // 2, spectrum.shape[-1] // 2
    folded = spectrum[..., :half_height, :] + spectrum[..., half_height:, :]
    result: Tensor = torch.fft.ifft2((folded[..., :half_width] + folded[..., half_width:]) / 4)
    return result


def to_norm(features: Tensor) -> Tensor:
    """Features ``[B, F]``, each scaled to the Euclidean norm ``NORM``; zeros stay zeros.

    >>> to_norm(torch.tensor([[3.0, 4.0], [0.0, 0.0]])).norm(dim=1).tolist()
    [8.0, 0.0]
    """
    return NORM * nn.functional.normalize(features, eps=1e-30)


def at_most_norm(features: Tensor) -> Tensor:
    """Features ``[B, F]``, where longer ones are scaled down to ``NORM``.

    >>> at_most_norm(torch.tensor([[32.0, 0.0], [3.0, 4.0]])).tolist()
    [[8.0, 0.0], [3.0, 4.0]]
    """
    norms = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    return torch.where(norms > NORM * (1 + 1e-5), features * (NORM / norms), features)  # not by a rounding error


class Scattering(nn.Module):
    """Normalised scattering features ``[B, F]`` of images ``[B, *shape]``: each a function of its own image alone.

    The 81 maps of a channel are normalised in 27 groups (of three maps, in their order) to mean 0 and variance 1, every
    channel by itself; then the whole vector is scaled to the Euclidean norm ``NORM`` (of a blank image it stays zero).
    There is nothing to train and nothing to save: the filters follow from ``shape``, and are in no state dict.

    >>> model = Scattering((1, 28, 28))
    >>> model(torch.rand(2, 1, 28, 28)).shape, model.width, len(model.state_dict())
    (torch.Size([2, 3969]), 3969, 0)
    """

    def __init__(self, shape: Shape = (1, 28, 28)) -> None:
        super().__init__()
        channels, height, width = shape
        self.shape = (channels, height, width)
        self.width = channels * MAPS * math.prod(padded(side) // STEP - 2 for side in (height, width))
        for name, part in filter_bank(padded(height), padded(width))._asdict().items():
            self.register_buffer(name, part.float(), persistent=False)
        self.register_buffer("reflected_rows", reflected(height), persistent=False)
        self.register_buffer("reflected_columns", reflected(width), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        grouped = nn.functional.group_norm(self.maps(images).flatten(1, 2), GROUPS * self.shape[0])
        return to_norm(grouped.flatten(1))

    def maps(self, images: Tensor) -> Tensor:
        """The averages before they are normalised, ``[B, C, 81, H / 4, W / 4]``."""
        spread = images.index_select(-2, self.get_buffer("reflected_rows"))
        spread = spread.index_select(-1, self.get_buffer("reflected_columns"))
        return scatter(spread, Bank(*(self.get_buffer(name) for name in Bank._fields)))

    def extra_repr(self) -> str:
        return f"shape={self.shape}"
