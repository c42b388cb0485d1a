"""What an account shows of guarantees: sums, progress, what is left, limits, and where there is none."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from equipoise.errors import BudgetError, LedgerError, missing_extra
from equipoise.ledger.account_report import claim_of, limit_of_all
from equipoise.ledger.ledger import verify
from equipoise.ledger.report import ledger_report
from equipoise.ledger.reservation import Reservation
from equipoise.privacy import limits
from equipoise.privacy.gaussian import epsilon_of
from equipoise.privacy.guarantee import percent_up
from tests.ledger.entries import a_round, formal, node, of_run, reservation, seeded

RESET = {"kind": "reset", "reason": "the data were deleted"}


def shown(path: Path, **options: Any) -> tuple[dict[str, Any], str, str]:
    """The report, what it calls proved, and what it does not claim."""
    result = ledger_report(path, **options)
    return result, " ".join(result["claims"]["proved"]), " ".join(result["claims"]["not claimed"])


def test_reserved_used_and_total_with_relation_and_unit(tmp_path: Path) -> None:
    lines = [reservation("7").entry(), of_run("7"), of_run("7", 2), reservation("8", epsilon=1.0).entry(), formal(1)]
    result, proved, _ = shown(node(tmp_path, *lines))
    assert (result["reserved"]["epsilon"], result["reserved"]["delta"]) == (3.0, 2e-5)
    runs = result["reserved"]["runs"]
    assert [(run["run"], run["used"], run["rounds"], run["relation"], run["unit"]) for run in runs] == [
        ("7", 2, 3, "add/remove", "record"), ("8", 0, 3, "add/remove", "record"),
    ]  # fmt: skip
    assert result["single_releases"] == {"epsilon": 0.5, "delta": 0.0}
    assert result["total"] == {"epsilon": 3.5, "delta": 2e-5, "relation": "add/remove", "units": ["record"]}
    assert "Reserved for 2 run(s): epsilon 3, delta 2e-05 in all (add/remove, unit: record)" in proved
    assert "With single releases of epsilon 0.5 in all (replace one, unit: record): epsilon 3.5, delta 2e-05" in proved
    assert "Run 7: epsilon 2, delta 1e-05 (add/remove, unit: record), 2 of 3 rounds used (epsilon " in proved


def test_what_was_spent_so_far_grows_by_the_schedule_up_to_what_is_reserved(tmp_path: Path) -> None:
    terms = reservation("7", sigma=8.0, rounds=3, noise_schedule=((1.0, 1), (0.5, 2)))
    found = []
    for used in range(4):
        path = node(tmp_path / str(used), terms.entry(), *[of_run("7")] * used)
        (run,) = ledger_report(path)["reserved"]["runs"]
        found.append(run["spent_so_far"])
        assert ledger_report(path)["total"]["epsilon"] == 2.0, "all of it stays reserved"
    expected = [epsilon_of(8.0, 1e-5, 1), epsilon_of(8.0, 1e-5, 2, schedule=((1.0, 1), (0.5, 1)))]
    assert found[:3] == [0.0, *expected]
    assert expected[0] < expected[1] < found[3] <= 2.0


def test_the_limit_of_all_runs_together(tmp_path: Path) -> None:
    """With all units in every round by the exact law, otherwise by the sums; and never below either run's own."""

    def all_of(*runs: Reservation, single: bool = False) -> float:
        path = node(
            tmp_path / str(len(list(tmp_path.iterdir()))), *[run.entry() for run in runs], *[formal(1)] * single
        )
        return limit_of_all(verify(path))

    one, two = reservation("7", sigma=8.0, rounds=3), reservation("8", sigma=4.0, rounds=2, noise_schedule=((1.0, 2),))
    alone = limits.limit(1 / 200, 8.0, 3)
    assert all_of(one) == pytest.approx(alone, rel=1e-9)
    together = limits.limit(1 / 200, 4.0, 5, schedule=((1.0, 2), (2.0, 3)))
    assert alone < all_of(one, two) == pytest.approx(together, rel=1e-9)
    sampled = replace(two, sampling_rate=0.5)
    assert all_of(one, sampled) == pytest.approx(math.exp(4.0) / 200 + 2e-5, rel=1e-9)
    assert all_of(one, single=True) == pytest.approx(math.exp(2.5) / 200 + 1e-5, rel=1e-9)
    assert all_of(reservation("9", epsilon=900.0)) <= 1.0


def test_the_limits_are_those_of_the_reserved_noise(tmp_path: Path) -> None:
    terms = reservation("7", sigma=4.0, noise_schedule=((1.0, 1), (0.5, 2)))
    result, proved, _ = shown(node(tmp_path, terms.entry()))
    (run,) = result["reserved"]["runs"]
    found = run["limits"]["identification"]
    assert found["run"] == limits.limit(1 / 200, 4.0, 3, 1.0, "run", schedule=terms.noise_schedule)
    assert found["release"] == limits.limit(1 / 200, 4.0, 3, 1.0, "release", schedule=terms.noise_schedule)
    assert 1 / 200 < found["release"] < found["run"] < 1
    assert (
        f"with at most {percent_up(found['run'])} (blindly: 0.5 %); from one release, at most "
        f"{percent_up(found['release'])}." in proved
    )
    assert run["limits"]["membership_tpr"]["0.01"] == limits.limit(0.01, 4.0, 3, schedule=terms.noise_schedule)
    assert run["limits"]["advantage"] == limits.advantage(4.0, 3, schedule=terms.noise_schedule)


def test_without_what_computes_limits_the_rest_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> float:
        raise missing_extra("A limit", "dp")

    monkeypatch.setattr("equipoise.privacy.guarantee.limit", missing)
    result, proved, _ = shown(node(tmp_path, reservation("7").entry()))
    assert result["reserved"]["epsilon"] == 2.0
    assert "Its limits are not computed:" in proved


def test_what_is_left_is_under_the_policy_of_each_mechanism(tmp_path: Path) -> None:
    path = node(tmp_path, reservation("7").entry(), formal(1))
    assert ledger_report(path)["left"] is None
    policy = {
        "gaussian-dp": {"most-total-epsilon": 8.0, "most-total-delta": 5e-6},
        "laplace-dp": {"most-total-epsilon": 2.75},
        "none": {"most-releases": 1},
    }
    assert ledger_report(path, policy=policy)["left"] == {
        "gaussian-dp": {"epsilon": 5.5, "delta": 0.0}, "laplace-dp": {"epsilon": 0.25},
    }  # fmt: skip


def test_beside_a_mechanism_without_a_guarantee_none_holds_for_the_whole(tmp_path: Path) -> None:
    words = "No guarantee holds for this data set as a whole: 2 releases by pl-learn have none."
    mixed = node(tmp_path / "a", reservation("7").entry(), of_run("7"), a_round(1), a_round(2, clients=1))
    assert "3 releases by pl-learn have none." in shown(mixed)[2]
    assert words in shown(node(tmp_path / "b", formal(1), a_round(1)))[2]
    assert "No guarantee holds" not in shown(node(tmp_path / "c", reservation("7").entry(), of_run("7")))[2]
    assert "No guarantee holds" not in shown(node(tmp_path / "d", a_round(1)))[2], "it has none to lose"


def test_the_budget_of_a_whole_run_is_not_added_over_its_releases(tmp_path: Path) -> None:
    result, _, unclaimed = shown(node(tmp_path / "n", reservation("7").entry(), of_run("7"), of_run("7")))
    assert result["composed"] == []
    assert result["total"]["epsilon"] == 2.0
    assert "a progress figure" in unclaimed
    run = seeded(tmp_path / "run", formal(1, mechanism="gaussian-dp", budget=2.0))
    result = ledger_report(run)
    assert result["composed"] == []
    assert "reserved" not in result
    assert any("its budget is that of a whole run" in line for line in result["claims"]["not claimed"])


def test_a_release_that_belongs_to_no_run_leaves_no_total(tmp_path: Path) -> None:
    stray = formal(1, mechanism="gaussian-dp", budget=2.0)
    result, _, unclaimed = shown(node(tmp_path, reservation("7").entry(), stray))
    assert result["total"]["epsilon"] is None
    assert "belongs to no run" in unclaimed


def test_guarantees_of_different_units_are_no_sum(tmp_path: Path) -> None:
    both = [reservation("7").entry(), reservation("8", unit="group").entry()]
    result, _, unclaimed = shown(node(tmp_path, *both))
    assert result["total"]["units"] == ["group", "record"]
    assert "A sum over guarantees of different units" in unclaimed


def test_a_reset_is_shown_for_ever(tmp_path: Path) -> None:
    lines = [reservation("7").entry(), of_run("7"), RESET, reservation("8").entry(), RESET]
    result, _, unclaimed = shown(node(tmp_path, *lines))
    assert [(reset["reason"], reset["releases"], reset["epsilon"]) for reset in result["resets"]] == [
        ("the data were deleted", 1, 2.0), ("the data were deleted", 0, 2.0),
    ]  # fmt: skip
    assert (result["reserved"]["epsilon"], result["reserved"]["runs"]) == (0.0, [])
    assert unclaimed.count("What was released stays released.") == 2
    assert "'the data were deleted'" in unclaimed


def test_names_and_reasons_cannot_command_a_terminal(tmp_path: Path) -> None:
    clear = "\x1b[2J"
    lines = [reservation(f"7{clear}").entry(), a_round(1, mechanism=f"m{clear}"), {"kind": "reset", "reason": clear}]
    for stop in (2, 3):
        result, _, _ = shown(node(tmp_path / str(stop), *lines[:stop]))
        assert clear not in " ".join(line for lines in result["claims"].values() for line in lines)


def test_a_run_has_a_claim_for_programs(tmp_path: Path) -> None:
    terms = reservation("7", sigma=4.0, noise_schedule=((1.0, 1), (0.5, 2)), unit="group", epsilon=9.0)
    runs = ledger_report(node(tmp_path, terms.entry()))["reserved"]["runs"]
    claim = claim_of(runs, "7")
    assert claim["holds"] is True
    assert (claim["epsilon"], claim["sigma"], claim["unit"], claim["clip"]) == (9.0, 4.0, "group", None)
    assert claim["noise_schedule"] == [[1.0, 1], [0.5, 2]]
    assert claim["limits"]["identification"]["run"] == runs[0]["limits"]["identification"]["run"]
    with pytest.raises(LedgerError, match=r"no reservation for the run 8\. Reserved: 7\."):
        claim_of(runs, "8")


def test_a_reservation_with_too_little_noise_claims_nothing(tmp_path: Path) -> None:
    runs = ledger_report(node(tmp_path, reservation("7", sigma=0.5, epsilon=2.0).entry()))["reserved"]["runs"]
    with pytest.raises(BudgetError, match="has delta"):
        claim_of(runs, "7")
