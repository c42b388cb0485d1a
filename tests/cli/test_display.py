"""Progress and tables: quiet where asked, and counting to the end."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from equipoise.cli import display


def test_a_quiet_command_shows_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    with display.progress(3, "training", quiet=True) as step:
        step(3)
    with display.attack_progress(quiet=True) as told, display.job_progress(quiet=True) as job:
        assert told is None
        assert job is None
    assert capfd.readouterr() == ("", "")


def test_progress_takes_rounds_attacks_and_jobs_and_leaves_no_line_behind(
    capfd: pytest.CaptureFixture[str], consoles: None
) -> None:
    _all_kinds()
    assert capfd.readouterr() == ("", ""), "done within ten seconds: nothing to say, no blank line either"


def test_progress_into_a_file_is_a_line_now_and_then(
    capfd: pytest.CaptureFixture[str], consoles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(0, 1000, 6))
    monkeypatch.setattr(display.time, "monotonic", lambda: float(next(clock)))
    with display.progress(100, "training", quiet=False) as step:
        for round_number in range(20, 70, 10):
            step(round_number)
    assert capfd.readouterr().err.splitlines() == [
        "training: round 30 of 100 after 12 s, about 84 s left", "training: round 50 of 100 after 24 s, about 40 s left"
    ]  # fmt: skip
    with display.attack_progress(quiet=False) as told, display.job_progress(quiet=False) as job:
        for _ in range(3):
            told("lti", 0.5)
            job("training", 3, 4)
    assert "attacking: lti after 24 s" in capfd.readouterr().err


@pytest.fixture(name="consoles")
def _consoles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(display, "errors", Console(stderr=True, force_terminal=False, width=80))


def _all_kinds() -> None:
    with display.progress(3, "training", quiet=False) as step:
        step(1)
    with display.attack_progress(quiet=False) as told:
        told("lti", 0.5)
    with display.job_progress(quiet=False) as job:
        job("training", 1, 2)
        job("attacking", 3, 4)


def test_a_terminal_has_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(display, "errors", console)
    _all_kinds()
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(word in text for word in ("training", "attacking: lti"))


def test_a_bar_of_rounds_begins_with_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(display, "errors", console)
    with display.progress(3, "training", quiet=False):
        assert console.file.getvalue() == ""  # type: ignore[attr-defined]


def test_tables_fold_text_and_keep_numbers_whole() -> None:
    table = display.table("[a] title", ("name", "number"), numbers=("number",))
    display.add_row(table, "[bold]a name of many words " * 6, "123456.789")
    console = Console(file=io.StringIO(), width=40)
    console.print(table)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "[a] title" in text
    assert "[bold]a" in text, "no markup"
    assert "…" not in text
    assert "123456.789" in text
    assert max(map(len, text.splitlines())) <= 40


def test_an_interval_of_a_share_stays_within_what_shares_can_be() -> None:
    assert display.share_range(-0.2, 0.5) == "0.0 to 50.0%"
    assert display.share_range(0.9, 1.3) == "90.0 to 100.0%"
    assert display.share_range(None, None) == "-"
