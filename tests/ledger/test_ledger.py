"""The ledger: any change of it is noticed, any interruption survived, and every release counted."""

from __future__ import annotations

import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.errors import ConfigError, EquipoiseError, LedgerError, LimitError, StorageError
from equipoise.ledger import ledger as ledgers
from equipoise.ledger.ledger import Ledger, verify
from tests.ledger.entries import ASKED, HEADER, LINE, ROW, a_round, answered, asked, chained, silent


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.jsonl"


@pytest.fixture
def whole(path: Path) -> Ledger:
    """A header and five rounds."""
    ledger = Ledger.open(path, "seeded")
    ledger.append([a_round(round_number) for round_number in (1, 2, 3)])
    ledger.append([a_round(round_number) for round_number in (4, 5)])
    return ledger


def bodies_of(path: Path) -> list[str]:
    return [line[: line.index(',"hash":')] + "}" for line in path.read_text().splitlines()]


# --- the format ---------------------------------------------------------------------------------------------------


def test_the_lines_are_what_the_documents_say(whole: Ledger, path: Path) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert list(lines[0]) == ["n", "schema", "kind", "experiment", "note", "hash"]
    assert (lines[0]["schema"], lines[0]["kind"], lines[0]["experiment"]) == (1, "ledger", "seeded")
    assert "do not compose" in lines[0]["note"]
    keys = ["n", "kind", "federation", "round", "mechanism", "budget", "norm", "releases", "hash"]
    assert all(list(line) == keys for line in lines[1:])
    assert [line["n"] for line in lines] == list(range(6))
    assert lines[2]["releases"][1] == {**ROW, "client": "1", "intensity": 9.285714}, "seven digits"
    assert path.read_bytes() == chained(bodies_of(path)), "SHA-256 of the hash before and the line without its own"
    assert (whole.entries, whole.bytes, whole.head) == (6, path.stat().st_size, lines[-1]["hash"])


# --- changes are noticed ------------------------------------------------------------------------------------------


def test_a_whole_ledger_is_verified(whole: Ledger, path: Path) -> None:
    result = verify(path)
    assert (result.entries, result.head, result.bytes, result.torn) == (6, whole.head, whole.bytes, 0)
    assert result.experiment == "seeded"
    assert result.counts == whole.counts
    assert verify(path, whole.head, 6) == result


def test_any_changed_byte_is_noticed(path: Path) -> None:
    ledger = Ledger.open(path, "seeded")
    ledger.append([a_round(1, clients=1), a_round(2, clients=1)])
    content = path.read_bytes()
    for place in range(len(content)):
        for other in {content[place] ^ 1, ord("\n")} - {content[place]}:
            path.write_bytes(content[:place] + bytes([other]) + content[place + 1 :])
            with pytest.raises(LedgerError):
                verify(path, ledger.head, ledger.entries)
            if place < len(content) - 1:
                with pytest.raises(LedgerError):
                    verify(path)
    assert verify(path).torn > 0, "a last line without its end is what an interrupted write leaves"


def moved(lines: list[bytes], change: str, place: int) -> list[bytes]:
    if change == "removed":
        return lines[:place] + lines[place + 1 :]
    if change == "repeated":
        return lines[: place + 1] + lines[place:]
    if change == "swapped":
        return [*lines[:place], lines[place + 1], lines[place], *lines[place + 2 :]]
    if change == "inserted":
        return [*lines[:place], lines[place].replace(b'"round":', b'"round":1'), *lines[place:]]
    return [*lines[:place], b"\n", *lines[place:]]  # an empty line


@pytest.mark.parametrize("change", ["removed", "repeated", "swapped", "inserted", "empty"])
@pytest.mark.parametrize("place", range(5))
def test_lines_that_moved_are_noticed(path: Path, whole: Ledger, change: str, place: int) -> None:
    path.write_bytes(b"".join(moved(path.read_bytes().splitlines(keepends=True), change, place)))
    copied = change == "repeated" or (change == "inserted" and place == 0)  # the first of two equal lines is good
    with pytest.raises(LedgerError, match=f"Line {place + 1 + copied} of the ledger "):
        verify(path)


def test_a_line_that_was_edited_is_named(whole: Ledger, path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b'"accepted":true', b'"accepted":false', 1)
    path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerError, match="Line 4 of the ledger was changed"):
        verify(path)


def test_an_edited_line_with_a_new_hash_of_its_own_breaks_the_next_one(whole: Ledger, path: Path) -> None:
    lines, bodies = path.read_bytes().splitlines(keepends=True), bodies_of(path)
    bodies[3] = bodies[3].replace('"client":"1"', '"client":"2"')
    lines[3] = chained(bodies[:4]).splitlines(keepends=True)[3]
    path.write_bytes(b"".join(lines))
    with pytest.raises(LedgerError, match="Line 5 of the ledger was changed, or the one before it"):
        verify(path)


def test_a_new_end_and_a_rewritten_ledger_are_noticed_by_their_heads_alone(whole: Ledger, path: Path) -> None:
    bodies = bodies_of(path)
    bodies[5] = bodies[5].replace('"client":"1"', '"client":"2"')
    path.write_bytes(chained(bodies))
    assert verify(path).entries == 6
    with pytest.raises(LedgerError, match=f"does not lead to the head {whole.head}"):
        verify(path, whole.head)
    with pytest.raises(LedgerError, match="does not lead to the head"):
        verify(path, whole.head, 6)


@pytest.mark.parametrize("kept", range(1, 6))
def test_a_tail_that_was_cut_off_is_noticed_where_its_length_or_head_is_known(
    whole: Ledger, path: Path, kept: int
) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:kept]))
    assert verify(path).entries == kept
    with pytest.raises(LedgerError, match=f"ends after {kept} of 6 lines"):
        verify(path, entries=6)
    with pytest.raises(LedgerError, match=f"ends after {kept} of 6 lines"):
        verify(path, whole.head, 6)
    with pytest.raises(LedgerError, match="does not lead to the head"):
        verify(path, whole.head)


def test_a_ledger_may_grow_beyond_a_head_that_was_noted(whole: Ledger, path: Path) -> None:
    head, entries = whole.head, whole.entries
    whole.append([a_round(6), a_round(7)])
    assert verify(path, head).beyond == verify(path, head, entries).beyond == verify(path, entries=entries).beyond == 2
    assert verify(path).beyond == 0
    with pytest.raises(LedgerError, match="does not lead to the head"):
        verify(path, head, entries + 1)


def test_heads_at_earlier_lines_are_noted_where_they_are_asked_for(whole: Ledger, path: Path) -> None:
    heads = [json.loads(line)["hash"] for line in path.read_text().splitlines()]
    assert verify(path).heads == {}
    assert verify(path, heads_at=[0, 1, 4, 6, 7]).heads == {1: heads[0], 4: heads[3], 6: heads[5]}


# --- what is not a ledger -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "content",
    [b"", b"\n", b"x", b"[]\n", b"null\n", b"{}\n", b'{"n":0}\n', b'{"n":0,\n', b"\x00" * 99 + b"\n", b"\xff\xfe\n"],
    ids=repr,
)
def test_other_files_are_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LedgerError):
        verify(path)


@given(content=st.binary(max_size=300))
def test_whatever_the_bytes_are_the_error_is_a_typed_one(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "garbage.jsonl"
    for result in (content, content + b"\n", chained([HEADER]) + content + b"\n"):
        path.write_bytes(result)
        with pytest.raises(LedgerError):
            verify(path)


@given(body=st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
def test_whatever_json_it_is_the_error_is_a_typed_one(tmp_path_factory: pytest.TempPathFactory, body: Any) -> None:
    path = tmp_path_factory.getbasetemp() / "json.jsonl"
    for key in ("federation", "round", "mechanism", "budget", "norm", "releases", "clients", "at"):
        for line in (LINE, ASKED):
            entry = json.loads(line)
            if key in entry:
                path.write_bytes(chained([HEADER, json.dumps({**entry, key: body}, separators=(",", ":"))]))
                try:
                    verify(path)
                except LedgerError:
                    continue


def test_a_line_that_is_too_long_is_refused_without_being_read(path: Path) -> None:
    with path.open("wb") as file:
        file.write(chained([HEADER]) + b'{"n":1,')
        file.truncate(1 << 34)  # 16 GiB that take no space
    with pytest.raises(LedgerError, match="Line 2 of the ledger is longer than"):
        verify(path)


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "missing", "missing/ledger.jsonl"):
        with pytest.raises(LedgerError, match="There is no ledger"):
            verify(tmp_path / name)
    with pytest.raises(LedgerError):
        Ledger.open(tmp_path / "pipe", None)


# --- writing and going on -----------------------------------------------------------------------------------------


def test_killed_at_any_byte_of_an_append_it_goes_on_to_the_same_chain(
    whole: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)  # the machine itself stays on, and the test fast
    content, before = path.read_bytes(), whole.bytes
    new = [a_round(6), a_round(7)]
    whole.append(new)
    final, lines = path.read_bytes(), path.read_bytes().splitlines(keepends=True)
    for size in range(before, len(final)):
        path.write_bytes(final[:size])
        again = Ledger.open(path, "seeded")
        done = 1 if size >= before + len(lines[6]) else 0  # lines of the append that are whole stay
        assert again.entries == 6 + done
        assert path.read_bytes() == content + b"".join(lines[6 : 6 + done])
        again.append(new[done:])
        assert path.read_bytes() == final
        assert again.counts == whole.counts


def test_killed_at_any_byte_of_the_header_it_begins_anew(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda handle: None)
    header = Ledger.open(path, "seeded").path.read_bytes()
    for size in range(len(header)):
        path.write_bytes(header[:size])
        assert Ledger.open(path, "seeded").entries == 1
        assert path.read_bytes() == header


@pytest.mark.parametrize("content", [b"something else", b"my notes\n", b'{"n":0,"schema":9', b"\x00"])
def test_a_file_of_something_else_is_never_written_over(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(LedgerError):
        Ledger.open(path, "seeded")
    assert path.read_bytes() == content


def test_a_ledger_of_another_kind_of_run_is_refused(whole: Ledger, path: Path) -> None:
    before = path.read_bytes()
    with pytest.raises(LedgerError, match="of the experiment 'seeded', not None"):
        Ledger.open(path, None)
    assert path.read_bytes() == before


def test_a_changed_ledger_is_not_gone_on_with(whole: Ledger, path: Path) -> None:
    content = path.read_bytes().replace(b'"round":2', b'"round":9', 1)
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="Line 3"):
        Ledger.open(path, "seeded")
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "bad",
    [
        {"kind": "other"},
        {"kind": "ledger"},
        a_round(6, extra=1),
        a_round(6, budget="0.98"),
        a_round(6, budget=float("nan")),
        a_round(6, releases=[{**ROW, "client": 5}]),
        a_round(6, releases=[{**ROW, "accepted": False}]),
        a_round(6, releases=[{**ROW, "private": 1.0}]),
        a_round(6, releases=[{**ROW, "lower": "7"}]),
        a_round(6, releases=[{**ROW, "lower": [7]}]),
        {key: value for key, value in a_round(6).items() if key != "budget"},
    ],
    ids=str,
)
def test_an_entry_that_is_none_is_not_written(whole: Ledger, path: Path, bad: dict[str, Any]) -> None:
    before, counts = path.read_bytes(), json.dumps(str(whole.counts))
    with pytest.raises(LedgerError, match="Line 8"):
        whole.append([a_round(6), bad])
    assert path.read_bytes() == before
    assert json.dumps(str(whole.counts)) == counts
    whole.append([a_round(6)])
    assert verify(path).head == whole.head


def test_a_write_that_failed_can_be_tried_again(
    whole: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def full(handle: int) -> None:
        os.ftruncate(handle, os.fstat(handle).st_size - 50)
        raise OSError(28, "No space left on device")

    before = whole.head, whole.entries, whole.bytes, str(whole.counts)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(StorageError, match=r"Cannot write ledger\.jsonl: No space left on device"):
            whole.append([a_round(6), a_round(7)])
    assert (whole.head, whole.entries, whole.bytes, str(whole.counts)) == before
    whole.append([a_round(6)])
    result = verify(path, whole.head, 7)
    assert (result.counts, result.torn) == (whole.counts, 0)


@pytest.mark.parametrize("change", [lambda c: c + c, lambda c: c[:-9], lambda c: b""])
def test_a_ledger_that_another_process_changed_is_left_alone(
    whole: Ledger, path: Path, change: Callable[[bytes], bytes]
) -> None:
    content = change(path.read_bytes())
    path.write_bytes(content)
    with pytest.raises(LedgerError, match="changed while it was in use"):
        whole.append([a_round(6)])
    assert path.read_bytes() == content


def test_a_folder_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError):
        Ledger.open(tmp_path / "file" / "ledger.jsonl", None)


def test_nothing_is_appended_or_dropped_through_a_link(whole: Ledger, path: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.jsonl"
    path.rename(elsewhere)
    with elsewhere.open("ab") as file:
        file.write(b"torn")
    content = elsewhere.read_bytes()
    path.symlink_to(elsewhere)
    with pytest.raises(StorageError, match="is a link"):
        Ledger.open(path, "seeded")
    with pytest.raises(StorageError, match="is a link"):
        whole.append([a_round(6)])
    assert elsewhere.read_bytes() == content


def test_a_line_that_would_be_too_long_is_not_written(
    whole: Ledger, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = path.stat().st_size
    monkeypatch.setattr(ledgers, "LONGEST", 500)
    with pytest.raises(LedgerError, match="would be longer than 500 bytes"):
        whole.append([a_round(6, clients=20)])
    assert path.stat().st_size == size


# --- counting and the limit ---------------------------------------------------------------------------------------


def test_releases_are_counted_by_federation_and_client(path: Path) -> None:
    ledger = Ledger.open(path, "seeded")
    refused = {**ROW, "client": "1", "intensity": None, "accepted": False, "reason": "not finite"}
    ledger.append([a_round(1), a_round(1, federation=1), a_round(2, releases=[ROW, refused])])
    for result in (ledger.counts, verify(path).counts):
        assert set(result) == {(0, "0"), (0, "1"), (1, "0"), (1, "1")}
        one, two = result[0, "0"], result[0, "1"]
        assert (one.asked, one.received, one.accepted, one.refused) == (2, 2, 2, 0)
        assert (two.asked, two.received, two.accepted, two.refused) == (2, 2, 1, 1)
        assert (one.low, one.high) == (8.142857, 9.0)
        assert (two.low, two.high) == (9.142857, 9.142857), "of accepted releases alone"
        assert one.budgets == {("pl-learn", 0.98): 2}
        assert result[1, "1"].asked == 1


def test_the_total_is_over_federations_and_clients(path: Path) -> None:
    ledger = Ledger.open(path, "seeded")
    assert ledger.summary.total().asked == 0
    refused = {**ROW, "client": "1", "intensity": None, "accepted": False, "reason": "not finite"}
    ledger.append([a_round(1), a_round(1, federation=1, budget=0.5), a_round(2, releases=[ROW, refused])])
    total = ledger.summary.total()
    assert (total.asked, total.received, total.accepted, total.refused) == (6, 6, 5, 1)
    assert (total.low, total.high) == (8.142857, 9.142857)
    assert total.budgets == {("pl-learn", 0.98): 4, ("pl-learn", 0.5): 2}
    assert ledger.counts[0, "0"].asked == 2, "which are left as they are"


def test_a_round_that_was_asked_twice_counts_twice(path: Path) -> None:
    ledger = Ledger.open(path, None)
    ledger.append([asked(1, ["a", "b"])])
    ledger = Ledger.open(path, None)  # the server was killed, and asks again
    ledger.append([asked(1, ["a", "b"])])
    ledger.append([answered(1, [{**ROW, "client": "a"}, silent("b")])])
    ledger.append([asked(2, ["a"]), answered(2, [{"client": "a", "accepted": False, "reason": "is empty"}])])
    for result in (ledger.counts, Ledger.open(path, None).counts):
        one, two = result[0, "a"], result[0, "b"]
        assert (one.asked, one.received, one.accepted, one.refused) == (3, 2, 1, 1)
        assert (two.asked, two.received, two.accepted, two.refused) == (2, 0, 0, 0)


def test_a_list_of_budgets_belongs_to_numbered_clients_and_else_the_largest_counts(path: Path) -> None:
    ledger = Ledger.open(path, None)
    ledger.append([asked(1, ["0", "1", "2", "8714022"], budget=[0.5, 0.9])])
    given = {client: list(one.budgets) for (_, client), one in ledger.counts.items()}
    assert given == {
        "0": [("pl-learn", 0.5)],
        "1": [("pl-learn", 0.9)],
        "2": [("pl-learn", 0.9)],
        "8714022": [("pl-learn", 0.9)],
    }


def test_the_limit_stops_before_the_round_that_would_pass_it_and_not_earlier(path: Path) -> None:
    ledger = Ledger.open(path, None, limit=3)
    for round_number in (1, 2, 3):
        ledger.permit(["a", "b"], round_number)
        ledger.append([asked(round_number, ["a", "b"] if round_number != 2 else ["a"])])
    ledger.permit(["b"], 4)
    ledger.permit(["a"], 4, federation=1)
    for again in (ledger, Ledger.open(path, None, limit=3)):
        with pytest.raises(LimitError) as stopped:
            again.permit(["b", "a"], 4)
    assert stopped.value.cause == (
        "Client a of federation 0 was asked for 3 release(s); round 4 would pass the limit of 3."
    )
    assert "saved" in stopped.value.remedy
    Ledger.open(path, None, limit=4).permit(["a", "b"], 4)
    Ledger.open(path, None).permit(["a", "b"], 4)


def test_a_client_that_is_asked_twice_in_a_round_counts_twice(path: Path) -> None:
    ledger = Ledger.open(path, None, limit=1)
    ledger.permit(["a"], 1)
    with pytest.raises(LimitError):
        ledger.permit(["a", "a"], 1)


def test_a_release_that_was_asked_for_and_never_came_counts_for_the_limit(path: Path) -> None:
    ledger = Ledger.open(path, None, limit=1)
    ledger.append([asked(1, ["a"]), answered(1, [silent("a")])])
    with pytest.raises(LimitError):
        ledger.permit(["a"], 2)


@pytest.mark.parametrize("limit", [0, -1, True, 2.0, "3"])
def test_a_limit_that_is_none_is_a_config_error(path: Path, limit: Any) -> None:
    with pytest.raises(ConfigError, match="Expected limit="):
        Ledger.open(path, None, limit=limit)
    assert not path.exists()


# --- size ---------------------------------------------------------------------------------------------------------


def peak(action: Callable[[], Any]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_memory_grows_with_clients_and_not_with_rounds(tmp_path: Path) -> None:
    def written(rounds: int) -> Path:
        ledger = Ledger.open(tmp_path / f"{rounds}.jsonl", "seeded")
        for start in range(0, rounds, 50):
            ledger.append([a_round(start + i, clients=4) for i in range(50)])
        return ledger.path

    short, long = written(50), written(1000)
    assert long.stat().st_size > 400_000
    verify(short)  # what is made once is made
    few, many = peak(lambda: verify(short)), peak(lambda: verify(long))
    assert many < few + 50_000
    assert peak(lambda: Ledger.open(long, "seeded")) < few + 50_000


def test_every_error_is_one_of_ours() -> None:
    assert issubclass(LedgerError, EquipoiseError)
    assert (LedgerError.exit_code, LimitError.exit_code) == (19, 20)
