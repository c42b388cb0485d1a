"""The first minute of someone new: one command, in an empty folder, with what is installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.helpers import single_threaded

pytestmark = pytest.mark.slow

LINES = ["none", "pl-identical, budget 0.98", "pl-learn, budget 0.98"]


class Page(HTMLParser):
    """The scripts of a page, and every address it would load something from."""

    def __init__(self, text: str):
        super().__init__()
        self.scripts: list[str] = []
        self.loads: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")
        self.loads += [
            value or "" for key, value in attrs if key in ("src", "srcset") or (key, tag) == ("href", "link")
        ]

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.scripts[-1] += data


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    folder = tmp_path_factory.mktemp("newcomer")
    script = Path(sys.executable).with_name("equipoise")  # the command as it is installed
    environment = {**single_threaded(), "COLUMNS": "80"}
    done = subprocess.run(
        [str(script), "demo"], cwd=folder, env=environment, capture_output=True, text=True, timeout=280, check=False
    )
    return folder, done


def test_the_demo_ends_well_and_says_where_everything_is(
    demo: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, done = demo
    assert done.returncode == 0, done.stderr
    assert all(re.match(r"(training|attacking): .* after \d+ ", line) for line in done.stderr.splitlines())
    places = re.findall(r"^(?:plot|what the server sees|runs): (.+)$", done.stdout, re.MULTILINE)
    assert len(places) == 3
    for place in " ".join(places).split():
        assert (folder / place).exists(), place
    assert [path.name for path in folder.iterdir()] == ["demo"], "nothing lies about outside its folder"
    rows = re.findall(r"^ *([a-z-]+)(?: @ ([\d.]+))? +([\d.]+)% ", done.stdout, re.MULTILINE)
    assert [(name, budget) for name, budget, _ in rows] == [
        ("none", ""), ("pl-identical", "0.98"), ("pl-learn", "0.98"), ("gaussian-dp", "2")
    ]  # fmt: skip


def test_the_demo_attacks_what_it_trained(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = demo
    result = json.loads((folder / "demo" / "paper" / "audit.json").read_text())
    got = {
        (row["attack"], row["mechanism"]): row["identification"]
        for row in result["attacks"]
        if row["role"] == "own" and row["control"] != "negative"
    }
    assert got["lti", "none"] > 0.5 > got["lti", "pl-identical"], "the positive control"
    assert got["matched", "none"] > 0.9
    assert got["matched", "pl-learn"] > got["matched", "pl-identical"] + 0.2
    assert not any(row.get("control_failed") for row in result["attacks"])
    assert result["targets"] == "public"
    assert (folder / "demo" / "paper" / "audit.svg").read_text().count("<image") > 8
    (played,) = json.loads((folder / "demo" / "recommended" / "audit.json").read_text())["limits"]
    assert not played["above"]
    assert played["undistorted"] > 0.9, "the positive control"


def test_the_demo_shows_what_it_is_about(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = demo
    paper, own = (
        json.loads((folder / "demo" / name / "result.json").read_text())["federations"]
        for name in ("paper", "recommended")
    )
    accuracy = {row["mechanism"]: row["accuracy"] for row in [*paper, *own]}
    assert accuracy["none"] > 0.8
    assert accuracy["pl-identical"] < accuracy["pl-learn"] <= accuracy["none"]
    assert accuracy["gaussian-dp"] > accuracy["pl-learn"] + 0.1
    last = " ".join(done.stdout.rstrip().rpartition("\n\n")[2].split())
    assert last.startswith("Take away: gaussian-dp on fixed features was the most accurate of the three protected ways")
    assert "whereas the attack found" in last


def test_the_plot_is_one_file_that_needs_no_network(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = demo
    text = (folder / "demo" / "paper" / "accuracy.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.loads == []
    assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", re.sub(r"(?s)<script.*?</script>", "", text))
    library = max(page.scripts, key=len)
    assert len(library) > 1_000_000
    assert "plotly.js v" in library
    (drawing,) = [script for script in page.scripts if "Plotly.newPlot(" in script and script is not library]
    names = re.findall(r'"name":"([^"]+)"', drawing)
    assert names == [f"{line} (seed 1)" for line in LINES]
    assert "MNIST, 4 clients, 480 rounds, seed 1" in drawing
    rounds = len((folder / "demo" / "paper" / "metrics.jsonl").read_text().splitlines()) // len(LINES)
    assert rounds == 12
