"""The numbers that the paper prints."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

PRINTED = ("identical", "learn")
"""What the paper's tables call the static and the learned mechanism of a family."""


def paper() -> dict[str, Any]:
    """The paper's numbers, by table.

    >>> paper()["accuracy"]["PL"]["budgets"]
    [0.96, 0.97, 0.98, 0.99, 0.995]
    """
    result: dict[str, Any] = json.loads(files(__package__).joinpath("paper.json").read_text(encoding="utf-8"))
    return result
