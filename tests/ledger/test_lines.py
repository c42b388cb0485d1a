"""A line of the ledger: its keys and their order, its hash, and what a reader refuses."""

from __future__ import annotations

import hashlib
import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest

from equipoise.errors import LedgerError
from equipoise.ledger.lines import FIELDS, LARGEST, OF_A_RUN, START, check_entry, normal, read_line, seal, significant
from tests.ledger.entries import ACCOUNT, ASKED, HEADER, LINE, RESERVE, RESET, a_round, answered, asked, chained, of_run


def entries_of(content: bytes) -> list[dict[str, Any]]:
    """What the lines say, each read after the one before it."""
    results, previous = [], START
    for n, line in enumerate(content.splitlines(keepends=True)):
        entry, previous = read_line(line, n, previous)
        results.append(entry)
    return results


# --- writing ------------------------------------------------------------------------------------------------------


def test_a_line_is_its_entry_and_the_hash_of_all_before_it() -> None:
    entry = {"n": 3, "kind": "example", "budget": [0.5, None], "text": "\u00e4"}
    previous = "ab" * 32
    line, digest = seal(entry, previous)
    body = b'{"n":3,"kind":"example","budget":[0.5,null],"text":"\\u00e4"}'
    assert digest == hashlib.sha256(previous.encode() + body).hexdigest()
    assert line == body[:-1] + b',"hash":"' + digest.encode() + b'"}\n'
    assert seal(entry, START)[1] != digest
    with pytest.raises(ValueError, match="JSON"):
        seal({"n": 1, "budget": math.nan}, START)


def test_what_is_sealed_is_read_back() -> None:
    line, digest = seal(normal(a_round(4), 7), START)
    result, same = read_line(line, 7, START)
    assert same == digest
    assert result == normal(a_round(4), 7)
    assert list(result) == list(FIELDS["round"])


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (12.3456789, 12.34568),
        (7, 7.0),
        (1e-300, 1e-300),
        (0.0, 0.0),
        (math.nan, None),
        (-math.inf, None),
        (1.7e308, None),
        (LARGEST, LARGEST),
        (None, None),
    ],
)
def test_numbers_have_seven_digits_or_are_none(value: float | None, kept: float | None) -> None:
    assert significant(value) == kept


def test_an_entry_may_be_given_in_any_order() -> None:
    row = {"reason": "is stale", "accepted": False, "intensity": math.inf, "client": "7", "lower": 1}
    result = normal(dict(reversed(answered(1, [row]).items())), 5)
    assert list(result) == list(FIELDS["answered"])
    assert result["n"] == 5
    assert json.dumps(result["releases"][0]) == (
        '{"client": "7", "lower": 1.0, "intensity": null, "accepted": false, "reason": "is stale"}'
    )
    assert datetime.fromisoformat(result["at"]).tzinfo == UTC
    assert result["norm"] is None
    check_entry(result, 5)


def test_a_release_of_a_run_names_it_after_its_kind() -> None:
    result = normal(dict(reversed(of_run("7").items())), 5)
    assert list(result) == list(OF_A_RUN["asked"])
    check_entry(result, 5)


@pytest.mark.parametrize(("round_number", "budget"), [(1, 0.96), (4, 0.96), (5, [0.98, 0.99])])
def test_the_budget_of_a_schedule_is_the_one_in_force(round_number: int, budget: Any) -> None:
    plan = {"rounds": [1, 5], "values": [0.96, [0.98, 0.99]]}
    assert normal(asked(round_number, ["a"], budget=plan), 1)["budget"] == budget


def test_what_is_not_known_is_kept_for_the_check_to_refuse() -> None:
    result = normal(a_round(1, releases=[{"client": "0", "accepted": True, "private": 1.0}], more=2), 1)
    assert result["releases"][0]["private"] == 1.0
    assert result["more"] == 2
    with pytest.raises(LedgerError, match="Line 2 of the ledger has an unknown kind or other keys"):
        check_entry(result, 1)


# --- reading ------------------------------------------------------------------------------------------------------


def test_the_lines_that_are_broken_below_are_good_ones() -> None:
    for header in (HEADER, ACCOUNT):
        for line in (LINE, ASKED, RESERVE, RESET, ASKED.replace('"federation"', '"run":"7","federation"')):
            assert entries_of(chained([header, line])) == [json.loads(header), json.loads(line)]


def test_a_line_is_read_at_its_place_alone() -> None:
    header, line = chained([HEADER, LINE]).splitlines(keepends=True)
    _, head = read_line(header, 0, START)
    with pytest.raises(LedgerError, match="Line 3 of the ledger has the number 1, not 2"):
        read_line(line, 2, head)
    with pytest.raises(LedgerError, match="Line 2 of the ledger was changed, or the one before it was"):
        read_line(line, 1, START)
    with pytest.raises(LedgerError, match="Line 2 of the ledger was changed"):
        read_line(line.replace(b'"round":1', b'"round":2'), 1, head)


@pytest.mark.parametrize(
    "bodies",
    [
        [HEADER.replace('"schema":1', '"schema":2')],
        [HEADER.replace('"schema":1', '"schema":true')],
        [HEADER.replace('"schema":1', '"schema":1.0')],
        [HEADER.replace("null", "7")],
        [ACCOUNT.replace('"5d1c0e77"', "null")],
        [ACCOUNT.replace('"5d1c0e77"', "7")],
        [ACCOUNT.replace('"schema":1', '"schema":2')],
        [ACCOUNT.replace('"schema":1,', "")],
        [ACCOUNT.replace('"kind":"account"', '"kind":"ledger"')],
        [HEADER.replace('"kind":"ledger"', '"kind":"account"')],
        [HEADER, ACCOUNT.replace('"n":0', '"n":1')],
        [HEADER.replace('"x"', "[]")],
        [HEADER.replace('"n":0', '"n":00')],
        [HEADER.replace('"note"', '"n":0,"note"')],
        [HEADER.replace('"kind":"ledger"', '"kind":["ledger"]')],
        [LINE.replace('"n":1', '"n":0')],
        [HEADER, HEADER.replace('"n":0', '"n":1')],
        *(
            [HEADER, LINE.replace(old, new)]
            for old, new in [
                ('"kind":"round"', '"kind":"rounds"'),
                ('"kind":"round"', '"kind":null'),
                ('"kind":"round"', '"kind":"asked"'),
                ('"federation":0', '"federation":-1'),
                ('"federation":0', '"federation":true'),
                ('"federation":0', '"federation":"0"'),
                ('"federation":0,', ""),
                ('"round":1', '"round":1.0'),
                ('"round":1', '"round":' + "9" * 30),
                ('"mechanism":"m"', '"mechanism":{}'),
                ('"norm":null', '"norm":2'),
                ('"budget":1', '"budget":"1"'),
                ('"budget":1', '"budget":true'),
                ('"budget":1', '"budget":[]'),
                ('"budget":1', '"budget":[[1]]'),
                ('"budget":1', '"budget":' + "9" * 400),
                ('"budget":1', '"budget":' + "9" * 5000),
                ('"client":"0"', '"client":0'),
                ('"client":"0",', ""),
                ('"client":"0"', '"client":"\\ud800"}'),
                ('"upper":2.5', '"upper":"2.5"'),
                ('"upper":2.5', '"upper":NaN'),
                ('"upper":2.5', '"upper":-Infinity'),
                ('"upper":2.5', '"upper":1e999'),
                ('"upper":2.5', '"upper":2.50'),
                ('"upper":2.5', '"upper": 2.5'),
                ('"upper":2.5', '"upper":2.5,"more":1'),
                ('"upper":2.5', '"upper":2.5,"upper":2.5'),
                ('"accepted":false', '"accepted":true'),
                ('"accepted":false', '"accepted":0'),
                ('"accepted":false', '"accepted":[]'),
                ('"reason":"r"', '"reason":null'),
                (',"reason":"r"', ""),
                ("[{", '["0",{'),
                ("[{", "[[],{"),
                ('"m"', '"' + chr(228) + '"'),
                ('"releases":[', '"releases":{"a":['),
                ('"releases":', '"releases":' + "[" * 3000 + "]" * 3000 + ',"x":'),
                ('"releases":', '"releases":' + '{"a":' * 3000 + "1" + "}" * 3000 + ',"x":'),
                ("}]}", "}]}}"),
                ("}]}", "}] }"),
            ]
        ),
        [HEADER, LINE.replace('"n":1', '"n":2')],
        [HEADER, ASKED.replace('["0"]', "[0]")],
        [HEADER, ASKED.replace('["0"]', '"0"')],
        [HEADER, ASKED.replace('"at":""', '"at":0')],
        [ACCOUNT, ASKED.replace('"federation"', '"run":7,"federation"')],
        [ACCOUNT, ASKED.replace('"at":""', '"at":"","run":"7"')],
        [ACCOUNT, LINE.replace('"federation"', '"run":"7","federation"')],
        [ACCOUNT, RESET.replace('"why"', '""')],
        [ACCOUNT, RESET.replace('"why"', "null")],
        [ACCOUNT, RESET.replace('"why"', '"' + "y" * 1001 + '"')],
        [ACCOUNT, RESET.replace('"at":""', '"at":null')],
        [ACCOUNT, RESET.replace('"reason":"why",', "")],
        [ACCOUNT, RESERVE.replace("2.0", "2")],
        [ACCOUNT, RESERVE.replace('"sigma":3.5,', "")],
        [ACCOUNT, RESERVE.replace('"sigma":3.5', '"sigma":-3.5')],
        [ACCOUNT, RESERVE.replace('"at":""', '"at":0')],
        [RESERVE.replace('"n":1', '"n":0')],
    ],
    ids=lambda bodies: bodies[-1][:150],
)
def test_lines_that_say_something_else_are_refused_even_with_hashes_that_fit(bodies: list[str]) -> None:
    with pytest.raises(LedgerError, match=f"Line {len(bodies)} of the ledger"):
        entries_of(chained(bodies))
