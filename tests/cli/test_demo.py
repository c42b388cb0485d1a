"""``equipoise demo``: four ways in words and numbers, a plot and a picture that stand alone, and one sentence."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from equipoise.mechanism import learned_leak
from equipoise.report import demonstration
from tests.helpers import Command, contents, document


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


WAYS = ("none", "pl-identical", "pl-learn", "gaussian-dp")


@pytest.fixture(autouse=True)
def _little_effort(small_mnist: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A few images, and attacks that cost nothing; the real thing is run by the slow tests of a newcomer."""
    little = {**demonstration.ATTACK, "releases": 2, "samples": 10, "candidates": 5, "others": 2}
    little |= {"pairs": 1, "anchors": 1, "around": 4, "tuning": 2, "trials": 2}
    monkeypatch.setattr(demonstration, "ATTACK", little)
    monkeypatch.setattr(demonstration, "GAMES", {**demonstration.GAMES, "games": 4, "among": 5})
    monkeypatch.setattr(learned_leak, "_TOLD", set())


def test_the_demo_ends_with_one_sentence_after_words_numbers_and_places(
    command: Command, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    done = command("demo", "--rounds", "2", "--out", "out")
    assert (done.code, done.err) == (0, "")
    assert not caplog.records, "what learned noise gives away is in the table"
    rows = [re.search(rf"^ *{name}[ @\d.]* +[\d.]+% ", done.out, re.MULTILINE) for name in WAYS]
    assert all(rows), "nothing is cut off in a terminal of 80 columns"
    assert "…" not in done.out
    text = " ".join(done.out.split())
    order = [
        "none: nothing is added", "pl-identical @ 0.98: static", "pl-learn @ 0.98: the paper's", "gaussian-dp @ 2:",
        "records identified", "found: the share", "a demonstration, not a result; docs/frontier.md has",
        "plot: out/paper/accuracy.html", "runs: out/paper out/recommended", "Take away: ",
    ]  # fmt: skip
    assert [text.index(words) for words in order] == sorted(text.index(words) for words in order)
    assert done.out.rstrip().rpartition("\n\n")[2].startswith("Take away: "), "nothing comes after it"
    seen = Resources()
    page = (tmp_path / "out" / "paper" / "accuracy.html").read_text(encoding="utf-8")
    seen.feed(page)
    assert seen.fetched == []
    assert "script" in seen.tags
    assert len(page) > 1_000_000, "plotly itself is inside"
    for line in ("none", "pl-identical, budget 0.98", "pl-learn, budget 0.98"):
        assert f"{line} (seed 1)" in page
    picture = tmp_path / "out" / "paper" / "audit.svg"
    ElementTree.parse(picture)
    assert str(tmp_path) not in picture.read_text()


@pytest.mark.slow
def test_the_demo_as_json_has_everything(command: Command, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    document(command("demo", "--rounds", "3", "--out", "out", "--json"))
    result = document(command("demo", "--rounds", "2", "--out", "out", "--json"))  # replaces the first
    assert {row["rounds"] for row in result["ways"]} == {2, 50}
    assert [row["mechanism"] for row in result["ways"]] == list(WAYS)
    assert [row["limit"] is None for row in result["ways"]] == [True, True, True, False]
    assert result["takeaway"].startswith("Take away: ")
    assert [row["mechanism"] for row in result["paper"]["federations"]] == list(WAYS[:3])
    assert [row["mechanism"] for row in result["recommended"]["federations"]] == list(WAYS[3:])
    assert {row["attack"] for row in result["paper"]["audit"]["attacks"]} == {"matched", "lti"}
    assert result["recommended"]["audit"]["limits"]
    for place in (result["plot"], result["picture"], *result["folders"]):
        assert (tmp_path / place).exists()
    own = {row["mechanism"]: row for row in result["ways"]}
    proved = json.loads((tmp_path / "out" / "recommended" / "guarantee.json").read_text())
    assert (own["gaussian-dp"]["epsilon"], own["gaussian-dp"]["delta"]) == (proved["epsilon"], proved["delta"])
    for row in result["paper"]["federations"]:
        assert own[row["mechanism"]]["accuracy"] == row["accuracy"]


def test_the_demo_refuses_impossible_arguments(command: Command, tmp_path: Path) -> None:
    assert command("demo", "--rounds", "0").code == 11
    assert not (tmp_path / "demo").exists()
    (tmp_path / "file").write_text("x")
    done = command("demo", "--rounds", "1", "--out", "file/inner")
    assert (done.code, done.out) == (17, "")


def test_the_demo_replaces_no_run_of_somebody_else(command: Command, tmp_path: Path) -> None:
    (tmp_path / "runs" / "paper").mkdir(parents=True)
    (tmp_path / "runs" / "paper" / "config.toml").write_text("# Resolved settings of an equipoise run.\n")
    before = contents(tmp_path)
    done = command("demo", "--rounds", "1", "--out", "runs")
    assert (done.code, done.out) == (17, "")
    assert "nothing was touched" in " ".join(done.err.split())
    assert contents(tmp_path) == before
