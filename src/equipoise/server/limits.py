"""How much one client may weigh, and how far one update may go.

Every number of a monster is finite, so no check of form stops it: one update of 3e38, and the sums of every later round
overflow; one weight of 1e7 among weights of 10, and its sender is the mean. Two bounds, on by default:

==================  ============================================================================================
max_norm            the L2 norm of an update (received minus previous tensors, all floating entries, trainable or
                    not, in float64). By default 100 times (L2 norm of the model + expected L2 norm of
                    the distortion that was asked for + 1): far beyond honest training, far below an overflow.
max_weight_ratio    the weight of a release, in medians of the weights of the round (the lower one for an even
                    number; one release alone has nothing to be compared with). By default 10.
==================  ============================================================================================

``math.inf`` turns either off. They bound what one client can do in one round, not what many do together, nor one
client in many rounds: for that there is robust aggregation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median_low

import torch
from torch import Tensor

from ..errors import ConfigError, is_number
from ..mechanism.noise import NOISES
from ..mechanism.protection import ProtectionSettings
from ..mechanism.registry import Mechanism

MAX_WEIGHT = 1e7
"""The most examples that a client is believed to have, unless the server says otherwise."""
MAX_WEIGHT_RATIO = 10.0
NORM_FACTOR = 100.0
ROUNDING = 1.01
"""A mean of updates within the bound may end just beyond it, in the precision of the model."""


@dataclass(frozen=True)
class Limits:
    """The three numbers as a server sets them.

    >>> Limits(max_norm=0.0)
    Traceback (most recent call last):
    equipoise.errors.ConfigError: Expected max_norm=0.0 to be a number > 0, or None. None is 100 times the size ...
    """

    max_weight: float = MAX_WEIGHT
    max_norm: float | None = None
    max_weight_ratio: float = MAX_WEIGHT_RATIO

    def __post_init__(self) -> None:
        if not (is_number(self.max_weight) and self.max_weight > 0):
            raise ConfigError(f"Expected max_weight={self.max_weight!r} to be a number > 0.", "1e7 is the default.")
        if self.max_norm is not None and not (is_number(self.max_norm) and self.max_norm > 0):
            raise ConfigError(
                f"Expected max_norm={self.max_norm!r} to be a number > 0, or None.",
                "None is 100 times the size of the model and its noise, math.inf no bound.",
            )
        if not (is_number(self.max_weight_ratio) and self.max_weight_ratio >= 1):
            raise ConfigError(
                f"Expected max_weight_ratio={self.max_weight_ratio!r} to be a number >= 1.",
                "10 is the default, math.inf no bound.",
            )

    def norm(self, previous: Mapping[str, Tensor], distortion: float = 0.0) -> float:
        """The largest L2 norm of an update of this model.

        >>> Limits().norm({"w": torch.tensor([3.0, 4.0])}, distortion=2.0)
        800.0
        """
        return NORM_FACTOR * (size(previous) + distortion + 1) if self.max_norm is None else self.max_norm

    def heavy(self, weights: Mapping[str, float]) -> dict[str, str]:
        """Who claims too large a part of a round, and the words for it.

        >>> Limits().heavy({"a": 10, "b": 12, "c": 1e7})
        {'c': 'has weight 1e+07, more than 10 times the median of this round, 12'}
        """
        if not weights:
            return {}
        median = median_low(weights.values())
        words = f"more than {self.max_weight_ratio:g} times the median of this round, {median:g}"
        most = self.max_weight_ratio * median
        return {client: f"has weight {weight:g}, {words}" for client, weight in weights.items() if weight > most}


def size(tensors: Mapping[str, Tensor], origin: Mapping[str, Tensor] | None = None) -> float:
    """The L2 norm of all floating entries, or of their differences from ``origin``, in float64.

    Nothing overflows on the way: only a norm beyond the largest float is infinite.

    >>> size({"w": torch.tensor([-3e200, 0.0], dtype=torch.float64), "count": torch.tensor(7)})
    3e+200
    """
    return math.hypot(*(_norm(tensor, None if origin is None else origin[name]) for name, tensor in tensors.items()))


def _norm(tensor: Tensor, origin: Tensor | None) -> float:
    if not tensor.is_floating_point() or not tensor.numel():
        return 0.0
    numbers = tensor.detach().to(torch.float64)
    if origin is not None:
        numbers = numbers - origin.detach().to(numbers.device, torch.float64)
    largest = numbers.abs().max()
    if not 0 < largest < math.inf:
        return float(largest)
    return float(largest) * float(torch.linalg.vector_norm(numbers / largest))


def wrong_norm(update: Mapping[str, Tensor], previous: Mapping[str, Tensor], most: float) -> str | None:
    """
    >>> wrong_norm({"w": torch.tensor([3e38])}, {"w": torch.zeros(1)}, 100.0)
    'has an update of L2 norm 3e+38, expected at most 100'
    """
    norm = size(update, previous) if most < math.inf else 0.0
    return f"has an update of L2 norm {norm:.6g}, expected at most {most:.6g}" if not norm <= most else None


def largest_distortion(
    settings: ProtectionSettings, mechanism: Mechanism, budgets: Sequence[float], parameters: int
) -> float:
    """An upper bound of the expected L2 norm of one distortion, over the budgets that a run asks for.

    A server does not know the batch of a client, on which the scale of a formal mechanism depends: that of a single
    example is the largest.

    >>> from equipoise import get_mechanism
    >>> largest_distortion(ProtectionSettings(), get_mechanism("pl-learn"), [0.98], 13426)
    15.9995...
    """
    measure = replace(settings, batch=1).measure(mechanism)
    if measure is None or not budgets:
        return 0.0
    bound = max(measure.lower(budget) for budget in budgets) * (measure.factor if mechanism.learns else 1.0)
    if mechanism.on_sphere:  # of the norm itself, and an L2 norm is at most the L1 norm
        return bound
    noised = 1.0 if mechanism.shaping is None else mechanism.shaping.noised
    spread = math.sqrt(NOISES[mechanism.noise].variance * parameters * noised)
    # learned within bounds of its L1 norm, all of it may end up in one place
    return bound * spread * (math.sqrt(parameters) if mechanism.learns and mechanism.norm == "l1" else 1.0)
