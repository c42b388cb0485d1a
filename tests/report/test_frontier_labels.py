"""Labels cover neither each other nor what they must avoid, wherever their marks lie."""

from __future__ import annotations

import math
import string
from itertools import combinations
from pathlib import Path

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import ImageFont

from equipoise.report.frontier_labels import APART, Box, Field, Place, Wish, around, shortened, text_width, wrapped

FRAME = Box(0, 0, 400, 300)
POINTS = st.tuples(st.floats(0, 400), st.floats(0, 300))


def wish(*lines: str, at: tuple[float, float] = (200, 150), **more: object) -> Wish:
    return Wish(lines=lines or ["static noise"], size=12, anchors=[at], radius=5, **more)  # type: ignore[arg-type]


def placed(field: Field, wanted: Wish) -> Place:
    place = field.place(wanted)
    assert place is not None
    return place


@pytest.mark.parametrize("face", ["DejaVuSans", "DejaVuSans-Bold"])
def test_no_text_is_wider_than_thought_in_a_wide_font_and_little_narrower(face: str) -> None:
    font = ImageFont.truetype(str(Path(matplotlib.get_data_path(), "fonts/ttf", f"{face}.ttf")), 1000)
    bold = face.endswith("Bold")
    for words in (
        "gaussian-dp, scatter-linear", "the paper's learned noise", "ε 0.25", "PL 0.995", string.ascii_letters,
        string.digits, "leakage: records identified among 200 by the strongest attack", "found by chance",
    ):  # fmt: skip
        assert 1.0 <= text_width(words, 1000, bold) / font.getlength(words) <= 1.16, words


@given(st.text(max_size=60), st.floats(20, 300))
def test_lines_fit_and_lose_no_word_that_fits(words: str, room: float) -> None:
    lines = wrapped(words, 10, room)
    assert all(text_width(line, 10) <= room for line in lines)
    if all(text_width(word, 10) <= room for word in words.split()):
        assert " ".join(lines).split() == words.split()
    short = shortened(words, 10, room)
    assert text_width(short, 10) <= room
    assert short == words or short.endswith("…")


@given(POINTS, POINTS)
def test_a_line_crosses_a_box_when_a_point_of_it_lies_within(
    start: tuple[float, float], end: tuple[float, float]
) -> None:
    box = Box(100, 80, 300, 200)
    steps = [i / 200 for i in range(201)]
    points = [(start[0] + part * (end[0] - start[0]), start[1] + part * (end[1] - start[1])) for part in steps]
    if any(box.left < x < box.right and box.top < y < box.bottom for x, y in points):
        assert box.crossed((start, end))
    elif not box.grown(2.1).holds(Box(*start, *start)) and not any(around(point, 2.1).meets(box) for point in points):
        assert not box.crossed((start, end))


@given(st.lists(POINTS, min_size=1, max_size=25))
def test_labels_of_any_marks_lie_apart_and_within_the_frame(points: list[tuple[float, float]]) -> None:
    field = Field(FRAME, marks=[around(point, 5) for point in points])
    places = [place for point in points if (place := field.place(wish(at=point)))]
    assert places
    for place in places:
        assert FRAME.holds(place.box)
    for one, other in combinations(places, 2):
        assert not one.box.grown(APART).meets(other.box)
        assert not any(a.leader and b.box.crossed(a.leader) for a, b in ((one, other), (other, one)))


def test_labels_of_crowded_marks_are_pushed_apart_and_led_back_to_them() -> None:
    spots = [(200.0 + 12 * i, 150.0) for i in range(4)]
    field = Field(FRAME, marks=[around(spot, 5) for spot in spots])
    places = [placed(field, wish(at=spot)) for spot in spots]
    assert places[0].leader is None
    led = [(place, spot) for place, spot in zip(places, spots, strict=True) if place.leader]
    assert led
    for place, spot in led:
        assert place.leader
        begin, end = place.leader
        assert math.dist(begin, spot) == pytest.approx(6), "begins at the mark"
        assert end == place.box.nearest(spot)


def test_without_pushes_or_at_a_low_limit_a_label_stands_near_or_nowhere() -> None:
    field = Field(FRAME, taken=[Box(150, 155, 250, 200), Box(205, 100, 280, 155), Box(150, 100, 195, 155)])
    assert field.place(wish(pushes=0)) is None
    assert field.place(wish(limit=0.5)) is None
    place = placed(field, wish())
    assert place.leader, "led through the gap"
    assert place.box.bottom < 100
    walled = Field(FRAME, taken=[around((200, 150), 40)])
    assert walled.place(wish()) is None, "no leader runs through other labels"


def test_a_label_goes_where_no_mark_and_no_line_is() -> None:
    free = placed(Field(FRAME), wish())
    marked = placed(Field(FRAME, marks=[free.box]), wish())
    assert not marked.box.meets(free.box)
    middle = (free.box.top + free.box.bottom) / 2
    for kind in ("strong", "muted"):
        line = ((free.box.left, middle), (free.box.right, middle))
        crossed = placed(Field(FRAME, **{kind: [line]}), wish())  # type: ignore[arg-type]
        assert not crossed.box.crossed(line)


def test_a_label_does_not_stand_nearer_to_something_else() -> None:
    free = placed(Field(FRAME), wish())
    other = (free.box.right + 1, (free.box.top + free.box.bottom) / 2)
    place = placed(Field(FRAME), wish(others=[other]))
    assert place.box.away(other) >= place.away
    assert place.box != free.box


def test_a_wide_label_stays_within_the_frame() -> None:
    words = "x" * 50
    for x in (5, 200, 395):
        assert FRAME.holds(placed(Field(FRAME), wish(words, at=(x, 150))).box)
    nearly = "x" * 54
    assert 380 < text_width(nearly, 12) < 400
    assert FRAME.holds(placed(Field(FRAME), wish(nearly, at=(5, 150))).box), "moved aside"
    assert Field(FRAME).place(wish("x" * 200)) is None


def test_no_label_stands_on_a_leader() -> None:
    free = placed(Field(FRAME), wish())
    middle = (free.box.top + free.box.bottom) / 2
    leader = ((free.box.left, middle), (free.box.right, middle))
    assert not placed(Field(FRAME, leaders=[leader]), wish()).box.crossed(leader)
    field = Field(FRAME, taken=[Box(150, 155, 250, 200), Box(205, 100, 280, 155), Box(150, 100, 195, 155)])
    assert [placed(field, wish()).leader] == field.leaders, "remembered for the labels to come"
