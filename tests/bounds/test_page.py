"""The page: whole, self-contained, and with the numbers of the rows."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.bounds.page import _figure, page
from equipoise.bounds.rows import Row, assumption, compared, figure, given, not_covered, result_row
from equipoise.bounds.run import Bounds

ABOUT = {"dataset": "d<b>", "mechanism": "pl-learn", "budget": 0.98, "seed": 1, "round": 2}
MEASURED = figure(3.0, 4, "mean", 0.5) | {"low": 2.0, "high": 4.5}


def row(**more: Any) -> Row:
    given_more = {"measured": MEASURED, "bound": given(10.0), **more}
    return result_row(ABOUT, "one_step", "eta/2 |grad F|^2", "as configured", **given_more)


def body(*rows: Row) -> str:
    """The page without plotly's script."""
    text = page({"bounds": list(rows), "claims": {"proved": ["this", "& that"]}})
    assert text.startswith("<!doctype html>")
    return text.partition("<body>")[2].partition("<script")[0] + text.rpartition("</script>")[2]


def test_a_figure_has_the_numbers_of_its_rows() -> None:
    other = {**row(bound=None), "round": None}
    bound, measured = _figure("one_step", [row(), other]).data
    assert (bound.name, list(bound.x)) == ("bound", [10.0])
    assert (measured.name, list(measured.x)) == ("measured", [3.0, 3.0])
    assert (list(measured.error_x.array), list(measured.error_x.arrayminus)) == ([1.5, 1.5], [1.0, 1.0])
    assert (list(bound.error_x.array), list(bound.error_x.arrayminus)) == ([0.0], [0.0])
    place = "d<b> pl-learn @ 0.98 (seed 1)"
    assert list(measured.y) == [
        f"{place}, round 2<br>eta/2 |grad F|^2, as configured", f"{place}<br>eta/2 |grad F|^2, as configured",
    ]  # fmt: skip


@pytest.mark.parametrize(("result", "kind"), [("one_step", "log"), ("privacy_leakage", "linear")])
def test_only_leakage_has_a_linear_axis(result: str, kind: str) -> None:
    assert _figure(result, [row()]).layout.xaxis.type == kind


def test_assumptions_and_claims_are_written_out() -> None:
    check = compared("gamma < 1/L_alpha", given(0.1), given(0.0057), strict=True, note="sure & certain")
    text = body(row(assumptions=[check, assumption("smooth", "held")]))
    cells = "<td>gamma &lt; 1/L_alpha</td><td>Lemma C.1</td><td>2</td><td class='violated'>violated</td>"
    assert f"{cells}<td>0.1 against 5.70e-3</td><td>sure &amp; certain</td>" in text
    assert "<td class='held'>held</td>" in text
    assert "<b>proved</b>: this &amp; that" in text
    assert "d&lt;b&gt; pl-learn @ 0.98 (seed 1)" in text
    assert "<h2>Lemma C.1: one round</h2>" in text


def test_a_result_with_nothing_to_show_says_why() -> None:
    text = body(not_covered(ABOUT, "converge_rate", "mean |grad F|^2", "one step size", "the rate < changes"))
    assert "<h2>Theorem 5.2: whole run</h2><p>not covered: the rate &lt; changes.</p>" in text
    assert "<li>Theorem 5.2 (whole run): not stated for pl-learn" in text


def test_the_script_is_there_once_and_nothing_is_fetched(result: Bounds) -> None:
    text = page(result.content)
    assert "<script src=" not in text
    assert "http-equiv" not in text
    assert text.count("Plotly.newPlot(") >= 5
    assert len(text) < 2 * len(
        page({**result.content, "bounds": result.rows[:8]})
    )  # plotly's own code, not once a figure
    assert "pl-identical" in text
