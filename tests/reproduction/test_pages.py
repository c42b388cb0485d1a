"""The results page: one file that needs nothing else, with a place for every artefact, marked where it is no result."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from equipoise.reproduction.artefacts.registry import ARTEFACTS
from equipoise.reproduction.claims import CLAIMS, RULE, Tables
from equipoise.reproduction.pages import artefact_text, page_html, page_text
from equipoise.reproduction.sections import Section, section
from equipoise.reproduction.tables import Table

VOID = {"meta", "br", "hr", "img", "link", "input", "area", "base", "col", "embed", "source", "track", "wbr"}


class Page(HTMLParser):
    """Tags that open and close in order, identifiers, and everything that would be fetched."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[str] = []
        self.tags: list[str] = []
        self.text: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in VOID:
            self.open.append(tag)
        self._look(attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._look(attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def _look(self, attrs: list[tuple[str, str | None]]) -> None:
        for key, value in attrs:
            if key == "id":
                self.ids.append(value or "")
            if key in ("href", "xlink:href", "src", "srcset", "data", "action", "poster", "background"):
                self.links.append(value or "")


@pytest.fixture(scope="module")
def quick_html(quick_page: Path) -> str:
    return (quick_page / "index.html").read_text()


@pytest.fixture(scope="module")
def page(quick_html: str) -> Page:
    return Page(quick_html)


@pytest.fixture(scope="module")
def committed_page(committed: Path) -> Page:
    return Page((committed / "index.html").read_text())


@pytest.fixture(params=["page", "committed_page"])
def either(request: pytest.FixtureRequest) -> Page:
    result: Page = request.getfixturevalue(request.param)
    return result


def test_the_page_has_an_anchor_for_every_artefact(either: Page) -> None:
    assert set(ARTEFACTS) | {"claims", "artefacts"} <= set(either.ids)
    assert {f"#{name}" for name in ARTEFACTS} <= set(either.links), "and the overview leads there"


def test_every_link_leads_somewhere(either: Page) -> None:
    assert {link[1:] for link in either.links if link.startswith("#")} <= set(either.ids)


def test_no_identifier_occurs_twice(committed_page: Page) -> None:
    assert len(committed_page.ids) == len(set(committed_page.ids)), "thirteen figures in one page"


def test_the_page_fetches_nothing(either: Page) -> None:
    assert [link for link in either.links if not link.startswith(("#", "data:image/png;base64,"))] == []
    assert not {"script", "link", "iframe", "object", "embed", "img"} & set(either.tags)


@pytest.mark.parametrize("where", ["quick_page", "committed"])
def test_no_style_fetches_anything(where: str, request: pytest.FixtureRequest) -> None:
    text = (request.getfixturevalue(where) / "index.html").read_text()
    assert "@import" not in text
    assert set(re.findall(r"url\((.)", text)) <= {"#"}
    names = re.findall(r"\burl\(#([^)\"']+)\)", text)
    assert set(names) <= set(Page(text).ids), "clip paths are those of the same figure"


def test_the_page_shows_thirteen_figures_and_every_claim(either: Page) -> None:
    assert either.tags.count("figure") == len(ARTEFACTS) - 1
    assert either.tags.count("svg") == len(ARTEFACTS) - 1
    told = "\n".join(either.text)
    assert all(claim in told for claim in CLAIMS)
    assert "chosen by fit" in told
    assert "(epsilon, delta) of any kind" in told, "among what is not claimed"


def test_quick_is_marked_everywhere(quick_page: Path, quick_html: str) -> None:
    assert "QUICK: fewer rounds and seeds" in quick_html.split("<h2")[0], "above everything else"
    assert "QUICK: fewer rounds and seeds" in (quick_page / "README.md").read_text().split("## ")[0]
    assert (quick_page / "README.md").read_text().count("QUICK: fewer rounds and seeds") >= len(ARTEFACTS)
    for name in ARTEFACTS:
        assert "QUICK: fewer rounds and seeds" in (quick_page / name / "README.md").read_text()
        assert "says nothing about the paper" in (quick_page / name / "README.md").read_text()


def test_full_results_are_not_marked(committed: Path) -> None:
    for path in [*committed.glob("*/README.md"), committed / "README.md", committed / "index.html"]:
        assert "QUICK" not in path.read_text(), path


@pytest.mark.parametrize("name", list(ARTEFACTS))
def test_the_readme_of_an_artefact_says_what_it_is(quick_page: Path, name: str) -> None:
    text, about = (quick_page / name / "README.md").read_text(), ARTEFACTS[name]
    for said in (about.title, about.claim, about.rule, f"`equipoise reproduce {name} --quick`", "chosen by fit"):
        assert said in text
    assert ("![" in text) == (name != "configuration")
    for line in text.splitlines():
        if line.startswith("|"):
            assert line.endswith("|")


def test_tables_are_rectangular(quick_page: Path) -> None:
    for path in [*quick_page.glob("*/README.md"), quick_page / "README.md"]:
        for block in re.findall(r"(?:^\|.*\n)+", path.read_text(), re.MULTILINE):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}
            assert len(widths) == 1, (path.name, block[:200])


def test_the_markdown_page_leads_to_every_artefact(quick_page: Path) -> None:
    text = (quick_page / "README.md").read_text()
    for name in ARTEFACTS:
        assert f'<a id="{name}"></a>' in text
        assert f"({name}/README.md)" in text
        assert (quick_page / name / "README.md").is_file()
    for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", text):
        assert (quick_page / target).is_file()


# --- parts -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def section_of_cap(synthetic: Tables) -> Section:
    return section(ARTEFACTS["cap"], {**synthetic["cap"], "scale": "full"})


def claim(**change: Any) -> dict[str, Any]:
    return {"claim": "It <b>works</b>", "verdict": "holds", "evidence": "3 < 4 & 5", **change}


def test_what_is_shown_is_escaped(section_of_cap: Section) -> None:
    result = page_html(["<script>alert(1)</script>"], [section_of_cap], [claim()], {}, quick=False)
    assert "<script>" not in result
    assert "It &lt;b&gt;works&lt;/b&gt;" in result
    assert "3 &lt; 4 &amp; 5" in result
    Page(result)


@pytest.mark.parametrize(
    ("verdict", "word", "colour"),
    [("holds", "holds", "good"), ("fails", "**fails**", "bad"), ("not shown", "*not shown*", "open")],
)
def test_verdicts_are_words_and_colours(section_of_cap: Section, verdict: str, word: str, colour: str) -> None:
    result = page_html([], [section_of_cap], [claim(verdict=verdict)], {}, quick=False)
    assert f'<span class="{colour}">{verdict}</span>' in result
    text = page_text([], [section_of_cap], [claim(verdict=verdict)], {})
    assert f"| It <b>works</b> | {word} | 3 < 4 & 5 |" in text
    assert RULE in text
    assert RULE in result


def test_only_quick_pages_carry_the_banner(section_of_cap: Section) -> None:
    for quick in (True, False):
        result = page_html([], [section_of_cap], [], {}, quick=quick)
        assert ('<p class="quick">' in result) == quick


def test_two_figures_with_the_same_identifiers_do_not_meet(synthetic: Tables) -> None:
    svg = '<?xml version="1.0"?><svg><defs><g id="a"/></defs><use xlink:href="#a"/><g clip-path="url(#a)"/></svg>'
    sections = [section(ARTEFACTS[name], {**synthetic[name], "scale": "full"}) for name in ("cap", "gaps")]
    result = page_html([], sections, [], {"cap": svg, "gaps": svg}, quick=False)
    assert "<?xml" not in result
    for name in ("cap", "gaps"):
        assert f'id="{name}-a"' in result
        assert f'xlink:href="#{name}-a"' in result
        assert f"url(#{name}-a)" in result
    Page(result)


def test_an_artefact_without_a_figure_has_none_in_its_text(section_of_cap: Section) -> None:
    assert "figure.svg" not in artefact_text(section_of_cap, "equipoise reproduce cap", "", figure=False)
    assert "figure.svg" in artefact_text(section_of_cap, "equipoise reproduce cap", "", figure=True)


def test_a_table_may_hold_anything() -> None:
    odd = Section(ARTEFACTS["cap"], "fine", [Table("t", ["a"], [["<x>"], ["agrees"], ["[b](#cap)"]])])
    result = page_html([], [odd], [], {}, quick=False)
    assert "<td>&lt;x&gt;</td>" in result
    assert '<td><span class="good">agrees</span></td>' in result
    assert '<td><a href="#cap">b</a></td>' in result
