"""The source files behind a model of the user's: whether a run goes on with the code that it was begun with."""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import printable
from ..models.named import Factory

OURS = ("torch", "equipoise")
"""Packages whose version is in every result."""


def digests(model: nn.Module | Factory | None, network: nn.Module) -> dict[str, str]:
    """SHA-256 of the file of every module that has a part in a model, by the module's name; none for bundled ones.

    Args:
        model: what the user gave: a module, or what builds one.
        network: the module that is trained.

    >>> digests(None, nn.Linear(2, 2)), digests(nn.Flatten, nn.Flatten())
    ({}, {})
    """
    if model is None:
        return {}
    names = sorted({name for name in _modules(model, network) if name.partition(".")[0] not in OURS})
    found = ((name, _content(name)) for name in names)
    return {name: hashlib.sha256(content).hexdigest() for name, content in found if content is not None}


def _modules(model: nn.Module | Factory, network: nn.Module) -> Iterator[str]:
    while isinstance(model, partial):
        model = model.func
    builds = model if inspect.isroutine(model) or inspect.isclass(model) else type(model)
    for part in (builds, *(type(part) for part in network.modules())):
        yield str(getattr(part, "__module__", ""))


def _content(name: str) -> bytes | None:
    try:
        return Path(str(inspect.getsourcefile(sys.modules[name]))).read_bytes()
    except (KeyError, TypeError, OSError):  # built in, typed at a prompt, or removed since
        return None


def changed(kept: Any, now: Mapping[str, str]) -> list[str]:
    """The files of which a checkpoint's notes have another digest.

    >>> changed({"task": "1", "parts": "2"}, {"task": "1", "parts": "3"}), changed(None, {"task": "1"})
    (['parts.py'], [])
    """
    if not isinstance(kept, Mapping):
        return []
    names = (name for name in sorted({*kept, *now}) if kept.get(name) != now.get(name))
    return [printable(f"{name.replace('.', '/')}.py") for name in names]
