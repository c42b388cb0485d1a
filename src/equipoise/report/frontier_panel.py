"""One panel of the frontier's picture: accuracy upwards, leakage to the right on a logarithmic axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ..errors import printable
from .frontier_labels import ASCENT, DESCENT, Box, Field, Point, Segment, Wish, around, shortened, text_width, wrapped
from .frontier_marks import Mark, Panel, percent
from .frontier_style import SHAPES, Colours, Ink, Sizes

ROUND, DASHED = ' stroke-linecap="round"', ' stroke-dasharray="5 4"'
DOTTED = ' stroke-dasharray="2 4"'
RING = 6.0
PROVED = "proved: never above"
UNPROTECTED = "accuracy when unprotected"


@dataclass(frozen=True)
class Look:
    """How a family is drawn, in every panel and in the legend."""

    role: str
    corners: list[Point]
    line: str
    fill: str
    words: str
    width: float
    radius: float


def look(role: str, number: int, colours: Colours, sizes: Sizes) -> Look:
    """Of the family that is the n-th of its role."""
    corners = SHAPES[role][number % len(SHAPES[role])]
    if role == "baseline":
        return Look(role, corners, colours.line, colours.mark, colours.quiet, 1.6, sizes.radius * 0.85)
    colour = {"recommended": colours.recommended, "paper": colours.paper, "alternative": colours.alternative}[role]
    return Look(role, corners, colour, colour, colour, 4.0 if role == "recommended" else 2.8, sizes.radius)


@dataclass(frozen=True)
class Axes:
    """From shares to pixels; less leakage than chance stands at chance, less accuracy than the floor at the edge."""

    box: Box
    floor: float
    chance: float
    inset: float
    above: float  # room above 100 %

    def x(self, leakage: float) -> float:
        share = math.log(max(leakage, self.chance) / self.chance) / -math.log(self.chance)
        return self.box.left + self.inset + share * (self.box.right - self.box.left - 2 * self.inset)

    def y(self, accuracy: float) -> float:
        return self.box.bottom - (accuracy - self.floor) / (1 - self.floor) * (
            self.box.bottom - self.box.top - self.above
        )

    def spot(self, mark: Mark) -> Point:
        return self.x(mark.leakage), self.y(mark.accuracy) if mark.accuracy >= self.floor else self.box.bottom - 18

    def path(self, marks: Sequence[Mark]) -> list[Segment]:
        """The lines from mark to mark, ending at the lower edge."""
        return self.clipped([(self.x(mark.leakage), self.y(mark.accuracy)) for mark in marks])

    def clipped(self, points: Sequence[Point]) -> list[Segment]:
        result = []
        for (x, y), (to_x, to_y) in pairwise(points):
            ends = []
            for px, py in ((x, y), (to_x, to_y)):
                if py > self.box.bottom and y != to_y:
                    part = (self.box.bottom - y) / (to_y - y)
                    px, py = x + part * (to_x - x), self.box.bottom
                ends.append((px, py))
            if min(y, to_y) < self.box.bottom:
                result.append((ends[0], ends[1]))
        return result


@dataclass(frozen=True)
class Scene:
    """All that the parts of a panel need."""

    panel: Panel
    axes: Axes
    looks: dict[str, Look]
    sizes: Sizes
    colours: Colours
    ink: Ink
    field: Field


def draw_panel(scene: Scene) -> set[str]:
    """Draw it, and return what found a label of its own: families, choices, ``PROVED`` and ``UNPROTECTED``."""
    _ground(scene)
    _ticks(scene)
    families = scene.panel.families()
    ranks = {"baseline": 0, "alternative": 1, "paper": 2, "recommended": 3}
    for family, marks in sorted(families.items(), key=lambda item: ranks[scene.looks[item[0]].role]):
        _family(scene, marks, scene.looks[family])
    return _labels(scene, families)


def _ground(scene: Scene) -> None:
    """The shaded corner where all want to be, the frame, title and the accuracy without protection."""
    box, ink, colours, sizes = scene.axes.box, scene.ink, scene.colours, scene.sizes
    width, height = box.right - box.left, box.bottom - box.top
    shade = f'x="{box.left:.1f}" y="{box.top:.1f}" width="{width:.1f}" height="{height:.1f}"'
    ink.parts.append(f'<rect {shade} fill="url(#better)"/>')
    for step in range(round(10 * scene.axes.floor), 11):
        y = scene.axes.y(step / 10)
        ink.line(((box.left, y), (box.right, y)), colours.grid)
        ink.text((box.left - 8, y + sizes.small * 0.35), percent(step / 10), sizes.small, colours.quiet, "end")
    if scene.panel.unprotected is not None and scene.panel.unprotected >= scene.axes.floor:
        y = scene.axes.y(scene.panel.unprotected)
        ink.line(((box.left, y), (box.right, y)), colours.quiet, 1.4, DOTTED)
        scene.field.muted.append(((box.left, y), (box.right, y)))
    title = shortened(printable(scene.panel.title), sizes.title, width, bold=True)
    ink.text((box.left, box.top - sizes.small * 1.2 - 18), title, sizes.title, colours.text, bold=True)
    ink.text((box.left - sizes.ticks + 4, box.top - 14), "accuracy", sizes.small, colours.text)


def _ticks(scene: Scene) -> None:
    """The axis of leakage: chance and everything at its ends, between them what has room."""
    box, ink, sizes, colours, axes = scene.axes.box, scene.ink, scene.sizes, scene.colours, scene.axes
    chance = scene.panel.chance
    below = any(mark.leakage < chance for mark in scene.panel.marks)
    powers = [10.0**-i for i in range(1, math.ceil(-math.log10(chance)) + 1)]
    inner = powers + [step * power for step in (2, 5, 3) for power in powers]
    y = box.bottom + 6 + sizes.small * ASCENT
    taken: list[Box] = []
    for leakage in [chance, 1.0, *(value for value in inner if chance < value < 1)]:
        words = ("≤ " if leakage == chance and below else "") + percent(leakage)
        x, half = axes.x(leakage), text_width(words, sizes.small) / 2
        place = Box(x - half, y - sizes.small, x + half, y)
        if not any(place.grown(5).meets(other) for other in taken):
            taken.append(place)
            ink.line(((x, box.top), (x, box.bottom)), colours.frame if leakage == chance else colours.grid)
            ink.text((x, y), words, sizes.small, colours.quiet, "middle")
    frame = [(box.left, box.top), (box.left, box.bottom), (box.right, box.bottom)]
    for segment in pairwise(frame):
        ink.line(segment, colours.frame, 1.2)
    y += sizes.small * 1.35
    ink.text((box.left, y), "found by chance", sizes.small, colours.quiet)
    ink.text((box.right, y), "every record found", sizes.small, colours.quiet, "end")
    for line in across(scene.panel.chance, sizes):
        y += sizes.small * 1.4
        ink.text(((box.left + box.right) / 2, y), line, sizes.small, colours.text, "middle")


def across(chance: float, sizes: Sizes) -> list[str]:
    """What the lower axis shows, in lines."""
    among = round(1 / chance)
    room = (sizes.width - 2 * sizes.margin - (sizes.columns - 1) * sizes.gap) / sizes.columns - sizes.ticks
    parts = [f"leakage: share of records picked out of {among:,}", "(log scale)"]
    whole = " ".join(parts)
    return [whole] if text_width(whole, sizes.small) <= room else parts


def _family(scene: Scene, marks: list[Mark], look: Look) -> None:
    """Intervals, line, proved limits and marks of one family; all of it is in the way of labels."""
    axes, ink, field = scene.axes, scene.ink, scene.field
    strong = look.role != "baseline"
    path = axes.path(marks)
    (field.strong if strong else field.muted).extend(path)
    _intervals(scene, marks, look)
    for segment in path:
        ink.line(segment, look.line, look.width, ROUND)
    proved = proved_spots(axes, marks)
    limits = axes.clipped(proved)
    (field.strong if strong else field.muted).extend(limits)
    for segment in limits:
        ink.line(segment, look.line, 1.6 if strong else 1.2, DASHED)
    for spot in proved:
        if spot[1] <= axes.box.bottom:
            ink.shape(spot, look.corners, look.radius * 0.8, scene.colours.ground, look.fill)
            field.marks.append(around(spot, look.radius * 0.9))
    for mark in marks:
        spot = axes.spot(mark)
        if mark.chosen:
            ink.shape(spot, SHAPES["recommended"][0], look.radius + RING, scene.colours.ground, scene.colours.text)
        ink.shape(spot, look.corners, look.radius, look.fill, title=mark.told())
        field.marks.append(around(spot, look.radius + (RING if mark.chosen else 0)))
        if mark.accuracy < axes.floor:
            for side in (-4, 4):
                tip = (spot[0], axes.box.bottom - 2)
                ink.line(((spot[0] + side, axes.box.bottom - 7), tip), look.fill, 1.8, ROUND)


def chosen(mark: Mark, panel: Panel) -> str:
    """The words of a choice where there is no room for them at its mark."""
    return f"{panel.choice}: {mark.family}, {mark.strength}" if mark.strength else f"{panel.choice}: {mark.family}"


def proved_spots(axes: Axes, marks: Sequence[Mark]) -> list[Point]:
    return [(axes.x(mark.proved), axes.y(mark.accuracy)) for mark in marks if mark.proved is not None]


def _intervals(scene: Scene, marks: list[Mark], look: Look) -> None:
    axes = scene.axes
    for mark in marks:
        if mark.accuracy < axes.floor:
            continue
        x, y = axes.spot(mark)
        bars = []
        if mark.accuracy_interval:
            low, high = (max(end, axes.floor) for end in mark.accuracy_interval)
            bars.append(((x, axes.y(low)), (x, axes.y(high))))
        if mark.leakage_interval:
            low, high = mark.leakage_interval
            bars.append(((axes.x(low), y), (axes.x(high), y)))
        for bar in bars:
            scene.ink.line(bar, look.line, 1.1)
            scene.field.muted.append(bar)


def _labels(scene: Scene, families: dict[str, list[Mark]]) -> set[str]:
    """What matters first has the better places: the corner, the choice, the strong families, and then the others."""
    sizes, axes, colours = scene.sizes, scene.axes, scene.colours
    _better(scene)
    named: set[str] = set()
    for family in (family for family in families if scene.looks[family].role == "alternative"):  # it has little room
        wish = _wish(scene, [], family, _anchors(scene, families[family]))
        named |= {family} if _write(scene, wish, scene.looks[family].words) else set()
    for mark in scene.panel.marks:
        if mark.chosen:
            first = wrapped(f"{scene.panel.choice}: {mark.strength}", sizes.strong, _room(scene), bold=True)
            written = _write(scene, _wish(scene, first, mark.family, [axes.spot(mark)], RING), colours.text)
            named |= {mark.family, chosen(mark, scene.panel)} if written else set()
    strong = [family for role in ("recommended", "paper") for family in families if scene.looks[family].role == role]
    for family in strong:
        _strengths(scene, [families[family][0], families[family][-1]], 5)
        if family not in named:
            first = ["recommended:"] if scene.looks[family].role == "recommended" else []
            wish = _wish(scene, first, family, _anchors(scene, families[family]))
            named |= {family} if _write(scene, wish, scene.looks[family].words) else set()
    for family in strong:
        spots = [spot for spot in proved_spots(axes, families[family]) if spot[1] <= axes.box.bottom]
        for lines, most in ([PROVED], 2.6), (["proved:", "never above"], 9.0):  # in two lines where one has no room
            if spots and PROVED not in named:
                wish = Wish(lines=lines, size=sizes.text, anchors=spots[::-1], radius=sizes.radius, limit=most)
                named |= {PROVED} if _write(scene, wish, scene.looks[family].words) else set()
    named |= {UNPROTECTED} if _unprotected(scene) else set()
    for family in strong:
        _strengths(scene, families[family][1:-1], 2)
    _below(scene)
    for family, marks in families.items():
        if scene.looks[family].role == "baseline" and family not in named:
            lines = wrapped(family, sizes.text, _room(scene))
            wish = Wish(lines=lines, size=sizes.text, anchors=_anchors(scene, marks), radius=sizes.radius, limit=2.6,
                        others=_foreign(scene, families, family))  # fmt: skip
            named |= {family} if _write(scene, wish, colours.quiet) else set()
    return named


def _foreign(scene: Scene, families: dict[str, list[Mark]], family: str) -> list[Point]:
    """Points on the marks and lines of all other families."""
    points = []
    for name, marks in families.items():
        if name != family:
            points += [scene.axes.spot(mark) for mark in marks]
            for (x, y), (to_x, to_y) in scene.axes.path(marks):
                points += [(x + part / 8 * (to_x - x), y + part / 8 * (to_y - y)) for part in range(1, 8)]
    return points


def _room(scene: Scene) -> float:
    return (scene.axes.box.right - scene.axes.box.left) * scene.sizes.label


def _wish(scene: Scene, first: list[str], words: str, anchors: list[Point], more: float = 0) -> Wish:
    """A label that must find a place, in bold, around marks that are so much larger than others."""
    size = scene.sizes.strong
    lines = first + wrapped(words, size, _room(scene), bold=True)
    return Wish(lines=lines, size=size, anchors=anchors, radius=scene.sizes.radius + more, bold=True, pushes=14)


def _anchors(scene: Scene, marks: list[Mark]) -> list[Point]:
    """Where a family's name may stand: at its marks, the last and the first before the others, then along its line."""
    spots = [scene.axes.spot(mark) for mark in marks]
    spots = [spots[-1], *spots[:-1]] if len(spots) > 1 else spots
    middles = [((a + c) / 2, (b + d) / 2) for (a, b), (c, d) in scene.axes.path(marks)]
    return spots + middles


def _write(scene: Scene, wish: Wish, fill: str) -> bool:
    place = scene.field.place(wish)
    if place is None:
        return False
    if place.leader:
        scene.ink.line(place.leader, fill, 1.0, ' stroke-opacity="0.7"')
    scene.ink.block(place.box, list(wish.lines), wish.size, fill, place.align, wish.bold)
    return True


def _better(scene: Scene) -> None:
    """An arrow into the corner with its word; below what already stands there."""
    box, size, colour = scene.axes.box, scene.sizes.strong, scene.colours.recommended
    side = size * 1.5
    width = side + 8 + text_width("better", size, bold=True)
    tops = [box.top + 8 + i * size for i in range(8)]
    places = [Box(box.left + 10, top, box.left + 10 + width, top + side) for top in tops]
    free = [place for place in places if not any(place.meets(mark) for mark in scene.field.marks)]
    place = (free or places)[0]
    scene.field.taken.append(place)
    tip, more = (place.left, place.top), ROUND
    scene.ink.line(((place.left + side, place.bottom), tip), colour, 3.2, more)
    for end in ((tip[0] + side * 0.55, tip[1]), (tip[0], tip[1] + side * 0.55)):
        scene.ink.line((tip, end), colour, 3.2, more)
    middle = (place.top + place.bottom + size * (ASCENT - DESCENT)) / 2
    scene.ink.text((place.left + side + 8, middle), "better", size, colour, bold=True)


def _unprotected(scene: Scene) -> bool:
    """The label of the dotted line; whether nothing is left to explain."""
    if scene.panel.unprotected is None or scene.panel.unprotected < scene.axes.floor:
        return True
    box, y = scene.axes.box, scene.axes.y(scene.panel.unprotected)
    anchors = [(box.left + (box.right - box.left) * i / 16, y) for i in range(15, 3, -1)]
    words = f"unprotected {percent(scene.panel.unprotected)}"
    wish = Wish(lines=[words], size=scene.sizes.text, anchors=anchors, radius=0, pushes=0, limit=4)
    return _write(scene, wish, scene.colours.quiet)


def _strengths(scene: Scene, marks: Sequence[Mark], limit: float) -> None:
    """What settings are called, right at their marks or not at all."""
    for mark in dict.fromkeys(marks):
        if mark.strength and not mark.chosen and mark.accuracy >= scene.axes.floor:
            wish = Wish(lines=[mark.strength], size=scene.sizes.small, anchors=[scene.axes.spot(mark)],
                        radius=scene.sizes.radius, pushes=1, limit=limit)  # fmt: skip
            _write(scene, wish, scene.looks[mark.family].words)


def _below(scene: Scene) -> None:
    """The accuracies of the marks below the axis."""
    low = [mark for mark in scene.panel.marks if mark.accuracy < scene.axes.floor]
    spots = [scene.axes.spot(mark) for mark in low]
    for i, mark in enumerate(low):
        wish = Wish(
            lines=[percent(mark.accuracy)], size=scene.sizes.small, anchors=[spots[i]], radius=scene.sizes.radius,
            pushes=0, limit=2.4, others=spots[:i] + spots[i + 1 :],
        )  # fmt: skip
        _write(scene, wish, scene.colours.quiet)
