"""What one release is to be, apart from model and data, and the noise that it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..errors import ConfigError, expected, is_count, is_finite
from ..randomness import experiment_key, keyed_words, system_uniform, system_words, uniform
from .noise import standard_noise
from .protection import ProtectionSettings, check_protection
from .registry import Mechanism, checked
from .release import Noise

PIECE = 1 << 20
"""Numbers that become noise at a time: a large model needs no second vector for it."""


@dataclass(frozen=True)
class Request:
    """Mechanism, budget and settings of one release, checked.

    >>> numbers = {"client": 0, "round_number": 1, "experiment_seed": None}
    >>> Request.checked("pl-learn", 0.98, None, 0.0, **numbers).settings.steps
    10
    """

    mechanism: Mechanism
    budget: Any
    settings: ProtectionSettings
    client: int
    round_number: int
    seed: int | None
    least_relative: float

    @classmethod
    def checked(
        cls, mechanism: Any, budget: Any, settings: ProtectionSettings | None, least_relative: Any, **numbers: Any
    ) -> Request:
        """``numbers`` are ``client``, ``round_number`` and ``experiment_seed``."""
        settings = settings or ProtectionSettings()
        check_protection(settings)
        for name, value in numbers.items():
            if not is_count(value) and (name != "experiment_seed" or value is not None):
                raise expected(name, value, "a whole number >= 0", "Number your clients and rounds.")
        if not is_finite(least_relative) or least_relative < 0:
            raise expected("least_relative", least_relative, "a finite number >= 0")
        client, round_number, seed = (numbers[name] for name in ("client", "round_number", "experiment_seed"))
        known = checked(mechanism, budget)
        if least_relative and known.shaping is not None:
            raise ConfigError(
                f"The mechanism {known.name!r} shapes the update: no noise of a known size stands beside it.",
                "Leave least_relative out.",
            )
        return cls(known, budget, settings, client, round_number, seed, least_relative)

    def noise(self, size: int, like: Tensor) -> Noise:
        """Standard noise ``[1, P]`` of the mechanism's family; for a formal one, where its integers come from."""
        if not self.mechanism.draws:
            return None
        if self.mechanism.formal:
            key = None if self.seed is None else experiment_key(self.seed, "noise")
            return [system_words if key is None else keyed_words(key, self.client, self.round_number)]
        if self.seed is None:
            numbers = system_uniform(size, like.dtype, like.device).unsqueeze(0)
        else:
            key, place = experiment_key(self.seed, "noise"), ([self.client], [self.round_number])
            numbers = uniform([key], *place, size, like.dtype, like.device)[0]
        for piece in numbers.split(PIECE, dim=1):
            piece.copy_(standard_noise(piece, self.mechanism.noise))
        return numbers
