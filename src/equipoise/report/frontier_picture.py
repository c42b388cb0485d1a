"""Accuracy against leakage of every defence as one SVG file, a panel for each data set, without any library.

A reader should see in seconds which way is better and who is there: the shaded corner, one strong colour for what is
recommended, another for the paper's learner, grey for all else. Drawn for a wide page and for a phone, light and dark.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape

from ..errors import printable
from .frontier_labels import LEADING, Box, Field, Point, shortened, text_width, wrapped
from .frontier_marks import Mark as Mark
from .frontier_marks import Panel as Panel
from .frontier_marks import check, common_floor, percent
from .frontier_panel import (
    DASHED,
    DOTTED,
    PROVED,
    ROUND,
    UNPROTECTED,
    Axes,
    Look,
    Scene,
    across,
    chosen,
    draw_panel,
    look,
)
from .frontier_style import DARK, FONT, LIGHT, NARROW, SHAPES, WIDE, Colours, Ink, Sizes


def picture(panels: Sequence[Panel], *, dark: bool = False, narrow: bool = False, caption: str = "") -> str:
    """The picture as text of an SVG file; the same panels give the same text.

    Args:
        panels: What to draw; all have one accuracy axis. A family looks the same in all of them.
        dark: For a dark page.
        narrow: 390 pixels wide, with the panels below each other, in place of 1,280.
        caption: Stands below, in as many lines as it needs.

    Raises:
        DataError: There is nothing to draw, or a value is no share.

    >>> marks = [Mark("gaussian-dp", "ε 2", 0.93, None, 0.01, None, proved=0.019, role="recommended")]
    >>> picture([Panel("MNIST", marks, 0.005, 0.983)]).partition(" ")[0]
    '<svg'
    """
    check(panels)
    sizes, colours = NARROW if narrow else WIDE, DARK if dark else LIGHT
    looks = _looks(panels, colours, sizes)
    ink = Ink(colours.ground)
    floor, columns = common_floor(panels), min(sizes.columns, len(panels))
    each = (sizes.width - 2 * sizes.margin - (sizes.columns - 1) * sizes.gap) / sizes.columns
    width = round(2 * sizes.margin + columns * each + (columns - 1) * sizes.gap)
    foot = 10 + sizes.small * (1.4 * (1 + max(len(across(panel.chance, sizes)) for panel in panels)) + 1.4)
    named, y = [], sizes.margin * 0.5
    for start in range(0, len(panels), columns):
        for i, panel in enumerate(panels[start : start + columns]):
            left, top = sizes.margin + i * (each + sizes.gap) + sizes.ticks, y + sizes.head
            box = Box(left, top, left + each - sizes.ticks, top + sizes.plot)
            axes = Axes(box, floor, panel.chance, 4.8 * sizes.radius, sizes.above)
            scene = Scene(panel, axes, looks, sizes, colours, ink, Field(box.grown(-3)))
            named.append(draw_panel(scene))
        y += sizes.head + sizes.plot + foot + sizes.gap * 0.4
    y = _legend(panels, named, looks, ink, (width, y), sizes, colours)
    for line in wrapped(printable(caption), sizes.small, width - 2 * sizes.margin):
        ink.text((sizes.margin, y + sizes.small), line, sizes.small, colours.quiet)
        y += sizes.small * LEADING
    return _document(panels, ink, (width, round(y + sizes.margin * 0.75)), colours)


def _looks(panels: Sequence[Panel], colours: Colours, sizes: Sizes) -> dict[str, Look]:
    """Every family's look, by the order in which families of its role appear."""
    roles = {mark.family: str(mark.role) for panel in panels for mark in panel.marks}
    of_role = {role: [family for family in roles if roles[family] == role] for role in roles.values()}
    return {family: look(role, of_role[role].index(family), colours, sizes) for family, role in roles.items()}


def _legend(
    panels: Sequence[Panel],
    named: Sequence[set[str]],
    looks: dict[str, Look],
    ink: Ink,
    size: Point,
    sizes: Sizes,
    colours: Colours,
) -> float:
    """Whatever is not named at its marks in every panel; returns where the legend ends."""
    entries: list[tuple[str, Look | str]] = []
    for family, its in looks.items():
        if any(family in panel.families() and family not in names for panel, names in zip(panels, named, strict=True)):
            entries.append((family, its))
    for panel, names in zip(panels, named, strict=True):
        picked = [chosen(mark, panel) for mark in panel.marks if mark.chosen]
        entries += [(words, "ring") for words in picked if words not in names]
    limits = [looks[mark.family] for panel in panels for mark in panel.marks if mark.proved is not None]
    if limits and not all(PROVED in names for names in named):
        entries.append((PROVED, replace(limits[0], line=colours.line, fill=colours.mark, words=colours.quiet, width=0)))
    if not all(UNPROTECTED in names for names in named):
        entries.append((UNPROTECTED, "dotted"))
    floor = common_floor(panels)
    if any(mark.accuracy < floor for panel in panels for mark in panel.marks):
        entries.append((f"below the axis: under {percent(floor)}", "below"))
    width, y = size
    room, x, swatch, step = width - 2 * sizes.margin, sizes.margin, 38.0, sizes.text * 1.75
    for words, sample in entries:
        told = shortened(printable(words), sizes.text, room - swatch)
        wide = swatch + text_width(told, sizes.text)
        if x > sizes.margin and x + wide > sizes.margin + room:
            x, y = sizes.margin, y + step
        _swatch(ink, (x + 15, y + sizes.text * 0.65), sample, colours)
        ink.text(
            (x + swatch, y + sizes.text), told, sizes.text, colours.quiet if isinstance(sample, str) else sample.words
        )
        x += wide + sizes.text * 1.5
    return y + step if entries else y


def _swatch(ink: Ink, at: Point, sample: Look | str, colours: Colours) -> None:
    """A family's line and mark; a dashed line with a hollow mark where the line has no width."""
    x, y = at
    if sample == "below":
        for side in (-5, 5):
            ink.line(((x + side, y - 3), (x, y + 3)), colours.mark, 1.8, ROUND)
    elif sample == "ring":
        ink.shape(at, SHAPES["recommended"][0], 8, colours.ground, colours.text)
    elif isinstance(sample, str):
        ink.line(((x - 14, y), (x + 14, y)), colours.quiet, 1.4, DOTTED)
    elif sample.width:
        ink.line(((x - 14, y), (x + 14, y)), sample.line, sample.width)
        ink.shape(at, sample.corners, sample.radius, sample.fill)
    else:
        ink.line(((x - 14, y), (x + 14, y)), sample.line, 1.6, DASHED)
        ink.shape(at, sample.corners, sample.radius * 0.8, colours.ground, sample.fill)


def _document(panels: Sequence[Panel], ink: Ink, size: tuple[int, int], colours: Colours) -> str:
    """The elements on a ground, with a title and a description for those who do not see them."""
    width, height = size
    title = f"Accuracy against leakage: {', '.join(panel.title for panel in panels)}"
    head = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}" role="img" font-family="{FONT}"'
    stops = "".join(
        f'<stop offset="{offset}" stop-color="{colours.recommended}" stop-opacity="{opacity}"/>'
        for offset, opacity in ((0, 0.26), (0.5, 0.1), (1, 0))
    )
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {head}>',
            f"<title>{escape(printable(title))}</title>",
            f"<desc>{escape(printable(_described(panels)))}</desc>",
            f'<defs><radialGradient id="better" cx="0" cy="0" r="0.85">{stops}</radialGradient></defs>',
            f'<rect width="{width}" height="{height}" fill="{colours.ground}"/>',
            *ink.parts,
            "</svg>",
            "",
        ]
    )


def _described(panels: Sequence[Panel]) -> str:
    """Every panel in words: ranges of accuracy and of leakage of every family."""
    said = ["Higher and further left is better: more accuracy, less leakage."]
    for panel in panels:
        said.append(f"{panel.title}: chance is {percent(panel.chance)}.")
        if panel.unprotected is not None:
            said.append(f"Accuracy without protection {percent(panel.unprotected)}.")
        for family, marks in panel.families().items():
            role = " (recommended)" if marks[0].role == "recommended" else ""
            accuracy = _range([mark.accuracy for mark in marks])
            said.append(f"{family}{role}: accuracy {accuracy}, leakage {_range([mark.leakage for mark in marks])}.")
        said += [f"{panel.choice.capitalize()}: {mark.told()}." for mark in panel.marks if mark.chosen]
    return " ".join(said)


def _range(shares: list[float]) -> str:
    low, high = percent(min(shares)), percent(max(shares))
    return low if low == high else f"{low} to {high}"
