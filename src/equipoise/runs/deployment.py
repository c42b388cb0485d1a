"""What a server says of its clients for whoever audits its run: no release depends on any of it.

A deployment's server has neither the clients' data nor their code, so its run folder holds, in a table ``[deployment]``
of ``config.toml``, what its operator told: enough to build the model again and to bring public data into its form.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..errors import ConfigError, is_number, is_whole

DATASET = "deployment"
"""What a deployment's federation calls the data of its clients, which the server never had."""
MARK = "# What the server of a deployment asked of its clients, for its audit."
"""How the config.toml of a deployment begins."""
MOST_CLASSES = 100_000
LEAST_STD, MOST_STD = 1e-6, 1e6
MODEL = re.compile(r"[A-Za-z_][\w.-]*(:[A-Za-z_][\w.]*)?", re.ASCII)
"""A bundled name or module:callable: nothing else of a folder's word reaches a terminal."""


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """The table ``[deployment]``; None where the operator told nothing.

    >>> Deployment(model="lenet-zhu", classes=10).told()
    {'model': 'lenet-zhu', 'classes': 10}
    """

    model: str | None = None  # a bundled name, or module:callable, which is never imported because a folder says so
    classes: int | None = None
    mean: float | list[float] | None = None  # of the normalisation of the inputs; one number, or one per channel
    std: float | list[float] | None = None

    def told(self) -> dict[str, Any]:
        """What is known, by name."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def check(self) -> None:
        """Refuse values that no model and no normalisation can have."""
        if self.model is not None and (not isinstance(self.model, str) or not MODEL.fullmatch(self.model)):
            raise ConfigError(
                f"Expected the model {self.model!r} to be a name.", "Give a bundled name, or module:callable."
            )
        if self.classes is not None and (not is_whole(self.classes) or not 2 <= self.classes <= MOST_CLASSES):
            raise ConfigError(
                f"Expected classes={self.classes!r} to be a whole number in 2..{MOST_CLASSES}.",
                "Give the number of outputs of the model, or leave it out.",
            )
        if (self.mean is None) != (self.std is None):
            raise ConfigError("Expected mean and std together.", "Give both, or neither.")
        for name, value in (("mean", self.mean), ("std", self.std)):
            numbers = value if isinstance(value, list) else [0.0 if value is None else value]
            if not numbers or not all(is_number(number) for number in numbers):
                raise ConfigError(f"Expected {name}={value!r} to be a number, or one per channel.", "Check the list.")
            if name == "std" and value is not None and not all(LEAST_STD <= number <= MOST_STD for number in numbers):
                raise ConfigError(
                    f"Expected std={value!r} to be in {LEAST_STD:g}..{MOST_STD:g}: images would become all alike.",
                    "Give the standard deviation that the clients divide by, or leave mean and std out.",
                )
