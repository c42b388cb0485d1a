"""The frontier as one record: what is committed, and the equal-accuracy table by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from equipoise.choosing import frontier, frontier_plan, frontier_store
from equipoise.choosing.frontier import committed, equal_accuracy, learner, record, status
from equipoise.cli.frontier import _lines
from equipoise.errors import CheckpointError
from equipoise.report.frontier_families import CAPTION, panels
from equipoise.report.frontier_picture import picture
from tests.choosing.frontier_parts import cell, everywhere, part, run_row, scopes, spec, values

ROOT = Path(__file__).parents[2]
CELL = {
    "dataset", "mechanism", "model", "server", "budget", "epsilon", "delta", "relation", "batch", "clients",
    "partition", "seeds", "accuracy", "accuracy_low", "accuracy_high", "accuracy_round", "attack", "scope",
    "log_rank", "identification",
    "identification_low", "identification_high", "membership_tpr_at_1pct", "membership_low", "membership_high",
    "proved_identification", "gradients", "bytes", "rounds",
}  # fmt: skip
EQUAL = {
    "dataset", "cell", "learner_accuracy", "learner_identification", "choice", "accuracy", "identification", "ratio",
    "proved", "epsilon", "epsilon_on_its_model", "scope", "met", "by_scope",
}  # fmt: skip
VERDICT = {
    "learner_identification", "identification", "learner_low", "high", "learner_undistorted", "learner_membership",
    "membership", "ratio", "met", "why",
}  # fmt: skip


# -- what is committed -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_committed_values_score_to_the_committed_record_and_pictures() -> None:
    result = record(frontier_store.read(ROOT / "frontier"), ROOT)
    assert _lines(result) == (ROOT / "frontier" / "frontier.json").read_text()
    shown = panels(result)
    for narrow in (False, True):
        for dark in (False, True):
            name = f"frontier{'-narrow' if narrow else ''}{'-dark' if dark else ''}.svg"
            drawn = picture(shown, dark=dark, narrow=narrow, caption=CAPTION)
            assert drawn == (ROOT / "frontier" / name).read_text(), name


@pytest.fixture(scope="module", name="told")
def _told() -> dict[str, Any]:
    return status(committed())


def test_every_cell_says_all_that_is_promised(told: dict[str, Any]) -> None:
    assert {"commit", "cells", "equal_accuracy"} <= set(told)
    for row in told["cells"]:
        assert set(row) >= CELL
        assert row["scope"] in frontier.SCOPES
        assert 0 <= row["identification"] <= 1
        assert row["seeds"] > 0
    for row in told["equal_accuracy"]:
        assert set(row) >= EQUAL
        assert list(row["by_scope"]) == [str(scope) for scope in frontier.SCOPES]
        assert all(set(verdict) == VERDICT for verdict in row["by_scope"].values())
    names = {(row["dataset"], row["cell"]) for row in told["equal_accuracy"]}
    assert len(names) == len(told["equal_accuracy"]) == 20


def test_only_a_formal_mechanism_has_an_epsilon(told: dict[str, Any]) -> None:
    formal = [row for row in told["cells"] if row["mechanism"] == "gaussian-dp"]
    assert formal
    for row in told["cells"]:
        given = [row[name] is not None for name in ("epsilon", "delta", "relation")]
        assert given == [row in formal] * 3
        assert (row["proved_identification"] is not None) == (row in formal or row["public"] is not None)
    assert not any(row["above"] for row in formal)


def test_no_cell_is_told_twice(told: dict[str, Any]) -> None:
    about = ("dataset", "mechanism", "model", "server", "budget", "batch", "local_steps", "clients", "partition")
    names = [tuple(row[name] for name in (*about, "rounds", "public", "scope")) for row in told["cells"]]
    assert len(set(names)) == len(names)


def test_the_learners_accuracy_is_that_of_the_reproduction() -> None:
    rows = learner(ROOT / "reproduction")
    assert len(rows) == 20
    content = json.loads((ROOT / "reproduction" / "accuracy-pl" / "results.json").read_text())
    first = next(one for one in content["cells"] if one["mechanism"] == "pl-learn")
    assert rows[0] == {
        "dataset": first["dataset"], "mechanism": "pl-learn", "budget": first["budget"],
        "accuracy": first["mean"] / 100,
    }  # fmt: skip
    assert {row["mechanism"] for row in rows} == {"pl-learn", "ls-learn"}


def test_the_accuracy_without_protection_is_that_of_the_recommended_model(tmp_path: Path) -> None:
    cells = [
        {"dataset": name, "model": model, "mechanism": mechanism, "accuracy": value}
        for name, model, mechanism, value in (
            ("mnist", "lenet-zhu", "none", 0.1), ("mnist", "scatter-linear", "gaussian-dp", 0.2),
            ("mnist", "scatter-linear", "none", 0.3), ("fmnist", "scatter-linear", "none", 0.4),
        )
    ]  # fmt: skip
    (tmp_path / "x.json").write_text(json.dumps({"cells": cells}))
    assert frontier.unprotected(tmp_path / "x.json") == {"mnist": 0.3, "fmnist": 0.4}
    with pytest.raises(CheckpointError, match="no accuracies of gaussian-dp"):
        frontier.unprotected(tmp_path / "y.json")


# -- a record of planted parts -----------------------------------------------------------------------------------------


def test_a_record_says_what_it_is_made_of() -> None:
    name = next(iter(frontier_plan.parts()))
    parts = {
        name: part(spec(), attacks=[run_row()]), "two": part(spec(), commit="def", environment={"device": "another"}),
        "three": part(spec(), commit="def"),
    }  # fmt: skip
    result = record(values(everywhere(part=name), **parts), ROOT)
    assert (result["schema"], result["commit"], result["seconds"]) == (1, "abc, def", 6.0)
    assert result["machines"] == ["a machine", "another"]
    told = result["parts"]
    assert (told["computed"], told["by_commit"]) == (3, {"abc": 1, "def": 2})
    assert set(told["missing"]) == set(frontier_plan.parts()) - {name}
    assert told["planned"] == len(frontier_plan.parts())
    assert len(result["cells"]) == 5
    assert result["unprotected"] == frontier.unprotected(ROOT / "studies" / "gaussian_dp" / "accuracy.json")
    assert json.loads(_lines(result)) == result


def test_a_record_that_is_not_there_not_whole_or_not_one_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no results"):
        status(tmp_path)
    (tmp_path / frontier_store.FILE).write_bytes(b"")
    with pytest.raises(CheckpointError, match="not whole"):
        status(tmp_path)
    for content in ('{"schema": 2}', "[]", "{}"):
        (tmp_path / frontier.FILE).write_text(content)
        with pytest.raises(CheckpointError, match="another version"):
            status(tmp_path)
    (tmp_path / frontier.FILE).write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        status(tmp_path)


def test_the_folder_here_comes_before_that_of_the_checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert committed() == ROOT / "frontier"
    (tmp_path / "frontier").mkdir()
    (tmp_path / "frontier" / frontier.FILE).write_text("{}")
    assert committed() == Path("frontier")


# -- equal accuracy ----------------------------------------------------------------------------------------------------

LEARNER = {"dataset": "mnist", "mechanism": "pl-learn", "budget": 0.98, "accuracy": 0.75}


def ours(epsilon: float, accuracy: float, **change: Any) -> list[dict[str, Any]]:
    return scopes(mechanism="gaussian-dp", budget=epsilon, accuracy=accuracy, **change)


def matched(*rows: dict[str, Any], theirs: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    (result,) = equal_accuracy([*(scopes() if theirs is None else theirs), *rows], [LEARNER])
    return result


def test_the_strictest_epsilon_that_is_as_accurate_is_taken() -> None:
    result = matched(*ours(4, 0.9), *ours(1, 0.75), *ours(0.5, 0.74), *ours(2, 0.8))
    assert (result["epsilon"], result["accuracy"], result["learner_accuracy"]) == (1, 0.75, 0.75)
    assert result["choice"] == "gaussian-dp, scatter-linear, epsilon 1"
    assert result["cell"] == "pl-learn 0.98"
    assert result["proved"] == 0.03


def test_the_smallest_epsilon_wins_even_where_accuracy_is_not_monotone() -> None:
    assert matched(*ours(1, 0.8), *ours(2, 0.7), *ours(4, 0.9))["epsilon"] == 1
    assert matched(*ours(1, 0.7), *ours(2, 0.8), *ours(4, 0.7))["epsilon"] == 2


def test_what_it_takes_on_the_learners_own_model_is_told_beside() -> None:
    """The smallest epsilon there that is as accurate, whatever the recommended model takes; None where none is."""
    lenet = [*ours(8, 0.9, model="lenet-zhu"), *ours(4, 0.75, model="lenet-zhu"), *ours(2, 0.7499, model="lenet-zhu")]
    other = [*ours(1, 0.9, model="lenet-zhu", clients=32), *ours(0.5, 0.9, model="lenet-zhu", dataset="fmnist")]
    nothing = scopes(mechanism="gaussian-dp", budget=0.2, model="lenet-zhu", accuracy=None)
    result = matched(*ours(1, 0.8), *lenet, *other, *nothing)
    assert (result["epsilon"], result["epsilon_on_its_model"]) == (1, 4)
    assert matched(*ours(8, 0.7), *lenet)["epsilon_on_its_model"] == 4, "told where there is no choice, too"
    assert matched(*ours(1, 0.8), *lenet[10:])["epsilon_on_its_model"] is None


def test_both_sides_of_every_scope_are_told_with_their_ends() -> None:
    """The learner's lower and the choice's upper end: those that speak against the choice."""
    result = matched(*ours(1, 0.8))
    assert list(result["by_scope"]) == ["0", "4", "40", "100", "run"]
    for verdict in result["by_scope"].values():
        assert verdict == {
            "learner_identification": 0.5, "identification": 0.02, "learner_low": 0.4, "high": 0.04,
            "learner_undistorted": 0.9, "learner_membership": 0.3, "membership": 0.05, "ratio": 0.04, "met": True,
            "why": "at most a fifth",
        }  # fmt: skip


def test_where_none_is_as_accurate_there_is_no_choice() -> None:
    result = matched(*ours(8, 0.7499))
    assert [result[name] for name in ("choice", "epsilon", "accuracy", "identification", "ratio", "proved")] == [
        None
    ] * 6
    assert (result["met"], result["by_scope"]) == (False, {})
    assert result["learner_identification"] == 0.5


@pytest.mark.parametrize(
    "change", [{"clients": 32}, {"partition": "dirichlet 0.3"}, {"model": "lenet-zhu"}, {"dataset": "fmnist"},
               {"accuracy": None}],
)  # fmt: skip
def test_only_the_recommended_mechanism_in_the_usual_setting_counts(change: dict[str, Any]) -> None:
    assert matched(*ours(1, **{"accuracy": 0.9, **change}))["choice"] is None


@pytest.mark.parametrize(
    "change", [{"server": "damped"}, {"batch": 44}, {"local_steps": 11}, {"budget": 0.96}, {"clients": 32},
               {"mechanism": "pl-identical"}, {"dataset": "fmnist"}],
)  # fmt: skip
def test_the_learner_is_held_against_as_the_paper_has_it(change: dict[str, Any]) -> None:
    """Its accuracy is that of the reproduction, and its leakage that of these settings alone."""
    other = scopes(**{"identification": 0.9, **change})
    assert matched(*ours(1, 0.8), *other)["by_scope"]["run"]["learner_identification"] == 0.5
    assert not matched(*ours(1, 0.8), theirs=other)["met"]


@pytest.mark.parametrize(
    ("identification", "low", "met", "why"),
    [
        (0.1, 0.08, True, "at most a fifth"),
        (0.11, 0.08, False, "more than a fifth"),
        (0.11, 0.005, True, "not above chance"),
        (0.11, 0.0051, False, "more than a fifth"),
        (0.11, None, False, "more than a fifth"),
        (0.0, 0.0, True, "not above chance"),
    ],
)
def test_a_fifth_of_the_learners_or_chance(identification: float, low: float | None, met: bool, why: str) -> None:
    result = matched(*ours(1, 0.8, identification=identification, identification_low=low))
    assert result["met"] is met
    assert {verdict["why"] for verdict in result["by_scope"].values()} == {why}
    assert result["ratio"] == pytest.approx(identification / 0.5)


def test_one_scope_decides_and_the_worst_is_told() -> None:
    rows = ours(1, 0.8)
    rows[2] |= {"identification": 0.3, "identification_low": 0.2}
    result = matched(*rows)
    assert not result["met"]
    assert [name for name, verdict in result["by_scope"].items() if not verdict["met"]] == ["40"]
    assert (result["scope"], result["identification"], result["ratio"]) == ("40", 0.3, pytest.approx(0.6))


@pytest.mark.parametrize("place", range(5))
def test_a_control_that_failed_on_either_side_is_not_met(place: int) -> None:
    for failing in ("theirs", "ours"):
        theirs, mine = scopes(), ours(1, 0.8)
        (theirs if failing == "theirs" else mine)[place]["control_failed"] = True
        result = matched(*mine, theirs=theirs)
        verdicts = list(result["by_scope"].values())
        assert not result["met"]
        assert verdicts[place] == {"ratio": None, "met": False, "why": "not measured, or a control failed"}
        assert all(verdict["met"] for verdict in verdicts[:place] + verdicts[place + 1 :])


@pytest.mark.parametrize("place", range(5))
def test_a_scope_that_was_not_measured_is_not_met(place: int) -> None:
    mine = ours(1, 0.8)
    assert not matched(*mine[:place], *mine[place + 1 :])["met"]
    theirs = scopes()
    assert not matched(*mine, theirs=theirs[:place] + theirs[place + 1 :])["met"]
    assert matched(*mine, theirs=theirs)["met"]


def test_nothing_is_a_share_of_none() -> None:
    """A learner of whose records none was found has no ratio, which JSON could not hold."""
    theirs = scopes(identification=0.0)
    result = matched(*ours(1, 0.8), theirs=theirs)
    assert (result["ratio"], result["met"]) == (None, False)
    assert {verdict["why"] for verdict in result["by_scope"].values()} == {"more than a fifth"}
    assert matched(*ours(1, 0.8, identification_low=0.001), theirs=theirs)["met"]
    json.dumps(result, allow_nan=False)


def test_every_cell_of_the_paper_is_answered() -> None:
    learners = [{**LEARNER, "budget": budget} for budget in (0.96, 0.98)]
    every = [*scopes(), *scopes(budget=0.96, identification=0.9), *ours(1, 0.8), cell(mechanism="none", budget=None)]
    assert [row["by_scope"]["run"]["learner_identification"] for row in equal_accuracy(every, learners)] == [0.9, 0.5]
