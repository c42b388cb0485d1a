"""What to do next: only what fits the result."""

from __future__ import annotations

from typing import Any

from equipoise.auditing.advice import next_steps
from equipoise.auditing.comparison import readings
from tests.auditing.findings import cell, content, row


def steps(*rows: dict[str, Any], **more: Any) -> str:
    found = content(*rows, **more)
    return "; ".join(next_steps(found, list(readings(found))))


def test_static_instead_of_learned_only_where_learned_leaks_more() -> None:
    assert "use static noise (pl-identical) instead of pl-learn" in steps(*cell("matched", 0.9, 1.0, 0.3))
    assert "server_rate=auto" in steps(*cell("matched", 0.9, 1.0, 0.3))
    assert "static" not in steps(*cell("matched", 0.9, 1.0, 0.9))
    assert "static" not in steps(*cell("matched", 0.3, 1.0, 0.9)), "learned leaks less here"
    assert "instead of pl-learn" in steps(*cell("lti", 0.9, 0.01, 0.3, failed=True)), "clear, whatever the control"
    assert "static" not in steps(*cell("matched", 0.9, 1.0, 0.3, not_finite=5)), "no scores to compare"


def test_where_there_is_no_guarantee_gaussian_dp_is_named_first() -> None:
    guarantee = "for a guarantee use gaussian-dp (--mechanism gaussian-dp --budget 2)"
    learned, static = cell("matched", 0.9, 1.0, 0.3), cell("matched", 0.5, 1.0, mechanism="pl-identical")
    assert steps(*learned).startswith(f"{guarantee}; without one use static noise (pl-identical) instead of pl-learn")
    assert "; to stay with this mechanism: use a larger batch" in steps(*learned)
    assert steps(*static).startswith(
        f"{guarantee}; to stay with this mechanism: use a larger batch (--set batch=...); "
    )
    assert "; to stay with these mechanisms: use a larger batch" in steps(*learned, *static)
    assert steps(*static, targets="given").startswith("for a guarantee use gaussian-dp (protected_step); to stay")
    formal = steps(*cell("matched", 0.5, 1.0, mechanism="laplace-dp", budget=100.0))
    assert formal.startswith("use a larger batch"), "a budget of laplace-dp is a guarantee"
    assert "to stay" not in formal


def test_a_damped_server_is_named_only_where_there_is_none() -> None:
    """In docs/results.md static noise was more accurate under it than learning without it, and not than with it."""
    learned = cell("matched", 0.9, 1.0, 0.3)
    assert (
        "at the same budget, with a damped server (--set server_rate=auto): in docs/results.md this was more accurate "
        "than learning with a plain server, and less accurate than learning with a damped one; "
    ) in steps(*learned, server="plain")
    assert "instead of pl-learn at the same budget; to stay" in steps(*learned, server="damped")


def test_an_interrupted_audit_asks_to_go_on_and_for_nothing_else() -> None:
    assert steps(*cell("matched", 0.9, 1.0, 0.3), complete=False) == "run the same command again"


def test_a_stricter_budget_unless_the_strictest_leaked_most() -> None:
    strict, loose = {"mechanism": "pl-identical", "budget": 0.96}, {"mechanism": "pl-identical", "budget": 0.995}
    usual = [*cell("matched", 0.1, 1.0, **strict), *cell("matched", 0.9, 1.0, **loose)]
    assert "use a stricter (smaller) budget than that of pl-identical @ 0.995" in steps(*usual)
    turned = [*cell("matched", 0.9, 1.0, **strict), *cell("matched", 0.1, 1.0, **loose)]
    assert "stricter" not in steps(*turned)
    labels = cell("labels", 0.99, 1.0, mechanism="pl-identical", budget=0.9)
    assert "than that of pl-identical @ 0.995" in steps(*labels, *usual), "identified images count before labels"
    assert "use a larger batch" in steps(*turned)


def test_what_is_not_clearly_above_chance_asks_for_a_guarantee_alone() -> None:
    quiet = steps(*cell("matched", 0.01, 1.0, mechanism="pl-identical", mse=0.7))
    assert quiet == "for a guarantee use gaussian-dp (--mechanism gaussian-dp --budget 2)"


def test_no_protection_asks_for_a_guarantee_first() -> None:
    """And not for static noise, at which the audit finds images too."""
    bare = row("matched", 1.0, mechanism="none", budget=None, mse=0.2)
    assert steps(bare).startswith("protect the updates, first of all with gaussian-dp")
    assert "(--mechanism gaussian-dp --budget 2)" in steps(bare)
    assert "--mechanism pl-identical" not in steps(bare)
    assert "(protected_step)" in steps(bare, deployment=True), "a server has no flags of this command"
    assert "left 25 to 38 % of the examples of the first release (up to 42 % later) identified in docs/res" in steps(
        bare
    )
    assert steps(row("matched", 0.01, mechanism="none", budget=None, mse=0.2)).startswith(
        "for a guarantee use gaussian"
    )


def limited(**more: Any) -> dict[str, Any]:
    """A row that is held against a proved limit."""
    return {"mechanism": "gaussian-dp", "scope": "release_known", "limit": 0.01, "above": False, **more}


def test_beside_proved_limits_it_says_to_rely_on_these() -> None:
    one, run = limited(), limited(scope="run")
    rely = "rely on the proved limits, not on what attacks got (guarantee.json, or equipoise guarantee)"
    assert steps(limits=[run, one]) == rely
    assert steps(limits=[one]).startswith(f"{rely}; to look for faults of the code play a whole run (--attack multi-r")
    assert steps(limits=[one], deployment=True).endswith("attacks got (equipoise guarantee)"), "nothing to replay there"
    assert steps(*cell("matched", 0.9, 1.0, 0.3), limits=[run]).startswith(f"{rely}; for a guarantee use gaussian-dp")


def test_above_a_limit_the_code_is_in_doubt() -> None:
    said = steps(limits=[limited(above=True), limited(scope="run")])
    assert said.startswith("play again with another seed (--set seed=N) and more games; if a figure is above its limit")
    assert "do not rely on that epsilon" in said


def test_a_given_update_with_a_budget_of_a_whole_run_is_told_of_its_limit() -> None:
    """And of nothing that makes a PL budget stricter: what limits it is proved."""
    said = steps(*cell("matched", 0.5, 1.0, mechanism="gaussian-dp", budget=2.0), targets="given")
    assert said == (
        "rely on the proved limit of gaussian-dp, which holds for every attacker and a whole run: "
        "guarantee(epsilon=..., rounds=...) has it"
    )


def test_more_releases_or_more_public_images() -> None:
    few = row("matched", 0.01, mse=0.7, targets=8, evidence="insufficient evidence")
    assert steps(few, options={"releases": 8}).endswith("; attack more releases (--targets 20 or more)")
    assert "; set more public images apart" in steps(few, options={"releases": 32})
    there = steps(few, options={"releases": 32}, public_inputs=239)
    assert "; set more public images apart: 239 gave 8 releases, about 600 give 20" in there
    assert "public" not in steps(few, options={"releases": 32}, targets="private")
    assert steps(few, targets="given").endswith(
        "; give at least 20 updates, as Update(model, before, [after1, after2, ...])"
    )


def test_pictures_are_named_where_none_were_made() -> None:
    tried = {"options": {"releases": 32, "attacks": ["lti", "matched"]}}
    assert steps(*cell("matched", 0.01, 1.0)).endswith("no picture: add lti to --attack"), "it was left out"
    assert steps(*cell("matched", 0.01, 1.0), **tried).endswith("and only for these, add --attack invgrad")
    assert "--attack" not in steps(*cell("lti", 0.01, 1.0, mse=0.5))


def test_a_deployment_is_told_of_what_it_has() -> None:
    """Its server has no flags of this command."""
    told, deployed = (steps(*cell("matched", 0.9, 1.0, 0.3), **more) for more in ({}, {"deployment": True}))
    assert "--set server_rate=auto" in told
    assert "--set batch" in told
    assert "--set" not in deployed
    assert "with a damped server (FedAvgM, docs/deployment.md); to stay" in deployed
    assert "accurate" not in deployed, "its training is another than that of docs/results.md"
    assert "use a larger batch" in deployed
