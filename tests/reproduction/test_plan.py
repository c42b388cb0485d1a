"""What is computed: every cell of the paper, each federation once, and nothing that exists already."""

from __future__ import annotations

import copy
import json
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings, check, from_dict
from equipoise.errors import ConfigError
from equipoise.reproduction import plan
from equipoise.reproduction.plan import BUDGETS, FULL, KINDS, NAMES, QUICK, Scale, digest, jobs, needs, without
from equipoise.reproduction.tables import paper
from equipoise.reproduction.trends import MIDDLE_AND_END
from tests.reproduction.synthetic import SCALE

CELLS = [
    (dataset, mechanism, budget)
    for family, mechanisms in (("LS", ("ls-static", "ls-learn")), ("PL", ("pl-identical", "pl-learn")))
    for dataset in ("mnist", "fmnist")
    for mechanism in mechanisms
    for budget in paper()["accuracy"][family]["budgets"]
]
"""The forty cells of the paper's two tables, from the paper's own numbers."""


def has(found: plan.Needs, cell: tuple[str, str, float | None], measure: str, group: str = "paper") -> bool:
    """Whether a cell is measured in all eight seeds."""
    return all(measure in found.get(group, {}).get(Federation(*cell, seed), set()) for seed in range(1, 9))


# --- the artefacts ---------------------------------------------------------------------------------------------------


def test_the_paper_has_twelve_artefacts() -> None:
    assert len(KINDS) == 12
    assert Counter(KINDS.values()) == {"accuracy": 2, "defence": 2, "summary": 2, "figure": 6}
    assert [name for name, kind in KINDS.items() if kind == "accuracy"] == ["accuracy-ls", "accuracy-pl"]
    assert [name for name, kind in KINDS.items() if kind == "summary"] == ["gaps", "cap"]
    assert list(NAMES) == [*KINDS, "configuration", "sweeps"]


def test_names_are_checked_and_all_or_nothing_means_everything() -> None:
    assert plan.check_names(["cap", "gaps", "cap"]) == ["cap", "gaps"]
    assert plan.check_names([]) == plan.check_names(["all"]) == plan.check_names(["cap", "all"]) == list(NAMES)


def test_an_unknown_artefact_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Unknown artefact 'layer'. Did you mean 'layers'\?") as caught:
        plan.check_names(["cap", "layer"])
    assert all(name in caught.value.remedy for name in NAMES)


# --- the full scale --------------------------------------------------------------------------------------------------


def test_the_full_scale_is_the_papers_protocol_with_more_seeds() -> None:
    assert len(set(FULL.seeds)) >= 8
    assert (FULL.rounds, FULL.iterations) == (Settings().rounds, Settings().leakage.iterations) == (5000, 1600)
    assert len(FULL.seeds) * FULL.attacked >= 16, "target batches of an attack cell"
    assert FULL.attacked <= Settings().clients
    assert FULL.pictured >= 16
    assert FULL.baselines


def test_the_quick_scale_is_told_from_the_full_one_by_name() -> None:
    assert (FULL.name, QUICK.name) == ("full", "quick")
    assert QUICK.rounds < FULL.rounds
    assert len(QUICK.seeds) >= 2, "one seed has no interval"


@pytest.mark.parametrize("scale", [FULL, QUICK], ids=["full", "quick"])
def test_gradients_are_sampled_in_the_middle_and_in_the_end(scale: Scale) -> None:
    """The rebound is a difference of two means; neither may be a mean of nothing."""
    when = [*range(0, scale.rounds, scale.gradient_every), scale.rounds]
    for low, high in MIDDLE_AND_END:
        assert any(low * scale.rounds < t <= high * scale.rounds for t in when)


def test_the_budgets_are_the_papers() -> None:
    for family in ("LS", "PL"):
        for table in ("accuracy", "mse", "ssim"):
            assert list(BUDGETS[family]) == paper()[table][family]["budgets"]


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_every_cell_of_the_tables_is_trained_and_attacked(cell: tuple[str, str, float]) -> None:
    family = "ls" if cell[1].startswith("ls") else "pl"
    assert len(CELLS) == 40
    assert has(needs([f"accuracy-{family}"], FULL), cell, "accuracy")
    assert has(needs([f"defence-{family}"], FULL), cell, "inversion")
    for summary in ("gaps", "cap"):
        assert has(needs([summary], FULL), cell, "inversion")
    assert has(needs(["trade-off"], FULL), cell, "accuracy")
    if cell[1] in ("ls-static", "pl-identical"):
        assert has(needs([f"accuracy-{family}"], FULL), cell, "accuracy", "eleven-steps")
    assert has(needs([f"accuracy-{family}"], FULL), cell, "accuracy", "damped")


@pytest.mark.parametrize("dataset", ["mnist", "fmnist"])
def test_what_the_paper_shows_beside_its_tables_is_planned_too(dataset: str) -> None:
    found = needs(NAMES, FULL)
    for mechanism, budget in (("ls-static", 60), ("ls-learn", 60), ("pl-identical", 0.95), ("pl-learn", 0.95)):
        assert has(found, (dataset, mechanism, budget), "accuracy")  # below the grid
    assert has(found, (dataset, "none", None), "accuracy")
    assert has(found, (dataset, "none", None), "inversion")
    for budget in (600, 800, 1000):
        assert has(found, (dataset, "ls-learn", budget), "gradients")
    for mechanism, budget in (("ls-learn", 200), ("pl-learn", 0.98)):
        assert has(found, (dataset, mechanism, budget), "tensors")
        for group in ("M=1", "M=3", "M=30", "gamma=0.01", "gamma=0.03", "gamma=0.3", "gamma=1"):
            assert has(found, (dataset, mechanism, budget), "accuracy", group)
    for mechanism in ("ls-static", "ls-learn"):
        assert has(found, (dataset, mechanism, 200), "utility")
    for mechanism, budget in (("none", None), ("ls-static", 200), ("ls-learn", 200), ("pl-learn", 0.98)):
        assert "pictures" in found["paper"][Federation(dataset, mechanism, budget, 1)]


def test_the_curves_of_the_clients_are_at_ls_200_and_pl_0975() -> None:
    found = needs(["clients"], FULL)
    wanted = {("ls-static", 200), ("ls-learn", 200), ("pl-identical", 0.975), ("pl-learn", 0.975)}
    assert {(fed.mechanism, fed.budget) for fed in found["paper"]} == wanted
    assert {fed.dataset for fed in found["paper"]} == {"fmnist"}
    assert all(has(found, ("fmnist", *one), "clients") for one in wanted)


def test_configuration_needs_nothing() -> None:
    assert needs(["configuration"], FULL) == {}


def test_every_planned_federation_is_valid() -> None:
    for group, federations in needs(NAMES, FULL).items():
        check(plan.settings_of(FULL, group, "cpu"), list(federations))


# --- groups ----------------------------------------------------------------------------------------------------------


def test_a_group_changes_what_it_says_and_nothing_else() -> None:
    base = plan.settings_of(FULL, "paper", "cpu")
    assert base == Settings(snapshots=[]), "everything else is the paper's"
    for group, change in {
        "damped": {"server_rate": "auto"}, "eleven-steps": {"local_steps": 11}, "M=30": {"steps": 30},
        "gamma=0.03": {"lr": 0.03},
    }.items():  # fmt: skip
        assert plan.settings_of(FULL, group, "cpu") == replace(base, **change)


def test_eleven_steps_spend_the_gradients_of_learning() -> None:
    base = plan.settings_of(FULL, "paper", "cpu")
    assert plan.settings_of(FULL, "eleven-steps", "cpu").local_steps == base.local_steps + base.steps


# --- nothing twice ---------------------------------------------------------------------------------------------------


def test_artefacts_share_their_federations() -> None:
    one, both = needs(["accuracy-ls"], FULL)["paper"], needs(["accuracy-ls", "defence-ls", "trade-off"], FULL)["paper"]
    cell = Federation("mnist", "ls-learn", 200, 1)
    assert one[cell] == {"accuracy"}
    assert both[cell] == {"accuracy", "inversion"}
    assert set(one) <= set(both)
    for job in jobs(needs(NAMES, FULL), FULL, "cpu"):
        rows = [json.dumps(row, sort_keys=True) for row in job["federations"]]
        assert len(set(rows)) == len(rows)
        assert len(job["measures"]) == len(rows)


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
    (found,) = jobs(needs(["layers"], SCALE), SCALE, "cpu", "abc1234")
    return found


def test_a_job_says_all_that_is_needed_to_run_it(job: dict[str, Any]) -> None:
    assert json.loads(json.dumps(job)) == job
    settings, federations = from_dict({key: job[key] for key in ("settings", "federations")})
    assert settings == plan.settings_of(SCALE, "paper", "cpu")
    assert federations == list(needs(["layers"], SCALE)["paper"])
    assert job["measures"] == [["tensors"]] * len(federations)
    assert job["name"] == f"paper-{digest(job)[:8]}"


def test_there_is_a_job_for_every_group() -> None:
    found = jobs(needs(NAMES, SCALE), SCALE, "cpu")
    assert [job["group"] for job in found] == ["paper", "damped", "eleven-steps", "M=1", "M=3", "gamma=0.01", "gamma=1"]
    assert len({job["name"] for job in found}) == len(found)
    assert all("=" not in job["name"] for job in found), "names are file names"
    assert plan.spec(found) == {"reproduction": {"schema": plan.SCHEMA, "version": plan.VERSION, "jobs": found}}


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
