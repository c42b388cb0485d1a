"""The paper's bounds beside what a run did. ``run`` reads a run folder and gathers; ``scene`` holds what all share;
``inner`` (Algorithm 2), ``outer`` and ``rounds`` (Algorithm 1) and ``leakage`` measure; ``display`` shows."""

from __future__ import annotations

from .context import BoundsOptions
from .run import Bounds, bounds_run

__all__ = ["Bounds", "BoundsOptions", "bounds_run"]
