"""``equipoise demo``: a table, a plot and a picture that stand alone."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from equipoise.report import demonstration
from tests.helpers import Command, document


class Resources(HTMLParser):
    """Everything a browser would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        wanted = {"src", "srcset", "data", "poster", "action"} | ({"href"} if tag != "a" else set())
        self.fetched += [f"{tag} {key}={value}" for key, value in attrs if key in wanted]


@pytest.fixture(autouse=True)
def _little_effort(small_mnist: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few images, and attacks that cost nothing; the real thing is run by the slow tests."""
    little = {**demonstration.ATTACK, "releases": 2, "samples": 10, "candidates": 5, "others": 2}
    little |= {"pairs": 1, "anchors": 1, "around": 4, "tuning": 2, "trials": 2}
    monkeypatch.setattr(demonstration, "ATTACK", little)


@pytest.mark.slow
def test_the_demo_makes_a_table_and_a_plot_that_stands_alone(command: Command, tmp_path: Path) -> None:
    for _ in range(2):  # the second time it replaces the first
        done = command("demo", "--rounds", "5", "--out", tmp_path / "out")
        assert done.code == 0
        for name in ("none", "pl-identical", "pl-learn"):
            assert re.search(rf"^ *{name} ", done.out, re.MULTILINE), "nothing is cut off in a terminal of 80 columns"
        assert "…" not in done.out
        assert "accuracy.html" in done.out.replace("\n", "")
        assert "a demonstration, not a result" in " ".join(done.out.split())
    page = (tmp_path / "out" / "accuracy.html").read_text(encoding="utf-8")
    seen = Resources()
    seen.feed(page)
    assert seen.fetched == []
    assert "script" in seen.tags
    assert "Plotly.newPlot" in page
    assert len(page) > 1_000_000, "plotly itself is inside"
    for line in ("none", *(f"{name}, budget {b}" for name in ("pl-identical", "pl-learn") for b in (0.97, 0.99))):
        assert f"{line} (seed 1)" in page


@pytest.mark.slow
def test_the_demo_as_json(command: Command, tmp_path: Path) -> None:
    result = document(command("demo", "--rounds", "5", "--out", "out", "--json"))
    assert [row["mechanism"] for row in result["federations"]] == ["none"] + ["pl-identical"] * 2 + ["pl-learn"] * 2
    assert (tmp_path / result["plot"]).exists()


def test_the_demo_refuses_impossible_arguments(command: Command, tmp_path: Path) -> None:
    assert command("demo", "--rounds", "0").code == 11
    (tmp_path / "file").write_text("x")
    done = command("demo", "--rounds", "1", "--out", "file/inner")
    assert (done.code, done.out) == (17, "")
