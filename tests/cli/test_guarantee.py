"""``equipoise guarantee``: words, table, JSON and picture, and its exit codes. The numbers are tests/privacy's."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from equipoise import guarantee
from equipoise.privacy.guarantee import percent_up
from equipoise.privacy.limits import Scope, limit
from equipoise.report.guarantee_picture import guarantee_picture
from tests.helpers import Command, entry_point


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Run ``equipoise ARGUMENTS`` by its entry point, in a folder of its own; this one may state an epsilon."""
    return entry_point(tmp_path, monkeypatch, capfd)


BUDGET = ("guarantee", "--epsilon", "2", "--delta", "1e-5", "--rounds", "50")


def test_plain_sentences_come_first_and_then_a_table(command: Command) -> None:
    done = command(*BUDGET)
    assert (done.code, done.err) == (0, "")
    text = " ".join(done.out.split())
    assert text.startswith(" ".join(guarantee(epsilon=2.0, rounds=50).sentences()))
    rows = [" ".join(line.split()) for line in done.out.splitlines() if line.strip().endswith("%")]
    assert rows == [
        "identified, 1 of 200 0.5 % 0.613 % 1.91 %",
        "hits at 0.1 % false alarms 0.1 % 0.127 % 0.482 %",
        "hits at 1 % false alarms 1 % 1.21 % 3.41 %",
        "hits at 10 % false alarms 10 % 11.4 % 21.8 %",
        "hits minus false alarms 0 % 2.83 % 19.9 %",
    ]
    for said in ("noise multiplier: 14.09839", "Not said: anything about replacing a record", "docs/guarantee.md"):
        assert said in text


@pytest.mark.parametrize("rate", [1.0, 0.25])
def test_the_limits_of_one_release_are_those_of_its_audit(command: Command, rate: float) -> None:
    """Hits minus false alarms: the largest that any rate of false alarms leaves."""
    run = (2.0, 50, rate)
    out = command("guarantee", "--sigma", "2", "--rounds", "50", "--sampling-rate", rate).out
    rows = [" ".join(line.split()) for line in out.splitlines()]
    scopes: tuple[Scope, ...] = ("release",) if rate == 1 else ("release", "release_known")
    one = " ".join(percent_up(limit(0.01, *run, scope)) for scope in scopes)
    assert any(row.startswith(f"hits at 1 % false alarms 1 % {one} ") for row in rows)
    gaps = [max(limit(place / 1000, *run, scope) - place / 1000 for place in range(1000)) for scope in scopes]
    assert any(row.startswith(f"hits minus false alarms 0 % {' '.join(map(percent_up, gaps))} ") for row in rows)


def test_poisson_sampling_has_a_column_more(command: Command) -> None:
    out = command("guarantee", "--sigma", "2", "--rounds", "50", "--sampling-rate", "0.25", "--unit", "group").out
    found = guarantee(sigma=2.0, rounds=50, sampling_rate=0.25, unit="group")
    (row,) = [" ".join(line.split()) for line in out.splitlines() if "identified" in line]
    assert row == "identified, 1 of 200 0.5 % 0.849 % 1.9 % 5.24 %"
    assert " ".join(found.sentences()) in " ".join(out.split())
    assert "drawn for it" in out
    assert "drawn for it" not in command(*BUDGET).out


def test_as_json_it_is_the_document_and_nothing_else(command: Command) -> None:
    done = command(*BUDGET, "--candidates", "10", "--json")
    assert (done.code, done.err) == (0, "")
    assert json.loads(done.out) == guarantee(epsilon=2.0, delta=1e-5, rounds=50, candidates=10).plain()


def test_a_picture_is_written_and_named(command: Command, tmp_path: Path) -> None:
    done = command(*BUDGET, "--picture", "deep/limits.svg")
    assert done.out.splitlines()[-1] == "written: deep/limits.svg"
    text = (tmp_path / "deep" / "limits.svg").read_text(encoding="utf-8")
    assert text == guarantee_picture(guarantee(epsilon=2.0, rounds=50))
    ElementTree.fromstring(text)
    assert json.loads(command(*BUDGET, "--picture", "other.svg", "--json").out)["sigma"] == 14.09839
    assert (tmp_path / "other.svg").read_text(encoding="utf-8") == text


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("--epsilon 0 --rounds 50", 14, "Expected epsilon=0.0 to be a finite number > 0."),
        ("--epsilon nan --rounds 50", 14, "Expected epsilon=nan"),
        ("--epsilon 2 --rounds 50 --delta 1", 14, "Expected delta=1.0 to lie between 1e-100 and 1."),
        ("--epsilon 1e-9 --delta 1e-12 --rounds 50", 14, "more than 1e+06 times the clip norm"),
        ("--epsilon 2 --rounds 0", 11, "Expected rounds=0 to be >= 1."),
        ("--rounds 50", 11, "Expected epsilon or sigma."),
        ("--epsilon 2 --sigma 3 --rounds 50", 11, "not both"),
        ("--epsilon 2 --rounds 50 --sampling-rate 0", 11, "Expected sampling_rate=0.0"),
        ("--epsilon 2 --rounds 50 --candidates 1", 11, "Expected candidates=1"),
        ("--epsilon 2 --rounds 50 --unit person", 11, "Expected unit='person' to be record or group."),
        ("--epsilon 2", 2, "Missing option '--rounds'."),
        ("--epsilon two --rounds 50", 2, "Invalid value for '--epsilon'"),
    ],
)
def test_what_is_refused_with_one_line_and_a_code(command: Command, arguments: str, code: int, told: str) -> None:
    done = command("guarantee", *arguments.split())
    assert (done.code, done.out) == (code, "")
    assert told in " ".join(done.err.split())
    assert "Traceback" not in done.err
    if code > 2:
        assert json.loads(command("guarantee", *arguments.split(), "--json").out)["error"]["cause"] in done.err


def test_a_picture_that_cannot_be_written(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    done = command(*BUDGET, "--picture", "file/limits.svg")
    assert (done.code, done.out) == (17, "")
    assert "file is a file, not a folder" in done.err
