"""Scales, groups and jobs: what is asked for is asked for once, and nothing that exists already."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, from_dict
from equipoise.mechanism.registry import MECHANISMS, Mechanism, register
from equipoise.reproduction import plan
from equipoise.reproduction.artefacts.registry import ARTEFACTS, needs
from equipoise.reproduction.plan import FULL, QUICK, Need, digest, grid, jobs, without
from tests.reproduction.synthetic import SCALE

# --- the full scale --------------------------------------------------------------------------------------------------


def test_the_full_scale_is_the_papers_protocol_with_more_seeds() -> None:
    assert len(set(FULL.seeds)) >= 8
    assert (
        (FULL.rounds, FULL.iterations)
        == (Settings().training.rounds, Settings().protection.leakage.iterations)
        == (5000, 1600)
    )
    assert len(FULL.seeds) * FULL.attacked >= 16, "target batches of an attack cell"
    assert FULL.attacked <= Settings().protection.clients
    assert FULL.pictured >= 16
    assert FULL.baselines


def test_the_quick_scale_is_told_from_the_full_one_by_name() -> None:
    assert (FULL.name, QUICK.name) == ("full", "quick")
    assert QUICK.rounds < FULL.rounds
    assert len(QUICK.seeds) >= 2, "one seed has no interval"


def test_a_grid_has_every_combination() -> None:
    result = list(grid(["mnist", "fmnist"], ["none"], [None], (1, 2), "accuracy", "damped"))
    assert result == [
        Need(Federation(dataset, "none", None, seed), "accuracy", "damped")
        for dataset in ("mnist", "fmnist")
        for seed in (1, 2)
    ]
    assert Need(Federation("mnist", "none"), "accuracy").group == "paper"


# --- groups ----------------------------------------------------------------------------------------------------------


def test_a_group_changes_what_it_says_and_nothing_else() -> None:
    base = plan.settings_of(FULL, "paper", "cpu")
    assert base == Settings.flat(snapshots=[]), "everything else is the paper's"
    for group, change in {
        "damped": {"server_rate": "auto"}, "eleven-steps": {"local_steps": 11}, "M=30": {"steps": 30},
        "gamma=0.03": {"gamma": 0.03},
    }.items():  # fmt: skip
        assert plan.settings_of(FULL, group, "cpu") == base.replace(**change)


def test_eleven_steps_spend_the_gradients_of_learning() -> None:
    base = plan.settings_of(FULL, "paper", "cpu")
    assert (
        plan.settings_of(FULL, "eleven-steps", "cpu").protection.local_steps
        == base.protection.local_steps + base.protection.steps
    )


@pytest.mark.parametrize("group", ["nobody", "N=3", "M", "M=", "gamma=x"])
def test_an_unknown_group_is_an_error(group: str) -> None:
    with pytest.raises((KeyError, ValueError)):
        plan.group_settings(group)


# --- nothing twice ---------------------------------------------------------------------------------------------------


def test_only_what_is_missing_is_asked_for_again() -> None:
    wanted = needs(["accuracy-ls", "defence-ls", "sweeps"], SCALE)
    assert without(wanted, {}) == wanted
    assert without(wanted, wanted) == {}
    done = copy.deepcopy(wanted)
    cell, gone = Federation("mnist", "ls-learn", 200, 1), Federation("mnist", "none", None, 2)
    done["paper"][cell] = {"accuracy"}
    del done["paper"][gone]
    assert without(wanted, done) == {"paper": {cell: {"inversion"}, gone: {"accuracy", "inversion"}}}
    assert wanted["paper"][cell] == {"accuracy", "inversion"}, "what was wanted is not changed"


def test_the_same_federation_in_another_group_is_another_federation() -> None:
    cell = Federation("mnist", "ls-static", 200, 1)
    wanted: plan.Needs = {"damped": {cell: {"accuracy"}}}
    assert without(wanted, {"paper": {cell: {"accuracy"}}}) == wanted


# --- jobs ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def job() -> dict[str, Any]:
    (result,) = jobs(needs(["layers"], SCALE), SCALE, "cpu", "abc1234")
    return result


def test_a_job_says_all_that_is_needed_to_run_it(job: dict[str, Any]) -> None:
    assert json.loads(json.dumps(job)) == job
    settings, federations = from_dict({key: job[key] for key in ("settings", "federations")})
    assert settings == plan.settings_of(SCALE, "paper", "cpu")
    assert federations == list(needs(["layers"], SCALE)["paper"])
    assert job["measures"] == [["tensors"]] * len(federations)
    assert job["name"] == f"paper-{digest(job)[:8]}"


def test_there_is_a_job_for_every_group() -> None:
    result = jobs(needs(ARTEFACTS, SCALE), SCALE, "cpu")
    assert [job["group"] for job in result] == [
        "paper",
        "damped",
        "eleven-steps",
        "M=1",
        "M=3",
        "gamma=0.01",
        "gamma=1",
    ]
    assert len({job["name"] for job in result}) == len(result)
    assert all("=" not in job["name"] for job in result), "names are file names"
    assert plan.spec(result) == {"reproduction": {"schema": plan.SCHEMA, "version": plan.VERSION, "jobs": result}}


@pytest.mark.parametrize(
    ("key", "value"), [("device", "cuda"), ("threads", 2), ("chunk", 8), ("ledger", False), ("release_limit", 5)]
)
def test_the_digest_does_not_see_where_a_job_runs(job: dict[str, Any], key: str, value: Any) -> None:
    other = {**job, "settings": {**job["settings"], key: value}}
    assert digest(other) == digest(job)


def test_the_digest_does_not_see_the_commit(job: dict[str, Any]) -> None:
    assert digest({**job, "commit": "other"}) == digest(job)


def test_the_digest_sees_everything_else(job: dict[str, Any]) -> None:
    changed = [
        {**job, "group": "damped"},
        {**job, "version": "9.9.9"},
        {**job, "federations": job["federations"][:-1]},
        {**job, "federations": [{**job["federations"][0], "seed": 77}, *job["federations"][1:]]},
        {**job, "measures": [["accuracy"], *job["measures"][1:]]},
        *({**job, "scale": {**job["scale"], key: None}} for key in job["scale"]),
        *(
            {**job, "settings": {**job["settings"], key: "other"}}
            for key in job["settings"]
            if key not in ("device", "threads", "chunk", "ledger", "release_limit")
        ),
    ]
    digests = [digest(other) for other in changed]
    assert digest(job) not in digests
    assert len(changed) > 40


def test_the_estimate_counts_gradients_and_attacks(job: dict[str, Any]) -> None:
    count, s = len(job["federations"]), job["settings"]
    gradients = count * s["clients"] * s["rounds"] * (1 + 10)
    assert plan.estimated_seconds([job], "cpu") == pytest.approx(gradients / plan.RATES["cpu"])
    assert plan.estimated_seconds([job], "cuda:0") < plan.estimated_seconds([job], "cpu")
    attacked = {**job, "measures": [["inversion"]] * count}
    more = 2 * count * SCALE.attacked * SCALE.iterations
    assert plan.estimated_seconds([attacked], "cpu") == pytest.approx((gradients + more) / plan.RATES["cpu"])


def test_the_estimate_knows_what_learns_by_the_mechanism_and_not_by_its_name(job: dict[str, Any]) -> None:
    register(Mechanism("adaptive", "laplace", norm="l1", learns=True))
    try:
        other = {**job, "federations": [{**row, "mechanism": "adaptive"} for row in job["federations"]]}
        assert plan.estimated_seconds([other], "cpu") == plan.estimated_seconds([job], "cpu")
    finally:
        del MECHANISMS["adaptive"]
    static = {**job, "federations": [{**row, "mechanism": "ls-static"} for row in job["federations"]]}
    assert plan.estimated_seconds([static], "cpu") == pytest.approx(plan.estimated_seconds([job], "cpu") / 11)
