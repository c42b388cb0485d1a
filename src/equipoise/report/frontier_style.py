"""Colours, sizes and shapes of the frontier's picture, and the few SVG elements that it is drawn with."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape

from ..errors import printable
from .frontier_labels import ASCENT, LEADING, Align, Box, Point, Segment

FONT = "system-ui,-apple-system,'Segoe UI',sans-serif"


@dataclass(frozen=True, kw_only=True)
class Colours:
    ground: str
    text: str
    quiet: str
    grid: str
    frame: str
    recommended: str
    paper: str
    alternative: str
    line: str
    mark: str


LIGHT = Colours(
    ground="#ffffff", text="#1b1f24", quiet="#59636e", grid="#eaeef2", frame="#8c959f",
    recommended="#00798c", paper="#b35900", alternative="#7b4ab5", line="#b9c1c9", mark="#7d8792",
)  # fmt: skip
DARK = Colours(
    ground="#0d1117", text="#f0f3f6", quiet="#a3acb5", grid="#1d232b", frame="#59626c",
    recommended="#4cc3d5", paper="#f0a13a", alternative="#c4a1f5", line="#465059", mark="#8a949e",
)  # fmt: skip
"""Teal, orange and violet have shapes of their own, too; everything else is grey."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A layout in pixels: the margin outside, one panel's plot with what stands around it, and the text sizes.

    ``above`` is room over 100 % for labels; ``label`` is the share of a plot's width that a label's line may fill.
    """

    width: int
    columns: int
    margin: float
    gap: float
    ticks: float
    plot: float
    head: float
    title: float
    strong: float
    text: float
    small: float
    radius: float
    above: float
    label: float


WIDE = Sizes(
    width=1280, columns=2, margin=24, gap=44, ticks=62, plot=490, head=70,
    title=25, strong=18, text=15, small=15, radius=6.5, above=66, label=0.7,
)  # fmt: skip
NARROW = Sizes(
    width=390, columns=1, margin=12, gap=30, ticks=45, plot=424, head=54,
    title=19, strong=14, text=12, small=12, radius=5, above=90, label=0.5,
)  # fmt: skip


def _polygon(corners: int, turn: float, inner: float = 1.0) -> list[Point]:
    """Corners on the unit circle, the first one upright after a turn; with ``inner`` a star's notches in between."""
    count = corners if inner == 1.0 else 2 * corners
    angles = [2 * math.pi * (i / count + turn) - math.pi / 2 for i in range(count)]
    sizes = [1.0 if inner == 1.0 or i % 2 == 0 else inner for i in range(count)]
    return [(r * math.cos(a), r * math.sin(a)) for r, a in zip(sizes, angles, strict=True)]


def _scaled(points: list[Point], by: float) -> list[Point]:
    return [(x * by, y * by) for x, y in points]


PLUS = [(0.35, 1.0), (0.35, 0.35), (1.0, 0.35)]
CROSS = [(x * a, y * b) for a, b in ((1, 1), (1, -1), (-1, -1), (-1, 1)) for x, y in (PLUS if a == b else PLUS[::-1])]
SHAPES: dict[str, list[list[Point]]] = {
    "recommended": [_polygon(36, 0), _polygon(8, 1 / 16), _polygon(12, 0, 0.75)],
    "paper": [_scaled(_polygon(4, 1 / 8), 1.2), _scaled(_polygon(4, 0), 1.3)],
    "alternative": [_scaled(_polygon(5, 0, 0.5), 1.4)],
    "baseline": [
        _scaled(_polygon(3, 0), 1.25),
        _scaled(_polygon(4, 0, 0.45), 1.35),
        _scaled(_polygon(3, 1 / 2), 1.25),
        CROSS,
        _scaled(_polygon(4, 0), 1.2),
        _scaled(_polygon(5, 0, 0.4), 1.35),
        [((x - y) * 0.75, (x + y) * 0.75) for x, y in CROSS],
        _polygon(6, 0),
        _scaled(_polygon(3, 1 / 4), 1.25),
        _scaled(_polygon(3, 3 / 4), 1.25),
        [(-1.2, -0.5), (1.2, -0.5), (1.2, 0.5), (-1.2, 0.5)],
        [(-0.5, -1.2), (0.5, -1.2), (0.5, 1.2), (-0.5, 1.2)],
    ],
}
"""By role, in the order in which families appear; a family past the last begins again with the first."""


@dataclass
class Ink:
    """The elements of a picture, in the order in which they are drawn."""

    ground: str
    parts: list[str] = field(default_factory=list)

    def text(self, at: Point, words: str, size: float, fill: str, align: Align = "start", bold: bool = False) -> None:
        """One line of text on its base line, with a rim of the ground around it so that lines below do not disturb."""
        font = f'font-size="{size:g}" font-weight="{700 if bold else 400}" fill="{fill}" text-anchor="{align}"'
        rim = f'stroke="{self.ground}" stroke-width="4" stroke-linejoin="round" paint-order="stroke"'
        self.parts.append(f'<text x="{at[0]:.1f}" y="{at[1]:.1f}" {font} {rim}>{escape(printable(words))}</text>')

    def block(self, box: Box, lines: list[str], size: float, fill: str, align: Align, bold: bool) -> None:
        """Lines of text that fill a box from its top."""
        x = {"start": box.left, "middle": (box.left + box.right) / 2, "end": box.right}[align]
        for i, line in enumerate(lines):
            self.text((x, box.top + size * (ASCENT + LEADING * i)), line, size, fill, align, bold)

    def line(self, segment: Segment, stroke: str, width: float = 1.0, more: str = "") -> None:
        (x, y), (to_x, to_y) = segment
        ends = f'x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}"'
        self.parts.append(f'<line {ends} stroke="{stroke}" stroke-width="{width:g}"{more}/>')

    def shape(
        self, at: Point, corners: list[Point], radius: float, fill: str, stroke: str = "", title: str = ""
    ) -> None:
        """A mark, with a rim of the ground or, where it is hollow, of its colour; the title shows under the pointer."""
        points = " ".join(f"{at[0] + radius * x:.1f},{at[1] + radius * y:.1f}" for x, y in corners)
        rim = f'stroke="{stroke or self.ground}" stroke-width="{1.6 if stroke else 1.2}" stroke-linejoin="round"'
        told = f"<title>{escape(printable(title))}</title>" if title else ""
        end = f">{told}</polygon>" if told else "/>"
        self.parts.append(f'<polygon points="{points}" fill="{fill}" {rim}{end}')
