"""The frontier's picture: whatever is in it, nothing overlaps, nothing is cut off, and everything is named."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import equipoise
from equipoise.errors import DataError, printable
from equipoise.report.frontier_labels import ASCENT, DESCENT, Box, text_width
from equipoise.report.frontier_picture import Mark, Panel, picture
from equipoise.report.frontier_style import DARK, LIGHT
from tests.report.frontier_values import panels

SVG = "{http://www.w3.org/2000/svg}"
VARIANTS = [{"dark": dark, "narrow": narrow} for dark, narrow in product((False, True), repeat=2)]
MARK = Mark("gaussian-dp", "ε 2", 0.75, None, 0.005**0.5, None, role="recommended")


def texts(root: ElementTree.Element) -> list[tuple[str, Box]]:
    """Every text with its box, as wide as it may get."""
    result = []
    for part in root.iter(f"{SVG}text"):
        words, size = part.text or "", float(part.attrib["font-size"])
        width = text_width(words, size, part.attrib["font-weight"] == "700")
        shift = {"start": 0.0, "middle": 0.5, "end": 1.0}[part.attrib["text-anchor"]] * width
        x, y = float(part.attrib["x"]), float(part.attrib["y"])
        result.append((words, Box(x - shift, y - ASCENT * size, x - shift + width, y + DESCENT * size)))
    return result


def marks(root: ElementTree.Element) -> dict[str, tuple[float, float]]:
    """Where the marks are, by what they tell under the pointer."""
    result = {}
    for part in root.iter(f"{SVG}polygon"):
        if len(part):
            points = [tuple(map(float, point.split(","))) for point in part.attrib["points"].split()]
            middle = [(min(values) + max(values)) / 2 for values in zip(*points, strict=True)]
            result[str(part[0].text)] = (middle[0], middle[1])
    return result


def drawn(*shown: Panel, **how: bool) -> ElementTree.Element:
    return ElementTree.fromstring(picture(shown, **how))  # type: ignore[arg-type]


def assert_in_order(root: ElementTree.Element) -> None:
    """No text reaches into another or out of the picture; no mark lies outside."""
    page = Box(0, 0, float(root.attrib["width"]), float(root.attrib["height"]))
    assert root.attrib["viewBox"] == f"0 0 {page.right:g} {page.bottom:g}"
    found = texts(root)
    for words, box in found:
        assert page.holds(box), words
    for (words, box), (others, other) in combinations(found, 2):
        assert not box.grown(-0.1).meets(other), f"{words!r} and {others!r}"  # coordinates are rounded to 0.1
    for x, y in marks(root).values():
        assert 0 < x < page.right
        assert 0 < y < page.bottom


@pytest.mark.parametrize("how", VARIANTS)
@pytest.mark.parametrize("chosen", ["", "ε 2"])
def test_plausible_panels_are_in_order_and_every_family_is_named(how: dict[str, bool], chosen: str) -> None:
    shown = panels(chosen)
    root = ElementTree.fromstring(picture(shown, caption="Three seeds. " * 20, **how))  # type: ignore[arg-type]
    assert_in_order(root)
    said = " ".join(words for words, _ in texts(root))
    for family in shown[0].families():
        assert family in said
    for words in (
        "better",
        "accuracy",
        "found by chance",
        "every record found",
        "MNIST",
        "Fashion-MNIST",
        "never above",
    ):
        assert words in said
    assert said.count("Three seeds.") == 20


def shares() -> st.SearchStrategy[float]:
    return st.one_of(st.floats(0, 1), st.sampled_from([0.0, 0.005, 0.9, 0.95, 1.0]))


def intervals() -> st.SearchStrategy[tuple[float, float] | None]:
    return st.none() | st.tuples(shares(), shares()).map(lambda ends: (min(ends), max(ends)))


@st.composite
def any_panels(draw: st.DrawFn) -> list[Panel]:
    """One to three panels of up to a dozen families with any names."""
    names = st.text(min_size=1, max_size=40).filter(lambda name: bool(name.strip()))
    families = draw(st.lists(names, min_size=1, max_size=12, unique=True))
    roles = {family: draw(st.sampled_from(["recommended", "paper", "baseline", "baseline"])) for family in families}

    def mark(family: str) -> Mark:
        return Mark(
            family, draw(st.text(max_size=8)), draw(shares()), draw(intervals()), draw(shares()), draw(intervals()),
            proved=draw(st.none() | shares()), role=roles[family], chosen=draw(st.integers(0, 9)) == 0,
        )  # fmt: skip

    result = []
    for _ in range(draw(st.integers(1, 3))):
        shown = [mark(family) for family in families for _ in range(draw(st.integers(1, 3)))]
        chance = draw(st.sampled_from([0.5, 0.005, 1e-4]))
        result.append(Panel(draw(st.text(max_size=60)), shown, chance, draw(st.none() | shares())))
    return result


@settings(max_examples=40, deadline=None)
@given(any_panels(), st.booleans(), st.text(max_size=120))
def test_any_panels_are_in_order(shown: list[Panel], narrow: bool, caption: str) -> None:
    root = ElementTree.fromstring(picture(shown, narrow=narrow, caption=caption))
    assert_in_order(root)
    assert set(marks(root)) == {printable(mark.told()) for panel in shown for mark in panel.marks}


@pytest.mark.parametrize(("narrow", "width"), [(False, 1280), (True, 390)])
def test_it_fits_a_page_or_a_phone(narrow: bool, width: int) -> None:
    root = drawn(*panels(), narrow=narrow)
    assert float(root.attrib["width"]) == width
    sizes = [float(part.attrib["font-size"]) for part in root.iter(f"{SVG}text")]
    assert min(sizes) >= 12
    titles = [box for words, box in texts(root) if words in ("MNIST", "Fashion-MNIST")]
    beside = titles[0].top == titles[1].top
    assert beside is not narrow


def test_one_panel_takes_half_the_width_and_three_take_two_rows() -> None:
    one, two = panels()
    assert float(drawn(one).attrib["width"]) < 700
    three = drawn(one, two, replace(one, title="third"))
    tops = [box.top for words, box in texts(three) if words in ("MNIST", "Fashion-MNIST", "third")]
    assert tops[0] == tops[1] < tops[2]


@pytest.mark.parametrize(("dark", "colours"), [(False, LIGHT), (True, DARK)])
def test_the_ground_is_painted_and_the_colours_are_those_of_the_page(dark: bool, colours: object) -> None:
    root = drawn(*panels(), dark=dark)
    ground = next(root.iter(f"{SVG}rect"))
    assert ground.attrib["fill"] == ("#0d1117" if dark else "#ffffff")
    assert (ground.attrib["width"], ground.attrib["height"]) == (root.attrib["width"], root.attrib["height"])
    other = LIGHT if dark else DARK
    assert not {other.text, other.recommended, other.paper} & {part.get("fill", "") for part in root.iter()}


def test_values_stand_where_the_labels_of_the_axes_say() -> None:
    root = drawn(Panel("MNIST", [MARK], 0.005, None))
    middles = [(words, (box.left + box.right) / 2, (box.top + box.bottom) / 2) for words, box in texts(root)]
    high, right = (place[1:] for place in middles if place[0] == "100 %")  # of accuracy, of leakage
    (low,) = (place[1:] for place in middles if place[0] == "70 %")
    (left,) = (place[1:] for place in middles if place[0] == "0.5 %")
    ((x, y),) = marks(root).values()
    assert x == pytest.approx((left[0] + right[0]) / 2, abs=0.2), "the geometric mean of chance and all"
    assert y == pytest.approx(low[1] + (high[1] - low[1]) / 6, abs=2.0), "75 % between 70 and 100"


def test_leakage_below_chance_is_marked_as_such() -> None:
    said = [words for words, _ in texts(drawn(Panel("MNIST", [replace(MARK, leakage=0.0)], 0.005, None)))]
    assert "≤ 0.5 %" in said
    assert "0.5 %" not in said


@pytest.mark.parametrize("least", [5e-324, 1e-310, 0.0])
def test_a_limit_next_to_nothing_is_drawn_at_chance(least: float) -> None:
    """Among floats there are some too small for three digits; the smallest share is none of anybody's."""
    shown = [replace(MARK, strength=name, proved=proved) for name, proved in (("1", least), ("2", 0.005))]
    root = drawn(Panel("MNIST", shown, 0.005, None))
    assert_in_order(root)
    limits = [part.attrib["points"] for part in root.iter(f"{SVG}polygon") if part.attrib["fill"] == LIGHT.ground]
    assert len(limits) == 2
    assert limits[0] == limits[1]
    said = "proved: never above 1e-298 %" if least else "proved: never above 0 %"
    assert [told for told in marks(root) if told.endswith(said)] == [shown[0].told()]


def test_accuracies_below_the_axis_are_said() -> None:
    low = Mark("static", "2", 0.11, None, 0.3, None)
    said = [words for words, _ in texts(drawn(Panel("MNIST", [MARK, low], 0.005, None)))]
    assert "11 %" in said
    assert "below the axis: under 70 %" in said
    assert not [words for words, _ in texts(drawn(Panel("MNIST", [MARK], 0.005, None))) if "below" in words]


def thick(root: ElementTree.Element) -> list[ElementTree.Element]:
    lines = [line for line in root.iter(f"{SVG}line") if line.attrib["stroke"] == LIGHT.recommended]
    return [line for line in lines if line.attrib["stroke-width"] == "4"]


def test_a_family_with_one_mark_has_no_line() -> None:
    assert thick(drawn(Panel("MNIST", [MARK], 0.005, None))) == []
    two = [MARK, replace(MARK, strength="ε 4", accuracy=0.8, leakage=0.3)]
    assert len(thick(drawn(Panel("MNIST", two, 0.005, None)))) == 1


def hollow(root: ElementTree.Element) -> int:
    return sum(
        part.attrib["fill"] == LIGHT.ground and part.attrib["stroke"] == LIGHT.recommended
        for part in root.iter(f"{SVG}polygon")
    )


def test_proved_limits_are_hollow_and_named() -> None:
    assert hollow(drawn(Panel("MNIST", [MARK], 0.005, None))) == 0
    root = drawn(Panel("MNIST", [replace(MARK, proved=0.2)], 0.005, None))
    assert hollow(root) == 1
    assert "proved: never above" in [words for words, _ in texts(root)]


def test_a_choice_without_room_is_named_below() -> None:
    long = replace(MARK, family="defence " * 60, chosen=True)
    said = " ".join(words for words, _ in texts(drawn(Panel("MNIST", [long], 0.005, None), narrow=True)))
    assert "chosen: defence" in said


def test_a_long_name_is_shortened_in_the_legend() -> None:
    long = Mark("defence " * 99, "", 0.8, None, 0.3, None)
    for narrow in (False, True):
        root = drawn(Panel("MNIST", [MARK, long], 0.005, None), narrow=narrow)
        assert_in_order(root)
        assert [words for words, _ in texts(root) if words.startswith("defence defence") and words.endswith("…")]


def test_what_has_no_room_at_its_line_is_explained_below() -> None:
    crowd = [replace(MARK, strength=str(i), leakage=10 ** (-2.3 + 2.3 * i / 60)) for i in range(61)]
    for family, words in ((crowd, "accuracy when unprotected"), (crowd[:1], "unprotected 75 %")):
        assert words in [said for said, _ in texts(drawn(Panel("MNIST", family, 0.005, 0.75)))]
    other = replace(MARK, role="baseline", proved=0.3)
    root = drawn(Panel("MNIST", [other], 0.005, None))
    assert "proved: never above" in [said for said, _ in texts(root)]


def test_families_of_one_role_differ_in_shape() -> None:
    others = [Mark(name, "", 0.8, None, 0.3, None) for name in ("one", "two", "three")]
    root = drawn(Panel("MNIST", others, 0.005, None))
    shapes = [part.attrib["points"] for part in root.iter(f"{SVG}polygon") if len(part)]
    assert len({*shapes}) == 3, "all stand at one place"


def test_readers_who_do_not_see_it_are_told() -> None:
    root = drawn(*panels("ε 2"))
    assert root.attrib["role"] == "img"
    assert [part.tag for part in root][:2] == [f"{SVG}title", f"{SVG}desc"]
    assert root[0].text == "Accuracy against leakage: MNIST, Fashion-MNIST"
    told = root[1].text or ""
    assert "gaussian-dp, scatter-linear (recommended): accuracy 85 % to 96.6 %, leakage 0.5 % to 13 %." in told
    assert "Chosen: gaussian-dp, scatter-linear, ε 2: accuracy 93 %" in told
    assert "Accuracy without protection 95.3 %." in told


def test_every_mark_tells_its_values_under_the_pointer() -> None:
    shown = panels()
    assert set(marks(drawn(*shown))) == {mark.told() for panel in shown for mark in panel.marks}


def test_words_are_escaped() -> None:
    nasty = "<script>&\"'</svg>\0"
    shown = Panel(nasty, [replace(MARK, family=nasty, strength=nasty)], 0.005, None)
    root = ElementTree.fromstring(picture([shown], caption=nasty))
    assert not [part for part in root.iter() if part.tag.endswith("script")]
    assert nasty.replace("\0", "?") in [words for words, _ in texts(root)]


def outputs() -> Iterator[str]:
    code = "from tests.report.frontier_values import panels; from equipoise.report.frontier_picture import picture; "
    root = Path(__file__).parents[2]
    paths = os.pathsep.join([str(Path(equipoise.__file__).parents[1]), str(root)])
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths, "PYTHONIOENCODING": "utf-8"}
        command = [sys.executable, "-c", code + "print(picture(panels('ε 2')), end='')"]
        done = subprocess.run(command, capture_output=True, check=True, env=environment, cwd=root)
        yield done.stdout.decode()


def test_the_same_panels_give_the_same_bytes_in_every_process() -> None:
    assert {*outputs()} == {picture(panels("ε 2"))}


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(DataError, match="accuracy=nan"):
        picture([Panel("MNIST", [replace(MARK, accuracy=float("nan"))], 0.005, None)])
    with pytest.raises(DataError, match="no data set"):
        picture([])
