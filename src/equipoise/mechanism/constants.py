"""Where the constants of one paper's model meet another model: said once, with what to do about it."""

from __future__ import annotations

import logging
from typing import Any

from torch import nn

from ..models.bundled import LeNetZhu
from .budget import LeakageBudget
from .protection import Leakage, ProtectionSettings
from .registry import Mechanism, get_mechanism
from .schedule import schedule_starts, schedule_text

log = logging.getLogger("equipoise")
_TOLD: set[str] = set()
"""Models that this process has been warned of."""


def constants_warning(
    model: str, mechanism: str | Mechanism, budget: Any, settings: ProtectionSettings, shown: str = ""
) -> str | None:
    """What to say of a leakage budget with the paper's constants on another model than the paper's; None otherwise.

    Args:
        model: its name; the paper's is ``"lenet-zhu"``.
        mechanism: by name, or itself.
        budget: a number, one per client, or a schedule.
        settings: with the constants.
        shown: how ``equipoise calibrate`` is told of the model; its name unless given.

    >>> constants_warning("mlp", "pl-learn", 0.98, ProtectionSettings())
    "a PL budget of 0.98 asks for a norm of 8 whatever the model, and its constants are those of the paper's ..."
    >>> constants_warning("mlp", "ls-static", 80, ProtectionSettings())
    """
    mechanism = get_mechanism(mechanism)
    scored = isinstance(settings.measure(mechanism), LeakageBudget)
    if model == "lenet-zhu" or not scored or settings.leakage != Leakage():
        return None
    norms = sorted({norm for row in settings.scales(mechanism, budget, schedule_starts(budget)) for norm in row})
    asked = f"{norms[0]:.3g}" if len(norms) == 1 else f"{norms[0]:.3g} to {norms[-1]:.3g}"
    budgeted = f" --budget {budget:g}" if isinstance(budget, int | float) else ""
    return (
        f"a PL budget of {schedule_text(budget)} asks for a norm of {asked} whatever the model, and its constants are "
        f"those of the paper's lenet-zhu; to see what that is on yours: equipoise calibrate --model {shown or model} "
        f"--mechanism {mechanism.name}{budgeted}"
    )


def warn_of_constants(model: nn.Module, mechanism: Mechanism, budget: Any, settings: ProtectionSettings) -> None:
    """The same in the log, once for every class of models, for a module that a user has built."""
    kind = type(model)
    if kind is LeNetZhu or kind.__qualname__ in _TOLD:
        return
    said = constants_warning(kind.__qualname__, mechanism, budget, settings, "my_app.task:make")
    if said is not None:
        _TOLD.add(kind.__qualname__)
        log.warning("%s: %s", kind.__qualname__, said)
