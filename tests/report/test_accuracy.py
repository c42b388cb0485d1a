"""The plot of accuracy over rounds: every federation, in its colour, in a page that fetches nothing."""

from __future__ import annotations

import json
import re

from equipoise.report.accuracy import LEARNED, STATIC, accuracy_page

ROWS = [
    {"dataset": "mnist", "mechanism": name, "budget": budget, "seed": 1, "round": when, "accuracy": 0.1 * when}
    for name, budget in (("none", None), ("pl-identical", 0.98), ("pl-learn", 0.98), ("of another version", 3.0))
    for when in (1, 2)
]


def test_a_line_for_every_federation() -> None:
    page = accuracy_page(ROWS, "a title")
    names = re.findall(r'"name":"([^"]+)"', page)
    assert [name for name in names if "seed" in name] == [
        "none (seed 1)", "pl-identical, budget 0.98 (seed 1)", "pl-learn, budget 0.98 (seed 1)",
        "of another version, budget 3.0 (seed 1)",
    ]  # fmt: skip
    assert "a title" in page
    assert json.dumps([1, 2], separators=(",", ":")) in page


def test_learned_and_static_have_colours_of_their_own() -> None:
    page = accuracy_page(ROWS, "")
    assert STATIC in page
    assert LEARNED in page
    assert not re.search(r'<(script|link)[^>]+(src|href)="http', page)
