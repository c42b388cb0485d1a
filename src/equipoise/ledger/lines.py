"""What a line of the ledger is: its keys, its normal form, its hash, and what a reader refuses.

==========  ========================================================================================================
ledger      the first line: schema, ``seeded`` for an experiment, and what a budget is not
account     the first line of a node's own ledger: schema, and whose account it is
round       one round of the embedded engine: a row per client
asked       of a deployment, written before the messages go out: whoever is asked may send, and be seen
answered    of a deployment: a row per client; without numbers where nothing came
reserve     of a node's own: the whole (epsilon, delta) of a run and its terms, before its first release
reset       of a node's own: its operator let the sums begin again, and why; what was before stays in the file
==========  ========================================================================================================

A release of a run that has a reservation names the ``run``. ``n`` counts from 0, and ``hash`` is the SHA-256 of the
hash before it followed by the line without its hash.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from itertools import combinations
from typing import Any

from ..errors import LedgerError
from .reservation import TERMS, is_reservation

SCHEMA = 1
LONGEST = 16 << 20
"""Bytes of the longest line: what a reader must hold at once."""
START = "0" * 64
"""Takes the place of the hash before the first line."""
NO_REPLY = "no reply"
NOTE = (
    "A budget is per release, except that of gaussian-dp, which is of a whole run. Budgets that are scores or noise "
    "scales do not compose: none of them bounds what several releases of one client tell together. Only those of "
    "laplace-dp and gaussian-dp compose."
)

Entry = dict[str, Any]
FIELDS = {
    "ledger": ("n", "schema", "kind", "experiment", "note"),
    "account": ("n", "schema", "kind", "account", "note"),
    "round": ("n", "kind", "federation", "round", "mechanism", "budget", "norm", "releases"),
    "asked": ("n", "kind", "federation", "round", "mechanism", "budget", "norm", "clients", "at"),
    "answered": ("n", "kind", "federation", "round", "mechanism", "budget", "norm", "releases", "at"),
    "reserve": ("n", "kind", *TERMS, "at"),
    "reset": ("n", "kind", "reason", "at"),
}
"""The keys of every kind of line, in their order; ``hash`` is the last one of all."""
OF_A_RUN = {kind: (*FIELDS[kind][:2], "run", *FIELDS[kind][2:]) for kind in ("asked", "answered")}
"""The keys of lines about a release that counts against the reservation of a run."""
OF_AN_ACCOUNT = ("reserve", "reset")
"""Kinds that only a node's own ledger has."""
LONGEST_REASON = 1000
HEADERS = {"ledger": "experiment", "account": "account"}
"""The kinds of a first line, and what each says of the ledger."""
_ENCODER = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
NUMBERS = ("lower", "upper", "scale", "intensity")
ROW = ("client", *NUMBERS, "accepted", "reason")
"""The keys of a release. Scale: of the noise, where the bounds follow from each draw. Reason: of a refusal alone."""
_CHOICES = [chosen for size in range(5) for chosen in combinations(NUMBERS, size)]
_SHAPES = {
    True: {("client", *chosen, "accepted") for chosen in _CHOICES},
    False: {("client", *chosen, "accepted", "reason") for chosen in _CHOICES},
}
LARGEST = 1e308


def seal(entry: Entry, previous: str) -> tuple[bytes, str]:
    """The line of an entry, and its hash.

    >>> seal({"n": 0, "kind": "example"}, START)[0]
    b'{"n":0,"kind":"example","hash":"a949...'
    """
    body = _canonical(entry)
    digest = hashlib.sha256(previous.encode() + body).hexdigest()
    return body[:-1] + _tail(digest), digest


@lru_cache(maxsize=256)  # bounds come again and again
def significant(value: float | None) -> float | None:
    """Seven significant digits; None where JSON has no number.

    >>> significant(12.3456789), significant(float("nan"))
    (12.34568, None)
    """
    return float(f"{value:.7g}") if value is not None and -LARGEST <= value <= LARGEST else None


def normal(given: Entry, n: int) -> Entry:
    """An entry as it is written: keys in their order, seven digits, and the budget that is in force in its round.

    >>> normal({"kind": "asked", "federation": 0, "round": 9, "mechanism": "pl-learn", "clients": ["a"], "at": "now",
    ...         "budget": {"rounds": [1, 5], "values": [0.96, 0.98]}}, 3)["budget"]
    0.98
    """
    kind, entry = given.get("kind", ""), {"n": n, **given}
    keys = OF_A_RUN[kind] if "run" in entry and kind in OF_A_RUN else FIELDS.get(kind, ())
    if "norm" in keys:
        entry.setdefault("norm", None)
    if "at" in keys:
        entry.setdefault("at", datetime.now(UTC).isoformat(timespec="seconds"))
    if isinstance(entry.get("budget"), Mapping):
        entry["budget"] = _in_force(entry["budget"], entry["round"])
    if "releases" in entry:
        entry["releases"] = [_normal_row(row) for row in entry["releases"]]
    return {name: entry.pop(name) for name in keys if name in entry} | entry


def _normal_row(row: Entry) -> Entry:
    new = {name: row[name] for name in ROW if name in row}
    new |= {name: significant(value) for name, value in new.items() if type(value) in (int, float)}
    return new if len(new) == len(row) else row  # the check refuses what is not known


def _in_force(budget: Mapping[str, Any], round_number: int) -> Any:
    """The part of a schedule that holds in a round: a number, or one for each client."""
    return budget["values"][max(i for i, start in enumerate(budget["rounds"]) if start <= round_number)]


def _canonical(entry: Entry) -> bytes:
    return _ENCODER.encode(entry).encode("ascii")


def _tail(digest: str) -> bytes:
    return b',"hash":"%b"}\n' % digest.encode()


def bad_line(n: int, what: str) -> LedgerError:
    return LedgerError(f"Line {n + 1} of the ledger {what}.", "Restore the ledger from a copy; it proves nothing now.")


def read_line(line: bytes, n: int, previous: str) -> tuple[Entry, str]:
    """The entry of line ``n`` and its hash, where it follows from the line before it."""
    body = line[: -len(_tail(START))] + b"}"
    digest = hashlib.sha256(previous.encode() + body).hexdigest()
    number = re.match(rb'\{"n":(\d{1,18})[,}]', line)
    if number is None:
        raise bad_line(n, 'is not an entry: it does not begin with {"n":')
    if int(number[1]) != n:
        raise bad_line(n, f"has the number {int(number[1])}, not {n}: lines were removed, repeated, added or moved")
    if line != body[:-1] + _tail(digest):
        raise bad_line(n, "was changed, or the one before it was: its hash does not follow")
    try:
        entry = json.loads(body.decode("ascii"))
        if not isinstance(entry, dict) or _canonical(entry) != body:
            raise bad_line(n, "is not in canonical form")
    except (ValueError, RecursionError) as error:
        raise bad_line(n, "is not JSON as a ledger has it") from error
    check_entry(entry, n)
    return entry, digest


def check_entry(entry: Entry, n: int) -> None:
    """Refuse whatever a ledger does not say; nothing is counted before."""
    kind: Any = entry.get("kind")
    if n == 0 and "schema" in entry and (type(entry["schema"]) is not int or entry["schema"] != SCHEMA):
        raise bad_line(n, f"has a schema other than {SCHEMA}: another version wrote it")
    shapes = (FIELDS.get(kind), OF_A_RUN.get(kind)) if isinstance(kind, str) else ()
    if tuple(entry) not in shapes or type(entry["n"]) is not int:
        raise bad_line(n, "has an unknown kind or other keys than it should")
    if (kind in HEADERS) != (n == 0):
        raise bad_line(n, "is a header in the middle" if n else "is not a header")
    if n == 0:
        if not _is_text(entry[HEADERS[kind]], none=kind == "ledger") or not _is_text(entry["note"]):
            raise bad_line(n, "is a header of the wrong types")
    elif kind in OF_AN_ACCOUNT:
        _check_act(entry, n)
    else:
        _check_releases(entry, n)


def _check_act(entry: Entry, n: int) -> None:
    """Lines that are about no release."""
    if not _is_text(entry["at"]):
        raise bad_line(n, "has a time of the wrong type")
    if entry["kind"] == "reserve" and not is_reservation(entry):
        raise bad_line(n, "has malformed terms of a run")
    if entry["kind"] == "reset" and not (_is_text(entry["reason"]) and 0 < len(entry["reason"]) <= LONGEST_REASON):
        raise bad_line(n, "has no reason, or one that is too long")


def _check_releases(entry: Entry, n: int) -> None:
    kind = entry["kind"]
    if not all(type(entry[name]) is int and 0 <= entry[name] < 1 << 62 for name in ("federation", "round")):
        raise bad_line(n, "has a federation or round that is not a number")
    texts = _is_text(entry["mechanism"]) and _is_text(entry.get("norm"), none=True) and _is_text(entry.get("at", ""))
    if not texts or not _is_text(entry.get("run", "")):
        raise bad_line(n, "has a mechanism, norm, run or time of the wrong type")
    rows = entry["clients"] if kind == "asked" else entry["releases"]
    if not isinstance(rows, list) or not all(map(_is_text if kind == "asked" else _is_row, rows)):
        raise bad_line(n, "has a malformed row")
    budget = entry["budget"]
    if not (all(map(_is_number, budget)) and budget if isinstance(budget, list) else _is_number(budget)):
        raise bad_line(n, "has a malformed budget")


def _is_text(value: Any, none: bool = False) -> bool:
    return isinstance(value, str) or (none and value is None)


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and -LARGEST <= value <= LARGEST)


def _is_row(result: Any) -> bool:
    accepted = result.get("accepted") if isinstance(result, dict) else None
    if not isinstance(accepted, bool) or tuple(result) not in _SHAPES[accepted]:
        return False
    if type(result["client"]) is not str or not _is_text(result.get("reason", "")):
        return False
    return all(map(_is_number, map(result.get, NUMBERS)))
