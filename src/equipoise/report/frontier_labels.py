"""Where words go in a chart, so that they cover neither each other nor what is drawn: no chart is known here."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

Point = tuple[float, float]
Segment = tuple[Point, Point]
Align = Literal["start", "middle", "end"]

WIDTHS = {
    0.34: "'IJijl ,.",
    0.4: "!()-/:;[\\]ft|",
    0.53: '"*_`r',
    0.6: "?FLcksvxyz",
    0.65: "$0123456789EPSTYabdeghnopqu{}εδσ",
    0.7: "ABCKRVXZ",
    0.79: "&DGHNOQU",
    0.86: "#+<=>M^w~≤≥×",
    1.0: "%@Wm…",
}
"""Widths in units of the font's size, of a wide sans serif: readers' own fonts are narrower, hardly ever wider."""
WIDTH_OF = {letter: width for width, letters in WIDTHS.items() for letter in letters}
ASCENT, DESCENT, LEADING = 0.92, 0.26, 1.25
CROSSES_MARK, CROSSES_STRONG, CROSSES_MUTED, PER_PIXEL = 12.0, 5.0, 1.5, 0.04
"""What it costs a label to cover a mark, a line that matters, another line, and to stand a pixel further away."""
MISTAKEN, LEADER_CROSSES, APART = 2.5, 0.7, 3.0
"""What it costs to stand nearer to something else than to what is meant, and to lead across a line or a mark; and
how far labels stand from each other at least."""


def text_width(words: str, size: float, bold: bool = False) -> float:
    """About how wide a line of text gets, rather too wide than too narrow.

    >>> round(text_width("ε 2", 10)), round(text_width("ε 2", 10, bold=True))
    (16, 19)
    """
    width = sum(WIDTH_OF.get(letter, 1.1) for letter in words) * size
    return width * 1.15 if bold else width


def shortened(words: str, size: float, room: float, bold: bool = False) -> str:
    """The words, with an ellipsis for what does not fit.

    >>> shortened("gradient pruning", 10, 60)
    'gradient…'
    """
    if text_width(words, size, bold) <= room:
        return words
    while words and text_width(words + "…", size, bold) > room:
        words = words[:-1].rstrip()
    return words + "…"


def wrapped(words: str, size: float, room: float, bold: bool = False) -> list[str]:
    """The words in lines that fit; a single word that does not fit is shortened.

    >>> wrapped("gaussian-dp, scatter-linear", 10, 100)
    ['gaussian-dp,', 'scatter-linear']
    """
    lines: list[str] = []
    for word in words.split():
        longer = f"{lines[-1]} {word}" if lines else ""
        if lines and text_width(longer, size, bold) <= room:
            lines[-1] = longer
        else:
            lines.append(shortened(word, size, room, bold))
    return lines


@dataclass(frozen=True)
class Box:
    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        """Whether the two share more than an edge."""
        return (
            self.left < other.right and other.left < self.right and self.top < other.bottom and other.top < self.bottom
        )

    def holds(self, other: Box) -> bool:
        inside = self.left <= other.left and other.right <= self.right
        return inside and self.top <= other.top and other.bottom <= self.bottom

    def grown(self, by: float) -> Box:
        return Box(self.left - by, self.top - by, self.right + by, self.bottom + by)

    def away(self, point: Point) -> float:
        return math.dist(self.nearest(point), point)

    def nearest(self, point: Point) -> Point:
        """The point of the box that is nearest to the given one."""
        return min(max(point[0], self.left), self.right), min(max(point[1], self.top), self.bottom)

    def crossed(self, segment: Segment) -> bool:
        """Whether a straight line goes through the box.

        >>> Box(0, 0, 2, 2).crossed(((-1, 1), (3, 1))), Box(0, 0, 2, 2).crossed(((-1, 3), (3, 3)))
        (True, False)
        """
        (x, y), (to_x, to_y) = segment
        first, last = 0.0, 1.0
        for start, step, low, high in ((x, to_x - x, self.left, self.right), (y, to_y - y, self.top, self.bottom)):
            if step == 0:
                if not low < start < high:
                    return False
                continue
            enters, leaves = sorted(((low - start) / step, (high - start) / step))
            first, last = max(first, enters), min(last, leaves)
        return first < last


def meet(one: Segment, other: Segment) -> bool:
    """Whether two straight lines cross each other.

    >>> meet(((0, 0), (2, 2)), ((0, 2), (2, 0))), meet(((0, 0), (2, 2)), ((3, 0), (3, 9)))
    (True, False)
    """

    def sides(line: Segment, ends: Segment) -> bool:
        (x, y), (to_x, to_y) = line
        first, second = ((to_x - x) * (b - y) - (to_y - y) * (a - x) for a, b in ends)
        return first * second < 0

    return sides(one, other) and sides(other, one)


def around(point: Point, radius: float) -> Box:
    return Box(point[0], point[1], point[0], point[1]).grown(radius)


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A label that wants to stand near one of its anchors, the first rather than the last.

    Without ``pushes`` it stands right at the anchor or nowhere; ``limit`` is what its place may cost. ``others`` are
    points that it would seem to name if it stood nearer to them than to its anchor.
    """

    lines: Sequence[str]
    size: float
    anchors: Sequence[Point]
    radius: float
    bold: bool = False
    pushes: int = 10
    limit: float = math.inf
    others: Sequence[Point] = ()

    @property
    def width(self) -> float:
        return max(text_width(line, self.size, self.bold) for line in self.lines)

    @property
    def height(self) -> float:
        return (len(self.lines) - 1) * self.size * LEADING + self.size * (ASCENT + DESCENT)


@dataclass(frozen=True)
class Place:
    """Where a label stands: its box, how its lines are aligned, and the line to its anchor if it is far from it."""

    box: Box
    align: Align
    leader: Segment | None
    away: float


@dataclass
class Field:
    """What a label must avoid: what is taken absolutely, marks and lines as far as possible."""

    frame: Box
    taken: list[Box] = field(default_factory=list)
    marks: list[Box] = field(default_factory=list)
    strong: list[Segment] = field(default_factory=list)
    muted: list[Segment] = field(default_factory=list)
    leaders: list[Segment] = field(default_factory=list)

    def place(self, wish: Wish) -> Place | None:
        """The cheapest place for a label, which is then taken; None where none is free or worth its cost."""
        best, least = None, wish.limit
        for base, place in sorted(_places(wish, self.frame), key=lambda found: found[0]):
            if base >= least:
                break
            cost = base + self._cost(place)
            if cost < least and any(place.box.away(other) < place.away for other in wish.others):
                cost += MISTAKEN
            if cost < least:
                best, least = place, cost
        if best:
            self.taken.append(best.box)
            if best.leader:
                self.leaders.append(best.leader)
        return best

    def _cost(self, place: Place) -> float:
        box, leader = place.box, place.leader
        if not self.frame.holds(box) or any(box.grown(APART).meets(other) for other in self.taken):
            return math.inf
        if any(box.crossed(other) for other in self.leaders):
            return math.inf
        if leader and any(other.crossed(leader) for other in self.taken):
            return math.inf
        cost = CROSSES_MARK * sum(box.meets(mark) for mark in self.marks)
        cost += CROSSES_STRONG * sum(box.crossed(line) for line in self.strong)
        cost += CROSSES_MUTED * sum(box.crossed(line) for line in self.muted)
        if leader:
            cost += LEADER_CROSSES * sum(mark.crossed(leader) for mark in self.marks)
            cost += LEADER_CROSSES * sum(meet(leader, line) for line in (*self.strong, *self.muted))
        return cost


def _places(wish: Wish, frame: Box) -> Iterator[tuple[float, Place]]:
    """Places beside, above and below every anchor, pushed up and down step by step, with what their distance costs."""
    width, height, gap = wish.width, wish.height, wish.radius + 4
    for order, (x, y) in enumerate(wish.anchors):
        tops = [y - gap - height, y + gap]
        for push in range(wish.pushes + 1):
            for sign in (-1, 1) if push else (0,):
                top = y - height / 2 + sign * push * wish.size * 0.7
                yield _at(wish, Box(x + gap, top, x + gap + width, top + height), "start", order)
                yield _at(wish, Box(x - gap - width, top, x - gap, top + height), "end", order)
                if abs(top + height / 2 - y) >= height / 2 + gap:
                    tops.append(top)
        for top in tops:
            left = max(min(x - width / 2, frame.right - width), frame.left)  # aside, where the frame is near
            yield _at(wish, Box(left, top, left + width, top + height), "middle", order)


def _at(wish: Wish, box: Box, align: Align, order: int) -> tuple[float, Place]:
    anchor = wish.anchors[order]
    near = box.nearest(anchor)
    away = math.dist(near, anchor)
    leader = None
    if away > wish.radius + 14:
        start = wish.radius + 1  # the leader begins at the edge of the mark
        begin = tuple(a + (b - a) * start / away for a, b in zip(anchor, near, strict=True))
        leader = ((begin[0], begin[1]), near)
    return 0.15 * order + PER_PIXEL * (away - wish.radius) + (0.6 if leader else 0.0), Place(box, align, leader, away)
