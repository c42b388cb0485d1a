"""Theorem 5.1 and Corollary 5.1 on runs: what is reported, and its numbers from their definitions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from equipoise.bounds import stationarity
from equipoise.bounds.context import BoundsContext
from equipoise.bounds.run import Bounds
from equipoise.bounds.stationarity import stationarity_rows
from equipoise.bounds.subproblems import subproblems
from equipoise.bounds.theory import StationarityBounds, gap_bound
from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from tests.bounds.runs import CHEAP, rows, untrained

THEOREM, SMALLER = "distortion_stationarity", "gamma = 1/(2 L)"


def test_a_gamma_too_large_gets_no_bound_and_a_smaller_one_does(result: Bounds) -> None:
    own = rows(result, THEOREM, mechanism="pl-learn", setting="as configured")
    assert len(own) == 6  # two quantities, three snapshots
    for one in own:
        limit = one["constants"]["largest gamma"]["value"]
        assert one["constants"]["gamma"]["value"] == pytest.approx(0.1)
        assert limit == pytest.approx(1 / one["constants"]["L_alpha"]["value"])
        assert limit < 0.1
        assert one["status"] == "does not apply"
        assert "gamma < 1/L_alpha" in one["reason"]
        assert (one["bound"], one["holds"], one["margin"]) == (None, None, None)
        assert one["measured"]["count"] == 4
    again = rows(result, THEOREM, mechanism="pl-learn", setting=SMALLER)
    assert len(again) == 6
    for one in again:
        assert one["holds"] is True
        assert one["margin"] >= 1
        assert one["constants"]["gamma"]["value"] < one["constants"]["largest gamma"]["value"]
        assert one["exact_gradient_bound"]["value"] < one["bound"]["value"]
        assert len(one["curve"]["bound"]) == len(one["curve"]["measured"]) == 2


def test_both_sides_follow_from_their_definitions(context: BoundsContext, result: Bounds) -> None:
    index = next(i for i, fed in enumerate(context.sweep.federations) if fed.mechanism == "pl-learn")
    problems = subproblems(context, index, 2)
    residual, normal = rows(result, THEOREM, mechanism="pl-learn", setting=SMALLER, round=2)
    known = {name: figure["value"] for name, figure in residual["constants"].items()}
    gamma, smooth, nu, steps = known["gamma"], known["L_alpha"], known["nu_alpha"], 2
    learned = problems.learn(torch.full_like(problems.gamma, gamma))
    assert nu == pytest.approx(float(learned.error.max()) ** 0.5)
    start = problems.exact.loss(problems.local.double() + problems.init.double())
    gap = gap_bound(start, problems.init.double(), problems.upper.double(), problems.negative_norm.double())
    assert known["Delta_phi"] == pytest.approx(float(gap.max()))
    left = 1 - smooth * gamma
    means = learned.residual.cumsum(0) / torch.tensor([[1.0], [2.0]])
    bounds = torch.stack([4 * gap / (gamma * left * m) + 4 * nu**2 / left**2 for m in (1, steps)])
    assert residual["measured"]["value"] == pytest.approx(float(means[-1].mean()))
    assert residual["bound"]["value"] == pytest.approx(float(bounds[-1].mean()))
    assert residual["margin"] == pytest.approx(float((bounds / means).min()))
    assert residual["curve"]["bound"] == pytest.approx(bounds.mean(1).tolist())
    assert residual["curve"]["measured"] == pytest.approx(means.mean(1).tolist())
    assert residual["exact_gradient_bound"]["value"] == pytest.approx(float(2 * gap.mean()) / (gamma * left * steps))
    wider = 2 * (1 + smooth * gamma) ** 2 * bounds[-1] + 2 * nu**2
    assert normal["bound"]["value"] == pytest.approx(float(wider.mean()))
    assert normal["measured"]["value"] == pytest.approx(float(learned.stationarity.mean()))


def test_the_smaller_gamma_is_half_of_what_the_first_estimate_allows(result: Bounds) -> None:
    for one in rows(result, THEOREM, setting=SMALLER):
        (own, *_) = rows(result, THEOREM, setting="as configured", **{k: one[k] for k in ("mechanism", "round")})
        assert one["constants"]["gamma"]["value"] == pytest.approx(own["constants"]["largest gamma"]["value"] / 2)
        assert one["constants"]["L_alpha"]["value"] >= own["constants"]["L_alpha"]["value"]
        assert one["constants"]["L_alpha"]["count"] > own["constants"]["L_alpha"]["count"]


def test_a_bound_that_fails_is_said_to_fail(context: BoundsContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stationarity, "distortion_bounds", lambda *given: StationarityBounds(1e-9, 1e-9))
    own = rows(stationarity_rows(context, 0, 0), THEOREM, setting=SMALLER)
    assert {one["holds"] for one in own} == {False}
    assert all(one["margin"] < 1 for one in own)


def test_a_bound_must_hold_for_every_number_of_steps(context: BoundsContext, monkeypatch: pytest.MonkeyPatch) -> None:
    def bounds(gap: float, gamma: float, smoothness: float, steps: int, error: float | None) -> StationarityBounds:
        return StationarityBounds(*[1e-9 if steps == 1 else 1e99] * 2)

    monkeypatch.setattr(stationarity, "distortion_bounds", bounds)
    assert {one["holds"] for one in rows(stationarity_rows(context, 0, 0), THEOREM, setting=SMALLER)} == {False}


def test_a_gamma_small_enough_is_taken_as_it_is(gentle: Bounds) -> None:
    own = rows(gentle, THEOREM)
    assert {one["setting"] for one in own} == {"as configured"}
    assert {one["status"] for one in own} == {"applies"}
    assert all(one["holds"] and one["bound"]["value"] >= one["measured"]["value"] for one in own)
    assert own[0]["constants"]["nu_alpha"]["value"] == pytest.approx(0, abs=1e-12)  # float64 against float64


# --- what is not covered ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "steps", "words"),
    [
        ("none", 10, "nothing is learned"),
        ("pl-identical", 10, "nothing is learned"),
        ("pl-learn", 0, "nothing is learned"),
        ("ls-learn", 10, "radial"),
        ("gs-learn", 10, "each draw sets its own"),
    ],
)
def test_what_the_theorem_does_not_cover(few: Dataset, name: str, steps: int, words: str) -> None:
    fed = Federation("few", name, None if name == "none" else 0.98)
    own = rows(stationarity_rows(untrained(few, fed, steps=steps), 0, 0), THEOREM)
    assert len(own) == 2
    assert {one["status"] for one in own} == {"not covered"}
    assert {check["status"] for one in own for check in one["assumptions"]} == {"not covered"}
    assert all(words in one["reason"] for one in own)


def test_a_learner_that_stands_still_is_not_covered(few: Dataset) -> None:
    context = untrained(few, Federation("few", "pl-learn", 0.98), gamma=[0.1, 0.0, 0.1, 0.1])
    own = rows(stationarity_rows(context, 0, 0), THEOREM)
    assert {one["status"] for one in own} == {"not covered"}
    assert "gamma is zero" in own[0]["reason"]


def test_no_run_meets_the_convex_corollary(result: Bounds) -> None:
    own = rows(result, "convex_suboptimality")
    assert len(own) == 4 * 3
    assert {one["status"] for one in own} == {"not covered"}
    assert all("hole" in one["reason"] and "not convex" in one["reason"] for one in own)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"negative_norm": 0.0}, {"no negative norm": "held", "exact gradient": "violated"}),
        ({"negative_norm": 0.1, "dtype": "float64"}, {"no negative norm": "violated", "exact gradient": "held"}),
        ({"negative_norm": {"rounds": [1, 9], "values": [0.0, 0.2]}}, {"no negative norm": "violated"}),
    ],
)
def test_what_the_convex_corollary_asks_for(few: Dataset, change: dict[str, object], expected: dict[str, str]) -> None:
    (one,) = rows(stationarity_rows(untrained(few, Federation("few", "none"), **change), 0, 0), "convex_suboptimality")
    status = {check["name"]: check["status"] for check in one["assumptions"]}
    assert status == {"convex feasible set": "violated", "convex objective": "violated", **status, **expected}


# --- assumptions ------------------------------------------------------------------------------------------------


def test_layers_with_kinks_are_not_smooth(few: Dataset) -> None:
    for model, status in (("mlp", "violated"), ("lenet-zhu", "held")):
        context = untrained(few, Federation("few", "pl-learn", 0.98), model=model, options=replace(CHEAP, power=1))
        own = rows(stationarity_rows(context, 0, 0), THEOREM)
        smooth = [check for one in own for check in one["assumptions"] if check["name"].startswith("smooth")]
        assert {check["status"] for check in smooth} == {status}
        assert model != "mlp" or {one["status"] for one in own} == {"does not apply"}


def test_an_annulus_without_width_and_a_start_outside_of_it_are_violations(
    context: BoundsContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    def statuses() -> dict[str, str]:
        (one, *_) = rows(stationarity_rows(context, 0, 0), THEOREM, setting="as configured")
        return {check["name"]: check["status"] for check in one["assumptions"]}

    good = statuses()
    assert {good["0 < lower < upper"], good["start in the annulus"], good["exact Euclidean projection"]} == {"held"}
    real = subproblems(context, 0, 0)
    monkeypatch.setattr(stationarity, "subproblems", lambda *given: replace(real, upper=real.lower))
    assert statuses()["0 < lower < upper"] == "violated"
    monkeypatch.setattr(stationarity, "subproblems", lambda *given: replace(real, init=1.01 * real.init))
    assert statuses()["start in the annulus"] == "violated"


def test_progress_says_which_federation(context: BoundsContext) -> None:
    told: list[str] = []
    stationarity_rows(replace(context, progress=lambda what, amount: told.append(what)), 0, 2)
    assert [what.rpartition(" at ")[2] for what in told] == ["2: inner loop", "2: smaller gamma"]
    assert all("pl-learn @ 0.98" in what for what in told)
