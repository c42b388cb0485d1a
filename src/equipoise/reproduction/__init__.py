"""Every table and figure of the paper, computed again and set beside it.

The way of the data: ``artefacts`` say which federations they need; ``plan`` makes jobs of them; ``job`` trains and
measures (torch and numpy alone) and writes raw records; ``records`` reads these; each artefact scores them into cells
with verdicts, which ``claims`` rest on; ``figures``, ``sections`` and ``pages`` show them; ``reproduce`` is the command
that does all of it.

Public here is what an artefact of your own takes (docs/howto.md).
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "Artefact": "artefacts.artefact",
    "Table": "tables",
    "grid": "plan",
    "plus_minus": "tables",
    "register_artefact": "artefacts.registry",
    "spread": "agreement",
}

__all__ = sorted(_HOMES)
"""By name alone: ``compute`` runs jobs of this package without what pages and figures need."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)


def __dir__() -> list[str]:
    return sorted(__all__)
