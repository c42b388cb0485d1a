"""The account of a data set on a node: every release of it, over all runs and restarts, counted by the node itself.

An account is a ledger whose first line says whose it is, and beside it ``<ledger>.head``: the number of its entries and
its head, written after each append. ``Account.open`` holds a lock on the ledger from reading to appending, and refuses

==========================================  =========================================================================
what happened                               how it is noticed
==========================================  =========================================================================
deleted, moved                              a node never begins a ledger by itself: ``create`` is the operator's
copied from another node, or policy         its first line, which every hash covers, names another account
a line changed, removed, added or moved     the chain of hashes does not follow
cut, or replaced by an older copy           ``.head`` is ahead of it, or names another head; so does ``seen``
replaced by a link, or readable by others   the file itself
==========================================  =========================================================================

A mechanism whose budget is of a whole run has all of it reserved before the first release of the run (``reserve``), and
``total`` adds up what is reserved and what single releases spent. It does not look at the data: changed contents, or
another name for them, reset nothing. Only the operator does (``reset``), and that stays in the ledger with its reason.

The ledger may be ahead of ``.head`` by one entry, since a process can be killed between the two; that entry counts.

Not noticed: ledger and ``.head`` put back together to an older state while no run is under way that remembers more
(``seen``); both deleted and begun anew under the same name; a node copied as a whole, with its policy, such as a
virtual machine that was cloned or put back. Nothing that a node keeps can show that; a head noted elsewhere does
(``equipoise ledger FILE --head HASH``).
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import stat
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ..errors import ConfigError, LedgerError, StorageError, is_count, is_finite
from ..files import held, open_plain, storage_errors, write_bytes
from ..mechanism.registry import MECHANISMS
from ..privacy.accounting import basic_epsilon
from .ledger import Ledger, Summary, verify
from .lines import LONGEST_REASON, NOTE, SCHEMA, START, Entry, seal
from .reservation import Reservation, sums

PRIVATE = 0o600
LONGEST_HEAD = 1000
"""Bytes that are read of a ``.head``, which has about 100."""
RESTORE = (
    "Restore the newest copy of the ledger and its .head. Without one: policy init in a new folder, with --releases "
    "less what was spent, and name that policy."
)


class Account:
    """One account while its lock is held.

    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> release = {"client": "0", "accepted": True}
    >>> about = {"kind": "round", "federation": 0, "round": 1, "mechanism": "laplace-dp", "budget": 0.5}
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "node" / "ledger.jsonl"
    ...     Account.create(path, "5d1c0e")
    ...     with Account.open(path, "5d1c0e") as account:
    ...         account.append({**about, "releases": [release]})
    ...         account.releases, account.releases_of("laplace-dp"), account.epsilon()
    (1, 1, 0.5)
    """

    def __init__(self, ledger: Ledger, handle: int, noted: int):
        self._ledger, self._handle, self._noted = ledger, handle, noted
        self._open = True

    @staticmethod
    def create(path: Path, account: str) -> None:
        """Begin the account ``account`` (a random id that the policy of this node holds); a deed of the operator.

        Ledger and ``.head`` are readable by their owner alone, and so is the folder if it does not exist yet.
        ``LedgerError`` where either file exists: what was counted is never begun anew.
        """
        if not isinstance(account, str) or not re.fullmatch(r"[0-9A-Za-z_-]{4,64}", account):
            raise ConfigError(f"Expected account={account!r} to be 4 to 64 letters and digits.", "Use a random id.")
        header, head = seal({"n": 0, "schema": SCHEMA, "kind": "account", "account": account, "note": NOTE}, START)
        with storage_errors(path):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _claim(path)
        try:
            write_bytes(path, header, PRIVATE)
            _write_head(path, 1, head)
        except BaseException:  # nothing was released yet, as ``open`` needs the .head, which comes last
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
                head_file(path).unlink(missing_ok=True)
            raise

    @classmethod
    @contextlib.contextmanager
    def open(
        cls, path: Path, account: str, seen: Mapping[str, Any] | None = None, wait: float = 60.0
    ) -> Iterator[Account]:
        """Hold the account: verified when this begins, and nobody else's until it ends.

        Args:
            path: The ledger, which exists.
            account: Whose it must be.
            seen: What ``seen`` was earlier in this run, kept elsewhere; the ledger must have grown from there.
            wait: Seconds to wait for another process that holds it.

        Raises:
            LedgerError: in each of the cases above, and when the account is not free in time.
        """
        with _locked(path, wait) as handle:
            beside = read_head(path)
            marks = {head_file(path).name: beside}
            if seen is not None:
                marks["this run"] = _mark(seen, "What this run kept of the ledger")
            summary = verify(path, heads_at=[entries for entries, _ in marks.values()])
            if summary.account != account:
                raise _foreign(summary.account, account)
            for where, mark in marks.items():
                _check_leads(summary, mark, where)
            if summary.entries > beside[0] + 1:  # one append may have been interrupted, no more
                raise LedgerError(
                    f"The ledger has {summary.entries} lines, {head_file(path).name} knows of {beside[0]}.", RESTORE
                )
            result = cls(Ledger.resume(path, summary), handle, beside[0])
            result._note()
            try:
                yield result
            finally:
                result._open = False

    @property
    def releases(self) -> int:
        """All that were asked for, since the last reset, by whatever mechanism."""
        return self._ledger.summary.total().asked

    def releases_of(self, mechanism: str) -> int:
        """Those by one mechanism."""
        budgets = self._ledger.summary.total().budgets
        return sum(times for (name, _), times in budgets.items() if name == mechanism)

    def epsilon(self) -> float:
        """The sum over releases whose budget is the epsilon of one release; delta is 0.

        Infinite where such a release states none, or where one of a whole-run mechanism belongs to no run. Releases of
        other mechanisms have no epsilon, and add nothing here.
        """
        return single_epsilon(self._ledger.summary)

    def reserve(self, terms: Reservation) -> None:
        """Write down the whole (epsilon, delta) of a run, on the disk when this returns: before its first release."""
        if self.reservation(terms.run) is not None:
            raise LedgerError(f"For the run {terms.run[:64]!r} there is a reservation already.", "Keep to it.")
        self.append(terms.entry())

    def reservation(self, run: str) -> Reservation | None:
        """What is reserved for a run, if anything is."""
        known = self._ledger.summary.runs.get(run)
        return None if known is None else known.terms

    def used(self, run: str) -> int:
        """How many releases of a run were asked for."""
        known = self._ledger.summary.runs.get(run)
        return 0 if known is None else known.used

    def reserved(self) -> tuple[float, float]:
        """Epsilon and delta of all runs: simple sums, valid for runs that were chosen one after the other.

        What a run that stopped early did not use is in them.
        """
        return sums(self._ledger.summary.runs.values())

    def total(self) -> tuple[float, float]:
        """Epsilon and delta of all that is reserved, and of all single releases that have an epsilon."""
        epsilon, delta = self.reserved()
        return epsilon + self.epsilon(), delta

    def units(self) -> set[str]:
        """Whose presence the guarantees so far are about; only those of one unit add up."""
        return units(self._ledger.summary)

    def reset(self, reason: str) -> None:
        """Let all sums begin again, a deed of the operator's: the entry, with the reason, stays for ever."""
        if not isinstance(reason, str) or not reason.strip() or len(reason) > LONGEST_REASON:
            raise ConfigError(
                f"Expected a reason of 1 to {LONGEST_REASON} letters.",
                'For example --reason "all data are new".',
            )
        self.append({"kind": "reset", "reason": reason})

    @property
    def seen(self) -> dict[str, int | str]:
        """Entries and head, to be kept elsewhere and shown to ``open``."""
        return {"entries": self._ledger.entries, "head": self._ledger.head}

    def append(self, entry: Entry) -> None:
        """Write one entry, on the disk when this returns; nothing may leave the node before."""
        if not self._open:
            raise LedgerError("The account is not held any more.", "Append inside of the with block.")
        _check_same(self._ledger.path, self._handle)
        self._note()  # if the last one failed, on a full disk
        self._ledger.append([entry])
        self._note()

    def _note(self) -> None:
        if self._noted < self._ledger.entries:
            _write_head(self._ledger.path, self._ledger.entries, self._ledger.head)
            self._noted = self._ledger.entries


def reset_account(path: Path, reason: str) -> None:
    """``Account.reset`` for the account that a ledger says it is of: its operator names the file itself."""
    account = verify(path).account
    if account is None:
        raise LedgerError("The ledger is that of a run, which has no sums to reset.", "Name the ledger of a node.")
    with Account.open(path, account) as held_account:
        held_account.reset(reason)


def is_formal(name: str) -> bool:
    """Whether budgets compose. A ledger may name a mechanism that is not installed here: of that nothing is known."""
    return name in MECHANISMS and MECHANISMS[name].formal


def is_whole_run(name: str) -> bool:
    """Whether a budget is the epsilon of a whole run rather than of one release."""
    return is_formal(name) and MECHANISMS[name].whole_run


def single_epsilon(summary: Summary) -> float:
    """See ``Account.epsilon``."""
    total, budgets = summary.total(), Counter[float]()
    for (name, budget), times in total.budgets.items():
        if is_formal(name) and not is_whole_run(name):
            if not is_finite(budget) or budget <= 0:
                return math.inf
            budgets[budget] += times
    covered = Counter[str]()
    for run in summary.runs.values():
        covered[run.terms.mechanism] += run.used
    asked = Counter[str]()
    for (name, _), times in total.budgets.items():
        asked[name] += times if is_whole_run(name) else 0
    return math.inf if asked - covered else basic_epsilon(budgets)


def units(summary: Summary) -> set[str]:
    """See ``Account.units``."""
    single = any(is_formal(name) and not is_whole_run(name) for name, _ in summary.total().budgets)
    return {run.terms.unit for run in summary.runs.values()} | ({"record"} if single else set())


# -- the files -----------------------------------------------------------------------------------------------------


def head_file(path: Path) -> Path:
    """
    >>> head_file(Path("node/ledger.jsonl")).name
    'ledger.jsonl.head'
    """
    return path.with_name(f"{path.name}.head")


def read_head(path: Path) -> tuple[int, str]:
    """The number of entries and the head that are noted beside the ledger ``path``."""
    file = head_file(path)
    try:
        with open(open_plain(file, os.O_RDONLY), "rb") as content:
            return _mark(json.loads(content.read(LONGEST_HEAD)), file.name)
    except FileNotFoundError as error:
        raise LedgerError(f"There is no {file.name} beside the ledger.", RESTORE) from error
    except StorageError as error:  # a link, or no plain file
        raise LedgerError(error.cause, error.remedy) from error
    except OSError as error:
        raise LedgerError(f"Cannot read {file.name}: {error.strerror}.", "Check the file.") from error
    except (ValueError, RecursionError) as error:
        raise LedgerError(f"{file.name} is damaged.", RESTORE) from error


def _mark(value: Any, what: str) -> tuple[int, str]:
    entries, head = (value.get("entries"), value.get("head")) if isinstance(value, Mapping) else (None, None)
    if not is_count(entries) or not isinstance(head, str):
        raise LedgerError(f"{what} is damaged: it does not name entries and head.", RESTORE)
    return entries, head


def _write_head(path: Path, entries: int, head: str) -> None:
    write_bytes(head_file(path), json.dumps({"entries": entries, "head": head}).encode() + b"\n", PRIVATE)


def _claim(path: Path) -> None:
    """Make the ``.head``, empty: of two processes that begin one account, the second is refused."""
    if os.path.lexists(path):
        raise LedgerError(f"{path.name} is there already.", "Go on with it, or name another file.")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        os.close(os.open(head_file(path), flags, PRIVATE))
    except FileExistsError as error:
        raise LedgerError(
            f"{head_file(path).name} is there already, of a ledger that is gone.",
            "Restore that ledger. Only if nothing was ever released from it, remove the file.",
        ) from error


@contextlib.contextmanager
def _locked(path: Path, wait: float) -> Iterator[int]:
    """The lock is on the ledger itself, which is never replaced: no file beside it can be removed to get around it."""
    try:
        kind = os.lstat(path).st_mode
    except (FileNotFoundError, NotADirectoryError) as error:
        raise LedgerError(
            f"There is no ledger {path.name}, and a node begins none by itself.",
            "Put it back, with its .head. A node that never released anything gets one with its policy.",
        ) from error
    except OSError as error:
        raise LedgerError(f"Cannot read {path.name}: {error.strerror}.", "Check the folder.") from error
    if not stat.S_ISREG(kind):
        what = "a link, and may lead anywhere" if stat.S_ISLNK(kind) else "no plain file"
        raise LedgerError(f"The ledger {path.name} is {what}.", "Put the ledger itself in its place.")
    if kind & 0o077:
        raise LedgerError(f"Others may read or write the ledger {path.name}.", "Give it the permissions 600 (chmod).")
    busy = LedgerError(
        f"Another process has held the ledger {path.name} for {wait:g} seconds.", "Wait until its release is made."
    )
    with storage_errors(path):
        handle = open_plain(path, os.O_RDWR)
    with held(handle, path, wait, busy):
        _check_same(path, handle)
        yield handle


def _check_same(path: Path, handle: int) -> None:
    """The lock is worth nothing if the file was replaced."""
    with contextlib.suppress(OSError):
        if os.path.samestat(os.lstat(path), os.fstat(handle)):
            return
    raise LedgerError("The ledger was replaced while it was in use.", "Replace it only while no node is running.")


def _check_leads(summary: Summary, mark: tuple[int, str], where: str) -> None:
    entries, head = mark
    if summary.entries < entries:
        raise LedgerError(
            f"The ledger ends after {summary.entries} of the {entries} lines that {where} knows of: it was cut, or is "
            "an older copy.",
            RESTORE,
        )
    if summary.heads.get(entries) != head:
        raise LedgerError(f"The ledger does not lead to the head that {where} knows of: it was replaced.", RESTORE)


def _foreign(found: str | None, account: str) -> LedgerError:
    if found is None:
        return LedgerError(
            "The ledger names no account: a run wrote it, or an earlier version.",
            "Keep it, begin an account in another file, and take what it counts off the limits of the policy.",
        )
    return LedgerError(
        f"The ledger is of the account {found[:64]!r}, the policy names {account!r}.",
        "Put the ledger of this node and policy in its place.",
    )
