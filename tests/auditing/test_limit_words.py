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
    "found": 4.0, "measured": 0.008, "low": 0.0022, "high": 0.0204, "limit": 0.0061, "chance": 0.005, "above": False,
    "noticed_from": 0.022, "control_failed": False,
}  # fmt: skip


def row(**change: Any) -> dict[str, Any]:
    return {**ROW, **change}


def run(**change: Any) -> dict[str, Any]:
    return row(attack="multi-round", scope="run", round=None, rounds=50, limit=0.019, **change)


def test_counts_stand_beside_what_the_limit_allows_and_what_would_contradict_it() -> None:
    first, last = limit_verdict([row()])
    assert first == (
        "gaussian-dp @ 2: from one release after 4 rounds, an attacker who knows the mechanism and all other records "
        "of the client picked the right one of 200 candidates in 4 of 500 games (0.8 %; 95 % interval 0.22 to 2 %). "
        "The proved limit of 0.61 % allows about 3.1 on average; 11 or more would contradict the proof."
    )
    assert last == (
        "None of 1 figure is significantly above its limit (one-sided, 5 % error for all together); 1 is above it, "
        "by no more than chance allows."
    )


def test_figures_above_their_limit_by_chance_are_counted() -> None:
    low = row(found=2.0, measured=0.004)
    assert limit_verdict([low])[-1].endswith("for all together).")
    assert "None of 3 figures is" in limit_verdict([row(), row(), low])[-1]
    assert limit_verdict([row(), row(), low])[-1].endswith("; 2 are above it, each by no more than chance allows.")


def test_small_and_halved_counts_are_said_as_they_are() -> None:
    few = limit_verdict([row(games=100, found=2.5, measured=0.025, limit=0.00613, noticed_from=0.05)])[0]
    assert "in 2.5 of 100 games (2.5 %; " in few
    assert few.endswith(
        "The proved limit of 0.613 % allows about 0.6 on average; 5 or more would contradict the proof."
    )
    assert "in so few games no count would contradict the proof" in limit_verdict([row(noticed_from=None)])[0]


def test_the_whole_run_comes_first_and_the_attacker_is_described_once() -> None:
    said = limit_verdict([row(), run()])
    assert said[0].startswith("gaussian-dp @ 2: from all 50 releases of a run, an attacker who knows the mechanism")
    assert said[1].startswith("gaussian-dp @ 2: from one release after 4 rounds, the same attacker picked")


def test_what_is_above_its_limit_is_said_as_such() -> None:
    said = limit_verdict([run(found=350.0, measured=0.7, low=0.6, high=0.8, above=True), row()])
    assert said[0].endswith("That is ABOVE ITS PROVED LIMIT of 1.9 %, which allows about 9.5 on average.")
    assert said[-1].startswith("1 figure of 2 above the proved limit")
    assert said[-1].endswith("in up to 1 of 20 audits.")


def test_membership_is_told_at_one_per_cent() -> None:
    rates = [row(attack="membership", measure="membership_tpr", fpr=fpr, limit=2 * fpr) for fpr in (0.001, 0.01, 0.1)]
    said = limit_verdict(rates)
    assert "noticed the record in 4 of 500 games with it, at 1 % false alarms (0.8 %; " in said[0]
    assert sum("false alarms" in line for line in said) == 1


def test_of_several_rounds_the_one_nearest_to_its_limit_is_told() -> None:
    said = limit_verdict([row(round=0, measured=0.004), row(round=4, measured=0.006)])
    assert "after 4 rounds" in said[0]
    assert "the largest of 2 rounds" in said[0]
    assert "at the first round" in limit_verdict([row(round=0)])[0]


def test_what_says_little_is_not_called_consistent() -> None:
    assert "says nothing" in limit_verdict([row(control_failed=True)])[0]
    missing = row(limit=None, no_limit="It needs dp", above=None)
    assert "Its limit was not computed (It needs dp)" in limit_verdict([missing])[0]
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
