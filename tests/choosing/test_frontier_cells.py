"""The cells of the frontier, by hand on planted values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from equipoise.choosing.frontier_cells import Row, cells, parameters
from equipoise.errors import CheckpointError
from equipoise.privacy.limits import limit
from equipoise.statistics import bootstrap_auc, interval, rate_interval
from tests.choosing.frontier_parts import (
    accuracy,
    everywhere,
    formal_spec,
    found,
    game,
    outcome,
    part,
    run_row,
    spec,
    values,
)


def at(rows: list[Row], scope: int | str) -> Row:
    return next(row for row in rows if row["scope"] == scope)


def of(*outcomes: Any, **more: Any) -> list[Row]:
    """The cells of one part with static noise."""
    asked = spec()
    return cells(values(outcomes, one=part(asked, accuracy=accuracy(asked), **more)))


# -- at a stage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("matched", "lti", "strongest"), [(0.4, 0.6, "lti"), (0.6, 0.4, "matched"), (0.5, 0.5, "matched")]
)
def test_the_strongest_attack_has_the_largest_identification(matched: float, lti: float, strongest: str) -> None:
    """Of two alike it is the first named in the plan, in whatever order they were computed."""
    outcomes = [outcome("lti", 0, found(lti)), outcome("matched", 0, found(matched))]
    for order in (outcomes, outcomes[::-1]):
        (row,) = of(*order)
        assert row["attack"] == strongest
        assert row["identification"] == pytest.approx(max(matched, lti))
        assert (row["identification_matched"], row["identification_lti"]) == pytest.approx((matched, lti))


@pytest.mark.parametrize("attack", ["matched", "membership"])
def test_trajectories_with_different_numbers_of_releases_are_refused(attack: str) -> None:
    """They are drawn side by side."""

    def rows(count: int) -> dict[str, Any]:
        return found(0.5, count) if attack == "matched" else dict.fromkeys(("members", "others"), np.zeros((count, 4)))

    outcomes = [outcome(attack, 0, rows(count), seed=seed) for seed, count in ((1, 100), (2, 90))]
    if attack == "membership":
        outcomes.append(outcome("matched", 0, found(0.5)))
    with pytest.raises(CheckpointError, match=r"pl-identical 0\.98 on mnist after round 0 have .* releases: 100, 90"):
        of(*outcomes)


def test_the_mean_over_both_trajectories_decides() -> None:
    """lti is better on one trajectory, and worse on both together."""
    (row,) = of(
        outcome("matched", 0, found(0.5)), outcome("matched", 0, found(0.5), seed=2),
        outcome("lti", 0, found(0.8)), outcome("lti", 0, found(0.1), seed=2),
    )  # fmt: skip
    assert row["attack"] == "matched"
    assert row["identification_lti"] == pytest.approx(0.45)


def test_identification_rank_and_interval_join_the_trajectories_of_a_release() -> None:
    first = {"identification": [[1, 0], [0, 0], [1, 1]], "rank": [[0, 2], [4, 9], [0, 0]]}
    second = {"identification": [[1, 1], [0, 0], [0, 1]], "rank": [[0, 0], [1, 3.5], [7, 0]]}
    (row,) = of(outcome("matched", 0, first), outcome("matched", 0, second, seed=2, impostor=[[1.0], [0.0]]))
    assert row["identification"] == pytest.approx(6 / 12)
    assert row["log_rank"] == pytest.approx(float(np.log([1, 3, 5, 10, 1, 1, 1, 1, 2, 4.5, 8, 1]).mean()))
    assert row["identification_each"] == [0.5, 0.5]
    assert (row["trajectories"], row["releases"], row["candidates"]) == (2, 3, 200)
    assert row["impostor"] == pytest.approx(0.25), "the mean of 0 and 1/2"


def test_an_interval_reaches_from_the_lowest_to_the_highest_end_of_the_trajectories() -> None:
    """Two trajectories differ by more than the releases of one: an interval of all together would be too short."""
    shares = [0.2, 0.5]
    for seeds in ((1, 2), (2, 1)):
        own = [outcome("matched", 0, found(share), seed=seed) for share, seed in zip(shares, seeds, strict=True)]
        (row,) = of(*own)
        assert row["identification_each"] == pytest.approx(shares)
        (low, _), (_, high) = (rate_interval(found(share)["identification"]) or (0, 0) for share in shares)
        assert 0.1 < low < 0.2 < 0.5 < high < 0.6
        assert (row["identification_low"], row["identification_high"]) == (low, high)


def test_one_trajectory_may_give_both_ends() -> None:
    """Of two with one mean: where a release's examples are all found or none, less is known."""
    wide = {"identification": [[1] * 4, [0] * 4] * 20, "rank": [[0] * 4, [3] * 4] * 20}
    narrow = {"identification": [[1, 0, 1, 0]] * 40, "rank": [[0, 3, 0, 3]] * 40}
    for first, second in ((wide, narrow), (narrow, wide)):
        (row,) = of(outcome("matched", 0, first), outcome("matched", 0, second, seed=2))
        assert (row["identification_low"], row["identification_high"]) == rate_interval(wide["identification"])
        assert row["identification_each"] == [0.5, 0.5]


def test_a_trajectory_without_an_interval_leaves_none() -> None:
    (row,) = of(outcome("matched", 0, found(0.5, 1)), outcome("matched", 0, found(0.5, 1), seed=2))
    assert (row["identification_low"], row["identification_high"]) == (None, None)
    assert row["identification_each"] == [0.5, 0.5]


def test_membership_is_that_of_its_own_attack_with_its_interval() -> None:
    random = np.random.default_rng(4)
    scores = [{"members": random.normal(size=(30, 4)) + 1, "others": random.normal(size=(30, 8))} for _ in range(2)]
    (row,) = of(
        outcome("matched", 0, found(0.5)),
        outcome("membership", 0, scores[0]),
        outcome("membership", 0, scores[1], seed=2),
    )
    members, others = (np.concatenate([one[name] for one in scores], axis=1) for name in ("members", "others"))
    threshold = np.sort(others.ravel())[-1 - 4]  # 1 % of 480 others is 4.8: four may be above
    assert row["membership_tpr_at_1pct"] == pytest.approx((members > threshold).mean())
    both = bootstrap_auc(members, others)
    assert both is not None
    assert (row["membership_low"], row["membership_high"]) == both[1]


def test_what_was_not_asked_has_no_figure() -> None:
    (row,) = of(outcome("matched", 0, found(0.5)))
    assert [row[f"membership_{name}"] for name in ("tpr_at_1pct", "low", "high")] == [None] * 3
    assert row["proved_identification"] is None


@pytest.mark.parametrize(("share", "failed"), [(0.0, True), (0.06, True), (0.1, False), (0.9, False)])
def test_a_control_must_exceed_ten_times_chance(share: float, failed: bool) -> None:
    """By its lower end: of 6 % that is below the 5 % that 200 candidates ask for."""
    (row,) = of(outcome("matched", 0, found(0.5, 200)), outcome("matched", 0, found(share, 200), role="undistorted"))
    assert (row["control_failed"], row["undistorted"]) == (failed, pytest.approx(share))
    ends = rate_interval(found(share, 200)["identification"])
    assert ends is not None
    assert (ends[0] <= 0.05) is failed


def test_ten_times_chance_depends_on_the_candidates() -> None:
    outcomes = [outcome("matched", 0, found(0.5)), outcome("matched", 0, found(0.4), role="undistorted")]
    assert of(*outcomes, candidates=20)[0]["control_failed"]
    assert not of(*outcomes, candidates=200)[0]["control_failed"]


def test_without_a_control_of_its_own_the_attack_is_held_against_itself() -> None:
    """Where nothing distorts, the releases are undistorted."""
    assert of(outcome("matched", 0, found(0.02)))[0]["control_failed"]
    assert not of(outcome("matched", 0, found(0.7)))[0]["control_failed"]


def test_the_control_is_that_of_the_same_attack_and_round() -> None:
    rows = of(
        outcome("matched", 0, found(0.5)), outcome("matched", 0, found(0.0), role="undistorted"),
        outcome("matched", 200, found(0.5)), outcome("matched", 200, found(0.9), role="undistorted"),
        outcome("lti", 0, found(0.9), role="undistorted"),
    )  # fmt: skip
    assert [row["control_failed"] for row in rows] == [True, False]


# -- which scope -------------------------------------------------------------------------------------------------------


def test_rounds_are_stages() -> None:
    assert [row["scope"] for row in of(*reversed(everywhere()))] == [0, 4, 40, 100]


def test_a_stage_that_is_missing_moves_no_other() -> None:
    kept = [one for one in everywhere() if one.about["round"] in (200, 5000)]
    assert [row["scope"] for row in of(*kept)] == [4, 100]


def test_a_round_that_is_no_stage_is_refused() -> None:
    with pytest.raises(CheckpointError, match=r"round 300 of 5000 were attacked; stages: 0, 200, 2000, 5000"):
        of(outcome("matched", 300, found(0.5)))


def test_games_of_a_guarantee_have_stages_too() -> None:
    asked = formal_spec(1)
    limits = [row for number in (49, 0, 20, 2, None) for row in game(number, 0.02 if number is None else 0.01)]
    rows = cells(values([], one=part(asked, accuracy=accuracy(asked, rounds=(0, 2, 20, 49)), limits=limits)))
    assert [row["scope"] for row in rows] == [0, 4, 40, 100, "run"]
    assert [row["identification"] for row in rows] == [0.01] * 4 + [0.02]
    assert {(row["accuracy"], row["accuracy_round"]) for row in rows} == {(0.81, 49)}
    assert {(row["epsilon"], row["delta"], row["relation"]) for row in rows} == {(1, 1e-5, "add/remove")}
    kept = [row for row in limits if row["round"] in (20, None)]
    assert [row["scope"] for row in cells(values([], one=part(asked, limits=kept)))] == [40, "run"]


def test_games_are_told_as_they_were_found() -> None:
    asked = formal_spec(1)
    (row,) = cells(values([], one=part(asked, limits=game(None, 0.02))))
    assert (row["attack"], row["identification"], row["identification_low"], row["identification_high"]) == (
        "known-others", 0.02, 0.01, 0.04,
    )  # fmt: skip
    assert (row["log_rank"], row["undistorted"], row["impostor"], row["releases"]) == (4.0, 1.0, 0.004, 500)
    members = [row["membership_tpr_at_1pct"], row["membership_low"], row["membership_high"]]
    assert members == [0.05, 0.04, 0.06], "at 1 % false alarms, not at 10 %"
    assert (row["above"], row["control_failed"], row["proved_identification"]) == (False, False, 0.03)


@pytest.mark.parametrize("number", [0, None])
def test_a_limit_that_the_machine_could_not_compute_is_computed(number: int | None) -> None:
    rows = game(number, limit=None, no_limit="no accounting")
    for row in rows:
        del row["above"]
    (row,) = cells(values([], one=part(formal_spec(1), limits=rows)))
    terms = rows[0]["terms"]
    assert row["proved_identification"] == limit(1 / 200, **terms)
    assert row["above"] is None, "nobody has compared it"


def test_the_run_is_what_multi_round_found_when_told_the_schedule() -> None:
    rows = of(*everywhere(), attacks=[run_row(0.5) | {"control_failed": True}])
    assert [row["scope"] for row in rows] == [0, 4, 40, 100, "run"]
    run = at(rows, "run")
    assert (run["attack"], run["identification"], run["log_rank"]) == ("multi-round", 0.5, 1.5)
    assert (run["identification_low"], run["identification_high"]) == pytest.approx((0.4, 0.6))
    assert run["membership_tpr_at_1pct"] == 0.25
    assert (run["membership_low"], run["membership_high"]) == pytest.approx((0.15, 0.35))
    assert (run["undistorted"], run["impostor"], run["releases"], run["trajectories"]) == (0.9, 0.025, 40, 1)
    assert run["control_failed"]
    assert run["accuracy"] == at(rows, 0)["accuracy"], "of all seeds, not of the one that was attacked"


# -- settings, accuracy, cost ------------------------------------------------------------------------------------------


def test_accuracy_is_that_after_the_last_round_with_its_interval() -> None:
    (row,) = of(outcome("matched", 0, found(0.5)))
    assert (row["seeds"], row["accuracy"], row["accuracy_round"]) == (2, pytest.approx(0.815), 5000)
    assert (row["accuracy_low"], row["accuracy_high"]) == pytest.approx(interval([0.81, 0.82]))


def test_no_other_mechanism_has_an_epsilon() -> None:
    kinds = [("none", None), ("pl-identical", 0.98), ("pl-learn", 0.98), ("ls-static", 80), ("ls-learn", 80)]
    kinds += [("pruning", 0.01), ("outpost", 0.5)]
    parts = {
        name: part(spec((name, budget)), attacks=[run_row(mechanism=name, budget=budget)]) for name, budget in kinds
    }
    rows = cells(values([], **parts))
    assert [row["mechanism"] for row in rows] == [name for name, _ in kinds]
    assert {(row["epsilon"], row["delta"], row["relation"]) for row in rows} == {(None, None, None)}


@pytest.mark.parametrize(
    ("kind", "change", "gradients", "sent"),
    [
        (("none", None), {}, 4, 53704),
        (("pl-identical", 0.98), {}, 4, 53704),
        (("pl-learn", 0.98), {}, 4 + 10 * 4, 53704),
        (("ls-learn", 80), {"steps": 3}, 4 + 3 * 4, 53704),
        (("pl-identical", 0.98), {"batch": 44}, 44, 53704),
        (("pl-identical", 0.98), {"local_steps": 11}, 44, 53704),
        (("pruning", 0.01), {}, 4, 1075),  # a hundredth of 13,426 numbers, each with its place
        (("pruning", 0.9), {}, 4, 53704),  # places would cost more than the numbers that are left out
        (("outpost", 0.5), {}, 4, 53704),
    ],
)
def test_what_a_round_costs_a_client(
    kind: tuple[str, float | None], change: dict[str, Any], gradients: int, sent: int
) -> None:
    row = run_row(mechanism=kind[0], budget=kind[1])
    (row,) = cells(values([], one=part(spec(kind, **change), attacks=[row])))
    assert (row["gradients"], row["bytes"]) == (gradients, sent)


@pytest.mark.parametrize(("clients", "records"), [(4, 1000), (32, 125)])
def test_a_guarantee_takes_all_records_of_a_client(clients: int, records: int) -> None:
    asked = formal_spec(1)
    asked["settings"]["clients"] = clients
    (row,) = cells(values([], one=part(asked, limits=game(None))))
    assert (row["gradients"], row["bytes"], row["batch"]) == (records, 4 * parameters("scatter-linear"), None)


def test_settings_that_differ_are_different_cells() -> None:
    changes: dict[str, dict[str, Any]] = {
        "usual": {}, "damped": {"server_rate": "auto"}, "large": {"batch": 44}, "steps": {"local_steps": 11},
        "many": {"clients": 32}, "uneven": {"partition": "dirichlet", "dirichlet": 0.3},
        "more": {"partition": "dirichlet"},
    }  # fmt: skip
    rows = cells(values([], **{name: part(spec(**change), attacks=[run_row()]) for name, change in changes.items()}))
    assert [row["server"] for row in rows] == ["plain", "damped"] + ["plain"] * 5
    assert [row["batch"] for row in rows] == [4, 4, 44, 4, 4, 4, 4]
    assert [row["local_steps"] for row in rows] == [1, 1, 1, 11, 1, 1, 1]
    assert [row["clients"] for row in rows] == [4, 4, 4, 4, 32, 4, 4]
    assert [row["partition"] for row in rows] == ["identical"] * 5 + ["dirichlet 0.3", "dirichlet 0.5"]


def test_stages_and_run_of_one_setting_meet_though_they_are_two_parts() -> None:
    asked = spec()
    rows = cells(values(everywhere(), one=part(asked, accuracy=accuracy(asked)), two=part(spec(), attacks=[run_row()])))
    assert [row["scope"] for row in rows] == [0, 4, 40, 100, "run"]


# -- public records alone ----------------------------------------------------------------------------------------------


def public(rate: float, test: float, tuning: float) -> dict[str, Any]:
    asked = spec(("none", None), clients=1, model="scatter-linear", eta=rate, batch=200, rounds=50) | {"public": [200]}
    rows = [
        {"dataset": "mnist", "seed": seed, "public": 200, "accuracy": test + seed / 100, "tuning_accuracy": tuning}
        for seed in (1, 2)
    ]
    return part(asked, federations=rows)


def test_the_rate_of_public_records_is_chosen_on_tuning_records() -> None:
    rows = cells(values([], one=public(0.5, test=0.9, tuning=0.7), two=public(2.0, test=0.6, tuning=0.8)))
    assert [row["scope"] for row in rows] == [0, 4, 40, 100, "run"]
    for row in rows:
        assert (row["accuracy"], row["seeds"], row["accuracy_round"]) == (pytest.approx(0.615), 2, 50)
        assert (row["gradients"], row["bytes"], row["clients"], row["public"]) == (0, 0, 0, 200)
        assert (row["identification"], row["proved_identification"], row["attack"]) == (1 / 200, 1 / 200, None)
        assert (row["epsilon"], row["delta"], row["control_failed"]) == (None, None, False)


def test_more_public_records_are_another_cell() -> None:
    other = public(0.5, 0.7, 0.7)
    other["federations"] = [{**row, "public": 1000} for row in other["federations"]]
    rows = cells(values([], one=public(0.5, 0.6, 0.6), two=other))
    assert [(row["public"], row["accuracy"]) for row in rows if row["scope"] == "run"] == [
        (200, pytest.approx(0.615)), (1000, pytest.approx(0.715)),
    ]  # fmt: skip
