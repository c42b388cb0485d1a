"""A setting that may be one number, one for each client, or change over the rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ConfigError, is_finite

Schedule = float | Sequence[float] | Mapping[str, Any]


def schedule(value: Schedule | None, rounds: Sequence[int], clients: int, name: str = "value") -> list[list[float]]:
    """A setting that may be a number, one per client, or a schedule over rounds, as ``[rounds][clients]``.

    A schedule is ``{"rounds": [1, 500], "values": [0.96, [0.98, 0.98, 0.99, 0.99]]}``: each value (a number
    or one per client) holds from its round on.

    >>> schedule({"rounds": [1, 3], "values": [0.1, [0.2, 0.3]]}, [2, 3], clients=2)
    [[0.1, 0.1], [0.2, 0.3]]
    """
    if not isinstance(value, Mapping):
        row = _per_client(value, clients, name)
        return [row for _ in rounds]
    starts, values = value.get("rounds") or [], value.get("values") or []
    lists = isinstance(starts, list | tuple) and isinstance(values, list | tuple)
    if not lists or not starts or set(value) != {"rounds", "values"} or len(starts) != len(values):
        raise ConfigError(
            f"Expected the schedule of {name} to have lists 'rounds' and 'values' of one length, got {dict(value)!r}.",
            "Example: {rounds = [1, 500], values = [0.96, 0.98]}.",
        )
    if not all(isinstance(start, int) for start in starts) or starts[0] != 1 or list(starts) != sorted(set(starts)):
        raise ConfigError(
            f"Expected the rounds of the schedule of {name} to begin at 1 and to rise, got {list(starts)!r}.",
            "The first value holds from round 1.",
        )
    rows = [_per_client(v, clients, name) for v in values]
    return [rows[max(0, sum(start <= round_number for start in starts) - 1)] for round_number in rounds]


def schedule_text(value: Any) -> str:
    """A setting of any of the three forms as people read it.

    >>> schedule_text(0.98), schedule_text([0.96, 0.98]), schedule_text(None)
    ('0.98', 'per client 0.96, 0.98', '-')
    >>> schedule_text({"rounds": [1, 500], "values": [0.96, [0.98, 0.99]]})
    '0.96→(0.98, 0.99) (round 500)'
    """
    if value is None:
        return "-"
    if isinstance(value, list | tuple):
        return f"per client {', '.join(map(schedule_text, value))}"
    if isinstance(value, Mapping) and isinstance(value.get("values"), list) and isinstance(value.get("rounds"), list):
        steps = [_bracketed(step) for step in value["values"]]
        return "→".join(steps) + f" (round {', '.join(map(str, value['rounds'][1:]))})"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def defence_label(mechanism: str, budget: Any) -> str:
    """A mechanism with its budget, where it has one.

    >>> defence_label("pl-learn", 0.98), defence_label("none", None)
    ('pl-learn @ 0.98', 'none')
    """
    return mechanism if budget is None else f"{mechanism} @ {schedule_text(budget)}"


def _bracketed(value: Any) -> str:
    return f"({', '.join(map(schedule_text, value))})" if isinstance(value, list | tuple) else schedule_text(value)


def value_at(value: Schedule | None, round_number: int, client: int, clients: int, name: str = "value") -> float:
    """The value that holds for one client in one round; a single number serves any client.

    >>> value_at([0.1, 0.2], 1, 1, clients=2), value_at(0.3, 1, 7, clients=2)
    (0.2, 0.3)
    """
    width = client + 1
    if isinstance(value, Mapping):
        width = max(clients, width)
    elif isinstance(value, list | tuple):
        width = len(value)
    row = schedule(value, [round_number], width, name)[0]
    if client >= len(row):
        raise ConfigError(f"{name} has {len(row)} values, none for client {client}.", "Give one per client.")
    return row[client]


def schedule_starts(value: Any) -> list[int]:
    """Rounds at which every part of a schedule holds at least once; [1] for a constant or a malformed one."""
    starts = value.get("rounds") if isinstance(value, Mapping) else None
    good = isinstance(starts, list | tuple) and all(isinstance(start, int) for start in starts)
    return list(starts) if good and starts else [1]


def _per_client(value: Any, clients: int, name: str) -> list[float]:
    values: list[Any] = list(value) if isinstance(value, list | tuple) else [value] * clients
    if len(values) != clients or not all(is_finite(v) for v in values):
        raise ConfigError(
            f"Expected {name} to be one finite number or one for each of {clients} clients, got {value!r}.",
            "Give a single number, or a list as long as the number of clients.",
        )
    return [float(v) for v in values]
