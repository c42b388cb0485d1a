"""The artefacts in the order of the paper, what they need, and one of one's own beside them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from equipoise.engine.federation import Federation
from equipoise.engine.settings import check
from equipoise.errors import ConfigError
from equipoise.reproduction.agreement import spread
from equipoise.reproduction.artefacts.artefact import Artefact, Results
from equipoise.reproduction.artefacts.registry import ARTEFACTS, check_names, needs, register_artefact
from equipoise.reproduction.paper import paper
from equipoise.reproduction.plan import FULL, Need, Needs, Scale, grid, jobs, settings_of
from equipoise.reproduction.records import Records
from equipoise.reproduction.reproduce import plan, reproduce
from equipoise.reproduction.tables import Table, plus_minus
from tests.helpers import contents
from tests.reproduction.synthetic import SCALE, content

# --- an artefact of one's own, whole ---------------------------------------------------------------------------------


def wanted(scale: Scale) -> Iterator[Need]:
    """Which federations are trained, and what is measured on each."""
    yield from grid(["mnist"], ["gs-learn"], [200], scale.seeds, "accuracy")


def score(records: Records) -> Results:
    """One cell: the accuracy over seeds."""
    accuracies = records.accuracies("mnist", "gs-learn", 200)
    return {"cells": [{"mechanism": "gs-learn", **spread(accuracies)}]}


def tables(result: Results) -> list[Table]:
    """One table, with a row for each cell."""
    rows = [[cell["mechanism"], plus_minus(cell)] for cell in result["cells"]]
    return [Table("Test accuracy in percent", ["mechanism", "ours"], rows)]


GAUSSIAN = Artefact(
    name="gaussian",
    kind="beside",
    title="Learned Gaussian noise",
    claim="The paper has no Gaussian noise.",
    rule="No verdict.",
    needs=wanted,
    score=score,
    tables=tables,
)


@pytest.fixture
def gaussian() -> Iterator[Artefact]:
    yield register_artefact(GAUSSIAN)
    del ARTEFACTS["gaussian"]


def test_an_artefact_of_ones_own_is_planned_scored_and_shown(gaussian: Artefact, tmp_path: Path) -> None:
    (job,) = plan(["gaussian"], SCALE, "cpu")["reproduction"]["jobs"]
    assert [(row["mechanism"], row["seed"]) for row in job["federations"]] == [("gs-learn", s) for s in SCALE.seeds]

    computed, out = tmp_path / "computed", tmp_path / "out"
    computed.mkdir()
    (computed / "paper.json").write_text(json.dumps(content("paper")))  # what compute would have written
    status = reproduce(["gaussian"], SCALE, out, sources=[computed], draw=False)
    assert status["artefacts"] == [], "it has no verdict"
    (cell,) = json.loads((out / "gaussian" / "results.json").read_text())["cells"]
    assert (cell["mean"], cell["seeds"]) == (pytest.approx(80.0), 3)
    for page in (out / "gaussian" / "README.md", out / "README.md"):
        assert "| gs-learn | 80.0 ± 0.1 |" in page.read_text()
    assert '<h2 id="gaussian">Learned Gaussian noise</h2>' in (out / "index.html").read_text()


def test_verdicts_of_an_artefact_of_ones_own_are_counted(tmp_path: Path) -> None:
    """Of another kind than "beside", it stands among the paper's."""

    def judged(records: Records) -> Results:
        return {"cells": [{**cell, "agrees": cell["mean"] > 50} for cell in score(records)["cells"]]}

    register_artefact(replace(GAUSSIAN, kind="figure", score=judged))
    try:
        (tmp_path / "paper.json").write_text(json.dumps(content("paper")))
        status = reproduce(["gaussian"], SCALE, tmp_path / "out", sources=[tmp_path], draw=False)
    finally:
        del ARTEFACTS["gaussian"]
    assert status["artefacts"] == [{"name": "gaussian", "kind": "figure", "cells": 1, "agree": 1}]


def test_results_of_an_artefact_that_is_not_registered_are_left_alone(gaussian: Artefact, tmp_path: Path) -> None:
    (tmp_path / "paper.json").write_text(json.dumps(content("paper")))
    out = tmp_path / "out"
    reproduce(["gaussian"], SCALE, out, sources=[tmp_path], draw=False)
    before = contents(out / "gaussian")
    del ARTEFACTS["gaussian"]
    try:
        reproduce(["cap"], SCALE, out, sources=[tmp_path], draw=False)
    finally:
        register_artefact(gaussian)
    assert contents(out / "gaussian") == before
    assert "gaussian" not in (out / "README.md").read_text()


@pytest.mark.parametrize("name", ["", "Mine", "my artefact", "../mine", "mine-", "mine2", "all", "raw"])
def test_a_name_must_do_for_a_folder_a_link_and_the_command(name: str) -> None:
    with pytest.raises(ConfigError, match=r"Expected the name .*\. Choose another name; all and raw are taken"):
        register_artefact(replace(GAUSSIAN, name=name))
    assert name not in ARTEFACTS


def test_a_name_is_not_taken_twice(gaussian: Artefact) -> None:
    for name in ("cap", "gaussian"):
        with pytest.raises(ConfigError, match=f"The artefact '{name}' exists"):
            register_artefact(replace(GAUSSIAN, name=name))


# --- names -----------------------------------------------------------------------------------------------------------


def test_the_paper_has_twelve_artefacts() -> None:
    kinds = {name: artefact.kind for name, artefact in ARTEFACTS.items()}
    assert list(kinds) == [
        "accuracy-ls", "accuracy-pl", "defence-ls", "defence-pl", "gaps", "cap", "trade-off", "clients", "layers",
        "reconstructions", "stepwise", "gradient-norm", "configuration", "sweeps",
    ]  # fmt: skip
    assert Counter(kinds.values()) == {"accuracy": 2, "defence": 2, "summary": 2, "figure": 6, "beside": 2}
    assert all(artefact.name == name for name, artefact in ARTEFACTS.items())


def test_names_are_checked_and_all_or_nothing_means_everything() -> None:
    assert check_names(["cap", "gaps", "cap"]) == ["cap", "gaps"]
    assert check_names([]) == check_names(["all"]) == check_names(["cap", "all"]) == list(ARTEFACTS)


def test_an_unknown_artefact_is_an_error_that_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"Unknown artefact 'layer'. Did you mean 'layers'\?") as caught:
        check_names(["cap", "layer"])
    assert all(name in caught.value.remedy for name in ARTEFACTS)


# --- needs -----------------------------------------------------------------------------------------------------------

CELLS = [
    (dataset, mechanism, budget)
    for family, mechanisms in (("LS", ("ls-static", "ls-learn")), ("PL", ("pl-identical", "pl-learn")))
    for dataset in ("mnist", "fmnist")
    for mechanism in mechanisms
    for budget in paper()["accuracy"][family]["budgets"]
]
"""The forty cells of the paper's two tables, from the paper's own numbers."""


def has(result: Needs, cell: tuple[str, str, float | None], measure: str, group: str = "paper") -> bool:
    """Whether a cell is measured in all eight seeds."""
    return all(measure in result.get(group, {}).get(Federation(*cell, seed), set()) for seed in range(1, 9))


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
    result = needs(ARTEFACTS, FULL)
    for mechanism, budget in (("ls-static", 60), ("ls-learn", 60), ("pl-identical", 0.95), ("pl-learn", 0.95)):
        assert has(result, (dataset, mechanism, budget), "accuracy")  # below the grid
    assert has(result, (dataset, "none", None), "accuracy")
    assert has(result, (dataset, "none", None), "inversion")
    for budget in (600, 800, 1000):
        assert has(result, (dataset, "ls-learn", budget), "gradients")
    for mechanism, budget in (("ls-learn", 200), ("pl-learn", 0.98)):
        assert has(result, (dataset, mechanism, budget), "tensors")
        for group in ("M=1", "M=3", "M=30", "gamma=0.01", "gamma=0.03", "gamma=0.3", "gamma=1"):
            assert has(result, (dataset, mechanism, budget), "accuracy", group)
    for mechanism in ("ls-static", "ls-learn"):
        assert has(result, (dataset, mechanism, 200), "utility")
    for mechanism, budget in (("none", None), ("ls-static", 200), ("ls-learn", 200), ("pl-learn", 0.98)):
        assert "pictures" in result["paper"][Federation(dataset, mechanism, budget, 1)]


def test_the_curves_of_the_clients_are_at_ls_200_and_pl_0975() -> None:
    result = needs(["clients"], FULL)
    wanted = {("ls-static", 200), ("ls-learn", 200), ("pl-identical", 0.975), ("pl-learn", 0.975)}
    assert {(fed.mechanism, fed.budget) for fed in result["paper"]} == wanted
    assert {fed.dataset for fed in result["paper"]} == {"fmnist"}
    assert all(has(result, ("fmnist", *one), "clients") for one in wanted)


def test_configuration_needs_nothing() -> None:
    assert needs(["configuration"], FULL) == {}


def test_every_planned_federation_is_valid() -> None:
    for group, federations in needs(ARTEFACTS, FULL).items():
        check(settings_of(FULL, group, "cpu"), list(federations))


def test_artefacts_share_their_federations() -> None:
    one, both = needs(["accuracy-ls"], FULL)["paper"], needs(["accuracy-ls", "defence-ls", "trade-off"], FULL)["paper"]
    cell = Federation("mnist", "ls-learn", 200, 1)
    assert one[cell] == {"accuracy"}
    assert both[cell] == {"accuracy", "inversion"}
    assert set(one) <= set(both)
    for job in jobs(needs(ARTEFACTS, FULL), FULL, "cpu"):
        rows = [json.dumps(row, sort_keys=True) for row in job["federations"]]
        assert len(set(rows)) == len(rows)
        assert len(job["measures"]) == len(rows)
