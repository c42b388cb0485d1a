"""The leakage study: its SPECs are valid, and every committed figure and verdict follows from the committed values."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from equipoise.auditing.options import AuditOptions
from equipoise.auditing.replay import rates
from equipoise.auditing.results import Outcome
from equipoise.auditing.store import Values, unpacked
from equipoise.engine.settings import from_dict
from equipoise.statistics import auc, tpr_at
from tests.helpers import load_script

HERE = Path(__file__).parents[2] / "studies" / "leakage"


def script(name: str) -> ModuleType:
    return load_script(HERE / f"{name}.py")


@cache
def committed() -> tuple[dict[str, Any], Values]:
    return json.loads((HERE / "leakage.json").read_text()), unpacked((HERE / "values.npz").read_bytes())


# --- what is committed ---------------------------------------------------------------------------------------


def test_every_figure_and_verdict_follows_from_the_values_of_every_release() -> None:
    whole, values = committed()
    again = script("summarise").rounded(script("summarise").summarise(values))
    for part in ("rows", "accuracy", "verdicts", "counts", "beside_undistorted"):
        assert json.loads(json.dumps(again[part])) == whole[part], part


def test_combined_releases_follow_from_who_was_identified() -> None:
    for row in script("summarise").rounded(committed()[0]["multi_round"]):
        again = rates(row["identified"], row["labels"], row["candidates"])
        assert script("summarise").rounded(again).items() <= row.items()
        assert len(row["labels"]) == 100
        assert set(row["labels"]) == set(range(10))


BOTH, EVERY = {"mnist", "fmnist"}, {0, 200, 2000, 5000}


@pytest.mark.parametrize(
    ("design", "datasets", "rounds"),
    [("batch-4", BOTH, EVERY), ("batch-44", BOTH, EVERY), ("eleven-steps", BOTH, {0, 5000})],
)
def test_every_mechanism_has_three_trajectories(design: str, datasets: set[str], rounds: set[int]) -> None:
    whole, _ = committed()
    ran = [run["spec"]["audit"] for run in whole["runs"] if run["design"] == design and "kind" not in run]
    rounds = rounds.union(*(audit["snapshots"] for audit in ran))
    mine = [row for row in whole["rows"] if row["design"] == design and row["attack"] == "matched"]
    assert {row["trajectories"] for row in mine} == {3}
    assert {row["dataset"] for row in mine} == datasets
    assert {row["round"] for row in mine} == rounds


def test_chance_is_where_it_should_be() -> None:
    """Of the intervals of negative controls, about one in twenty misses what chance gives; at most one in ten."""
    whole, _ = committed()
    negative = [row for row in whole["rows"] if row["control"] == "negative"]
    for measure, chance in (("identification", 1 / 199), ("membership_auc", 0.5)):
        rows = [row for row in negative if measure in row]
        missed = sum(not row[f"{measure}_low"] <= chance <= row[f"{measure}_high"] for row in rows)
        assert len(rows) > 50
        assert missed <= len(rows) / 10, f"{missed} of {len(rows)}"


def test_parts_that_are_added_keep_what_was_there() -> None:
    """And take the place of what they measured again."""
    summarise, (whole, values) = script("summarise"), committed()
    old = values, whole["runs"], whole["multi_round"]
    again = summarise.joined(old, old)
    assert [one.about for one in again[0].outcomes] == [one.about for one in values.outcomes]
    assert (again[0].about, *again[1:]) == (values.about, *old[1:])
    first = values.outcomes[0]
    later = replace(first, about={**first.about, "round": 777, "design": "eleven-steps"})
    other = replace(first, values={**first.values, "identification": 1 - first.values["identification"]})
    accuracy = [
        {
            "design": "eleven-steps",
            "dataset": "mnist",
            "mechanism": "none",
            "budget": None,
            "round": 777,
            "values": [0.5],
        }
    ]
    runs, multi = (
        [{**whole["runs"][0], "commit": "new"}, {"folder": "more"}],
        [{**whole["multi_round"][1], "targets": 1}],
    )
    both = summarise.joined(old, (Values([later, other], about={"accuracy": accuracy}), runs, multi))
    assert both[0].outcomes == [other, *values.outcomes[1:], later]
    assert both[0].about["accuracy"] == [*values.about["accuracy"], *accuracy]
    assert both[1] == [runs[0], *whole["runs"][1:], runs[1]]
    assert both[2] == [whole["multi_round"][0], multi[0], *whole["multi_round"][2:]]


# --- how it is made ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(script("make_spec").specs()))
def test_specs_are_valid(name: str) -> None:
    spec = script("make_spec").specs()[name]
    audit = dict(spec.pop("audit", {}))
    spec.pop("multi_round", None)
    spec["settings"].pop("device", None)
    settings, federations = from_dict(spec)
    assert set(audit.pop("snapshots", [])) <= set(range(settings.training.rounds + 1))
    AuditOptions(**audit).check()
    assert federations


def outcome(mechanism: str, role: str, shift: float, seed: int, attack: str = "matched") -> Outcome:
    about = {
        "design": "batch-4", "dataset": "mnist", "mechanism": mechanism, "seed": seed,
        "budget": None if mechanism == "none" else 0.98, "round": 0, "role": role, "lower": 8.0,
    }  # fmt: skip
    random = np.random.default_rng(seed)
    members, others = random.normal(shift, 1, (60, 4)), random.normal(0, 1, (60, 8))
    better = random.normal(0, 1, (60, 4, 199)) > random.normal(3 * shift, 1, (60, 4, 1))
    values = {
        "matched": {"identification": (better.sum(2) == 0) * 1.0, "log_rank": np.log1p(better.sum(2))},
        "membership": {"members": members, "others": others},
    }[attack]
    return Outcome(about, attack, values, values)


def study(learned: float, static: float, bare: float = 3.0) -> dict[str, Any]:
    summarise = script("summarise")
    parts = [("pl-learn", "own", learned), ("pl-learn", summarise.LOWER, static), ("pl-learn", summarise.NORM, static)]
    parts += [("pl-learn", "undistorted", bare), ("none", "own", bare)]
    several = [
        summarise.kept(outcome(*part, seed, attack), "batch-4", 200)
        for part in parts for seed in (1, 2, 3) for attack in ("matched", "membership")
    ]  # fmt: skip
    return summarise.summarise(Values(several, about={"accuracy": []}))  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("learned", "static", "bare", "word", "failed"),
    [
        (1.5, 0.5, 3.0, "learned leaks more", False), (0.5, 1.5, 3.0, "static leaks more", False),
        (1.0, 1.0, 3.0, "no clear difference", False), (0.1, 0.1, 0.0, "control failed", True),
        (1.5, 0.5, 0.0, "learned leaks more", True),
    ],
)  # fmt: skip
def test_a_verdict_needs_a_clear_difference_or_a_control_that_works(
    learned: float, static: float, bare: float, word: str, failed: bool
) -> None:
    """What is clearly found needs no control; that nothing was found does."""
    answers = study(learned, static, bare)["verdicts"]
    assert {answer["verdict"] for answer in answers} == {word}
    assert {answer["control_failed"] for answer in answers} == {failed}
    assert {answer["measure"] for answer in answers} == {"identification", "membership_auc"}


@pytest.mark.parametrize(
    ("learned", "bare", "word"),
    [(1.5, 0.5, "leaks more"), (0.5, 1.5, "leaks less"), (1.0, 1.0, "no clear difference")],
)
def test_releases_are_set_beside_undistorted_ones_at_the_same_weights(learned: float, bare: float, word: str) -> None:
    rows = study(learned, 1.0, bare)["beside_undistorted"]
    assert {row["attack"] for row in rows if row["role"] == "own"} == {"matched", "membership"}
    assert {row["verdict"] for row in rows if row["role"] == "own"} == {word}


def test_orders_of_scores_keep_areas_and_rates() -> None:
    one = outcome("pl-learn", "own", 1.0, 5, "membership")
    small = script("summarise").kept(one, "batch-4", 200).values
    assert auc(small["members"], small["others"]) == pytest.approx(auc(one.values["members"], one.values["others"]))
    assert tpr_at(small["members"], small["others"]) == tpr_at(one.values["members"], one.values["others"])
    assert small["members"].max() < 60 * 12


def test_a_figure_is_the_mean_of_the_trajectories_with_its_range() -> None:
    rows = study(1.0, 0.5)["rows"]
    row = next(r for r in rows if (r["attack"], r["role"], r["control"]) == ("matched", "own", None))
    assert row["trajectories"] == 3
    assert row["identification_least"] <= row["identification"] <= row["identification_most"]
    assert row["identification_low"] < row["identification"] < row["identification_high"]
