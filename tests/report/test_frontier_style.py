"""Colours can be read and told apart by every eye; shapes differ; words cannot break the picture."""

from __future__ import annotations

from itertools import combinations
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest

from equipoise.report.frontier_labels import Box
from equipoise.report.frontier_style import DARK, LIGHT, NARROW, SHAPES, Colours, Ink

BLIND = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
}
"""Machado, Oliveira and Fernandes (2009), on linear RGB."""


def linear(colour: str) -> npt.NDArray[np.float64]:
    values = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def contrast(one: str, other: str) -> float:
    """As WCAG 2 defines it."""
    low, high = sorted(float(linear(colour) @ [0.2126, 0.7152, 0.0722]) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("colours", [LIGHT, DARK])
def test_text_can_be_read_and_marks_can_be_seen(colours: Colours) -> None:
    for text in (colours.text, colours.quiet, colours.recommended, colours.paper):
        assert contrast(text, colours.ground) >= 4.5
    assert contrast(colours.mark, colours.ground) >= 3


@pytest.mark.parametrize("colours", [LIGHT, DARK])
@pytest.mark.parametrize("kind", BLIND)
def test_the_two_colours_and_the_grey_differ_for_every_eye(colours: Colours, kind: str) -> None:
    seen = [
        np.clip(np.array(BLIND[kind]) @ linear(c), 0, 1) for c in (colours.recommended, colours.paper, colours.mark)
    ]
    encoded = [np.where(c <= 0.0031308, 12.92 * c, 1.055 * c ** (1 / 2.4) - 0.055) for c in seen]
    assert np.linalg.norm(encoded[0] - encoded[1]) > 0.25
    assert min(np.linalg.norm(strong - encoded[2]) for strong in encoded[:2]) > 0.1


def test_all_shapes_differ_and_have_about_one_size() -> None:
    shapes = [shape for kind in SHAPES.values() for shape in kind]
    for one, other in combinations(shapes, 2):
        assert len(one) != len(other) or not np.allclose(one, other)
    for shape in shapes:
        assert 0.7 <= max(abs(value) for point in shape for value in point) <= 1.4
    assert len(SHAPES["baseline"]) >= 9, "about ten families are compared"


def test_no_text_on_a_phone_is_smaller_than_12_pixels() -> None:
    assert min(NARROW.title, NARROW.strong, NARROW.text, NARROW.small) >= 12


def test_words_are_escaped_and_control_characters_are_shown_as_question_marks() -> None:
    ink = Ink("#ffffff")
    ink.text((1, 2), "<b>&\0", 12, "#000000")
    ink.shape((3, 4), SHAPES["paper"][0], 5, "#000000", title="a<b\x1b")
    text, shape = (ElementTree.fromstring(part) for part in ink.parts)
    assert text.text == "<b>&?"
    assert shape[0].text == "a<b?"


def test_lines_of_a_block_stand_in_their_box_below_each_other() -> None:
    ink = Ink("#ffffff")
    for align, x in (("start", 10), ("middle", 30), ("end", 50)):
        ink.parts.clear()
        ink.block(Box(10, 20, 50, 60), ["one", "two"], 12, "#000000", align, True)  # type: ignore[arg-type]
        first, second = (ElementTree.fromstring(part) for part in ink.parts)
        assert float(first.attrib["x"]) == float(second.attrib["x"]) == x
        assert 20 < float(first.attrib["y"]) + 10 < float(second.attrib["y"]) < 60
