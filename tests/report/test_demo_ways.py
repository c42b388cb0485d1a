"""What the demo says of its ways, and what to take away, with planted numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.report.demo_ways import Way, attackers, gradients_of, paper_ways, recommended_way, takeaway
from equipoise.runs.config import resolve


def way(mechanism: str, accuracy: float, identified: float, **more: Any) -> Way:
    budget = {"none": None, "gaussian-dp": 2.0}.get(mechanism, 0.98)
    about = {
        "mechanism": mechanism, "budget": budget, "model": "lenet-zhu", "rounds": 480, "gradients": 1920,
        "accuracy": accuracy, "attack": "matched", "game": "looks among {}", "candidates": 200,
        "identified": identified, "low": identified - 0.05, "high": identified + 0.05, "control_failed": False,
    }  # fmt: skip
    return Way(**{**about, **more})


PROOF: dict[str, Any] = {"model": "scatter-linear", "rounds": 50, "epsilon": 2.0, "delta": 1e-5, "limit": 0.01902}
USUAL = [
    way("none", 0.86, 0.99), way("pl-identical", 0.48, 0.16), way("pl-learn", 0.71, 0.58),
    way("gaussian-dp", 0.943, 0.012, **PROOF),
]  # fmt: skip


def changed(name: str, **change: Any) -> list[Way]:
    return [replace(one, **change) if one.mechanism == name else one for one in USUAL]


def test_the_usual_sentence() -> None:
    assert takeaway(USUAL) == (
        "Take away: gaussian-dp on fixed features was the most accurate of the three protected ways here (94.3 %) and "
        "the only one with a proof: nobody picks the right record of 200 with a probability of more than 1.91 %, "
        "whereas the attack found 58 % behind the learned noise of pl-learn and 16 % behind the static noise of "
        "pl-identical."
    )


def test_no_protection_is_not_among_the_protected() -> None:
    assert takeaway(changed("none", accuracy=0.99)) == takeaway(USUAL)


def test_another_order_of_accuracy_is_said() -> None:
    assert takeaway(changed("pl-learn", accuracy=0.961)).startswith(
        "Take away: pl-learn was the most accurate of the three protected ways here (96.1 %; gaussian-dp on fixed "
        "features 94.3 %), and gaussian-dp is the only one with a proof: nobody"
    )
    assert takeaway(changed("pl-identical", accuracy=0.95)).startswith("Take away: pl-identical was the most accurate")
    assert takeaway(changed("pl-learn", accuracy=0.94301)).startswith(
        "Take away: gaussian-dp on fixed features was as accurate here as pl-learn (94.3 %) and is the only one"
    )


def test_the_order_of_what_was_found_is_that_of_the_measurement() -> None:
    said = takeaway(changed("pl-identical", identified=0.7, low=0.6))
    assert said.endswith(
        "found 70 % behind the static noise of pl-identical and 58 % behind the learned noise of pl-learn."
    )


def test_what_is_not_clearly_above_the_limit_is_not_held_against_it() -> None:
    said = takeaway(changed("pl-identical", identified=0.02, low=0.004))
    assert said.endswith("whereas the attack found 58 % behind the learned noise of pl-learn.")
    both = [
        replace(one, identified=0.02, low=0.004) if one.mechanism.startswith("pl-") else one for one in USUAL
    ]  # fmt: skip
    assert "whereas" not in takeaway(both)
    assert takeaway(both).endswith(
        "The attack found at most 2.0 % behind the others, not clearly more, which proves nothing: a stronger one may "
        "get more."
    )


def test_a_failed_control_leaves_nothing_to_compare() -> None:
    failed = [replace(one, control_failed=one.mechanism.startswith("pl-")) for one in USUAL]
    assert "58 %" not in takeaway(failed)
    assert takeaway(failed).endswith("the attack did not work without noise either.")
    assert failed[2].found == "58 % *"
    assert takeaway(changed("pl-learn", control_failed=True)).endswith(
        "found 16 % behind the static noise of pl-identical."
    )


def test_what_contradicts_the_proof_comes_before_all() -> None:
    said = takeaway(changed("gaussian-dp", above=True))
    assert said.startswith("Take away: rely on nothing here.")
    assert "1.91" not in said


def test_unlike_numbers_of_candidates_are_named() -> None:
    assert "58 % of 50 behind" in takeaway(changed("pl-learn", candidates=50))


def test_a_limit_is_said_with_its_relation_and_only_where_it_is_proved() -> None:
    assert [one.proved for one in USUAL[:3]] == ["nothing"] * 3
    assert USUAL[3].proved == (
        "any attacker picks the right one of 200 in at most 1.91 % of cases (epsilon 2 at delta 1e-05, "
        "add/remove of one record)"
    )
    assert all("epsilon" not in one.words(1000) for one in USUAL[:3])


def test_each_way_in_words() -> None:
    assert [one.words(1000).partition(":")[0] for one in USUAL] == [
        "none", "pl-identical @ 0.98", "pl-learn @ 0.98", "gaussian-dp @ 2"
    ]  # fmt: skip
    assert "learned on the private batch" in USUAL[2].words(1000)
    assert USUAL[3].words(1000).endswith("(scatter-linear); 50 rounds of all 1,000 records of a client")
    assert attackers(USUAL) == ("from none, pl-identical, pl-learn, gaussian-dp the attacker (matched) looks among 200")
    other = changed("gaussian-dp", game="knows all but {}", attack="lti")
    assert attackers(other).endswith("; from gaussian-dp the attacker (lti) knows all but 200")


def test_gradients_count_learning_and_all_records() -> None:
    settings = Settings.flat(rounds=10, batch=4, local_steps=2, steps=7)
    assert gradients_of(settings, Federation("mnist", "pl-identical", 0.98), 1000) == 10 * 4 * 2
    assert gradients_of(settings, Federation("mnist", "pl-learn", 0.98), 1000) == 10 * 4 * (2 + 7)
    whole = resolve(overrides={"rounds": 5, "gaussian.sampling_rate": 0.25}, sweep=GAUSSIAN).settings
    assert gradients_of(whole, Federation("mnist", "gaussian-dp", 2.0), 1000) == 5 * 250


GAUSSIAN: dict[str, Any] = {"mechanisms": ["gaussian-dp"], "budgets": [2.0]}


def attacked(mechanism: str, attack: str, identified: float | None, **more: Any) -> dict[str, Any]:
    return {
        "mechanism": mechanism, "budget": 0.98, "role": "own", "control": None, "attack": attack, "chance": "1 in 200",
        "identification": identified, "identification_low": 0.1, "identification_high": 0.9, **more,
    }  # fmt: skip


def trained(mechanism: str, budget: float) -> dict[str, Any]:
    return {"dataset": "mnist", "mechanism": mechanism, "budget": budget, "seed": 1, "accuracy": 0.7}


def test_the_strongest_attack_whose_control_worked_is_taken() -> None:
    rows = [
        attacked("pl-learn", "lti", 0.3), attacked("pl-learn", "matched", 0.6),
        attacked("pl-learn", "membership", None),
        attacked("pl-learn", "matched", 0.9, role="static, equal lower bound"),
        attacked("pl-learn", "matched", 0.95, control="negative"), attacked("pl-identical", "matched", 0.99),
    ]  # fmt: skip
    settings = Settings.flat(rounds=10)
    (one,) = paper_ways(settings, [trained("pl-learn", 0.98)], {"attacks": rows}, 1000)
    assert (one.attack, one.identified, one.low, one.candidates, one.limit) == ("matched", 0.6, 0.1, 200, None)
    rows[1]["control_failed"] = True
    (one,) = paper_ways(settings, [trained("pl-learn", 0.98)], {"attacks": rows}, 1000)
    assert (one.attack, one.control_failed) == ("lti", False)


def test_the_limit_is_that_of_the_whole_run_for_as_many_candidates() -> None:
    row = {
        "measure": "identification", "attack": "matched", "candidates": 200, "measured": 0.005, "low": 0.001,
        "high": 0.02, "control_failed": False, "above": True,
    }  # fmt: skip
    settings = resolve(sweep=GAUSSIAN).settings
    played = {"limits": [{"measure": "membership_tpr"}, row]}
    one = recommended_way(settings, trained("gaussian-dp", 2.0), played, 1000)
    assert one.limit == pytest.approx(0.019027, abs=1e-5)
    assert one.above
    assert (one.epsilon, one.delta, one.gradients, one.rounds) == (2.0, 1e-5, 50_000, 50)
    fewer = recommended_way(settings, trained("gaussian-dp", 2.0), {"limits": [{**row, "candidates": 5}]}, 1000)
    assert fewer.limit is not None
    assert fewer.limit > 0.2
