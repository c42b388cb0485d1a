"""Pictures: a PNG that decodes to the same pixels, and an SVG that any reader can parse."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any
from xml.etree import ElementTree

import numpy as np
import numpy.typing as npt
import pytest

from equipoise.auditing.svg import Row, Section, as_pixels, png, svg

SVG = "{http://www.w3.org/2000/svg}"
Pixels = npt.NDArray[np.uint8]


def decode(content: bytes) -> Pixels:
    """A PNG of 8 bits without filters as ``[C, H, W]``; every checksum is looked at."""
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    parts, at = {}, 8
    while at < len(content):
        (size,) = struct.unpack(">I", content[at : at + 4])
        kind, body = content[at + 4 : at + 8], content[at + 8 : at + 8 + size]
        assert struct.unpack(">I", content[at + 8 + size : at + 12 + size]) == (zlib.crc32(kind + body),)
        parts[kind], at = body, at + 12 + size
    assert list(parts) == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", parts[b"IHDR"])
    assert (depth, rest) == (8, [0, 0, 0])
    channels = {0: 1, 2: 3}[colour]
    lines = np.frombuffer(zlib.decompress(parts[b"IDAT"]), dtype=np.uint8).reshape(height, 1 + width * channels)
    assert not lines[:, 0].any(), "no filter"
    return lines[:, 1:].reshape(height, width, channels).transpose(2, 0, 1)


def some(*shape: int) -> Pixels:
    return np.random.default_rng(1).integers(0, 256, shape, dtype=np.uint8)


@pytest.mark.parametrize("shape", [(1, 5, 7), (3, 5, 7), (1, 1, 1), (3, 28, 28)])
def test_a_png_decodes_to_its_pixels(shape: tuple[int, ...]) -> None:
    image = some(*shape)
    assert np.array_equal(decode(png(image)), image)


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_channels_without_a_colour_model_show_their_mean(channels: int) -> None:
    image = some(channels, 4, 6)
    assert np.array_equal(decode(png(image)), image.mean(0, keepdims=True).astype(np.uint8))


def test_a_slice_that_is_not_contiguous_is_drawn_as_it_is() -> None:
    image = some(3, 8, 8)[:, ::2, ::-1]
    assert np.array_equal(decode(png(image)), image)


def test_the_same_image_gives_the_same_bytes() -> None:
    assert png(some(1, 9, 9)) == png(some(1, 9, 9).copy())


def test_numbers_become_pixels() -> None:
    assert as_pixels([0.0, 0.5, 1.0, -3.0, 7.0, 1 / 255]).tolist() == [0, 128, 255, 0, 255, 1]
    every = np.arange(256, dtype=np.float32) / 255
    assert as_pixels(every).tolist() == list(range(256))


def texts(root: Any) -> list[str]:
    return [part.text for part in root.iter(f"{SVG}text")]


def test_an_svg_is_well_formed_and_holds_every_image() -> None:
    one, two = Row("original", "", some(3, 1, 4, 4)), Row("pl-learn", "MSE 1.00", some(2, 1, 4, 4))
    root = ElementTree.fromstring(svg("Title", [Section("first", [one, two]), Section("second", [one])], "a\nb"))
    assert root.tag == f"{SVG}svg"
    result = [part.attrib["href"].partition(",") for part in root.iter(f"{SVG}image")]
    assert [head for head, _, _ in result] == ["data:image/png;base64"] * 8
    drawn = [decode(base64.b64decode(data, validate=True)) for _, _, data in result]
    assert np.array_equal(np.stack(drawn), np.concatenate([one.images, two.images, one.images]))
    assert texts(root)[:3] == ["Title", "first", "original"]
    assert texts(root)[-2:] == ["a", "b"]


def test_nothing_is_drawn_outside_of_the_svg() -> None:
    rows = [Row("many", "", some(20, 1, 4, 4)), Row("few", "", some(1, 3, 4, 4))]
    root = ElementTree.fromstring(svg("Title", [Section("s", rows)] * 3, "footer"))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert root.attrib["viewBox"] == f"0 0 {width:g} {height:g}"
    places = set()
    for part in root.iter(f"{SVG}image"):
        x, y, w, h = (float(part.attrib[name]) for name in ("x", "y", "width", "height"))
        assert 0 <= x <= x + w <= width
        assert 0 <= y <= y + h <= height
        places.add((x, y))
    assert len(places) == 63, "no two lie on each other"
    assert all(float(part.attrib["y"]) <= height for part in root.iter(f"{SVG}text"))


def test_captions_are_escaped() -> None:
    nasty = "<script>&\"'</svg>"
    root = ElementTree.fromstring(svg(nasty, [Section(nasty, [Row(nasty, nasty, some(1, 1, 2, 2))])], nasty))
    assert texts(root) == [nasty] * 5


def test_a_picture_of_nothing_is_still_one() -> None:
    root = ElementTree.fromstring(svg("Title", []))
    assert not list(root.iter(f"{SVG}image"))
    ElementTree.fromstring(svg("Title", [Section("s", [Row("r", "", some(0, 1, 4, 4))])]))


def test_a_warning_is_part_of_the_heading_and_a_remark_may_have_two_lines() -> None:
    rows = [Row("pl-learn", "identified: lti 3.0 % *\nMSE 1.00 *", some(1, 1, 2, 2))]
    root = ElementTree.fromstring(svg("Title", [Section("first", rows, "no evidence")]))
    assert texts(root) == ["Title", "first", "no evidence", "pl-learn", "identified: lti 3.0 % *", "MSE 1.00 *"]
    heights = [float(part.attrib["y"]) for part in root.iter(f"{SVG}text")]
    assert heights == sorted(set(heights))
    (image,) = root.iter(f"{SVG}image")
    top = float(image.attrib["y"])
    assert heights[2] < top < heights[3] < heights[5] < top + float(image.attrib["height"])


def test_a_long_footer_goes_on_in_another_line() -> None:
    words = " ".join(f"word{i}" for i in range(60))
    root = ElementTree.fromstring(svg("Title", [], words))
    lines = [part.text or "" for part in root.iter("{http://www.w3.org/2000/svg}text")][1:]
    assert " ".join(lines) == words
    assert max(map(len, lines)) * 6 <= float(root.attrib["width"]) - 40


def test_the_headline_stands_on_top_and_a_marked_row_stands_out() -> None:
    rows = [Row("plain", "1 %", some(1, 1, 2, 2)), Row("worst", "90 %", some(1, 1, 2, 2), marked=True)]
    drawn = svg("Title", [Section("s", rows)], "end", " ".join(["headline"] * 40))
    root = ElementTree.fromstring(drawn)
    said = texts(root)
    assert said[0] == "Title"
    assert " ".join(said[1:]).startswith(" ".join(["headline"] * 40) + " s plain")
    fills = {part.text: part.attrib["fill"] for part in root.iter(f"{SVG}text")}
    assert fills["worst"] != fills["plain"]
    assert len(list(root.iter(f"{SVG}rect"))) == 3, "the ground, and two for the marked row"
