"""Equipoise inside Flower: the same ``protect``, a guard that fails closed, and a strategy that checks every reply.

In the client app::

    app = ClientApp(mods=[guard])
    ...
    model_record = protect(model, trainloader, msg, context)  # instead of ArrayRecord(model.state_dict())

``protected_step`` makes the local step itself, from the received model, and is the only way to use ``laplace-dp``.

In the server app::

    strategy = Validated(FedAvg(), context.run_config)

Budgets are set in the app's configuration, ``[tool.flwr.app.config.equipoise]``; what leaves a node is up to its own
policy (``init_policy``, or ``equipoise flower policy init``). See docs/deployment.md.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..errors import missing_extra

if TYPE_CHECKING:
    from .client import protect as protect
    from .client import protected_step as protected_step
    from .client_guard import guard as guard
    from .policy_file import init_policy as init_policy
    from .policy_file import show_policy as show_policy
    from .server import Validated as Validated

_HOMES = {
    "guard": "client_guard", "init_policy": "policy_file", "protect": "client", "protected_step": "client",
    "show_policy": "policy_file", "Validated": "server",
}  # fmt: skip

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "flwr":
            raise
        raise missing_extra("equipoise.flower", "flower") from error


def __dir__() -> list[str]:
    return sorted(__all__)
