"""The mean and standard deviation of images: checked, measured, applied and undone, channel by channel."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ..errors import DataError

Moment = float | tuple[float, ...]
"""One number for all channels, or one for each."""


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


def measured_moments(images: Tensor) -> tuple[Moment, Moment]:
    """Mean and standard deviation of each channel of ``[N, C, H, W]``; plain numbers where there is one channel.

    >>> measured_moments(torch.tensor([0.0, 1.0]).view(2, 1, 1, 1))
    (0.5, 0.5)
    """
    variances, means = torch.var_mean(images, dim=(0, 2, 3), correction=0)
    mean, std = tuple(means.tolist()), tuple(variances.sqrt().tolist())
    return (mean[0], std[0]) if len(mean) == 1 else (mean, std)


def normalise_(images: Tensor, mean: Moment, std: Moment) -> None:
    """Subtract the mean and divide by the standard deviation, in place."""
    images.sub_(_per_channel(mean, images)).div_(_per_channel(std, images))


def undone(images: Tensor, mean: Moment, std: Moment) -> Tensor:
    """The images before ``normalise_``, up to rounding.

    >>> undone(torch.ones(1, 1, 1, 1), 0.25, 0.5).item()
    0.75
    """
    return images * _per_channel(std, images) + _per_channel(mean, images)


def _per_channel(moment: Moment, like: Tensor) -> Tensor:
    return torch.tensor(_values(moment), dtype=like.dtype, device=like.device)[:, None, None]  # [C or 1, 1, 1]


def _values(moment: Moment) -> tuple[float, ...]:
    return moment if isinstance(moment, tuple) else (moment,)
