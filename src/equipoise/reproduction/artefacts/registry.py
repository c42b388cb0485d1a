"""The artefacts by name, in the order of the paper; and what any of them need."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ...errors import ConfigError, closest
from ..plan import Needs, Scale
from . import (
    accuracy,
    cap,
    clients,
    configuration,
    defence,
    gaps,
    gradient_norm,
    layers,
    reconstructions,
    stepwise,
    sweeps,
    trade_off,
)
from .artefact import Artefact

ARTEFACTS: dict[str, Artefact] = {
    artefact.name: artefact
    for artefact in (
        accuracy.LS,
        accuracy.PL,
        defence.LS,
        defence.PL,
        gaps.GAPS,
        cap.CAP,
        trade_off.TRADE_OFF,
        clients.CLIENTS,
        layers.LAYERS,
        reconstructions.RECONSTRUCTIONS,
        stepwise.STEPWISE,
        gradient_norm.GRADIENT_NORM,
        configuration.CONFIGURATION,
        sweeps.SWEEPS,
    )
}
TAKEN = ("all", "raw")
"""What the command means by something else, and the folder of the records."""


def register_artefact(new: Artefact) -> Artefact:
    """Add an artefact of your own, after those of the paper.

    >>> from equipoise.reproduction import Table
    >>> words = {"title": "What guessing gets", "claim": "The paper does not guess.", "rule": "No verdict."}
    >>> shown = [Table("Accuracy in percent", ["guess"], [["10"]])]
    >>> guess = Artefact(name="guess", kind="beside", **words, score=lambda records: {}, tables=lambda result: shown)
    >>> register_artefact(guess).name
    'guess'
    """
    if new.name in ARTEFACTS:
        raise ConfigError(f"The artefact {new.name!r} exists.", "Choose another name.")
    if not re.fullmatch(r"[a-z]+(-[a-z]+)*", new.name) or new.name in TAKEN:
        raise ConfigError(
            f"Expected the name of an artefact to be lower-case words joined by hyphens, got {new.name!r}.",
            f"Choose another name; {' and '.join(TAKEN)} are taken.",
        )
    ARTEFACTS[new.name] = new
    return new


def check_names(names: Iterable[str]) -> list[str]:
    """The artefacts that are meant; ``all`` and nothing mean every one."""
    chosen = list(dict.fromkeys(names))
    for name in chosen:
        if name not in ARTEFACTS and name != "all":
            raise ConfigError(
                f"Unknown artefact {name!r}.{closest(name, [*ARTEFACTS, 'all'])}",
                f"Known: all, {', '.join(ARTEFACTS)}.",
            )
    return chosen if chosen and "all" not in chosen else list(ARTEFACTS)


def needs(names: Iterable[str], scale: Scale) -> Needs:
    """Everything that the artefacts need, each federation once."""
    result: Needs = {}
    for name in names:
        wanted = ARTEFACTS[name].needs
        for need in wanted(scale) if wanted else ():
            result.setdefault(need.group, {}).setdefault(need.federation, set()).add(need.measure)
    return result
