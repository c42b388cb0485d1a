"""What learning a distortion gives away: said once for each mechanism, with where the figures are."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from .registry import Mechanism, get_mechanism

log = logging.getLogger("equipoise")
FIGURES = "docs/frontier.md"
"""The page that has what was measured: no figure stands in the code."""
_TOLD: set[str] = set()
"""Mechanisms that this process has been warned of, by name."""


def leak_warning(mechanism: str | Mechanism) -> str | None:
    """What to say of a mechanism that learns; None of any other.

    >>> leak_warning("pl-learn")
    'pl-learn learns its noise on the private batch, so that what is sent gives single records away: ...'
    >>> leak_warning("pl-identical") is leak_warning("gaussian-dp") is None
    True
    """
    mechanism = get_mechanism(mechanism)
    if not mechanism.learns:
        return None
    return (
        f"{mechanism.name} learns its noise on the private batch, so that what is sent gives single records away: the "
        f"attack matched finds them more often than behind static noise of equal size; figures: {FIGURES}. A guarantee "
        "has gaussian-dp."
    )


def warn_of_leak(mechanism: str | Mechanism) -> None:
    """The same in the log, once for every mechanism."""
    name = get_mechanism(mechanism).name
    said = None if name in _TOLD else leak_warning(mechanism)
    if said is not None:
        _TOLD.add(name)
        log.warning("%s", said)


def warn_of_leaks(mechanisms: Iterable[str | Mechanism]) -> None:
    """``warn_of_leak`` for every mechanism."""
    for mechanism in mechanisms:
        warn_of_leak(mechanism)


def mark_leak_told(mechanism: str | Mechanism) -> None:
    """Keep the log silent on what a command has said."""
    _TOLD.add(get_mechanism(mechanism).name)
