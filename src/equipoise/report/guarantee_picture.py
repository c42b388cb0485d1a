"""The proved limits of a guarantee as one SVG file: membership and identification, beside blind guessing.

Made by hand, so that it needs nothing but text; colours follow the reader's light or dark setting, on a ground of
their own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from ..privacy.gaussian import rounded_up
from ..privacy.guarantee import Guarantee, percent_up
from ..privacy.limits import Scope, limit

WIDTH, HEIGHT, TOP, SIDE, BOTTOM = 900, 470, 124, 300, 424
POINTS = 120
STYLE = """
 text { font-family: system-ui, -apple-system, 'Segoe UI', sans-serif; fill: #1b1f24; font-size: 12px }
 .ground { fill: #ffffff } .title { font-size: 18px; font-weight: 600 } .panel { font-size: 14px; font-weight: 600 }
 .small { fill: #656d76 } .grid { stroke: #e4e8ec; stroke-width: 1 } .frame { stroke: #8c959f; fill: none }
 .line { fill: none; stroke-width: 2.25; stroke-linejoin: round } .run { stroke: #00798c } .release { stroke: #bc6c00 }
 .blind { stroke: #656d76; stroke-dasharray: 5 4; stroke-width: 1.5 } .dot { fill: #00798c }
 @media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .ground { fill: #0d1117 } .small { fill: #9198a1 } .grid { stroke: #21262d }
  .frame { stroke: #59626c } .run { stroke: #4cc3d5 } .release { stroke: #e8a33d } .blind { stroke: #9198a1 }
  .dot { fill: #4cc3d5 }
 }"""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of logarithmic axes; the limits of ``chance(x)`` are drawn over x from ``least`` to ``most``.

    Nothing is ever drawn below the line of chance, so that is where ``told`` stands, the words of the marked point.
    """

    left: float
    title: str
    across: str
    up: str
    least: float
    most: float
    ticks: Sequence[tuple[float, str]]
    chance: Callable[[float], float]
    marked: float
    told: str

    @property
    def rises(self) -> bool:
        return self.chance(self.most) > self.chance(self.least)

    @property
    def powers(self) -> int:
        """Powers of ten on the upright axis, below 100 %."""
        return math.ceil(-math.log10(min(self.chance(self.least), self.chance(self.most))) - 1e-9)

    def x(self, value: float) -> float:
        return self.left + SIDE * math.log(value / self.least) / math.log(self.most / self.least)

    def y(self, share: float) -> float:
        return TOP - (BOTTOM - TOP) * math.log10(share) / self.powers


def guarantee_picture(found: Guarantee) -> str:
    """An SVG document: the limit on membership by false-positive rate, and on identification by candidates.

    >>> from equipoise import guarantee
    >>> guarantee_picture(guarantee(epsilon=2.0, rounds=50)).splitlines()[0][:4]
    '<svg'
    """
    rates = [(10.0**-k, f"{100 * 10.0**-k:g} %") for k in range(5)]
    named = found.identification.candidates
    most = 10.0 ** max(4, math.ceil(math.log10(named)))
    counts = [(10.0**k, f"{10**k:,}") for k in range(1, round(math.log10(most)) + 1)]
    panels = [
        Panel(
            left=86, title=f"Is the {found.unit} in the data?", across="false-positive rate", up="true-positive rate",
            least=1e-4, most=1.0, ticks=rates, chance=lambda rate: rate, marked=0.01,
            told=f"at 1 %: {percent_up(found.membership_tpr['0.01'])} at most",
        ),
        Panel(
            left=536, title="Which candidate is it?", across="equally likely candidates", up="picks the right one",
            least=2.0, most=most, ticks=[(2.0, "2"), *counts], chance=lambda count: 1 / count, marked=float(named),
            told=f"of {named:,}: {percent_up(found.identification.run)} at most",
        ),
    ]  # fmt: skip
    rate = "all units in every release" if found.sampling_rate == 1 else f"sampling rate {found.sampling_rate:g}"
    given = (
        f"epsilon {rounded_up(found.epsilon):.7g} at delta {found.delta:g} for the whole run, {found.relation}, unit "
        f"{found.unit}: {found.rounds:,} releases, {rate}, noise multiplier {found.sigma:.7g}"
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<title>{escape(given)}</title>",
        f"<style>{STYLE}\n</style>",
        f'<rect class="ground" width="{WIDTH}" height="{HEIGHT}" rx="6"/>',
        _text(24, 34, "What any attacker achieves at best", "title"),
        _text(24, 55, given, "small"),
        *_legend(),
    ]
    for panel in panels:
        parts += _panel(panel, found)
    return "\n".join([*parts, "</svg>", ""])


def _legend() -> list[str]:
    result, x = [], 24.0
    for name, words in (("run", "sees every release"), ("release", "sees one release"), ("blind", "guesses blindly")):
        result += [f'<line class="line {name}" x1="{x}" y1="77" x2="{x + 28}" y2="77"/>', _text(x + 36, 81, words)]
        x += 172
    return result


def _panel(panel: Panel, found: Guarantee) -> list[str]:
    def proved(scope: Scope) -> Callable[[float], float]:
        return lambda kappa: limit(kappa, found.sigma, found.rounds, found.sampling_rate, scope)

    at = panel.x(panel.marked), panel.y(proved("run")(panel.chance(panel.marked)))
    corner, anchor = (panel.left + SIDE - 12, "end") if panel.rises else (panel.left + 12, "start")
    return [
        *_axes(panel),
        _curve(panel, "blind", lambda kappa: kappa),
        _curve(panel, "release", proved("release")),
        _curve(panel, "run", proved("run")),
        f'<circle class="dot" cx="{at[0]:.1f}" cy="{at[1]:.1f}" r="4"/>',
        f'<circle class="dot" cx="{corner:.1f}" cy="{BOTTOM - 18}" r="4"/>',
        _text(corner + (-10 if panel.rises else 10), BOTTOM - 14, panel.told, "", anchor),
    ]


def _axes(panel: Panel) -> list[str]:
    right = panel.left + SIDE
    middle = f"rotate(-90 {panel.left - 58:.1f} {(TOP + BOTTOM) / 2:.1f})"
    upright = _text(panel.left - 58, (TOP + BOTTOM) / 2, panel.up, "small", "middle")
    parts = [_text(panel.left, TOP - 14, panel.title, "panel"), f'<g transform="{middle}">{upright}</g>']
    for value, words in panel.ticks:
        x = panel.x(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{BOTTOM}"/>')
        parts.append(_text(x, BOTTOM + 17, words, "small", "middle"))
    for power in range(panel.powers + 1):
        share = 10.0**-power
        y = panel.y(share)
        parts.append(f'<line class="grid" x1="{panel.left}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>')
        parts.append(_text(panel.left - 7, y + 4, f"{100 * share:g} %", "small", "end"))
    parts.append(f'<rect class="frame" x="{panel.left}" y="{TOP}" width="{SIDE}" height="{BOTTOM - TOP}"/>')
    return [*parts, _text(panel.left + SIDE / 2, BOTTOM + 36, panel.across, "small", "middle")]


def _curve(panel: Panel, name: str, gamma: Callable[[float], float]) -> str:
    places = [panel.least * (panel.most / panel.least) ** (k / POINTS) for k in range(POINTS)]
    points = ((panel.x(value), panel.y(gamma(panel.chance(value)))) for value in (*places, panel.most))
    return f'<polyline class="line {name}" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y in points)}"/>'


def _text(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    known = f' class="{kind}"' if kind else ""
    return f'<text{known} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(words)}</text>'
