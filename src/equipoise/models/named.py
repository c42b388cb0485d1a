"""A model by what a user calls it: a bundled name, ``module:callable``, a function that builds it, or itself.

Importing a module runs it, so this is done for a name that the user gives, never for one that a file holds.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from torch import nn

from ..errors import ConfigError, ModelError, place
from .bundled import MODELS, Shape, build

Model = str | nn.Module | Callable[[], nn.Module]
"""A model as a user names it."""


def model_of(model: Model, shape: Shape, classes: int) -> nn.Module:
    """The module that is meant; ``shape`` and ``classes`` are for a bundled one.

    >>> type(model_of("torch.nn:Flatten", (1, 28, 28), 10)).__name__
    'Flatten'
    """
    if isinstance(model, nn.Module):
        return model
    if isinstance(model, str):
        if ":" not in model:
            return build(model, shape, classes)
        called, model = model, imported(model)
    else:
        called = getattr(model, "__name__", type(model).__name__)
    if not callable(model):
        raise ConfigError(f"Expected the model {called!r} to be callable, got {type(model).__name__}.", HOW)
    try:
        result = model()
    except Exception as error:
        raise ModelError(
            f"The model {called!r} could not be built: {place(error)}.",
            "Give a function that builds it without arguments.",
        ) from error
    if not isinstance(result, nn.Module):
        raise ModelError(f"{called!r} returned {type(result).__name__}, not a torch.nn.Module.", HOW)
    return result


HOW = f"Give one of {', '.join(MODELS)}, or module:callable, for example my_app.task:Net."


def imported(name: str) -> Any:
    """What ``module:attribute`` names; modules in the present folder are found too.

    >>> imported("math:pi") > 3
    True
    """
    module, _, attribute = name.partition(":")
    here = os.getcwd()
    sys.path.insert(0, here)
    try:
        return getattr(importlib.import_module(module), attribute)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"There is no module {error.name!r} to import {name!r} from.", "Run this in the folder that holds it."
        ) from error
    except AttributeError as error:
        raise ConfigError(f"The module {module!r} has no {attribute!r}.", HOW) from error
    except Exception as error:
        raise ConfigError(
            f"The module {module!r} cannot be imported: {place(error)}.", "Import it by itself to see the whole error."
        ) from error
    finally:
        sys.path.remove(here)
