"""What several commands share: options, lists and ``--set`` pairs on the command line, JSON on the way out."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import ConfigError
from . import completion

if TYPE_CHECKING:
    from torch import nn

    from ..models.named import Factory
    from ..runs.config import Config

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="Any setting, e.g. --set eta=0.05 --set leakage.D=60; repeatable.",
        autocompletion=completion.settings,
    ),
]

Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="A bundled model, or module:callable, which is imported; short for --set model=.",
        autocompletion=completion.models,
    ),
]
Again = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Of a run whose model is module:callable: its name again, since it is imported.",
        autocompletion=completion.models,
    ),
]


def split(text: str | None) -> list[Any]:
    """The values of a comma-separated option; a list or a table in TOML is one value.

    >>> split("0.96,[0.97, 0.98]"), split("pl-learn, none")
    ([0.96, [0.97, 0.98]], ['pl-learn', 'none'])
    """
    from ..runs.config import literal

    parts, depth = [""], 0
    for letter in text or "":
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [literal(part.strip()) for part in parts if part.strip()]


def words(text: str | None) -> list[str]:
    """The names in a comma-separated option, whatever they look like: a folder may be called 2024 or nan."""
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def pairs(options: list[str] | None) -> dict[str, Any]:
    """The values of ``--set key=value``, by key."""
    result = {}
    for option in options or []:
        key, mark, value = option.partition("=")
        if not mark or not key:
            raise ConfigError(f"Expected --set key=value, got {option!r}.", "Example: --set eta=0.05")
        result[key.strip()] = _value(key.strip(), value.strip())
    return result


def _value(key: str, text: str) -> Any:
    """A value as TOML writes it; lists may go without brackets and quotes: ``drop=note,city``."""
    from ..engine.settings import GROUPS
    from ..runs.config import literal

    kinds = {part.name: str(part.type) for group in GROUPS.values() for part in fields(group)}
    kind = kinds.get(key, "")
    if "list[" not in kind or text.startswith(("[", '"', "'")) or text == "none":
        return literal(text)
    if "list[str]" in kind:
        return words(text)
    return split(text) if "," in text else literal(text)


def model_code(config: Config, named: bool) -> nn.Module | Factory | None:
    """The code that a configuration names for its model, imported; None for a bundled model.

    ``named`` says that it stands on the command line: whoever gives a file away could name anything.
    """
    from ..models.named import code_of, confirmed

    name = config.settings.training.model
    return code_of(confirmed(name, name if named else None))


def whole_numbers(text: str | None, option: str) -> list[int] | None:
    """The rounds that an option names, comma-separated; None without the option."""
    values = None if text is None else split(text)
    if values is not None and not all(isinstance(value, int) for value in values):
        raise ConfigError(f"Expected {option} {text} to be whole numbers.", f"For example {option} 0,200.")
    return values


def existing_folder(run: Path) -> Path:
    if run.is_file():
        raise ConfigError(f"{run} is a file.", "Give the run folder that it lies in.")
    if not run.is_dir():
        raise ConfigError(f"There is no folder {run}.", "Give a run folder: equipoise train --out RUN writes one.")
    return run


def print_json(value: Any) -> None:
    print(json.dumps(value, indent=1))
