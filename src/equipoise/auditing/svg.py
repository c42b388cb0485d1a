"""Rows of small images with captions as one SVG file: originals above what attacks made of them."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap
from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Row:
    """A caption, a remark of one or two lines in grey, and images ``[n, C, H, W]``; a marked row stands out."""

    caption: str
    remark: str
    images: Pixels
    marked: bool = False


@dataclass(frozen=True)
class Section:
    title: str
    rows: list[Row]
    warning: str = ""  # in red, part of the heading


def png(image: Pixels) -> bytes:
    """``[C, H, W]`` with one or three channels as a PNG file.

    >>> png(np.zeros((1, 2, 2), dtype=np.uint8))[1:4]
    b'PNG'
    """
    channels, height, width = image.shape
    kinds = {1: 0, 3: 2}
    if channels not in kinds:  # no colour model: show the mean
        image, channels = image.mean(0, keepdims=True).astype(np.uint8), 1
    lines = image.transpose(1, 2, 0).reshape(height, width * channels)
    raw = b"".join(b"\0" + line.tobytes() for line in lines)

    def part(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, kinds[channels], 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", header) + part(b"IDAT", zlib.compress(raw, 9)) + part(b"IEND", b"")


TILE, GAP, LEFT, LINE, HEAD = 56, 6, 300, 66, 40
DARK, GREY, TEAL, RED, ROSE = "#1b1f24", "#656d76", "#00798c", "#b3261e", "#fdecea"
STYLE = "font-family:system-ui,-apple-system,'Segoe UI',sans-serif"


def svg(title: str, sections: Sequence[Section], footer: str = "", headline: str = "") -> str:
    """All sections below each other, with the finding on top."""
    most = max((len(row.images) for section in sections for row in section.rows), default=0)
    width = max(LEFT + most * (TILE + GAP) + 24, 800)
    parts: list[str] = []
    y = 36

    def text(x: float, at: float, size: int, colour: str, words: str, weight: int = 400) -> None:
        font = f'font-size="{size}" font-weight="{weight}" fill="{colour}"'
        parts.append(f'<text x="{x}" y="{at}" {font}>{escape(words)}</text>')

    text(20, y, 18, DARK, title, 600)
    y += 6 if headline else 0
    for line in wrap(headline, (width - 40) // 7):
        y += 20
        text(20, y, 13, RED, line)
    y += 14
    for section in sections:
        y += HEAD - 8
        text(20, y, 14, TEAL, section.title, 600)
        for line in wrap(section.warning, (width - 40) // 7):
            y += 18
            text(20, y, 13, RED, line, 600)
        y += 12
        for row in section.rows:
            if row.marked:
                parts.append(f'<rect x="8" y="{y - 4}" width="{width - 16}" height="{TILE + 8}" fill="{ROSE}"/>')
                parts.append(f'<rect x="8" y="{y - 4}" width="4" height="{TILE + 8}" fill="{RED}"/>')
            remark = row.remark.splitlines()
            middle = y + TILE / 2 - 7 * max(0, len(remark) - 1)
            text(20, middle - 3, 13, RED if row.marked else DARK, row.caption, 600 if row.marked else 400)
            for i, line in enumerate(remark):
                text(20, middle + 14 * (i + 1), 11, RED if row.marked else GREY, line)
            for i, image in enumerate(row.images):
                data = base64.b64encode(png(image)).decode()
                place = f'x="{LEFT + i * (TILE + GAP)}" y="{y}" width="{TILE}" height="{TILE}"'
                parts.append(f'<image {place} style="image-rendering:pixelated" href="data:image/png;base64,{data}"/>')
            y += LINE
    for line in [piece for words in footer.splitlines() for piece in wrap(words, (width - 40) // 6)]:
        y += 18
        text(20, y, 11, GREY, line)
    y += 20
    size = f'width="{width}" height="{y}" viewBox="0 0 {width} {y}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} style="{STYLE}">'
    return "\n".join([head, f'<rect width="{width}" height="{y}" fill="#ffffff"/>', *parts, "</svg>", ""])


def as_pixels(images: Any) -> Pixels:
    """Images in [0, 1] ``[n, C, H, W]`` as bytes."""
    return np.asarray(np.clip(np.rint(np.asarray(images) * 255), 0, 255), dtype=np.uint8)
