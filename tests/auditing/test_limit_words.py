"""Limits in words: what was measured, what is proved, and whether that fits."""

from __future__ import annotations

from typing import Any

import pytest

from equipoise.auditing import audit
from equipoise.auditing.audit import claims, with_verdict
from equipoise.auditing.limit_words import HEAD, left_out, limit_lines, limit_verdict

ROW: dict[str, Any] = {
    "dataset": "mnist", "mechanism": "gaussian-dp", "budget": 2.0, "seed": 0, "round": 4, "scope": "release_known",
    "attack": "matched", "measure": "identification", "games": 500, "evidence": "ok", "candidates": 200,
    "measured": 0.008, "low": 0.0022, "high": 0.0204, "limit": 0.0061, "chance": 0.005, "above": False,
    "noticed_from": 0.022, "control_failed": False,
}  # fmt: skip


def row(**change: Any) -> dict[str, Any]:
    return {**ROW, **change}


def run(**change: Any) -> dict[str, Any]:
    return row(attack="multi-round", scope="run", round=None, rounds=50, limit=0.019, **change)


def test_the_first_sentence_has_the_measured_rate_and_the_limit() -> None:
    first, last, hint = limit_verdict([row()])
    assert first == (
        "gaussian-dp @ 2: of 500 releases after 4 rounds, the strongest attacker identified 0.8 % among 200 (95 % "
        "interval 0.22 to 2 %); no attacker can exceed 0.61 %: consistent with the proof (2.2 % or more would not "
        "have been)."
    )
    assert last == "None of 1 figure is above its proved limit (one-sided, 5 % error for all together)."
    assert "--attack multi-round" in hint


def test_the_whole_run_comes_first_and_needs_no_hint() -> None:
    said = limit_verdict([row(), run()])
    assert said[0].startswith("gaussian-dp @ 2: from all 50 releases of a run, in 500 games, the strongest attacker")
    assert "of 500 releases after 4 rounds" in said[1]
    assert not any("--attack multi-round" in line for line in said)


def test_what_is_above_its_limit_is_said_as_such() -> None:
    said = limit_verdict([run(measured=0.7, low=0.6, high=0.8, above=True), row()])
    assert said[0].endswith("no attacker can exceed 1.9 %: ABOVE ITS PROVED LIMIT.")
    assert said[-1].startswith("1 figure of 2 above the proved limit")
    assert "in up to 1 of 20 audits, so play again with another seed" in said[-1]
    assert "If it is above again, do not rely on its epsilon" in said[-1]


def test_membership_is_told_at_one_per_cent() -> None:
    rates = [row(attack="membership", measure="membership_tpr", fpr=fpr, limit=2 * fpr) for fpr in (0.001, 0.01, 0.1)]
    said = limit_verdict(rates)
    assert "it found 0.8 % of the records at 1 % false alarms" in said[0]
    assert sum("false alarms" in line for line in said) == 1


def test_of_several_rounds_the_one_nearest_to_its_limit_is_told() -> None:
    said = limit_verdict([row(round=0, measured=0.004), row(round=4, measured=0.006)])
    assert "after 4 rounds" in said[0]
    assert "the largest of 2 rounds" in said[0]
    assert "at the first round" in limit_verdict([row(round=0)])[0]


def test_what_says_little_is_not_called_consistent() -> None:
    assert "says nothing" in limit_verdict([row(control_failed=True)])[0]
    assert "its limit was not computed (It needs dp)" in limit_verdict([row(limit=None, no_limit="It needs dp")])[0]
    assert limit_verdict([row(games=10, evidence="insufficient evidence")])[0].startswith(
        "Insufficient evidence: 10 games"
    )
    assert limit_verdict([]) == []


def test_the_table_has_a_line_for_each_row() -> None:
    auc = row(
        attack="membership", measure="membership_auc", measured=0.52, low=0.5, high=0.54, limit=None, noticed_from=None
    )
    lines = limit_lines([row(), run(above=True), auc])
    assert lines[0] == ("gaussian-dp @ 2",)
    assert lines[1] == (" matched identified", "round 4", "0.8 %", "0.22 to 2 %", "0.61 %", "2.2 %")
    assert lines[2][1:3] == ("50 rounds", "0.8 % ABOVE")
    assert lines[3] == (" membership AUC", "round 4", "0.52", "0.50 to 0.54", "-", "-")
    assert all(len(line) == len(HEAD) for line in lines[1:])


def test_federations_are_told_apart() -> None:
    lines = limit_lines([row(), row(dataset="fashion-mnist", client=2)])
    assert [line[0] for line in lines if len(line) == 1] == [
        "gaussian-dp @ 2, mnist", "gaussian-dp @ 2, fashion-mnist, client 2"
    ]  # fmt: skip


def test_attacks_without_a_comparison_are_named() -> None:
    said = left_out(["lti", "labels"], ["gaussian-dp", "gaussian-dp"])
    assert said.startswith("Not played on gaussian-dp, and compared with no limit: lti, labels.")


def test_the_claims_of_games_alone_are_about_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is checked of a release with a guarantee, and the paper's score has no part in games."""
    monkeypatch.setattr(audit, "verdict", lambda content: [])
    bare = {"attacks": [], "claims": claims([], "public"), "experiment": "seeded"}
    said = with_verdict({**bare, "limits": [row()]})["claims"]
    assert [words.split()[:5] for words in said["proved"]] == [["The", "budget", "of", "gaussian-dp", "is"]]
    assert len(said["measured"]) == len(said["not claimed"]) == 1
    assert "leakage score" not in str(said)
    mixed = with_verdict({**bare, "attacks": [{}], "limits": [row()]})["claims"]
    assert [len(mixed[name]) for name in ("proved", "measured", "not claimed")] == [2, 3, 2]
