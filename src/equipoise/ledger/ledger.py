"""The ledger of releases: what was asked of every client, what came of it, and a chain that shows later changes.

``ledger.jsonl`` holds one JSON object a line. ``n`` counts from 0, and ``hash`` is the SHA-256 of the hash before it
followed by the line without its hash, so that no line can be changed, removed, repeated or moved without a trace; only
a new end can be put in place of the old one, and the head (the last hash), kept elsewhere, shows that too.

==========  ========================================================================================================
ledger      the first line: schema, ``seeded`` for an experiment, and what a budget is not
round       one round of the embedded engine: a row per client
asked       of a deployment, written before the messages go out: whoever is asked may send, and be seen
answered    of a deployment: a row per client; without numbers where nothing came
==========  ========================================================================================================

Releases are counted when they are asked for. A line is read with bounded memory, and nothing in it is executed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from itertools import combinations
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import ConfigError, LedgerError, LimitError
from ..files import storage_errors, write_bytes

FILE = "ledger.jsonl"
SCHEMA = 1
LONGEST = 16 << 20
"""Bytes of the longest line: what a reader must hold at once."""
START = "0" * 64
"""Takes the place of the hash before the first line."""
NO_REPLY = "no reply"
NOTE = (
    "A budget is per release. Budgets that are scores or noise scales do not compose: none of them bounds what several "
    "releases of one client tell together. Only those of laplace-dp compose."
)

Entry = dict[str, Any]
FIELDS = {
    "ledger": ("n", "schema", "kind", "experiment", "note"),
    "round": ("n", "kind", "federation", "round", "mechanism", "budget", "norm", "releases"),
    "asked": ("n", "kind", "federation", "round", "mechanism", "budget", "norm", "clients", "at"),
    "answered": ("n", "kind", "federation", "round", "mechanism", "budget", "norm", "releases", "at"),
}
"""The keys of every kind of line, in their order; ``hash`` is the last one of all."""
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


@dataclass
class Count:
    """What one client was asked for in one federation, and what came of it."""

    asked: int = 0
    received: int = 0
    accepted: int = 0
    refused: int = 0  # of those received
    low: float | None = None  # range of the realised intensity of accepted releases
    high: float | None = None
    given: Counter[tuple[str, float | None]] = field(default_factory=Counter)  # (mechanism, budget) -> times asked


@dataclass
class Summary:
    """What a whole ledger comes to. It grows with the clients, not with the rounds."""

    experiment: str | None = None
    entries: int = 0
    bytes: int = 0
    head: str = START
    torn: int = 0  # bytes of a last line without its end: a write that was interrupted, or is under way
    beyond: int = 0  # entries after those that were known
    counts: dict[tuple[int, str], Count] = field(default_factory=dict)


# -- lines ---------------------------------------------------------------------------------------------------------


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
    keys, entry = FIELDS.get(given.get("kind", ""), ()), {"n": n, **given}
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


def _in_force(budget: Mapping[str, Any], when: int) -> Any:
    """The part of a schedule that holds in a round: a number, or one for each client."""
    return budget["values"][max(i for i, start in enumerate(budget["rounds"]) if start <= when)]


def _canonical(entry: Entry) -> bytes:
    return _ENCODER.encode(entry).encode("ascii")


def _tail(digest: str) -> bytes:
    return b',"hash":"%b"}\n' % digest.encode()


def _bad(n: int, what: str) -> LedgerError:
    return LedgerError(f"Line {n + 1} of the ledger {what}.", "Restore the ledger from a copy; it proves nothing now.")


def _read(line: bytes, n: int, previous: str) -> tuple[Entry, str]:
    """The entry of line ``n`` and its hash, where it follows from the line before it."""
    body = line[: -len(_tail(START))] + b"}"
    digest = hashlib.sha256(previous.encode() + body).hexdigest()
    number = re.match(rb'\{"n":(\d{1,18})[,}]', line)
    if number is None:
        raise _bad(n, 'is no entry: it does not begin with {"n":')
    if int(number[1]) != n:
        raise _bad(n, f"has the number {int(number[1])}, not {n}: lines were removed, repeated, added or moved")
    if line != body[:-1] + _tail(digest):
        raise _bad(n, "was changed, or the one before it was: its hash does not follow")
    try:
        entry = json.loads(body.decode("ascii"))
        if not isinstance(entry, dict) or _canonical(entry) != body:
            raise _bad(n, "is not in canonical form")
    except (ValueError, RecursionError) as error:
        raise _bad(n, "is not JSON as a ledger has it") from error
    _check(entry, n)
    return entry, digest


def _check(entry: Entry, n: int) -> None:
    """Refuse whatever a ledger does not say; nothing is counted before."""
    kind = entry.get("kind")
    if n == 0 and kind == "ledger" and (type(entry.get("schema")) is not int or entry["schema"] != SCHEMA):
        raise _bad(n, f"has a schema other than {SCHEMA}: another version wrote it")
    if not isinstance(kind, str) or kind not in FIELDS or tuple(entry) != FIELDS[kind] or type(entry["n"]) is not int:
        raise _bad(n, "has an unknown kind or other keys than it should")
    if (kind == "ledger") != (n == 0):
        raise _bad(n, "is a header in the middle" if n else "is no header")
    if n == 0:
        if not _text(entry["experiment"], none=True) or not _text(entry["note"]):
            raise _bad(n, "is a header of the wrong types")
        return
    if not all(type(entry[name]) is int and 0 <= entry[name] < 1 << 62 for name in ("federation", "round")):
        raise _bad(n, "has a federation or round that is no number")
    if not _text(entry["mechanism"]) or not _text(entry.get("norm"), none=True) or not _text(entry.get("at", "")):
        raise _bad(n, "has a mechanism, norm or time of the wrong type")
    rows = entry["clients"] if kind == "asked" else entry["releases"]
    if not isinstance(rows, list) or not all(map(_text if kind == "asked" else _is_row, rows)):
        raise _bad(n, "has a malformed row")
    budget = entry["budget"]
    if not (all(map(_number, budget)) and budget if isinstance(budget, list) else _number(budget)):
        raise _bad(n, "has a malformed budget")


def _text(value: Any, none: bool = False) -> bool:
    return isinstance(value, str) or (none and value is None)


def _number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and -LARGEST <= value <= LARGEST)


def _is_row(found: Any) -> bool:
    accepted = found.get("accepted") if isinstance(found, dict) else None
    if not isinstance(accepted, bool) or tuple(found) not in _SHAPES[accepted]:
        return False
    if type(found["client"]) is not str or not _text(found.get("reason", "")):
        return False
    return all(map(_number, map(found.get, NUMBERS)))


def _count(counts: dict[tuple[int, str], Count], entry: Entry) -> None:
    kind = entry["kind"]
    for found in entry["clients"] if kind == "asked" else entry.get("releases", ()):
        client = found if kind == "asked" else found["client"]
        one = counts.get((entry["federation"], client))
        if one is None:
            one = counts[entry["federation"], client] = Count()
        if kind != "answered":
            one.asked += 1
            one.given[entry["mechanism"], _budget(entry["budget"], client)] += 1
        if kind == "asked" or found.get("reason") == NO_REPLY:
            continue
        one.received += 1
        if not found["accepted"]:
            one.refused += 1
            continue
        one.accepted += 1
        size = found.get("intensity")
        if size is not None:
            one.low = size if one.low is None or size < one.low else one.low
            one.high = size if one.high is None or size > one.high else one.high


def _budget(budget: Any, client: str) -> float | None:
    """A client's own budget; the largest of a list where the client's place in it is not known."""
    if not isinstance(budget, list):
        return budget  # type: ignore[no-any-return]
    known = client.isdecimal() and len(client) < 10 and int(client) < len(budget)
    return budget[int(client)] if known else max((value for value in budget if value is not None), default=None)


# -- files ---------------------------------------------------------------------------------------------------------


def verify(path: Path, head: str | None = None, entries: int | None = None) -> Summary:
    """Check every line of a ledger against the one before it, and count.

    ``head`` is a hash noted elsewhere, at which the chain must arrive, with ``entries`` when it has that many lines.
    What follows later is ``beyond`` it: a ledger may grow, but not change.
    """
    found, known = Summary(), None
    with _reading(path) as file:
        while line := file.readline(LONGEST + 1):
            if len(line) > LONGEST:
                raise _bad(found.entries, f"is longer than {LONGEST} bytes")
            if not line.endswith(b"\n"):
                found.torn = len(line)
                break
            entry, found.head = _read(line, found.entries, found.head)
            _count(found.counts, entry)
            if found.entries == 0:
                found.experiment = entry["experiment"]
            found.entries += 1
            found.bytes += len(line)
            if head in (None, found.head) and entries in (None, found.entries):
                known = found.entries
    if found.entries == 0:
        raise LedgerError(f"The ledger {path.name} has no header.", "Restore it from a copy.")
    if entries is not None and found.entries < entries:
        raise LedgerError(f"The ledger ends after {found.entries} of {entries} lines.", "Restore what was cut off.")
    if known is None:
        raise LedgerError(f"The ledger does not lead to the head {head}.", "Restore it: it was cut or written anew.")
    found.beyond = found.entries - known
    return found


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        if not path.is_file():  # a pipe would keep the reader waiting
            raise LedgerError(f"There is no ledger {path.name}.", "Give a run folder that has one, or the file.")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise LedgerError(f"Cannot read {path.name}: {error.strerror or error}.", "Check the file.") from error


class Ledger:
    """One ledger while it is being written, by one process; ``open`` makes or continues it."""

    def __init__(self, path: Path, found: Summary, limit: int | None):
        self.path, self.limit, self._found, self._failed = path, limit, found, False

    @classmethod
    def open(cls, path: Path, experiment: str | None, limit: int | None = None) -> Ledger:
        """Verify the whole chain and drop what an interrupted write left: a last line without its end, nothing else."""
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ConfigError(f"Expected limit={limit!r} to be a whole number >= 1.", "Or leave it out.")
        entry = {"n": 0, "schema": SCHEMA, "kind": "ledger", "experiment": experiment, "note": NOTE}
        header, _ = seal(entry, START)
        with storage_errors(path):
            new = not path.exists()
        if new or _is_begun(path, header):
            write_bytes(path, header)
        found = verify(path)
        if found.experiment != experiment:
            raise LedgerError(
                f"The ledger is of the experiment {found.experiment!r}, not {experiment!r}.", "Use another folder."
            )
        if found.torn:
            with storage_errors(path), path.open("r+b") as file:
                file.truncate(found.bytes)
                os.fsync(file.fileno())
            found.torn = 0
        return cls(path, found, limit)

    @property
    def counts(self) -> dict[tuple[int, str], Count]:
        """By federation and client."""
        return self._found.counts

    @property
    def head(self) -> str:
        return self._found.head

    @property
    def entries(self) -> int:
        return self._found.entries

    @property
    def bytes(self) -> int:
        return self._found.bytes

    def append(self, entries: Sequence[Entry]) -> None:
        """Seal the entries and write them at once, down to the disk; ``n`` and a missing time are filled in."""
        lines, head, kept = [], self.head, []
        for n, given in enumerate(entries, self.entries):
            entry = normal(given, n)
            _check(entry, n)
            line, head = seal(entry, head)
            if len(line) > LONGEST:
                raise _bad(n, f"would be longer than {LONGEST} bytes: divide its clients")
            lines.append(line)
            kept.append(entry)
        content = b"".join(lines)
        with storage_errors(self.path), self.path.open("r+b") as file:
            size = file.seek(0, os.SEEK_END)
            if size < self.bytes or (size > self.bytes and not self._failed):
                raise LedgerError("The ledger was changed while it was in use.", "One process at a time may write it.")
            self._failed = True
            file.truncate(self.bytes)  # what an earlier write left that failed
            file.seek(self.bytes)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self._failed = False
        for entry in kept:
            _count(self.counts, entry)
        self._found.head = head
        self._found.entries += len(lines)
        self._found.bytes += len(content)

    def permit(self, clients: Sequence[str], round: int, federation: int = 0) -> None:
        """Raise ``LimitError`` where asking these clients in this round would pass the limit on releases."""
        if self.limit is None:
            return
        for client, times in Counter(clients).items():
            known = self.counts.get((federation, client))
            asked = 0 if known is None else known.asked
            if asked + times > self.limit:
                raise LimitError(
                    f"Client {client} of federation {federation} was asked for {asked} release(s); round {round} would "
                    f"pass the limit of {self.limit}.",
                    "What was trained before it is saved. A higher limit goes on from there.",
                )


def _is_begun(path: Path, header: bytes) -> bool:
    """Whether the file holds the beginning of this header and no more: a process was killed while it wrote it."""
    with _reading(path) as file:
        content = file.read(len(header))
    return len(content) < len(header) and header.startswith(content)
