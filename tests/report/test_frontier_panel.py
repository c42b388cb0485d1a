"""A panel shows every value where its axes say it is."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from equipoise.report.frontier_labels import Box, Field
from equipoise.report.frontier_marks import Mark, Panel
from equipoise.report.frontier_panel import PROVED, UNPROTECTED, Axes, Scene, across, draw_panel, look
from equipoise.report.frontier_style import LIGHT, NARROW, SHAPES, WIDE, Ink

AXES = Axes(Box(100, 50, 500, 450), floor=0.5, chance=0.01, inset=20, above=40)
MARK = Mark("gaussian-dp", "ε 2", 0.93, (0.92, 0.94), 0.1, (0.05, 0.2), proved=0.2, role="recommended")


def scene(*marks: Mark, unprotected: float | None = None) -> Scene:
    looks = {mark.family: look(mark.role, 0, LIGHT, WIDE) for mark in marks}
    return Scene(Panel("MNIST", marks, 0.01, unprotected), AXES, looks, WIDE, LIGHT, Ink("#ffffff"), Field(AXES.box))


def test_leakage_is_logarithmic_and_accuracy_is_linear() -> None:
    assert (AXES.x(0.01), AXES.x(1.0)) == pytest.approx((120, 480))
    assert AXES.x(0.1) == pytest.approx(300)
    assert (AXES.y(0.5), AXES.y(1.0)) == pytest.approx((450, 90))
    assert AXES.y(0.75) == pytest.approx(270)


def test_leakage_below_chance_stands_at_chance_and_low_accuracy_at_the_edge() -> None:
    assert AXES.x(0.0) == AXES.x(0.01)
    x, y = AXES.spot(replace(MARK, accuracy=0.2))
    assert (x, y) == pytest.approx((300, 432))


def test_lines_end_at_the_lower_edge() -> None:
    low, high = replace(MARK, accuracy=0.25, leakage=0.01), replace(MARK, accuracy=0.75, leakage=1.0)
    ((start, end),) = AXES.path([low, high])
    assert start == pytest.approx((300, 450)), "half-way, where the line enters"
    assert end == pytest.approx((480, 270))
    ((back, start),) = AXES.path([high, low])
    assert (back, start) == (pytest.approx((480, 270)), pytest.approx((300, 450)))
    assert AXES.path([low, replace(low, leakage=1.0)]) == []
    assert AXES.path([high]) == [], "one mark has no line"


def test_a_lonely_panel_names_everything_at_its_place() -> None:
    other = Mark("pruning", "90 %", 0.7, None, 0.5, None)
    shown = scene(MARK, other, unprotected=0.8)
    assert draw_panel(shown) == {"gaussian-dp", "pruning", PROVED, UNPROTECTED}
    drawn = "\n".join(shown.ink.parts)
    for words in ("recommended:", "gaussian-dp", "ε 2", "pruning", "unprotected 80 %", PROVED, "better", "MNIST"):
        assert f">{words}</text>" in drawn


def test_the_choice_is_ringed_and_named() -> None:
    shown = scene(replace(MARK, chosen=True))
    assert "chosen: gaussian-dp, ε 2" in draw_panel(shown)
    drawn = "\n".join(shown.ink.parts)
    assert ">chosen: ε 2</text>" in drawn
    assert drawn.count(f'stroke="{LIGHT.text}"') == 1
    assert ">recommended:</text>" not in drawn, "one name is enough"
    plain = scene(MARK)
    draw_panel(plain)
    assert f'stroke="{LIGHT.text}"' not in "\n".join(plain.ink.parts)


def test_better_stands_below_marks_in_its_corner() -> None:
    def height(shown: Scene) -> float:
        draw_panel(shown)
        (line,) = [part for part in shown.ink.parts if ">better<" in part]
        return float(line.partition(' y="')[2].partition('"')[0])

    best = replace(MARK, accuracy=1.0, leakage=0.01)
    assert height(scene(best)) > height(scene(MARK))


def test_the_lower_axis_says_among_how_many() -> None:
    assert " ".join(across(0.005, WIDE)) == "leakage: share of records picked out of 200 (log scale)"
    assert "out of 1,000 (" in " ".join(across(0.001, NARROW))
    assert (len(across(0.005, WIDE)), len(across(0.005, NARROW))) == (1, 2)


def test_roles_differ_in_colour_and_families_in_shape() -> None:
    first, second = look("baseline", 0, LIGHT, WIDE), look("baseline", 1, LIGHT, WIDE)
    assert first.fill == second.fill == LIGHT.mark
    assert first.corners != second.corners
    best, paper = look("recommended", 0, LIGHT, WIDE), look("paper", 0, LIGHT, WIDE)
    assert (best.fill, paper.fill) == (LIGHT.recommended, LIGHT.paper)
    assert best.width > paper.width > first.width
    assert look("baseline", len(SHAPES["baseline"]), LIGHT, WIDE).corners == first.corners


def test_the_axis_has_room_for_few_or_many_candidates() -> None:
    for chance in (0.9, 0.5, 0.25, 0.001, 1e-6):
        axes = replace(AXES, chance=chance)
        assert axes.x(chance) == pytest.approx(120)
        assert axes.x(math.sqrt(chance)) == pytest.approx(300)
