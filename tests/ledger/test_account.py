"""The account of a node: counted over restarts, and every way to make it forget is noticed or named."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise import files
from equipoise.errors import ConfigError, LedgerError, StorageError
from equipoise.ledger import account as accounts
from equipoise.ledger.account import Account, head_file, is_formal, is_whole_run, read_head, reset_account
from equipoise.ledger.ledger import Ledger, verify
from tests.helpers import contents, single_threaded
from tests.ledger.entries import OLD, a_round, asked, chained, entry, formal, of_run, reservation

OWN, OTHER = "5d1c0e77", "a-node-elsewhere"


def released(round_number: int = 1, **change: Any) -> dict[str, Any]:
    """One release of one client, by pl-learn."""
    return a_round(round_number, clients=1, **change)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An account without releases."""
    Account.create(tmp_path / "node" / "ledger.jsonl", OWN)
    return tmp_path / "node" / "ledger.jsonl"


def release(path: Path, times: int = 1, **change: Any) -> dict[str, int | str]:
    """Count so many releases, each as a message of its own; what a run would keep of them."""
    for _ in range(times):
        with Account.open(path, OWN) as account:
            account.append(released(**change))
    return account.seen


def count(path: Path, **options: Any) -> int:
    with Account.open(path, OWN, **options) as account:
        return account.releases


def refusal(path: Path, account: str = OWN, **options: Any) -> str:
    """Why the account is refused; everything is left as it was found."""
    before = contents(path.parent) if path.parent.is_dir() else {}
    with pytest.raises(LedgerError) as caught, Account.open(path, account, **options):
        pass
    assert caught.value.remedy, "every refusal says what helps"
    assert (contents(path.parent) if path.parent.is_dir() else {}) == before
    return caught.value.cause


# --- what it counts -----------------------------------------------------------------------------------------------


def test_releases_are_counted_over_restarts_runs_and_clients(path: Path) -> None:
    with Account.open(path, OWN) as account:
        assert (account.releases, account.releases_of("pl-learn"), account.epsilon()) == (0, 0, 0.0)
        account.append(released())
        account.append(a_round(1, clients=2))
        assert account.releases == 3, "at once"
    with Account.open(path, OWN) as account:
        account.append(asked(2, ["7"], mechanism="none", budget=None))
        assert (account.releases, account.releases_of("pl-learn"), account.releases_of("none")) == (4, 3, 1)
        assert account.releases_of("ls") == 0
    assert count(path) == 4


def test_epsilons_of_formal_mechanisms_are_added_and_others_have_none(path: Path) -> None:
    with Account.open(path, OWN) as account:
        account.append(released(budget=0.98))
        assert account.epsilon() == 0.0
        for budget in (0.1, 0.1, 0.1, 1.5):
            account.append(formal(1, budget=budget))
        account.append(formal(1, client="3", budget=2.0))
        assert account.epsilon() == pytest.approx(3.8, abs=1e-12), "whatever number the client had"
    with Account.open(path, OWN) as account:
        assert account.epsilon() == pytest.approx(3.8, abs=1e-12)
        account.append(formal(2, budget=None))
        assert account.epsilon() == math.inf, "a release that names no epsilon has none that is known"
    assert is_formal("laplace-dp")
    assert not is_formal("pl-learn")
    assert not is_formal("of another version")


def test_an_entry_that_is_none_is_refused_and_nothing_is_written(path: Path) -> None:
    before = contents(path.parent)
    with Account.open(path, OWN) as account, pytest.raises(LedgerError, match="Line 2"):
        account.append(entry("round", 1, releases=[{"client": 1}]))
    assert contents(path.parent) == before


def test_an_append_is_on_the_disk_before_its_head_and_both_before_it_returns(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watch_fsync(handle: int) -> None:
        order.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def watch_replace(old: Path, new: Path) -> Path:
        order.append(f"now {new.name}")
        return replace(old, new)

    with Account.open(path, OWN) as account:
        monkeypatch.setattr(os, "fsync", watch_fsync)
        monkeypatch.setattr(Path, "replace", watch_replace)
        account.append(released())
    assert order == ["file", "file", "now ledger.jsonl.head", "folder"]


def test_nothing_is_appended_when_the_lock_is_gone(path: Path) -> None:
    with Account.open(path, OWN) as account:
        pass
    with pytest.raises(LedgerError, match="not held any more"):
        account.append(released())
    assert count(path) == 0


# --- its files ----------------------------------------------------------------------------------------------------


def test_its_files_are_the_owners_alone(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = tmp_path / "state" / "node" / "ledger.jsonl"
        Account.create(path, OWN)
        release(path)
    finally:
        os.umask(before)
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in (path.parent, *path.parent.iterdir())}
    assert modes == {"node": 0o700, "ledger.jsonl": 0o600, "ledger.jsonl.head": 0o600}


def test_the_first_line_says_whose_it_is_and_the_head_says_how_far_it_goes(path: Path) -> None:
    seen = release(path, 2)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert list(lines[0]) == ["n", "schema", "kind", "account", "note", "hash"]
    assert (lines[0]["schema"], lines[0]["kind"], lines[0]["account"]) == (1, "account", OWN)
    assert json.loads(head_file(path).read_text()) == seen == {"entries": 3, "head": lines[-1]["hash"]}
    assert read_head(path) == (3, lines[-1]["hash"])
    assert verify(path).account == OWN


@pytest.mark.parametrize("there", ["ledger.jsonl", "ledger.jsonl.head"])
@pytest.mark.parametrize("kind", ["file", "link", "folder"])
def test_an_account_is_never_begun_over_anything(tmp_path: Path, there: str, kind: str) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    if kind == "file":
        (tmp_path / there).write_text("mine")
    elif kind == "link":
        (tmp_path / there).symlink_to(tmp_path / "nowhere")
    else:
        (tmp_path / there).mkdir()
    before = contents(tmp_path)
    with pytest.raises(LedgerError, match=rf"^{there} is there already"):
        Account.create(tmp_path / "ledger.jsonl", OWN)
    assert contents(tmp_path) == before
    assert not (tmp_path / "nowhere").exists()


def test_a_deleted_ledger_cannot_be_begun_anew_over_its_head(path: Path) -> None:
    release(path, 3)
    path.unlink()
    with pytest.raises(LedgerError, match="of a ledger that is gone") as caught:
        Account.create(path, OWN)
    assert "Restore that ledger" in caught.value.remedy


@pytest.mark.parametrize("account", ["", "abc", "x" * 65, "a b c d", "../etc", "\x1b[2J", 7, None])
def test_an_identity_that_is_none_is_a_config_error(tmp_path: Path, account: Any) -> None:
    with pytest.raises(ConfigError, match="Expected account="):
        Account.create(tmp_path / "node" / "ledger.jsonl", account)
    assert not (tmp_path / "node").exists()


@pytest.mark.parametrize("failing", ["ledger.jsonl", "ledger.jsonl.head"])
def test_a_disk_that_is_full_leaves_no_half_of_an_account(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    path, genuine = tmp_path / "ledger.jsonl", accounts.write_bytes

    def full(file: Path, content: bytes, mode: int) -> None:
        if file.name == failing:
            raise StorageError("Cannot write: No space left on device.", "Free some space.")
        genuine(file, content, mode)

    with monkeypatch.context() as patch:
        patch.setattr(accounts, "write_bytes", full)
        with pytest.raises(StorageError, match="No space"):
            Account.create(path, OWN)
    assert contents(tmp_path) == {}
    Account.create(path, OWN)
    assert count(path) == 0


# --- what is noticed ----------------------------------------------------------------------------------------------


def test_a_ledger_that_is_missing_is_noticed_and_none_is_begun(path: Path, tmp_path: Path) -> None:
    release(path, 2)
    path.rename(tmp_path / "moved.jsonl")
    assert refusal(path) == "There is no ledger ledger.jsonl, and a node begins none by itself."
    shutil.rmtree(path.parent)
    assert "There is no ledger" in refusal(path)
    assert not path.parent.exists(), "nor a folder"
    (tmp_path / "file").touch()
    assert "There is no ledger" in refusal(tmp_path / "file" / "ledger.jsonl")


def test_links_and_what_is_no_file_are_refused(path: Path, tmp_path: Path) -> None:
    release(path)
    elsewhere = tmp_path / "elsewhere.jsonl"
    path.rename(elsewhere)
    path.symlink_to(elsewhere)
    content = elsewhere.read_bytes()
    assert refusal(path) == "The ledger ledger.jsonl is a link, and may lead anywhere."
    assert elsewhere.read_bytes() == content
    for make in (lambda: os.mkfifo(path), path.mkdir):
        path.unlink()
        make()
        assert refusal(path) == "The ledger ledger.jsonl is no plain file."


@pytest.mark.parametrize("mode", [0o640, 0o606, 0o666])
def test_a_ledger_that_others_may_read_or_write_is_refused(path: Path, mode: int) -> None:
    path.chmod(mode)
    assert refusal(path) == "Others may read or write the ledger ledger.jsonl."
    path.chmod(0o600)
    assert count(path) == 0


def test_a_ledger_of_another_node_or_policy_is_noticed(path: Path, tmp_path: Path) -> None:
    release(path, 2)
    other = tmp_path / "other" / "ledger.jsonl"
    Account.create(other, OTHER)
    for file in (other, head_file(other)):
        shutil.copy(file, path.parent)
    assert refusal(path) == f"The ledger is of the account {OTHER!r}, the policy names {OWN!r}."
    assert refusal(other, OWN) == f"The ledger is of the account {OTHER!r}, the policy names {OWN!r}."


def test_a_first_line_that_was_changed_to_name_this_account_breaks_the_chain(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / "ledger.jsonl"
    Account.create(other, OTHER)
    other.write_bytes(other.read_bytes().replace(OTHER.encode(), OWN.encode()))
    assert "Line 1 of the ledger was changed" in refusal(other)
    bodies = [other.read_text()[: other.read_text().index(',"hash":')] + "}"]
    other.write_bytes(chained(bodies))
    assert "does not lead to the head that ledger.jsonl.head knows of" in refusal(other)


def test_the_ledger_of_a_run_or_of_an_earlier_version_is_no_account(path: Path) -> None:
    path.unlink()
    ledger = Ledger.open(path, None)
    head_file(path).write_text(json.dumps({"entries": 1, "head": ledger.head}))
    path.chmod(0o600)
    assert refusal(path) == "The ledger names no account: a run wrote it, or an earlier version."


def test_an_account_is_not_the_ledger_of_a_run(path: Path) -> None:
    before = contents(path.parent)
    for experiment in (None, "seeded"):
        with pytest.raises(LedgerError, match="the account of a node"):
            Ledger.open(path, experiment)
    assert contents(path.parent) == before


def test_a_changed_line_is_named(path: Path) -> None:
    release(path, 3)
    path.write_bytes(path.read_bytes().replace(b'"n":2,"kind":"round"', b'"n":2,"kind":"asked"'))
    assert refusal(path).startswith("Line 3 of the ledger was changed")


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_ledger_that_was_cut_is_noticed(path: Path, kept: int) -> None:
    release(path, 3)
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))
    assert refusal(path) == (
        f"The ledger ends after {kept} of the 4 lines that ledger.jsonl.head knows of: it was cut, or is an older copy."
    )


def test_an_older_copy_is_noticed_also_when_it_has_grown_since(path: Path) -> None:
    release(path, 2)
    old = path.read_bytes()
    release(path, 1, budget=0.9)
    path.write_bytes(old)
    assert "ends after 3 of the 4 lines" in refusal(path)
    summary = verify(path)
    Ledger.resume(path, summary).append([released(budget=0.98)])
    assert "does not lead to the head that ledger.jsonl.head knows of" in refusal(path)


@pytest.mark.parametrize("state", ["older", "missing", "empty", "garbage", "list", "bool", "link", "pipe"])
def test_a_head_that_does_not_fit_is_refused(path: Path, state: str, tmp_path: Path) -> None:
    release(path, 1)
    file, old = head_file(path), head_file(path).read_bytes()
    release(path, 2)
    file.unlink()
    texts = {
        "older": old,
        "empty": b"",
        "garbage": b"\xff\x00" * 4000,
        "list": b"[" * 900,
        "bool": b'{"entries": true, "head": "x"}',
    }
    if state == "link":
        (tmp_path / "head").write_bytes(json.dumps({"entries": 4, "head": verify(path).head}).encode())
        file.symlink_to(tmp_path / "head")
    elif state == "pipe":
        os.mkfifo(file)
    elif state != "missing":
        file.write_bytes(texts[state])
    words = {
        "older": "The ledger has 4 lines, ledger.jsonl.head knows of 2.",
        "missing": "There is no ledger.jsonl.head beside the ledger.",
        "link": "ledger.jsonl.head in the folder node is a link",
        "pipe": "ledger.jsonl.head is no plain file.",
    }
    assert words.get(state, "ledger.jsonl.head is damaged") in refusal(path)


# --- what a run remembers -----------------------------------------------------------------------------------------


def test_what_a_run_has_seen_shows_that_ledger_and_head_were_put_back_together(path: Path, tmp_path: Path) -> None:
    release(path, 2)
    shutil.copytree(path.parent, tmp_path / "backup")
    seen = release(path, 1)
    assert count(path, seen=seen) == 3
    shutil.rmtree(path.parent)
    shutil.copytree(tmp_path / "backup", path.parent)
    assert "ends after 3 of the 4 lines that this run knows of" in refusal(path, seen=seen)
    assert count(path) == 2, "without a run that remembers more, nothing shows it"


def test_what_a_run_has_seen_shows_another_history_of_the_same_length(path: Path, tmp_path: Path) -> None:
    shutil.copytree(path.parent, tmp_path / "backup")
    seen = release(path, 1, budget=0.5)
    shutil.rmtree(path.parent)
    shutil.copytree(tmp_path / "backup", path.parent)
    release(path, 2)
    assert refusal(path, seen=seen) == "The ledger does not lead to the head that this run knows of: it was replaced."


def test_a_run_may_have_seen_less_than_another_has_counted_since(path: Path) -> None:
    seen = release(path, 1)
    release(path, 4)
    assert count(path, seen=seen) == 5


@pytest.mark.parametrize(
    "seen", [{}, {"entries": 2}, {"entries": "2", "head": "x"}, {"entries": -1, "head": "x"}, {"entries": 2, "head": 1}]
)
def test_what_a_run_has_seen_is_damaged_or_fits(path: Path, seen: dict[str, Any]) -> None:
    release(path, 2)
    assert refusal(path, seen=seen).startswith("What this run kept of the ledger is damaged")


def test_a_run_that_has_seen_no_line_has_seen_another_ledger(path: Path) -> None:
    assert "does not lead to the head that this run knows of" in refusal(path, seen={"entries": 0, "head": "0" * 64})


# --- runs that are reserved as a whole ----------------------------------------------------------------------------


def test_what_is_reserved_adds_up_over_restarts_and_single_releases(path: Path) -> None:
    with Account.open(path, OWN) as account:
        assert (account.reserved(), account.total(), account.units()) == ((0.0, 0.0), (0.0, 0.0), set())
        account.reserve(reservation("7"))
    with Account.open(path, OWN) as account:
        account.reserve(reservation("8", epsilon=1.5, delta=2e-6))
        account.append(formal(1, budget=0.25))
    with Account.open(path, OWN) as account:
        assert account.reserved() == pytest.approx((3.5, 1.2e-5))
        assert account.epsilon() == 0.25
        assert account.total() == pytest.approx((3.75, 1.2e-5))
        assert account.reservation("7") == reservation("7")
        assert account.reservation("9") is None
        assert account.units() == {"record"}


def test_a_run_that_stops_early_keeps_all_that_is_reserved(path: Path) -> None:
    with Account.open(path, OWN) as account:
        account.reserve(reservation("7"))
        account.append(of_run("7"))
    with Account.open(path, OWN) as account:
        assert (account.used("7"), account.used("8")) == (1, 0)
        assert account.reserved() == (2.0, 1e-5)
        assert account.total() == (2.0, 1e-5), "its releases have no epsilon beside that of the run"


def test_a_run_is_reserved_once_and_first_and_not_exceeded(path: Path) -> None:
    def refused(words: str) -> Any:
        return pytest.raises(LedgerError, match=words)

    with Account.open(path, OWN) as account:
        with refused("nothing is reserved"):
            account.append(of_run("7"))
        account.reserve(reservation("7"))
        with refused("reservation already"):
            account.reserve(reservation("7", epsilon=0.1))
        with refused("reserves a run a second time"):
            account.append(reservation("7", epsilon=0.1).entry())
        with refused("nothing is reserved"):
            account.append(of_run("7", mechanism="laplace-dp"))
        for round_number in (1, 2, 2):  # a message that came again is another round
            account.append(of_run("7", round_number))
        with refused("passes the 3 rounds that are reserved"):
            account.append(of_run("7", 3))
        assert account.used("7") == 3
    with Account.open(path, OWN) as account, refused("passes the 3 rounds"):
        account.append(of_run("7", 3))


def test_terms_that_no_ledger_takes_are_not_written(path: Path) -> None:
    with Account.open(path, OWN) as account:
        with pytest.raises(LedgerError, match="malformed terms of a run"):
            account.reserve(reservation("7", sigma=0.0))
        assert account.reserved() == (0.0, 0.0)


def test_a_release_of_a_whole_run_without_a_run_has_no_epsilon_that_is_known(path: Path) -> None:
    assert (is_whole_run("gaussian-dp"), is_whole_run("laplace-dp"), is_whole_run("pl-learn")) == (True, False, False)
    with Account.open(path, OWN) as account:
        account.reserve(reservation("7"))
        account.append(asked(1, ["0"], mechanism="gaussian-dp", budget=2.0))
        assert account.epsilon() == account.total()[0] == math.inf


def test_only_an_account_has_reservations(tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "ledger.jsonl", None)
    for line in (reservation("7").entry(), {"kind": "reset", "reason": "x"}, of_run("7")):
        with pytest.raises(LedgerError, match="is of a node's account"):
            ledger.append([line])


def test_a_reset_begins_all_sums_again_and_stays_in_the_ledger(path: Path) -> None:
    release(path, 2)
    with Account.open(path, OWN) as account:
        account.reserve(reservation("7"))
        account.append(of_run("7"))
    reset_account(path, "a new data set in the place of the old one")
    with Account.open(path, OWN) as account:
        assert (account.releases, account.total(), account.reservation("7")) == (0, (0.0, 0.0), None)
        account.reserve(reservation("7"))  # a run that goes on is charged again
    reset_account(path, "twice")
    first, second = verify(path).resets
    assert (first.reason, first.releases, first.epsilon, first.delta) == (
        "a new data set in the place of the old one", 3, 2.0, 1e-5,
    )  # fmt: skip
    assert (second.reason, second.releases, second.epsilon) == ("twice", 0, 2.0)
    assert first.at <= second.at


def test_a_reset_needs_a_reason_and_an_account(path: Path, tmp_path: Path) -> None:
    before = contents(path.parent)
    for reason in ("", "  ", "x" * 1001):
        with pytest.raises(ConfigError, match="Expected a reason"):
            reset_account(path, reason)
    assert contents(path.parent) == before
    Ledger.open(tmp_path / "ledger.jsonl", None)
    with pytest.raises(LedgerError, match="that of a run"):
        reset_account(tmp_path / "ledger.jsonl", "why not")


def test_an_account_of_before_verifies_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    path.write_text(OLD)
    head_file(path).write_text(json.dumps({"entries": 3, "head": json.loads(OLD.splitlines()[-1])["hash"]}))
    for file in (path, head_file(path)):
        file.chmod(0o600)
    with Account.open(path, OWN) as account:
        assert (account.releases, account.epsilon(), account.reserved()) == (1, 0.5, (0.0, 0.0))
        account.reserve(reservation("7"))
    with Account.open(path, OWN) as account:
        assert account.total() == (2.5, 1e-5)


# --- killed at any moment -----------------------------------------------------------------------------------------


def states_of_an_append(path: Path) -> list[tuple[dict[str, bytes], int]]:
    """Every state of the files in which kill -9 can leave an append, and how many releases are counted then."""
    release(path, 2)
    before = contents(path.parent)
    release(path, 1)
    after, ledger, head = contents(path.parent), path.name, head_file(path).name
    states = []
    for size in range(len(before[ledger]), len(after[ledger])):
        states.append(({**before, ledger: after[ledger][:size]}, 2))  # the line is being written
    written = {**before, ledger: after[ledger]}
    states.append((written, 3))  # it is whole, and nothing is noted
    for size in range(len(after[head]) + 1):
        states.append(({**written, f".{head}.partial": after[head][:size]}, 3))  # the note is being written
    return [*states, (after, 3)]


def put(folder: Path, files: dict[str, bytes]) -> None:
    for old in folder.iterdir():
        old.unlink()
    for name, content in files.items():
        (folder / name).write_bytes(content)
        (folder / name).chmod(0o600)


def test_killed_at_any_moment_of_an_append_it_goes_on_and_forgets_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # the machine itself stays on, and the test fast
    states = states_of_an_append(path)
    assert len(states) > 300
    for state, releases in states:
        put(path.parent, state)
        with Account.open(path, OWN) as account:
            assert account.releases == releases
            assert account.seen == dict(zip(("entries", "head"), read_head(path), strict=True)), "noted at once"
            account.append(released(9))
        assert count(path) == releases + 1
        assert set(contents(path.parent)) == {path.name, head_file(path).name}, "nothing is left over"


def test_killed_while_it_is_begun_an_account_is_refused_until_its_operator_looks(path: Path) -> None:
    whole, ledger, head = contents(path.parent), path.name, head_file(path).name
    put(path.parent, {head: b""})
    assert "There is no ledger" in refusal(path)
    put(path.parent, {head: b"", f".{ledger}.partial": whole[ledger][:50]})
    assert "There is no ledger" in refusal(path)
    for more in ({}, {f".{head}.partial": whole[head][:20]}):
        put(path.parent, {ledger: whole[ledger], head: b"", **more})
        assert "ledger.jsonl.head is damaged" in refusal(path)
    put(path.parent, whole)
    assert count(path) == 0


def test_a_note_that_failed_is_made_up_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with Account.open(path, OWN) as account:
        for releases in (1, 1):  # the second is refused before it counts: the disk is still full
            with monkeypatch.context() as patch:
                patch.setattr(Path, "replace", full)
                with pytest.raises(StorageError, match="No space"):
                    account.append(released())
            assert account.releases == releases
        account.append(released())
        assert account.releases == 2
    assert count(path) == 2
    assert read_head(path)[0] == 3


# --- two processes ------------------------------------------------------------------------------------------------


SPENDER = """
import json, sys, time
from pathlib import Path
from equipoise.ledger.account import Account
path, account, most, entry = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4])
print("ready", flush=True)
sys.stdin.readline()
while True:
    with Account.open(path, account) as one:
        before = one.releases
        if before >= most:
            break
        time.sleep(0.01)  # the distortion is learned
        one.append(entry)
    print(before + 1, flush=True)
    time.sleep(0.06)  # the next message is on its way
"""


@pytest.mark.slow
def test_of_two_processes_at_once_no_release_goes_uncounted_or_past_the_limit(path: Path) -> None:
    most = 30
    command = [sys.executable, "-c", SPENDER, str(path), OWN, str(most), json.dumps(released())]
    processes = [
        subprocess.Popen(command, env=single_threaded(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    told = [[int(line) for line in process.communicate(timeout=120)[0].split()] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert all(told), "both took part"
    assert sorted(told[0] + told[1]) == list(range(1, most + 1)), "each number once, in all"
    assert count(path) == most


def test_a_process_that_waits_gives_up_in_time_and_says_why(path: Path) -> None:
    with Account.open(path, OWN) as account:
        words = "Another process has held the ledger ledger.jsonl for 0.1 seconds."
        assert refusal(path, wait=0.1) == words
        account.append(released())
    assert count(path, wait=0.0) == 1


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.rename(path.with_name("moved"))])
def test_a_ledger_that_is_replaced_while_it_is_held_gets_no_more_lines(
    path: Path, change: Callable[[Path], object]
) -> None:
    content = path.read_bytes()
    with Account.open(path, OWN) as account:
        change(path)
        with pytest.raises(LedgerError, match="replaced while it was in use"):
            account.append(released())
        path.write_bytes(content)
        path.chmod(0o600)
        with pytest.raises(LedgerError, match="replaced while it was in use"):
            account.append(released())
    assert path.read_bytes() == content


def test_a_ledger_that_was_replaced_while_it_was_waited_for_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock that comes free then is on a file that nobody finds any more."""
    release(path, 2)
    old = path.with_name("old")
    shutil.copy2(path, old)
    with contextlib.ExitStack() as holder:
        holder.enter_context(Account.open(path, OWN))

        def replace_and_leave(seconds: float) -> None:
            old.replace(path)
            holder.close()

        monkeypatch.setattr(files.time, "sleep", replace_and_leave)
        with pytest.raises(LedgerError, match="replaced while it was in use"), Account.open(path, OWN):
            pass
    assert count(path) == 2
