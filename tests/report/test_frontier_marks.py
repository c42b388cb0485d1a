"""What cannot be drawn is refused with its name; what is drawn is told in words."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from equipoise.errors import DataError
from equipoise.report.frontier_marks import Mark, Panel, check, common_floor
from tests.report.frontier_values import panels

MARK = Mark("gaussian-dp", "ε 2", 0.93, (0.92, 0.94), 0.01, (0.005, 0.02), proved=0.019)


def refused(*given: Panel) -> str:
    with pytest.raises(DataError) as caught:
        check(given)
    assert caught.value.__class__ is DataError
    return str(caught.value)


@pytest.mark.parametrize("value", [math.nan, math.inf, -0.01, 1.01, None, "0.5", True])
@pytest.mark.parametrize("name", ["accuracy", "leakage", "proved"])
def test_what_is_no_share_is_refused_with_name_and_place(name: str, value: Any) -> None:
    if (name, value) != ("proved", None):
        words = refused(Panel("MNIST", [MARK, replace(MARK, **{name: value})], 0.005, None))
        assert f"{name}={value!r} of gaussian-dp, ε 2 on MNIST" in words


@pytest.mark.parametrize("name", ["accuracy_interval", "leakage_interval"])
def test_an_interval_has_two_shares_in_order(name: str) -> None:
    assert "to rise" in refused(Panel("MNIST", [replace(MARK, **{name: (0.5, 0.4)})], 0.005, None))
    assert f"an end of {name}=nan" in refused(Panel("MNIST", [replace(MARK, **{name: (0.5, math.nan)})], 0.005, None))


def test_nothing_to_draw_is_refused() -> None:
    assert "no data set" in refused()
    assert "nothing to draw for Fashion-MNIST" in refused(
        Panel("MNIST", [MARK], 0.005, None), Panel("Fashion-MNIST", [], 0.005, None)
    )
    assert "no family" in refused(Panel("MNIST", [replace(MARK, family=" ")], 0.005, None))


@pytest.mark.parametrize("chance", [0.0, 1.0, math.nan, -0.1])
def test_chance_lies_between_nothing_and_all(chance: float) -> None:
    assert "chance=" in refused(Panel("MNIST", [MARK], chance, None))


def test_the_accuracy_without_protection_is_a_share_or_none() -> None:
    assert "unprotected=2.0" in refused(Panel("MNIST", [MARK], 0.005, 2.0))
    check([Panel("MNIST", [MARK], 0.005, None)])


def test_a_family_has_one_role_and_a_known_one() -> None:
    two = [Panel(title, [replace(MARK, role=role)], 0.005, None) for title, role in (("a", "paper"), ("b", "baseline"))]  # type: ignore[arg-type]
    assert "both paper and baseline" in refused(*two)
    assert "role='best'" in refused(Panel("MNIST", [replace(MARK, role="best")], 0.005, None))  # type: ignore[arg-type]


def test_plausible_panels_are_taken() -> None:
    check(panels("ε 2"))


def test_the_axis_begins_below_what_matters() -> None:
    low, high = replace(MARK, accuracy=0.1), replace(MARK, family="other", accuracy=0.72)
    assert common_floor([Panel("a", [low, high], 0.005, None)]) == 0.0
    assert common_floor([Panel("a", [low, replace(high, role="paper")], 0.005, None)]) == 0.7
    assert common_floor([Panel("a", [replace(low, accuracy=0.99)], 0.005, None)]) == 0.8
    assert (
        common_floor(
            [
                Panel("a", [replace(high, role="paper")], 0.005, None),
                Panel("b", [replace(low, chosen=True)], 0.005, None),
            ]
        )
        == 0.0
    )
    assert common_floor([Panel("a", [replace(low, accuracy=0.7)], 0.005, None)]) == 0.6, "no mark on the lower edge"


def test_families_keep_their_order() -> None:
    names = ["b", "a", "b", "c"]
    shown = Panel("MNIST", [replace(MARK, family=name, strength=str(i)) for i, name in enumerate(names)], 0.005, None)
    families = shown.families()
    assert list(families) == ["b", "a", "c"]
    assert [mark.strength for mark in families["b"]] == ["0", "2"]


def test_a_proved_limit_is_rounded_up() -> None:
    assert "never above 1.91 %" in replace(MARK, proved=0.019001).told()
