"""The theoretical results of Zhang et al. (arXiv:2305.15148), set beside what a run did.

``run`` reads a run folder and gathers. One file per result measures and reports: ``stationarity`` (Theorem 5.1 and
Corollary 5.1), ``one_step`` (Lemma C.1), ``convergence`` (Theorem 5.2), ``leakage`` (Lemma D.1 and Remark 1).
``theory`` has the right-hand sides as formulas, ``estimates`` the constants, ``page`` the HTML page.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .theory import distortion_bounds as distortion_bounds
    from .trajectory import follow as follow

_HOMES = {"distortion_bounds": "theory", "follow": "trajectory"}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
