"""The picture of a guarantee: its curves are the proved limits, and it says what they are of."""

from __future__ import annotations

import math
from xml.etree import ElementTree

import pytest

from equipoise import guarantee
from equipoise.privacy.guarantee import Guarantee
from equipoise.privacy.limits import limit
from equipoise.report.guarantee_picture import BOTTOM, HEIGHT, SIDE, TOP, WIDTH, guarantee_picture

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def found() -> Guarantee:
    return guarantee(epsilon=2.0, rounds=50)


def drawn(found: Guarantee) -> ElementTree.Element:
    return ElementTree.fromstring(guarantee_picture(found))


def curves(found: Guarantee, name: str) -> list[list[tuple[float, float]]]:
    lines = [line for line in drawn(found).iter(f"{SVG}polyline") if line.get("class") == f"line {name}"]
    return [
        [(float(x), float(y)) for x, y in (p.split(",") for p in str(line.get("points")).split())] for line in lines
    ]


def test_both_panels_show_the_run_one_release_and_chance(found: Guarantee) -> None:
    for name in ("run", "release", "blind"):
        assert len(curves(found, name)) == 2
    words = [str(text.text) for text in drawn(found).iter(f"{SVG}text")]
    for said in ("sees every release", "sees one release", "guesses blindly", "at 1 %: 3.41 % at most",
                 "of 200: 1.91 % at most", "false-positive rate", "equally likely candidates"):  # fmt: skip
        assert said in words
    (given,) = [word for word in words if word.startswith("epsilon")]
    assert given == (
        "epsilon 2 at delta 1e-05 for the whole run, add/remove, unit record: 50 releases, all units in every release, "
        "noise multiplier 14.09839"
    )


def test_the_curves_are_the_limits(found: Guarantee) -> None:
    left, right = curves(found, "run")
    for x, y in left:
        rate = 10 ** (-4 + 4 * (x - 86) / SIDE)
        share = 10 ** (-4 * (y - TOP) / (BOTTOM - TOP))
        assert share == pytest.approx(limit(min(1.0, rate), found.sigma, 50), rel=0.01)
    for x, y in right:
        count = 2 * 5000 ** ((x - 536) / SIDE)
        share = 10 ** (-4 * (y - TOP) / (BOTTOM - TOP))
        assert share == pytest.approx(limit(1 / count, found.sigma, 50), rel=0.01)
    for run, release, blind in zip(*(curves(found, name)[1] for name in ("run", "release", "blind")), strict=True):
        assert run[1] <= release[1] <= blind[1], "higher up is more"


@pytest.mark.parametrize("candidates", [2, 3, 9_000, 50_000, 10_000_000])
@pytest.mark.parametrize("epsilon", [0.1, 100.0])
def test_everything_stays_in_the_picture(candidates: int, epsilon: float) -> None:
    found = guarantee(epsilon=epsilon, rounds=10, candidates=candidates)
    root = drawn(found)
    for name in ("run", "release", "blind"):
        for line in curves(found, name):
            assert all(TOP - 0.1 <= y <= BOTTOM + 0.1 for _, y in line)
    for text in root.iter(f"{SVG}text"):
        assert 0 <= float(str(text.get("x"))) <= WIDTH
        assert 0 <= float(str(text.get("y"))) <= HEIGHT
    for dot in root.iter(f"{SVG}circle"):
        assert TOP - 0.1 <= float(str(dot.get("cy"))) <= BOTTOM
    assert not any(math.isnan(y) for line in curves(found, "run") for _, y in line)


def test_poisson_sampling_and_groups_are_named() -> None:
    text = guarantee_picture(guarantee(sigma=2.0, rounds=10, sampling_rate=0.25, unit="group"))
    assert "sampling rate 0.25" in text
    assert "Is the group in the data?" in text
    assert "prefers-color-scheme: dark" in text
