"""Typed errors. Each says what is wrong, with the value, and what to do about it.

Every class has its own exit code, so that scripts can tell them apart; ``docs/errors/`` has a page for each.
"""

from __future__ import annotations

import math
import re
import sys
from typing import Any, NoReturn, TypeGuard


class EquipoiseError(Exception):
    """Base of everything this package raises on purpose.

    >>> raise BudgetError("Expected budget=1.2 to be < 1.", "Choose a budget between 0 and 1.")
    Traceback (most recent call last):
    equipoise.errors.BudgetError: Expected budget=1.2 to be < 1. Choose a budget between 0 and 1.
    """

    exit_code = 10

    def __init__(self, cause: str, remedy: str = ""):
        self.cause, self.remedy = cause, remedy
        super().__init__("\n".join([cause, remedy]) if "\n" in cause else f"{cause} {remedy}".strip())


class ConfigError(EquipoiseError):
    """A setting is unknown, missing, of the wrong type or out of range."""

    exit_code = 11


class DataError(EquipoiseError):
    """A data file is missing, truncated, corrupt or not what its hash says; or the data is unusable."""

    exit_code = 12


class ModelError(EquipoiseError):
    """The model cannot be trained for several sets of parameters at once, or does not fit the data."""

    exit_code = 13


class BudgetError(EquipoiseError):
    """A privacy budget is impossible or promises nothing."""

    exit_code = 14


class ReleaseError(EquipoiseError):
    """A release would have been, or was, malformed: non-finite, wrong shape, outside its bounds."""

    exit_code = 15


class CheckpointError(EquipoiseError):
    """A run folder or checkpoint cannot be read, or belongs to other settings."""

    exit_code = 16


class StorageError(EquipoiseError):
    """The disk is full, read-only or otherwise refused a write. Earlier results are intact."""

    exit_code = 17


class AttackError(EquipoiseError):
    """An attack cannot run, or came to nothing: no finite cost, no public data of the right kind."""

    exit_code = 18


class LedgerError(EquipoiseError):
    """A ledger of releases is damaged, or was changed after it was written."""

    exit_code = 19


class LimitError(EquipoiseError):
    """The next round would pass the configured limit on releases. What was trained before it is saved."""

    exit_code = 20


class FleetError(EquipoiseError):
    """A SuperLink, a SuperNode or a run of a Flower app failed or took too long. Its log says why."""

    exit_code = 21


def closest(word: str, known: list[str]) -> str:
    """``" Did you mean 'rounds'?"`` or nothing."""
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


def is_number(value: Any) -> TypeGuard[float]:
    """Whether a value is a float, or a whole number that a float can hold; true and false are no numbers.

    >>> is_number(0.5), is_number(3), is_number(True), is_number("3"), is_number(10**400)
    (True, True, False, False, False)
    """
    return isinstance(value, float) or (is_whole(value) and abs(value) <= sys.float_info.max)


def is_whole(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number.

    >>> is_whole(3), is_whole(3.0), is_whole(True)
    (True, False, False)
    """
    return isinstance(value, int) and not isinstance(value, bool)


def is_count(value: Any) -> TypeGuard[int]:
    """Whether a value is a whole number >= 0.

    >>> is_count(0), is_count(-1), is_count(True), is_count(1.0)
    (True, False, False, False)
    """
    return is_whole(value) and value >= 0


def is_finite(value: Any) -> TypeGuard[float]:
    """Whether a value is a finite number, whatever it came from.

    >>> is_finite(0.5), is_finite(False), is_finite(float("nan")), is_finite(10**400)
    (True, False, False, False)
    """
    return is_number(value) and math.isfinite(value)


def raise_all(problems: list[str]) -> None:
    """Raise one ``ConfigError`` that lists every problem once, if there is any."""
    if problems:
        refuse(problems)


def refuse(problems: list[str]) -> NoReturn:
    """One ``ConfigError`` for all problems of some settings, each with what to do about it.

    >>> refuse(["Expected rounds=0 to be >= 1."])
    Traceback (most recent call last):
    equipoise.errors.ConfigError: Expected rounds=0 to be >= 1. Give rounds 1 or more.
    """
    result = [_with_remedy(problem) for problem in dict.fromkeys(problems)]
    if len(result) == 1:
        raise ConfigError(*result[0])
    lines = [f"  - {cause} {remedy}" for cause, remedy in result]
    raise ConfigError("\n".join([f"{len(result)} problems in the settings:", *lines]), "Correct each of them.")


def _with_remedy(problem: str) -> tuple[str, str]:
    """What is wrong, its first sentence, and what to do: the sentences after it, or what follows from its form."""
    cause, _, remedy = re.sub(r"([.?]) (?=[A-Z])", r"\1\0", problem, count=1).partition("\0")
    if remedy:
        return cause, remedy
    if least := re.fullmatch(r"Expected ([\w.]+)=.* to be >= (\d+)\.", cause):
        return cause, f"Give {least[1]} {least[2]} or more."
    if swept := re.match(r"sweep\[\d+\]\.(dataset|mechanism|budget|seed)s\b", cause):
        return cause, f"Correct --{swept[1]}, or the [[sweep]] block of the TOML file."
    if named := re.match(r"(?:Expected )?([\w.]+) ?= ?", cause):
        return cause, f"Give {named[1]} such a value, by --set {named[1]}=VALUE or in the TOML file."
    return cause, "Remove it." if cause.startswith("Unknown key") else "Correct it in the TOML file, or by a flag."
