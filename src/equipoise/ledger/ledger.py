"""The ledger of releases: what was asked of every client, what came of it, and a chain that shows later changes.

``ledger.jsonl`` holds one JSON object a line (``lines.py``). Every hash covers the one before it, so that no line can
be changed, removed, repeated or moved without a trace; only a new end can be put in place of the old one, and the head
(the last hash), kept elsewhere, shows that too.

Releases are counted when they are asked for. A line is read with bounded memory, and nothing in it is executed.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import ConfigError, LedgerError, LimitError
from ..files import changing, storage_errors, write_bytes
from .lines import (
    LONGEST,
    NO_REPLY,
    NOTE,
    OF_AN_ACCOUNT,
    SCHEMA,
    START,
    Entry,
    bad_line,
    check_entry,
    normal,
    read_line,
    seal,
)
from .reservation import Reservation, Reserved, sums

FILE = "ledger.jsonl"


@dataclass
class Count:
    """What one client was asked for in one federation, and what came of it."""

    asked: int = 0
    received: int = 0
    accepted: int = 0
    refused: int = 0  # of those received
    low: float | None = None  # range of the realised intensity of accepted releases
    high: float | None = None
    budgets: Counter[tuple[str, float | None]] = field(default_factory=Counter)  # (mechanism, budget) -> times asked

    def widen(self, low: float | None, high: float | None) -> None:
        """Let the range of intensities hold these as well."""
        self.low = low if self.low is None or (low is not None and low < self.low) else self.low
        self.high = high if self.high is None or (high is not None and high > self.high) else self.high


@dataclass(frozen=True)
class Reset:
    """An act of a node's operator, after which its sums began again; and what they were."""

    reason: str
    at: str
    releases: int
    epsilon: float  # reserved
    delta: float


@dataclass(kw_only=True)
class Summary:
    """The sums of a whole ledger, or since its last reset. Its size grows with clients and runs, not with rounds."""

    experiment: str | None = None
    account: str | None = None  # whose it is, if it is a node's own
    entries: int = 0
    bytes: int = 0
    head: str = START
    torn: int = 0  # bytes of a last line without its end: a write that was interrupted, or is under way
    beyond: int = 0  # entries after those that were known
    heads: dict[int, str] = field(default_factory=dict)  # after these many entries, for those that were asked for
    counts: dict[tuple[int, str], Count] = field(default_factory=dict)
    runs: dict[str, Reserved] = field(default_factory=dict)  # of a node's own: what is reserved, by run
    resets: list[Reset] = field(default_factory=list)

    def add(self, entry: Entry) -> None:
        """Count an entry that passed its checks."""
        kind = entry["kind"]
        if kind == "reserve":
            self.runs[entry["run"]] = Reserved(Reservation.of(entry), entry["at"])
        elif kind == "reset":
            self.resets.append(Reset(entry["reason"], entry["at"], self.total().asked, *sums(self.runs.values())))
            self.counts, self.runs = {}, {}
        else:
            _count(self.counts, entry)
            if kind == "asked" and "run" in entry:
                self.runs[entry["run"]].used += len(entry["clients"])

    def check(self, entry: Entry, n: int) -> None:
        """Refuse an entry that contradicts those before it: a run is reserved once, first, and not exceeded."""
        kind, run = entry["kind"], self.runs.get(entry.get("run", ""))
        if self.account is None and n > 0 and (kind in OF_AN_ACCOUNT or "run" in entry):
            raise bad_line(n, "is of a node's account, and this is none")
        if kind == "reserve" and run is not None:
            raise bad_line(n, "reserves a run a second time")
        if kind == "asked" and "run" in entry:
            if run is None or run.terms.mechanism != entry["mechanism"]:
                raise bad_line(n, "asks for a release of a run for which nothing is reserved")
            if run.used + len(entry["clients"]) > run.terms.rounds:
                raise bad_line(n, f"passes the {run.terms.rounds} rounds that are reserved for its run")

    def total(self) -> Count:
        """The sums over all federations and clients."""
        result = Count()
        for one in self.counts.values():
            for name in ("asked", "received", "accepted", "refused"):
                setattr(result, name, getattr(result, name) + getattr(one, name))
            result.widen(one.low, one.high)
            result.budgets.update(one.budgets)
        return result


def _count(counts: dict[tuple[int, str], Count], entry: Entry) -> None:
    kind = entry["kind"]
    for result in entry["clients"] if kind == "asked" else entry.get("releases", ()):
        client = result if kind == "asked" else result["client"]
        one = counts.get((entry["federation"], client))
        if one is None:
            one = counts[entry["federation"], client] = Count()
        if kind != "answered":
            one.asked += 1
            one.budgets[entry["mechanism"], _budget(entry["budget"], client)] += 1
        if kind == "asked" or result.get("reason") == NO_REPLY:
            continue
        one.received += 1
        if not result["accepted"]:
            one.refused += 1
            continue
        one.accepted += 1
        one.widen(result.get("intensity"), result.get("intensity"))


def _budget(budget: Any, client: str) -> float | None:
    """A client's own budget; the largest of a list where the client's place in it is not known."""
    if not isinstance(budget, list):
        return budget  # type: ignore[no-any-return]
    known = client.isdecimal() and len(client) < 10 and int(client) < len(budget)
    return budget[int(client)] if known else max((value for value in budget if value is not None), default=None)


def verify(path: Path, head: str | None = None, entries: int | None = None, heads_at: Collection[int] = ()) -> Summary:
    """Check every line of a ledger against the one before it, and count.

    ``head`` is a hash noted elsewhere, at which the chain must arrive, with ``entries`` when it has that many lines.
    What follows later is ``beyond`` it: a ledger may grow, but not change. ``heads_at`` are numbers of entries at which
    to note the head as well.
    """
    result, known = Summary(), None
    with _reading(path) as file:
        while line := file.readline(LONGEST + 1):
            if len(line) > LONGEST:
                raise bad_line(result.entries, f"is longer than {LONGEST} bytes")
            if not line.endswith(b"\n"):
                result.torn = len(line)
                break
            entry, result.head = read_line(line, result.entries, result.head)
            result.check(entry, result.entries)
            result.add(entry)
            if result.entries == 0:
                result.experiment, result.account = entry.get("experiment"), entry.get("account")
            result.entries += 1
            result.bytes += len(line)
            if result.entries in heads_at:
                result.heads[result.entries] = result.head
            if head in (None, result.head) and entries in (None, result.entries):
                known = result.entries
    if result.entries == 0:
        raise LedgerError(f"The ledger {path.name} has no header.", "Restore it from a copy.")
    if entries is not None and result.entries < entries:
        raise LedgerError(f"The ledger ends after {result.entries} of {entries} lines.", "Restore what was cut off.")
    if known is None:
        raise LedgerError(f"The ledger does not lead to the head {head}.", "Restore it: it was cut, or written again.")
    result.beyond = result.entries - known
    return result


@contextlib.contextmanager
def _reading(path: Path) -> Iterator[BinaryIO]:
    try:
        if not path.is_file():  # a pipe would keep the reader waiting
            raise LedgerError(f"There is no ledger {path}.", "Give a run folder that has one, or the file.")
        with path.open("rb") as file:
            yield file
    except OSError as error:
        raise LedgerError(f"Cannot read {path.name}: {error.strerror or error}.", "Check the file.") from error


class Ledger:
    """One ledger while it is being written, by one process; ``open`` makes or continues it.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> about = {"federation": 0, "round": 1, "mechanism": "pl-learn", "budget": 0.98, "norm": "l2"}
    >>> with TemporaryDirectory() as folder:
    ...     ledger = Ledger.open(Path(folder) / "ledger.jsonl", experiment=None, limit=1)
    ...     ledger.append([{"kind": "asked", **about, "clients": ["a", "b"]}])
    ...     ledger.permit(["a"], round_number=2)
    Traceback (most recent call last):
    equipoise.errors.LimitError: Client a of federation 0 was asked for 1 release(s)...
    """

    def __init__(self, path: Path, summary: Summary, limit: int | None):
        self.path, self.limit, self._found, self._failed = path, limit, summary, False

    @classmethod
    def open(cls, path: Path, experiment: str | None, limit: int | None = None) -> Ledger:
        """Verify the whole chain and go on with it, or begin it."""
        if limit is not None and (type(limit) is not int or limit < 1):
            raise ConfigError(f"Expected limit={limit!r} to be a whole number >= 1.", "Or leave it out.")
        entry = {"n": 0, "schema": SCHEMA, "kind": "ledger", "experiment": experiment, "note": NOTE}
        header, _ = seal(entry, START)
        with storage_errors(path):
            new = not path.exists()
        if new or _is_begun(path, header):
            write_bytes(path, header)
        result = verify(path)
        if result.account is not None:
            raise LedgerError("The ledger is the account of a node, not that of a run.", "Use another folder.")
        if result.experiment != experiment:
            raise LedgerError(
                f"The ledger is of the experiment {result.experiment!r}, not {experiment!r}.", "Use another folder."
            )
        return cls.resume(path, result, limit)

    @classmethod
    def resume(cls, path: Path, summary: Summary, limit: int | None = None) -> Ledger:
        """Go on after ``verify``, without what an interrupted write left: a last line without its end, nothing else."""
        if summary.torn:
            with changing(path) as file:
                file.truncate(summary.bytes)
            summary.torn = 0
        return cls(path, summary, limit)

    @property
    def summary(self) -> Summary:
        """The sums so far."""
        return self._found

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
            check_entry(entry, n)
            self._found.check(entry, n)
            line, head = seal(entry, head)
            if len(line) > LONGEST:
                raise bad_line(n, f"would be longer than {LONGEST} bytes: divide its clients")
            lines.append(line)
            kept.append(entry)
        content = b"".join(lines)
        with changing(self.path) as file:
            size = file.seek(0, os.SEEK_END)
            if size < self.bytes or (size > self.bytes and not self._failed):
                raise LedgerError("The ledger was changed while it was in use.", "One process at a time may write it.")
            self._failed = True
            file.truncate(self.bytes)  # what an earlier write left that failed
            file.seek(self.bytes)
            file.write(content)
        self._failed = False
        for entry in kept:
            self._found.add(entry)
        self._found.head = head
        self._found.entries += len(lines)
        self._found.bytes += len(content)

    def permit(self, clients: Sequence[str], round_number: int, federation: int = 0) -> None:
        """Raise ``LimitError`` where asking these clients in this round would pass the limit on releases."""
        if self.limit is None:
            return
        for client, times in Counter(clients).items():
            known = self.counts.get((federation, client))
            asked = 0 if known is None else known.asked
            if asked + times > self.limit:
                raise LimitError(
                    f"Client {client} of federation {federation} was asked for {asked} release(s); "
                    f"round {round_number} would pass the limit of {self.limit}.",
                    "What was trained before it is saved. A higher limit goes on from there.",
                )


def _is_begun(path: Path, header: bytes) -> bool:
    """Whether the file holds the beginning of this header and no more: a process was killed while it wrote it."""
    with _reading(path) as file:
        content = file.read(len(header))
    return len(content) < len(header) and header.startswith(content)
