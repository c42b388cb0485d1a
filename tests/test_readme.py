"""What the README and the pages under docs/ and studies/ say is what the committed results say."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.helpers import load_script

ROOT = Path(__file__).parents[1]


SCRIPT = load_script(ROOT / "scripts" / "fill_readme.py")


@pytest.mark.parametrize("name", SCRIPT.PAGES)
def test_the_tables_are_those_of_the_results(name: str) -> None:
    text = (ROOT / name).read_text()
    assert SCRIPT.filled(name, text) == text


@pytest.mark.parametrize("name", SCRIPT.PAGES)
def test_every_table_is_filled(name: str) -> None:
    text = (ROOT / name).read_text()
    emptied = re.sub(r"(<!-- [a-z ]+: begin -->).*?(<!-- [a-z ]+: end -->)", r"\1\n\2", text, flags=re.DOTALL)
    assert emptied != text
    assert emptied.count(": begin -->\n<!--") == len(SCRIPT.PAGES[name])
    assert SCRIPT.filled(name, emptied) == text


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("README.md", r"\d+\.\d \(unprotected: \d+\.\d\)"),
        ("docs/results.md", r"\d+\.\d \(\d+\.\d-\d+\.\d\)"),
        ("docs/results.md", r"\d+\.\d ± \d+\.\d"),
    ],
)
def test_a_changed_number_would_be_noticed(name: str, number: str) -> None:
    text = (ROOT / name).read_text()
    changed = re.sub(number, "99.9", text, count=1)
    assert changed != text
    assert SCRIPT.filled(name, changed) == text


def test_the_readme_stays_short() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 120
    assert sum(line.startswith("|") for line in lines) <= 10


def test_the_readme_names_the_accuracies_of_its_first_command() -> None:
    (told,) = re.findall(r"private accuracy: begin -->\n(.*?)<!--", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    shown = [float(number) for number in re.findall(r"\d\d\.\d", told)]
    cells = SCRIPT.read("studies", "gaussian_dp", "accuracy.json")["cells"]
    own = {(cell["dataset"], cell["epsilon"]): cell["accuracy"] for cell in cells if cell["model"] == "scatter-linear"}
    places = [(dataset, epsilon) for dataset in ("mnist", "fmnist") for epsilon in (1.0, 2.0, 4.0, 8.0, None)]
    assert shown == pytest.approx([100 * own[place] for place in places], abs=0.051)


def test_every_local_link_of_the_documents_exists() -> None:
    for document in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "reproduction").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


@pytest.mark.parametrize("name", ["docs/guarantees.md", "docs/bounds.md"])
def test_what_pages_say_of_gamma_is_what_the_study_counted(name: str) -> None:
    """In how many subproblems gamma is too large, at the loosest and the strictest budget of PL-Learn."""
    rows = [
        row for row in SCRIPT.read("studies", "bounds", "bounds.json")["rows"]
        if row["setting"] == "as configured" and "subproblems" in row
    ]  # fmt: skip
    words = " ".join((ROOT / name).read_text().split())
    for budget in (0.995, 0.96):
        parts = [row["subproblems"] for row in rows if row["budget"] == budget]
        (share,) = {f"{part['count'] - part['covered']} of {part['count']}" for part in parts}
        assert re.search(rf"{share}( subproblems)? at( a budget of)? {budget}", words), (budget, share)


def test_guarantees_call_proved_what_has_a_proof_and_name_the_tests_of_the_rest() -> None:
    text = (ROOT / "docs" / "guarantees.md").read_text()
    parts = {part.split("\n")[0]: part for part in re.split(r"^## ", text, flags=re.MULTILINE)}
    for name, mark in (("Proved", r"\*Proof\*"), ("Tested", r"`tests/")):
        points = re.split(r"^- ", parts[name], flags=re.MULTILINE)[1:]
        assert len(points) >= 5
        assert [point[:40] for point in points if not re.search(mark, point)] == []
    for path in re.findall(r"`(tests/[^`]+)`", text):
        assert (ROOT / path).is_file(), path
