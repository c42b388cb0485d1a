"""What is printed fits a narrow terminal, marks the choice and names what was rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest
from rich.console import Console

from equipoise.choosing.decision import Decision, Expected, Point, Rejected
from equipoise.choosing.limit import Limit
from equipoise.cli import display
from equipoise.cli.choose_tables import SHOWN, show
from equipoise.engine.settings import Settings

CURVE = [Point(epsilon, 0.8 + epsilon / 100, (0.7, 0.95), 0.01 * epsilon) for epsilon in (1.0, 2.0, 4.0)]
REJECTED = [
    *(Rejected(f"mlp, rate x {i}", "behind after 6 runs", 0.5, 6) for i in range(20)),
    Rejected("lenet-zhu, recommended", "20 points behind the best after a quarter of its rounds: stopped"),
    Rejected("none", "no protection at all", 0.95, 3),
]


def decision() -> Decision:
    return Decision(
        met=True, limit=Limit("epsilon", 2.0), dataset="mnist", settings=Settings.flat(model="mlp", rounds=50),
        mechanism="gaussian-dp", budget=2.0, sigma=14.09839, records=1000,
        expected=Expected(0.9, 0.88, 0.92, 6, 1500, "public records"), unprotected=0.95, identified=0.0190271,
        rejected=REJECTED, curve=CURVE,
    )  # fmt: skip


def printed(found: Decision, columns: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(display, "console", Console(width=columns, force_terminal=False, color_system=None))
    show(found)
    return capfd.readouterr().out


@pytest.mark.parametrize("columns", [80, 120])
def test_every_line_fits(columns: int, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    out = printed(decision(), columns, monkeypatch, capfd)
    assert max(map(len, out.splitlines())) <= columns
    marked = [line for line in out.splitlines() if line.strip().startswith("chosen")]
    assert len(marked) == 1
    assert " 2 " in marked[0]
    assert "82.0%" in marked[0]
    assert "━" in marked[0], "a bar on the same line"


def test_many_that_were_behind_are_counted_not_listed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = printed(decision(), 120, monkeypatch, capfd)
    assert out.count("behind after 6 runs") == SHOWN // 2
    assert f"and {20 - SHOWN // 2} more that were behind" in out
    assert "lenet-zhu, recommended" in out
    assert "no protection at all" in out


def test_nothing_is_marked_where_nothing_meets_the_limit(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    out = printed(replace(decision(), met=False, shortfall="Too strict."), 120, monkeypatch, capfd)
    assert "Nothing meets the limit. Too strict." in out
    assert not [line for line in out.splitlines() if line.strip().startswith("chosen")]
