"""Policies for the tests of the Flower side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from equipoise.flower.policy import needed
from equipoise.mechanism.registry import MECHANISMS

EASY = {
    "least-intensity": 1e-6, "least-scale": 1e-9, "least-relative": 1e-9, "most-gamma": 1e6, "most-steps": 1000,
    "most-factor": 1e6, "most-epsilon": 1e6, "most-total-epsilon": 1e9, "most-delta": 0.5, "most-total-delta": 0.9,
    "unit": "record", "divisor": 7, "most-releases": 10**6,
}  # fmt: skip


def easy(*names: str) -> dict[str, Any]:
    """The bounds of these mechanisms, or of all, that refuse nothing."""
    kinds = {name: MECHANISMS[name] for name in (names or MECHANISMS) if name in MECHANISMS}
    return {name: {key: EASY[key] for key in needed(kind)} for name, kind in kinds.items()}


def policy_content(**changes: Any) -> dict[str, Any]:
    """A policy that lets everything leave; ``_`` stands for ``-``, and None takes a key out.

    A guarantee needs a fixed weight, and no evaluation beside it: those that fix the weight are for such mechanisms.
    """
    formal = not isinstance(changes.get("weight", ""), str)
    every = easy() if formal else easy(*(name for name, kind in MECHANISMS.items() if not kind.formal))
    evaluation = {"metrics": ["accuracy", "loss", "eval_loss"], "least-examples": 1}
    content = {
        "version": 1, "data": "tests", "experiment": True, "most-releases": 10**6, "metrics": ["loss"],
        "evaluation": None if formal else evaluation, "mechanisms": every,
        **{key.replace("_", "-"): value for key, value in changes.items()},
    }  # fmt: skip
    return {key: value for key, value in content.items() if value is not None}


def toml(content: dict[str, Any]) -> str:
    """As much of TOML as a policy has."""
    plain = {key: value for key, value in content.items() if not isinstance(value, dict)}
    lines = [f"{key} = {_value(value)}" for key, value in plain.items()]
    for key, table in content.items():
        if isinstance(table, dict):
            parts = {f"{key}.{name}": part for name, part in table.items() if isinstance(part, dict)}
            own = {name: value for name, value in table.items() if not isinstance(value, dict)}
            lines += [] if parts and not own else [f"[{key}]", *(f"{n} = {_value(v)}" for n, v in own.items())]
            for name, part in parts.items():
                lines += [f"[{name}]", *(f"{n} = {_value(v)}" for n, v in part.items())]
    return "\n".join(lines) + "\n"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def written(path: Path, **changes: Any) -> Path:
    """A policy file, not writable by others."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(toml(policy_content(**changes)))
    path.chmod(0o600)
    return path


def node(path: Path, **changes: Any) -> dict[str, Any]:
    """A node config that names such a policy."""
    return {"equipoise.policy": str(written(path, **changes))}
