"""Settings and blocks of a sweep from raw values: every problem is collected, and the rest is typed all the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..engine.settings import GROUP_OF, GROUPS, TABLES, Settings, unknown_key
from ..errors import ConfigError, EquipoiseError


def nulls(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: None if value == "none" else value for key, value in raw.items()}


def typed_settings(raw: dict[str, Any], problems: list[EquipoiseError]) -> Settings:
    """Flat keys, each in its group; what is wrong with any of them is added to ``problems``."""
    for key in [key for key in raw if key not in GROUP_OF]:
        problems.append(unknown_key(key, list(GROUP_OF)))
    for name, kind in TABLES.items():
        if isinstance(raw.get(name), Mapping):
            raw = {**raw, name: _known(kind, nulls(raw[name]), f"{name}.", problems)}
    groups = {}
    for name, group in GROUPS.items():
        mine = {key: value for key, value in raw.items() if GROUP_OF.get(key) == name}
        groups[name] = typed(group, mine, "", problems)
    return Settings(**groups)


def _known(kind: Any, raw: Mapping[str, Any], prefix: str, problems: list[EquipoiseError]) -> dict[str, Any]:
    """The keys that a dataclass has; the others are problems."""
    known = [part.name for part in fields(kind)]
    problems += [unknown_key(key, known, prefix) for key in raw if key not in known]
    return {key: value for key, value in raw.items() if key in known}


def typed(kind: Any, raw: Any, prefix: str, problems: list[EquipoiseError]) -> Any:
    if not isinstance(raw, Mapping):
        problems.append(ConfigError(f"Expected {prefix.rstrip('.')} to be a table, got {raw!r}.", "Write it as one."))
        return None
    kept = _known(kind, raw, prefix, problems)
    flags = [part.name for part in fields(kind) if part.type == "bool"]
    for key in [key for key, value in kept.items() if isinstance(value, bool) and key not in flags]:
        shown = str(kept.pop(key)).lower()  # pydantic would take true for 1
        cause = f"Expected {prefix}{key} = {shown} to be a number, a word or a list."
        problems.append(ConfigError(cause, _correct(prefix, key)))
    try:
        return _adapter(kind).validate_python(kept)
    except ValidationError as error:
        for item in error.errors():
            place = ".".join(str(part) for part in item["loc"])
            cause = f"{prefix}{place} = {item['input']!r}: {item['msg'][0].lower()}{item['msg'][1:]}."
            problems.append(ConfigError(cause, _correct(prefix, place)))
            kept.pop(str(item["loc"][0]), None)
    return _adapter(kind).validate_python(kept)  # the rest, so that its problems are found as well


def _correct(prefix: str, place: str) -> str:
    """Where a value is set right: a part of the sweep has its own flag."""
    key = place.partition(".")[0]
    if prefix.startswith("sweep"):
        return f"Correct --{key.removesuffix('s')}, or the [[sweep]] block of the TOML file."
    return f"Set {key} to such a value (on the command line: --set {key}=VALUE)."


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    """Building one takes longer than all the rest of ``resolve``."""
    return TypeAdapter(kind)
