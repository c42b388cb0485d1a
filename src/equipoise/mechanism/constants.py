"""Where the constants of one paper's model meet another model: said once, with what to do about it."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import nn

from ..models.bundled import IMAGE_MODELS, NUMBER_MODELS, TOKEN_MODELS, LeNetZhu
from .budget import GaussianBudget, LaplaceBudget, LeakageBudget, Measure
from .noise import NOISES
from .protection import ProtectionSettings
from .registry import Mechanism, get_mechanism
from .schedule import schedule_starts, schedule_text

log = logging.getLogger("equipoise")
Shapes = tuple[tuple[str, tuple[int, ...]], ...]
PAPERS = (LeakageBudget(), LaplaceBudget(), GaussianBudget())
"""The measures with the constants of the paper's model: of its attacks, and a sensitivity fitted to its tables."""
_TOLD: set[tuple[str, Shapes]] = set()
"""Measures and layouts that this process has been warned of."""


def constants_warning(
    model: nn.Module,
    mechanism: str | Mechanism,
    budget: Any,
    settings: ProtectionSettings,
    shown: str | None = "my_app.task:make",
) -> str | None:
    """What to say of a budget with the paper's constants on another model than the paper's; None otherwise.

    That model is ``LeNetZhu()``: 28 x 28 numbers in, 10 classes. Its like for other pictures is another one.

    Args:
        model: what is trained.
        mechanism: by name, or itself.
        budget: a number, one per client, or a schedule.
        settings: with the constants.
        shown: how ``equipoise calibrate`` is told of the model; None where that is not to be advised.

    >>> from equipoise.models.bundled import MLP
    >>> constants_warning(MLP(), "pl-learn", 0.98, ProtectionSettings())
    "a PL budget of 0.98 asks for a norm of 8 whatever the model, and its constants are those of the paper's ..."
    >>> constants_warning(MLP(), "ls-static", 80, ProtectionSettings())
    "an LS budget of 80 asks for noise of scale 0.125 in every coordinate, a norm of about 39.9 over the 50,890 of ..."
    >>> constants_warning(LeNetZhu(), "pl-learn", 0.98, ProtectionSettings()) is None
    True
    """
    mechanism = get_mechanism(mechanism)
    measure = None if mechanism.formal else settings.measure(mechanism)
    if not _is_papers(measure) or (type(model) is LeNetZhu and _shapes(model) == _lenet()):
        return None
    size = sum(torch.Size(shape).numel() for _, shape in _shapes(model))
    asked = sorted({value for row in settings.scales(mechanism, budget, schedule_starts(budget)) for value in row})
    if mechanism.on_sphere:
        said = (
            f"a PL budget of {schedule_text(budget)} asks for a norm of {_range(asked)} whatever the model, and its "
            f"constants are those of the paper's lenet-zhu with its 13,426 numbers, not of yours with {size:,}"
        )
    else:
        norms = [value * (NOISES[mechanism.noise].variance * size) ** 0.5 for value in asked]
        kind = "an LS" if mechanism.noise == "laplace" else "a GS"
        said = (
            f"{kind} budget of {schedule_text(budget)} asks for noise of scale {_range(asked)} in every coordinate, a "
            f"norm of about {_range(norms)} over the {size:,} of this model, and its sensitivity is fitted to the "
            "paper's lenet-zhu with its 13,426"
        )
    if shown is None:
        return said
    budgeted = f" --budget {budget:g}" if isinstance(budget, int | float) else ""
    command = f"equipoise calibrate --model {shown} --mechanism {mechanism.name}{budgeted}"
    return f"{said}; to see what that is on yours: {command}"


def named(kind: type[nn.Module]) -> str:
    """What builds a model of this class: the bundled name, the class where it can be imported, or the form of a name.

    >>> named(nn.Sequential), named(LeNetZhu)
    ('MODULE:FUNCTION', 'lenet-zhu')
    """
    known: dict[str, Any] = {**IMAGE_MODELS, **NUMBER_MODELS, **TOKEN_MODELS}
    bundled = next((name for name, one in known.items() if one is kind), "")
    place, called = kind.__module__, kind.__qualname__
    if bundled or place == "__main__" or place.startswith("torch.") or "<locals>" in called:
        return bundled or "MODULE:FUNCTION"
    return f"{place}:{called}"


def _is_papers(measure: Measure | None) -> bool:
    if not isinstance(measure, LeakageBudget | LaplaceBudget | GaussianBudget):
        return False
    return replace(measure, factor=2.0) in PAPERS


def _range(values: list[float]) -> str:
    return f"{values[0]:.3g}" if len(values) == 1 else f"{values[0]:.3g} to {values[-1]:.3g}"


def _shapes(model: nn.Module) -> Shapes:
    return tuple((name, tuple(part.shape)) for name, part in model.named_parameters() if part.requires_grad)


@cache
def _lenet() -> Shapes:
    with torch.random.fork_rng(devices=[]):  # weights that nobody needs
        return _shapes(LeNetZhu())


def warn_of_constants(model: nn.Module, mechanism: str | Mechanism, budget: Any, settings: ProtectionSettings) -> None:
    """The same in the log, once for every layout of a model and kind of budget."""
    mechanism = get_mechanism(mechanism)
    told = _key(model, mechanism)
    if told in _TOLD:
        return
    said = constants_warning(model, mechanism, budget, settings, named(type(model)))
    if said is not None:
        _TOLD.add(told)
        log.warning("%s: %s", type(model).__qualname__, said)


def warn_of_each(model: nn.Module, asked: Iterable[tuple[str, Any]], settings: ProtectionSettings) -> None:
    """``warn_of_constants`` for every mechanism and budget."""
    for mechanism, budget in asked:
        warn_of_constants(model, mechanism, budget, settings)


def mark_told(model: nn.Module, mechanism: str | Mechanism) -> None:
    """Keep the log silent on what a command has said."""
    _TOLD.add(_key(model, get_mechanism(mechanism)))


def _key(model: nn.Module, mechanism: Mechanism) -> tuple[str, Shapes]:
    kind = mechanism.measure_kind
    return "" if kind is None else kind.name, _shapes(model)
