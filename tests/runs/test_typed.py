"""Settings from raw values: every problem is collected, and the rest is typed all the same."""

from __future__ import annotations

from equipoise.errors import EquipoiseError
from equipoise.runs.config import SweepBlock
from equipoise.runs.typed import nulls, typed, typed_settings


def test_what_is_right_is_typed_beside_what_is_wrong() -> None:
    problems: list[EquipoiseError] = []
    settings = typed_settings({"rounds": 7, "eta": "much", "etta": 1, "leakage": {"D": 3.0, "E": 1}}, problems)
    assert (settings.training.rounds, settings.protection.leakage.D) == (7, 3.0)
    assert len(problems) == 3
    text = " ".join(map(str, problems))
    assert "eta = 'much'" in text
    assert "etta" in text
    assert "leakage.E" in text


def test_true_is_no_number() -> None:
    problems: list[EquipoiseError] = []
    typed_settings({"rounds": True}, problems)
    assert "rounds = true" in str(problems[0])


def test_a_block_that_is_no_table_is_a_problem_and_nothing() -> None:
    problems: list[EquipoiseError] = []
    assert typed(SweepBlock, ["mnist"], "sweep[0].", problems) is None
    assert "sweep[0]" in str(problems[0])


def test_none_in_words_is_no_value() -> None:
    assert nulls({"clip": "none", "rounds": 3}) == {"clip": None, "rounds": 3}
