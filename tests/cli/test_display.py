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


LONGEST = "fashion-mnist-scans pl-identical @ 0.98765 (seed 123) at 20000, static, equal lower bound: membership"


@pytest.fixture(name="terminal")
def _terminal(monkeypatch: pytest.MonkeyPatch) -> Console:
    """Standard error is a terminal of 80 columns, standard output is not looked at."""
    console = Console(file=io.StringIO(), force_terminal=True, width=80, legacy_windows=False, _environ={})
    monkeypatch.setattr(display, "errors", console)
    monkeypatch.setattr(display, "console", Console(file=io.StringIO(), width=80))
    return console


@pytest.mark.parametrize("share", [0.0, 0.37, 0.995, 1.0])
def test_the_bar_of_an_audit_fits_80_columns(terminal: Console, share: float) -> None:
    """One line with the share, the time left and as much of the label as there is room for."""
    with display.audit_progress(quiet=False) as progress:
        progress.planned("an audit", 36000.0)
        progress(LONGEST, 36000.0 * share)
        assert progress.bar is not None
        shown = Console(file=io.StringIO(), width=80)
        shown.print(progress.bar.get_renderable())
    (line,) = shown.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(line) <= 80
    assert f"{100 * share:3.0f} %" in line
    assert ("left" in line) == (share < 1)
    assert "fashion-mnist-scans pl-ide" in line


def test_a_label_is_no_markup(terminal: Console) -> None:
    with display.audit_progress(quiet=False) as progress:
        progress.planned("an audit", 10.0)
        progress("[bold]mine[/bold]", 1.0)
        assert progress.bar is not None
        shown = Console(file=io.StringIO(), width=80)
        shown.print(progress.bar.get_renderable())
    assert "[bold]mine" in shown.file.getvalue()  # type: ignore[attr-defined]


def test_an_audit_in_a_pipe_tells_share_and_time_left_every_ten_seconds(
    capfd: pytest.CaptureFixture[str], consoles: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    with display.audit_progress(quiet=False) as progress:
        progress.planned("what it will do", 200.0)
        for _ in range(12):
            clock[0] += 4
            progress("a cell: lti", 8.0)
    out, err = capfd.readouterr()
    assert "what it will do" in out
    lines = err.splitlines()
    assert [line.partition(" after ")[0] for line in lines] == ["12%", "24%", "36%", "48%"]
    assert lines[-1] == "48% after 48 s, 57 s left: a cell: lti"


def test_the_time_left_begins_as_planned_and_then_goes_by_the_pace() -> None:
    progress = display.AuditProgress()
    progress.total = 1000.0
    assert progress.left(0.0) == 1000
    progress.done = 500.0
    assert progress.left(1000.0) == pytest.approx(500 * 2, rel=0.02), "twice as slow as planned"
    progress.done = 1001.0
    assert progress.left(5.0) == 0


def test_a_quiet_audit_leaves_standard_output_alone_and_tells_lines_even_in_a_terminal(
    terminal: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: clock[0])
    with display.audit_progress(quiet=True) as progress:
        progress.planned("what it will do", 200.0)
        assert progress.bar is None
        for _ in range(3):
            clock[0] += 4
            progress("a cell: lti", 8.0)
    assert display.console.file.getvalue() == ""  # type: ignore[attr-defined]
    assert terminal.file.getvalue() == "12% after 12 s, 2 min left: a cell: lti\n"  # type: ignore[attr-defined]


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
