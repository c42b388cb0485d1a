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

LINES = [
    "none",
    "pl-identical, budget 0.97",
    "pl-identical, budget 0.99",
    "pl-learn, budget 0.97",
    "pl-learn, budget 0.99",
]


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
    for place in re.findall(r"(?:plot|run folder): (\S+)", done.stdout):
        assert (folder / place).exists(), place
    assert [path.name for path in folder.iterdir()] == ["demo"], "nothing lies about outside its folder"
    rows = re.findall(r"^ *([a-z-]+) +([\d.-]+) +([\d.]+)% ", done.stdout, re.MULTILINE)
    assert [(name, budget) for name, budget, _ in rows] == [
        ("none", "-"), ("pl-identical", "0.97"), ("pl-identical", "0.99"), ("pl-learn", "0.97"), ("pl-learn", "0.99"),
    ]  # fmt: skip


def test_the_demo_attacks_what_it_trained(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, done = demo
    result = json.loads((folder / "demo" / "audit.json").read_text())
    got = {
        (row["mechanism"], row["budget"], row["role"]): row["identification"]
        for row in result["attacks"]
        if row["attack"] == "lti" and row["control"] != "negative"
    }
    assert got["none", None, "own"] > 0.5 > got["pl-identical", 0.99, "own"]
    assert got["pl-learn", 0.99, "own"] > got["pl-learn", 0.99, "static, equal lower bound"]
    assert result["targets"] == "public"
    assert "what the attacks got" in done.stdout
    assert (folder / "demo" / "audit.svg").read_text().count("<image") > 12


def test_the_demo_shows_what_it_is_about(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = demo
    result = json.loads((folder / "demo" / "result.json").read_text())["federations"]
    accuracy = {(row["mechanism"], row["budget"]): row["accuracy"] for row in result}
    assert accuracy["none", None] > 0.8
    for budget in (0.97, 0.99):
        assert accuracy["pl-identical", budget] < accuracy["pl-learn", budget] <= accuracy["none", None]
    assert accuracy["pl-learn", 0.97] > accuracy["pl-identical", 0.97] + 0.2


def test_the_plot_is_one_file_that_needs_no_network(demo: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    folder, _ = demo
    text = (folder / "demo" / "accuracy.html").read_text(encoding="utf-8")
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
    rounds = len((folder / "demo" / "metrics.jsonl").read_text().splitlines()) // len(LINES)
    assert rounds == 12
