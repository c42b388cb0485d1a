"""Progress and tables: quiet where asked, and counting to the end."""

from __future__ import annotations

import pytest

from equipoise.cli import display


def test_a_quiet_command_shows_no_bar(capfd: pytest.CaptureFixture[str]) -> None:
    with display.progress(3, "training", quiet=True) as step:
        step(3)
    with display.attack_progress(quiet=True) as told, display.job_progress(quiet=True) as job:
        assert told is None
        assert job is None
    assert capfd.readouterr() == ("", "")


def test_progress_takes_rounds_attacks_and_jobs() -> None:
    with display.progress(3, "training", quiet=False) as step:
        step(1)
    with display.attack_progress(quiet=False) as told:
        told("lti", 0.5)
    with display.job_progress(quiet=False) as job:
        job("training", 1, 2)
        job("attacking", 3, 4)


@pytest.mark.parametrize(("budget", "text"), [(None, "-"), (0.98, "0.98"), (200.0, "200"), ([1, 2], "[1, 2]")])
def test_a_budget_as_people_write_it(budget: object, text: str) -> None:
    assert display.budget_text(budget) == text
