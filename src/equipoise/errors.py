"""Typed errors. Each says what is wrong, with the value, and what to do about it.

Every class has its own exit code, so that scripts can tell them apart; ``docs/errors/`` has a page for each.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from pathlib import Path
from traceback import walk_tb
from typing import Any, TypeGuard


class EquipoiseError(Exception):
    """Base of everything this package raises on purpose.

    >>> raise EquipoiseError("Expected budget=1.2 to be < 1.", "Choose a budget between 0 and 1.")
    Traceback (most recent call last):
    equipoise.errors.EquipoiseError: Expected budget=1.2 to be < 1. Choose a budget between 0 and 1.
    """

    exit_code = 10

    def __init__(self, cause: str, remedy: str = ""):
        self.cause, self.remedy = cause, remedy
        super().__init__("\n".join([cause, remedy]) if "\n" in cause else f"{cause} {remedy}".strip())


class ConfigError(EquipoiseError):
    """A setting is unknown, missing, of the wrong type or out of range.

    >>> from equipoise import get_mechanism
    >>> try:
    ...     get_mechanism("pl-lern")
    ... except ConfigError as error:
    ...     error.exit_code, error.cause
    (11, "Unknown mechanism 'pl-lern'. Did you mean 'pl-learn'?")
    """

    exit_code = 11


class DataError(EquipoiseError):
    """A data file is missing, truncated, corrupt or not what its hash says; or the data is unusable.

    >>> from equipoise import load
    >>> try:
    ...     load("no/such/folder")
    ... except DataError as error:
    ...     error.exit_code
    12
    """

    exit_code = 12


class ModelError(EquipoiseError):
    """The model cannot be trained for several sets of parameters at once, or does not fit the data.

    >>> from equipoise import Batched
    >>> from torch import nn
    >>> try:
    ...     Batched(nn.ReLU())
    ... except ModelError as error:
    ...     error.cause
    'The model has no trainable parameters.'
    """

    exit_code = 13


class BudgetError(EquipoiseError):
    """A privacy budget is impossible or promises nothing.

    >>> from equipoise import LeakageBudget
    >>> try:
    ...     LeakageBudget().lower(1.2)
    ... except BudgetError as error:
    ...     error.exit_code
    14
    """

    exit_code = 14


class ReleaseError(EquipoiseError):
    """A release would have been, or was, malformed: non-finite, wrong shape, outside its bounds.

    >>> import torch
    >>> from equipoise import protect
    >>> model = torch.nn.Linear(4, 2)
    >>> _ = torch.nn.init.constant_(model.weight, 1e12)  # so large that rounding swallows the noise
    >>> try:
    ...     protect(model, model.state_dict(), (torch.rand(3, 4), torch.tensor([0, 1, 0])), "pl-identical", 0.98)
    ... except ReleaseError as error:
    ...     error.exit_code
    15
    """

    exit_code = 15


class CheckpointError(EquipoiseError):
    """A run folder or checkpoint cannot be read, or belongs to other settings.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from equipoise import Run, resolve
    >>> with TemporaryDirectory() as folder:
    ...     for eta in (0.1, 0.2):
    ...         config = resolve(overrides={"rounds": 1, "eta": eta}, sweep={"mechanisms": ["none"]})
    ...         try:
    ...             _ = Run(Path(folder), config).execute()
    ...         except CheckpointError as error:
    ...             error.exit_code
    16
    """

    exit_code = 16


class StorageError(EquipoiseError):
    """The disk is full, read-only or otherwise refused a write. Earlier results are intact.

    >>> from tempfile import NamedTemporaryFile
    >>> from equipoise import Audit
    >>> with NamedTemporaryFile() as file:
    ...     try:
    ...         Audit({"attacks": []}).save(file.name)
    ...     except StorageError as error:
    ...         error.exit_code
    17
    """

    exit_code = 17


class AttackError(EquipoiseError):
    """An attack cannot run, or came to nothing: no finite cost, no public data of the right kind.

    >>> import torch
    >>> from equipoise import Attacker, AuditOptions, Update, audit
    >>> model = torch.nn.Linear(4, 2)
    >>> broken = {name: torch.full_like(tensor, 1e30) for name, tensor in model.state_dict().items()}
    >>> update, attacker = Update(model, broken, broken), Attacker(examples=1, shape=(4,), labels=torch.tensor([0]))
    >>> try:
    ...     audit(update, attacker=attacker, options=AuditOptions(attacks=["invgrad"], iterations=2))
    ... except AttackError as error:
    ...     error.exit_code
    18
    """

    exit_code = 18


class LedgerError(EquipoiseError):
    """A ledger of releases is damaged, or was changed after it was written.

    >>> from pathlib import Path
    >>> from equipoise import ledger_report
    >>> try:
    ...     ledger_report(Path("nowhere.jsonl"))
    ... except LedgerError as error:
    ...     error.cause
    'There is no ledger nowhere.jsonl.'
    """

    exit_code = 19


class LimitError(EquipoiseError):
    """The next round would pass the configured limit on releases. What was trained before it is saved.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> from equipoise import Run, resolve
    >>> config = resolve(overrides={"rounds": 2, "release_limit": 1}, sweep={"mechanisms": ["none"]})
    >>> with TemporaryDirectory() as folder:
    ...     try:
    ...         Run(Path(folder), config).execute()
    ...     except LimitError as error:
    ...         error.exit_code
    20
    """

    exit_code = 20


class FleetError(EquipoiseError):
    """A SuperLink, a SuperNode or a run of a Flower app failed or took too long. Its log says why.

    >>> FleetError.exit_code, issubclass(FleetError, EquipoiseError)
    (21, True)
    """

    exit_code = 21


class PolicyError(EquipoiseError):
    """A node has no policy, or what a run asks of it contradicts that policy. Nothing leaves the node.

    >>> PolicyError.exit_code, issubclass(PolicyError, EquipoiseError)
    (22, True)
    """

    exit_code = 22


def place(error: BaseException) -> str:
    """Type and place of an error in somebody else's code, never its words: those may quote private data.

    The place is the innermost line outside of this package and of torch, if there is one.

    >>> try:
    ...     int("patient 4711")
    ... except ValueError as error:
    ...     place(error).partition(" at ")[0]
    'ValueError'
    """
    lines = [(Path(frame.f_code.co_filename), number) for frame, number in walk_tb(error.__traceback__)]
    inner = [Path(str(sys.modules[name].__file__)).parent for name in ("equipoise", "torch") if name in sys.modules]
    theirs = [line for line in lines if not any(line[0].is_relative_to(folder) for folder in inner)] or lines
    return f"{type(error).__name__} at {theirs[-1][0].name}:{theirs[-1][1]}" if theirs else type(error).__name__


def missing_extra(what: str, extra: str) -> ConfigError:
    """
    >>> raise missing_extra("Drawing the figures", "paper")
    Traceback (most recent call last):
    equipoise.errors.ConfigError: Drawing the figures needs the extra 'paper', which is not installed. In a checkout ...
    """
    return ConfigError(
        f"{what} needs the extra {extra!r}, which is not installed.",
        f"In a checkout of equipoise: pip install -e '.[{extra}]'.",
    )


def missing_package(what: str, package: str) -> ConfigError:
    """For a package that comes with this one, where only torch and numpy are.

    >>> raise missing_package("Composing releases", "dp-accounting")
    Traceback (most recent call last):
    equipoise.errors.ConfigError: Composing releases needs dp-accounting, which is not installed. Install it with pip...
    """
    return ConfigError(
        f"{what} needs {package}, which is not installed.",
        f"Install it with pip install {package}.",
    )


def printable(text: str) -> str:
    """The text with a question mark for what is no character to look at: a name could steer a terminal.

    >>> printable("scans\\x1b[2J of\\nclinic 3")
    'scans?[2J of?clinic 3'
    """
    return "".join(character if character.isprintable() else "?" for character in text)


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


def expected(name: str, value: Any, what: str, remedy: str | None = None) -> ConfigError:
    """What is wrong with one setting.

    >>> str(expected("eta", -1.0, "a finite number > 0"))
    'Expected eta=-1.0 to be a finite number > 0. Set eta to such a value (on the command line: --set eta=VALUE).'
    """
    usual = f"Set {name} to such a value (on the command line: --set {name}=VALUE)."
    return ConfigError(f"Expected {name}={value!r} to be {what}.", usual if remedy is None else remedy)


def too_low(name: str, value: Any, least: int) -> ConfigError:
    """
    >>> str(too_low("rounds", 0, 1))
    'Expected rounds=0 to be >= 1. Give rounds 1 or more.'
    """
    return expected(name, value, f">= {least}", f"Give {name} {least} or more.")


def raise_all(problems: Iterable[EquipoiseError]) -> None:
    """Raise the only problem, or one ``ConfigError`` that lists every problem once, each with its remedy."""
    different = {str(problem): problem for problem in problems}
    if len(different) == 1:
        raise next(iter(different.values()))
    if different:
        lines = [f"{len(different)} problems in the settings:", *(f"  - {words}" for words in different)]
        raise ConfigError("\n".join(lines), "Correct each of them.")
