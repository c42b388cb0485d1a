"""The mean and standard deviation of inputs: checked, measured, applied and undone, by channel or column.

The channels of pictures ``[N, C, H, W]`` and the columns of a table ``[N, F]`` are the axis after the rows; tokens have
no moments.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError

Moment = float | tuple[float, ...]
"""One number for all channels or columns, or one for each."""


def as_moment(value: Any) -> Any:
    """Lists, as a config file gives them, become tuples: they go into a frozen dataset and the key of a cache."""
    return tuple(value) if isinstance(value, list) else value


def check_moments(mean: Moment, std: Moment, channels: int) -> None:
    """Refuse what is not finite, not > 0 (``std``) or neither one number nor one for each channel."""
    for what, moment in (("mean", mean), ("std", std)):
        values = _values(moment)
        if len(values) not in (1, channels) or not all(isinstance(v, int | float) and math.isfinite(v) for v in values):
            raise DataError(
                f"Expected {what} to be a finite number or {channels} of them, got {moment}.",
                "Give one, or one per channel.",
            )
        if what == "std" and min(values) <= 0:
            raise DataError(f"Expected std={std} to be > 0.", "Pass another std; constant images cannot be normalised.")


def measured_moments(inputs: Tensor) -> tuple[Moment, Moment]:
    """Mean and standard deviation of each channel of ``[N, C, ...]``; plain numbers where there is one channel.

    >>> measured_moments(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1))
    (0.5, 0.5)
    """
    others = tuple(axis for axis in range(inputs.ndim) if axis != 1)
    variances, means = torch.var_mean(inputs, dim=others, correction=0)
    mean, std = tuple(means.tolist()), tuple(variances.sqrt().tolist())
    return (mean[0], std[0]) if len(mean) == 1 else (mean, std)


def column_moments(rows: Tensor) -> tuple[Moment, Moment]:
    """``measured_moments`` for a table, in which a column of one value keeps its size: its std is taken as 1.

    >>> column_moments(torch.tensor([[0.0, 7.0], [1.0, 7.0]]))
    ((0.5, 7.0), (0.5, 1.0))
    """
    mean, std = measured_moments(rows.double())
    kept = tuple(
        value if value > 1e-12 * abs(centre) else 1.0 for centre, value in zip(_values(mean), _values(std), strict=True)
    )
    return mean, kept if isinstance(std, tuple) else kept[0]


def guessed_range(low: float, high: float, whole: bool) -> tuple[float, float]:
    """What stands for black and white where float images lie in ``low`` to ``high`` and nobody says.

    >>> guessed_range(0.0, 1.0, False), guessed_range(3.0, 250.0, True), guessed_range(-2.0, 6.0, False)
    ((0.0, 1.0), (0.0, 255.0), (-2.0, 6.0))
    """
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return (0.0, 255.0) if whole and low >= 0 and high <= 255 else (low, high)


def rescaled(mean: Moment, std: Moment, low: float, high: float) -> tuple[Moment, Moment]:
    """Moments of values as moments of pixels, of which ``low`` is 0 and ``high`` is 1.

    >>> rescaled(2.0, (4.0, 8.0), -2.0, 6.0)
    (0.5, (0.5, 1.0))
    """
    moved = tuple((value - low) / (high - low) for value in _values(mean))
    spread = tuple(value / (high - low) for value in _values(std))
    return moved if isinstance(mean, tuple) else moved[0], spread if isinstance(std, tuple) else spread[0]


def normalise_(inputs: Tensor, mean: Moment, std: Moment) -> None:
    """Subtract the mean and divide by the standard deviation, in place."""
    after = inputs.ndim - 2
    inputs.sub_(_per_channel(mean, inputs, after)).div_(_per_channel(std, inputs, after))


def undone(inputs: Tensor, mean: Moment, std: Moment, after: int = 2) -> Tensor:
    """The inputs before ``normalise_``, up to rounding; ``after`` the channels come so many axes: 2 for pictures.

    >>> undone(torch.ones(1, 1, 1, 1), 0.25, 0.5).item()
    0.75
    """
    return inputs * _per_channel(std, inputs, after) + _per_channel(mean, inputs, after)


def _per_channel(moment: Moment, like: Tensor, after: int) -> Tensor:
    values = torch.tensor(_values(moment), dtype=like.dtype, device=like.device)
    return values.view(-1, *[1] * after)  # [C or 1, 1, ...]


def _values(moment: Moment) -> tuple[float, ...]:
    return moment if isinstance(moment, tuple) else (moment,)
