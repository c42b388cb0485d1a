"""A model by what a user calls it: a bundled name, ``module:callable``, a function that builds it, or itself.

Importing a module runs it, so this is done for a name that the user gives, never for one that a file holds.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import os
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from ..errors import ConfigError, ModelError, place, printable
from .bundled import MODELS, Shape, build

Factory = Callable[..., nn.Module]
"""Builds a model: without arguments, or with those of ``shape``, ``classes`` and ``vocabulary`` that it names."""
Model = str | nn.Module | Factory
"""A model as a user names it."""
MOST = 300
"""Characters of an error that one message repeats."""
INSTALL = "Install it in the environment that equipoise runs in, or leave it out of the module."
HOW = f"Give one of {', '.join(MODELS)}, or module:callable, for example my_app.task:Net."


def model_of(model: Model, shape: Shape, classes: int, vocabulary: int | None = None) -> nn.Module:
    """The module that is meant; shape, classes and vocabulary are for a bundled one, and for functions that take them.

    >>> type(model_of("torch.nn:Flatten", (1, 28, 28), 10)).__name__
    'Flatten'
    >>> model_of(lambda classes: nn.Linear(4, classes), (4,), 3).out_features
    3
    """
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, str):
        if not is_imported(model):
            return build(model, shape, classes, vocabulary)
        called, model = model, imported(model)
    else:
        called = getattr(model, "__name__", type(model).__name__)
    if not callable(model):
        raise ConfigError(f"Expected the model {called!r} to be callable, got {type(model).__name__}.", HOW)
    given = _asked_for(model, {"shape": shape, "classes": classes, "vocabulary": vocabulary})
    _refuse_other_arguments(called, model, given)
    try:
        result = model(**given)
    except Exception as error:
        cause = f"The model {called!r} could not be built: {_told(error)}."
        missing = isinstance(error, ModuleNotFoundError)
        raise ModelError(cause, INSTALL if missing else "Correct it there: it was called as a run calls it.") from error
    if not isinstance(result, nn.Module):
        raise ModelError(f"{called!r} returned {type(result).__name__}, not a torch.nn.Module.", HOW)
    return result


def _asked_for(factory: Factory, known: dict[str, Any]) -> dict[str, Any]:
    """Those of the known arguments that a function names, where there is something to tell."""
    try:
        named = inspect.signature(factory).parameters
    except (TypeError, ValueError):  # some callables of C have none
        return {}
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return {
        name: value
        for name, value in known.items()
        if value is not None and name in named and named[name].kind in by_name
    }


def _refuse_other_arguments(called: str, factory: Factory, given: dict[str, Any]) -> None:
    """What a function must be given has to be known here."""
    try:
        named = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [part.name for part in named if part.default is part.empty and part.kind not in variadic]
    missing = [name for name in needed if name not in given]
    if missing:
        hint = " These data have no vocabulary." if "vocabulary" in missing else ""
        raise ModelError(
            f"The model {called!r} could not be built: it needs {', '.join(missing)}.{hint}",
            "It may take shape, classes and vocabulary, by these names; give every other argument a default value.",
        )


def _told(error: Exception) -> str:
    """Type, place and words of an error in code that has seen no data yet."""
    words = printable(" ".join(str(error).split()))
    return f"{place(error)}: {words if len(words) <= MOST else words[:MOST].rstrip() + ' (...)'}".rstrip(": .")


# -- names that lead to an import ------------------------------------------------------------------------------------


def is_imported(name: str) -> bool:
    """Whether a model's name is that of code, ``module:callable``, rather than of a bundled model.

    >>> is_imported("my_app.task:Net"), is_imported("lenet-zhu")
    (True, False)
    """
    return ":" in name


def chosen(name: str, given: nn.Module | Factory | None) -> Model:
    """What to build where settings have ``name``: what is given, else the bundled model; nothing is ever imported.

    >>> chosen("my_app.task:Net", None)
    Traceback (most recent call last):
    equipoise.errors.ConfigError: The model 'my_app.task:Net' is code, and the word of settings is not enough to run ...
    """
    if given is None and is_imported(name):
        raise ConfigError(
            f"The model {name!r} is code, and the word of settings is not enough to run it.",
            f"Name it yourself: --model {name} on the command line, model= in Python.",
        )
    return name if given is None else given


def confirmed(name: str, given: Model | None) -> Model:
    """The model of a run whose configuration has ``name``, where code is named again by whoever wants it imported.

    >>> confirmed("lenet-zhu", None), confirmed("my_app.task:Net", "my_app.task:Net")
    ('lenet-zhu', 'my_app.task:Net')
    """
    if given is None or given == name:
        return chosen(name, None) if given is None else name
    if isinstance(given, str):
        remedy = f"Name that one: --model {name}." if is_imported(name) else "Leave the model out."
        raise ConfigError(f"The configuration of this run names its model, {name!r}, not {given!r}.", remedy)
    if not is_imported(name):
        raise ConfigError(f"The configuration of this run names its model, {name!r}.", "Leave the model out.")
    return given


def code_of(model: Model) -> nn.Module | Factory | None:
    """What ``Sweep`` and ``Run`` take of a model that a user names: None for a bundled one, which settings name.

    >>> code_of("lenet-zhu"), code_of("torch.nn:Flatten").__name__
    (None, 'Flatten')
    """
    if not isinstance(model, str):
        return model
    return imported(model) if is_imported(model) else None


def imported(name: str) -> Any:
    """What ``module:attribute`` names; modules in the present folder are found too.

    >>> imported("math:pi") > 3
    True
    """
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        found = importlib.import_module(module)
    except Exception as error:
        raise _import_error(name, module, error) from error
    finally:
        sys.path.remove(here)
    try:
        return operator.attrgetter(attribute)(found)
    except AttributeError as error:
        raise ConfigError(f"The module {module!r} has no {attribute!r}.", HOW) from error


def _import_error(name: str, module: str, error: Exception) -> ConfigError:
    absent = error.name if isinstance(error, ModuleNotFoundError) else None
    if absent and f"{module}.".startswith(f"{absent}."):
        return ConfigError(
            f"There is no module {absent!r} to import {name!r} from, in the current folder or among the installed "
            "packages.",
            "Run this in the folder that holds it, or install it.",
        )
    cause = f"The module {module!r} cannot be imported: {_told(error)}."
    return ConfigError(cause, INSTALL if absent else f"Correct it there; python -c 'import {module}' shows all of it.")
