"""Theorem 5.2: its two sides by hand, which steps it is shown for, and on runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.bounds import convergence
from equipoise.bounds.convergence import convergence_rows, over_rounds, theorem_rows
from equipoise.bounds.global_objective import GlobalObjective
from equipoise.bounds.repeated_rounds import RepeatedRound, ShortRun
from equipoise.bounds.rows import Row, figure
from equipoise.bounds.run import Bounds, bounds_run
from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.errors import DataError
from tests.audit_helpers import train_run
from tests.bounds.runs import CHEAP, MECHANISMS, rows, untrained

FED = Federation("few", "pl-identical", 0.98)
OWN = {"dataset": "few", "mechanism": "pl-identical", "budget": 0.98, "seed": 1}


def line(number: int, averaged: int, distortion: float, **more: Any) -> Row:
    """One of metrics.jsonl."""
    counts = {"accepted": 8, "refused": 0, "clipped_share": 0.0}
    return {
        **OWN,
        "round": number,
        "rounds_averaged": averaged,
        "distortion_norm_squared": distortion,
        **counts,
        **more,
    }


LINES = [
    line(2, 2, 16.0, gradient_norm_squared=9.0),
    line(2, 2, 1e6, seed=2),  # another federation
    line(3, 1, 4.0, gradient_norm_squared=3.0, accepted=3, refused=1, clipped_share=0.5),
    line(5, 2, 1e6),  # after the last snapshot
]


def objective_of(few: Dataset, smoothness: float = 2.0, **settings: Any) -> GlobalObjective:
    """Three rounds in which F fell from 5 to 2; at W_0 |grad F|^2 = 25. sigma_g^2 is largest at round 1."""
    context = untrained(few, FED, snapshots=[0, 1, 3], **settings)
    return GlobalObjective(
        context, loss={0: torch.tensor([5.0]), 1: torch.tensor([4.0]), 3: torch.tensor([2.0])},
        gradient={0: torch.tensor([[3.0, 4.0]]), 1: torch.tensor([[2.0, 0.0]]), 3: torch.tensor([[9.0, 0.0]])},
        curvatures=[torch.tensor([smoothness / 2]), torch.tensor([smoothness])],
        variance={at: [figure(value, 8, "mean")] for at, value in ((0, 2.0), (1, 5.0), (3, 1.0))},
        bias={0: [1.0], 1: [1.0], 3: [1.0]},
    )  # fmt: skip


# --- by hand ----------------------------------------------------------------------------------------------------


def test_both_sides_by_hand(few: Dataset) -> None:
    """The server takes a quarter of every step: eta is 0.025, and |Delta_t|^2 a sixteenth of what clients sent."""
    mean, limit = theorem_rows(objective_of(few, server_rate=0.25), 0, LINES)
    constants = {name: one["value"] for name, one in mean["constants"].items()}
    assert constants == {
        "L_F": 2.0, "sigma_g^2": 5.0, "eta": pytest.approx(0.025), "T": 3, "F(W_0) - F(W_T)": 3.0,
        "|Delta|^2": pytest.approx((2 * 16 + 4) / 3 / 16), "largest eta": 0.125,
    }  # fmt: skip
    right = 2 * 3 / (0.025 * 3) + 2 * 2 * 0.025 * 5 + 2 * (1 / 0.025**2 + 2 / 0.025) * 0.75
    assert right == pytest.approx(2600.5)
    assert mean["bound"]["value"] == pytest.approx(right)
    assert mean["measured"]["value"] == pytest.approx((2 * 9 + 3) / 3)  # W_1 stands for W_0 too
    assert (mean["holds"], mean["margin"]) == (True, pytest.approx(right / 7))
    assert (mean["source"], mean["note"][:11]) == ("metrics.jsonl", "2 of 3 roun")
    assert limit["quantity"] == "limit of that mean"
    assert limit["bound"]["value"] == pytest.approx(0.5 + 2 * (1 / 0.025**2 + 2 / 0.025) * 16 / 16)
    assert (limit["measured"], limit["holds"]) == (None, None)
    (biased,) = [check for check in mean["assumptions"] if check["name"].startswith("unbiased")]
    shares = {name: biased["figures"][name]["value"] for name in ("clipped_share", "refused_share")}
    assert shares == {"clipped_share": 0.5 * 3 / 12, "refused_share": 1 / 12}


def test_without_recorded_gradients_the_snapshots_before_the_last_serve(few: Dataset) -> None:
    plain = [{name: value for name, value in one.items() if name != "gradient_norm_squared"} for one in LINES]
    mean, _ = theorem_rows(objective_of(few), 0, plain)
    assert mean["measured"]["value"] == pytest.approx((25 + 2 * 4) / 3)
    assert mean["source"] == "snapshots"


def test_a_bound_below_the_measurement_does_not_hold(few: Dataset) -> None:
    objective = objective_of(few, server_rate=0.25)
    objective.loss[0] = torch.tensor([-1000.0])  # F rose by a thousand, which no descent does
    mean, _ = theorem_rows(objective, 0, LINES)
    assert mean["holds"] is False
    assert mean["margin"] < 1


def test_a_step_that_the_theorem_does_not_cover_has_no_bound(few: Dataset) -> None:
    for smoothness, covered in ((2.5, True), (2.6, False)):  # eta = 0.1
        mean, limit = theorem_rows(objective_of(few, smoothness), 0, LINES)
        assert (mean["bound"] is not None, limit["bound"] is not None) == (covered, covered)
        assert (mean["holds"] is not None, mean["margin"] is not None) == (covered, covered)
        assert mean["measured"]["value"] == 7.0


@pytest.mark.parametrize(
    ("lines", "words"), [([], "covers 0 of 3 rounds"), (LINES[:2], "covers 2 of 3"), (LINES * 2, "covers 6 of 3")]
)
def test_a_run_whose_metrics_have_gaps_is_not_checked(few: Dataset, lines: list[Row], words: str) -> None:
    (one,) = theorem_rows(objective_of(few), 0, lines)
    assert one["status"] == "not checkable"
    assert words in one["reason"]


def test_a_run_that_never_began_is_not_checked(few: Dataset) -> None:
    objective = GlobalObjective(untrained(few, FED))
    (one,) = theorem_rows(objective, 0, [])
    assert (one["status"], one["reason"]) == ("not checkable", "no round was trained")


def test_a_server_rate_that_changes_is_not_covered(few: Dataset) -> None:
    budget = {"rounds": [1, 3], "values": [0.98, 0.9]}
    context = untrained(few, replace(FED, budget=budget), snapshots=[0, 3], server_rate="auto")
    objective = replace(objective_of(few), context=context)
    (one,) = theorem_rows(objective, 0, [{**single, "budget": budget} for single in LINES])
    assert one["status"] == "not covered"
    assert "rate changes" in one["reason"]


def test_values_stand_until_the_next_one() -> None:
    assert over_rounds({0: 10.0}, 5)["value"] == 10
    result = over_rounds({0: 10.0, 2: 4.0, 9: 99.0}, 8)
    assert result["value"] == pytest.approx((2 * 10 + 6 * 4) / 8)
    assert result["count"] == 2
    assert over_rounds({1: 3.0, 2: 6.0}, 3)["value"] == pytest.approx(4.0)  # what came before the first is like it
    with pytest.raises(DataError, match="before the last round"):
        over_rounds({8: 1.0}, 8)


# --- which steps ------------------------------------------------------------------------------------------------


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The etas with which rounds are repeated; L_F is 2 for the first federation and 4 for the second."""
    taken: list[float] = []

    def measure(objective: GlobalObjective, round_number: int, params: Tensor) -> None:
        objective.loss[round_number] = torch.tensor([3.0, 3.0])
        objective.gradient[round_number] = torch.tensor([[3.0, 4.0], [0.0, 1.0]])
        objective.curvatures.append(torch.tensor([2.0, 4.0]))
        objective.variance[round_number] = [figure(5.0, 8, "mean"), figure(6.0, 8, "mean")]
        objective.bias[round_number] = [1.0, 1.0]

    def repeat_round(objective: GlobalObjective, round_number: int, eta: float) -> RepeatedRound:
        taken.append(eta)
        return RepeatedRound(*(torch.full((2, 2), value) for value in (1.0, 4.0, 0.0, 0.0)))

    def short_run(objective: GlobalObjective, eta: float) -> ShortRun:
        taken.append(-eta)
        squared, moved = torch.tensor([[25.0, 1.0], [15.0, 3.0]]), torch.tensor([[4.0, 4.0], [2.0, 8.0]])
        return ShortRun(eta, squared, moved, torch.tensor([1.0, 0.5]), torch.zeros(2), torch.tensor([0.0, 0.25]))

    monkeypatch.setattr(GlobalObjective, "measure", measure)
    monkeypatch.setattr(convergence, "repeat_round", repeat_round)
    monkeypatch.setattr(convergence, "short_run", short_run)
    return taken


def test_a_smaller_eta_is_half_of_what_every_federation_allows(few: Dataset, steps: list[float]) -> None:
    context = untrained(few, FED, replace(FED, seed=2), eta=0.1)
    result = convergence_rows(context, [])
    assert steps == [0.1, 0.03125, -0.03125]  # 1/(8*4); 0.1 lies between 1/(4*4) and 1/(4*2)
    settings = [(one["seed"], one["setting"]) for one in rows(result, "one_step")]
    assert settings == [(1, "as configured"), (2, "as configured"), (2, "eta = 1/(8 L)")]
    (short,) = rows(result, "converge_rate", setting="eta = 1/(8 L), short")
    assert short["seed"] == 2
    eta, constants = 0.03125, {name: one["value"] for name, one in short["constants"].items()}
    assert constants == {
        "L_F": 4.0, "sigma_g^2": 6.0, "eta": eta, "T": 2, "F(W_0) - F(W_T)": 0.5, "|Delta|^2": 6.0,
    }  # fmt: skip
    right = 2 * 0.5 / (eta * 2) + 2 * 4 * eta * 6 + 2 * (1 / eta**2 + 4 / eta) * 6
    assert short["bound"]["value"] == pytest.approx(right)
    assert (short["measured"]["value"], short["measured"]["count"]) == (2.0, 2)
    (biased,) = [check for check in short["assumptions"] if check["name"].startswith("unbiased")]
    assert biased["figures"]["refused_share"]["value"] == 0.25


def test_the_servers_rate_counts_in_the_step(few: Dataset, steps: list[float]) -> None:
    result = convergence_rows(untrained(few, FED, replace(FED, seed=2), eta=0.1, server_rate=0.5), [])
    assert steps == [0.1]  # a step of 0.05 is covered for both
    assert {one["setting"] for one in result} == {"as configured"}
    steps.clear()
    result = convergence_rows(untrained(few, FED, replace(FED, seed=2), eta=0.2, server_rate=0.5), [])
    assert steps == [0.2, 0.03125, -0.03125]
    (short,) = rows(result, "converge_rate", setting="eta = 1/(8 L), short")
    assert short["constants"]["eta"]["value"] == 0.03125 / 2


def test_every_snapshot_asked_for_is_repeated_and_the_last_one_looked_at(few: Dataset, steps: list[float]) -> None:
    context = replace(untrained(few, FED, replace(FED, seed=2), snapshots=[0, 2, 3], eta=0.01), snapshots=[2])
    result = convergence_rows(context, [])
    assert steps == [0.01]
    assert [one["round"] for one in rows(result, "one_step")] == [2, 2]


# --- on runs ----------------------------------------------------------------------------------------------------


def test_the_average_comes_from_the_metrics_where_they_have_it(result: Bounds, run: Path) -> None:
    lines = [json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
    for name in MECHANISMS:
        mine = [one for one in lines if one["mechanism"] == name]
        one = rows(result, "converge_rate", mechanism=name, quantity="mean |grad F|^2", setting="as configured")[0]
        values = [single["gradient_norm_squared"] for single in mine]
        assert one["source"] == "metrics.jsonl"
        assert "3 of 3 rounds" in one["note"]
        assert one["measured"]["value"] == pytest.approx(sum(values) / 3)
        moved = sum(single["distortion_norm_squared"] for single in mine) / 3
        assert one["constants"]["|Delta|^2"]["value"] == pytest.approx(moved)


def test_an_eta_too_large_gets_no_bound_and_a_smaller_one_does(result: Bounds) -> None:
    for one in rows(result, "one_step", setting="as configured") + rows(
        result, "converge_rate", setting="as configured"
    ):
        assert one["status"] == "does not apply"
        assert one["bound"] is None
        assert one["constants"]["largest eta"]["value"] < 0.1
    smaller = rows(result, "one_step", setting="eta = 1/(8 L)")
    assert len(smaller) == 4 * 3
    for one in smaller:
        assert one["holds"] is True
        assert one["constants"]["eta"]["value"] <= one["constants"]["largest eta"]["value"]
    short = rows(result, "converge_rate", setting="eta = 1/(8 L), short")
    assert len(short) == 4
    assert all(one["holds"] and one["measured"]["count"] == 2 for one in short)


def test_an_eta_small_enough_is_taken_as_it_is(gentle: Bounds) -> None:
    own = rows(gentle, "one_step")
    assert {(one["setting"], one["status"]) for one in own} == {("as configured", "applies")}
    assert all(one["holds"] and one["bound"]["value"] >= one["measured"]["value"] for one in own)
    mean, limit = rows(gentle, "converge_rate")
    assert (mean["holds"], mean["source"]) == (True, "snapshots")
    assert limit["holds"] is None
    assert limit["bound"]["value"] > 0


def test_several_local_steps_are_not_covered(few: Dataset) -> None:
    result = convergence_rows(untrained(few, FED, replace(FED, seed=2), local_steps=2), [])
    assert [(one["seed"], one["result"]) for one in result] == [
        (1, "one_step"), (1, "converge_rate"), (2, "one_step"), (2, "converge_rate"),
    ]  # fmt: skip
    assert {one["status"] for one in result} == {"not covered"}


def test_a_damped_server_takes_smaller_steps(pictures: Path, tmp_path: Path) -> None:
    plain, damped = (
        bounds_run(
            train_run(tmp_path / name, pictures, ("pl-identical",), snapshots=[0], rounds=1, server_rate=rate,
                      evaluate_every=1),
            replace(CHEAP, targets=0, snapshots=[0]),
        )
        for name, rate in (("plain", 1.0), ("damped", 0.25))
    )  # fmt: skip
    for result in ("one_step", "converge_rate"):
        one, other = (rows(outcome, result, setting="as configured")[0] for outcome in (plain, damped))
        assert other["constants"]["eta"]["value"] == pytest.approx(0.025)
        assert other["constants"]["|Delta|^2"]["value"] == pytest.approx(one["constants"]["|Delta|^2"]["value"] / 16)
    one, other = (rows(outcome, "one_step", setting="as configured")[0] for outcome in (plain, damped))
    assert other["measured"]["value"] == pytest.approx(one["measured"]["value"] / 4)
