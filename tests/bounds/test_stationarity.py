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

THEOREM, SMALLER = "distortion_stationarity", "gamma <= 1/(2 L)"


def test_every_subproblem_is_checked_with_its_own_smoothness(result: Bounds) -> None:
    """One that violates gamma < 1/L_alpha does not speak for the others, and a bound is given to those alone."""
    own = rows(result, THEOREM, mechanism="pl-learn", setting="as configured")
    assert len(own) == 6  # two quantities, three snapshots
    seen = set()
    for one in own:
        about, constants = one["subproblems"], one["constants"]
        assert about["gamma"] == pytest.approx([0.1] * 4)
        small = [gamma * smooth < 1 for gamma, smooth in zip(about["gamma"], about["L_alpha"], strict=True)]
        assert about["count"] == 4
        assert about["covered"] == about["checked"] == sum(small)
        assert constants["L_alpha"]["value"] == max(about["L_alpha"])
        assert constants["largest gamma"]["value"] == pytest.approx(1 / max(about["L_alpha"]))
        assert one["status"] == ("applies" if all(small) else "applies in part" if any(small) else "does not apply")
        (check,) = [check for check in one["assumptions"] if check["name"] == "gamma < 1/L_alpha"]
        assert (check["violated"], check["subproblems"]) == (4 - sum(small), 4)
        assert check["figures"]["limit"]["value"] == pytest.approx(1 / max(about["L_alpha"])), "the worst is shown"
        assert (one["reason"] == "violated: gamma < 1/L_alpha") != all(small)
        assert (one["bound"] is None) == (one["holds"] is None) == (not any(small))
        assert one["measured"]["count"] == (sum(small) or 4)
        seen.add(one["status"])
    assert "applies in part" in seen, "a pooled L_alpha would have refused them all"


def test_a_smaller_gamma_gets_a_bound_everywhere(result: Bounds) -> None:
    again = rows(result, THEOREM, mechanism="pl-learn", setting=SMALLER)
    assert again
    for one in again:
        assert one["status"] == "applies"
        assert (one["subproblems"]["checked"], one["subproblems"]["violated"]) == (4, 0)
        assert one["holds"] is True
        assert one["margin"] >= 1
        assert one["exact_gradient_bound"]["value"] < one["bound"]["value"]
        assert len(one["curve"]["bound"]) == len(one["curve"]["measured"]) == 2


def test_both_sides_follow_from_their_definitions(context: BoundsContext, result: Bounds) -> None:
    index = next(i for i, fed in enumerate(context.sweep.federations) if fed.mechanism == "pl-learn")
    problems = subproblems(context, index, 2)
    residual, normal = rows(result, THEOREM, mechanism="pl-learn", setting=SMALLER, round=2)
    gamma, smooth = (torch.tensor(residual["subproblems"][name]).double() for name in ("gamma", "L_alpha"))
    learned, steps = problems.learn(gamma.to(problems.gamma)), 2
    nu = learned.error.amax(0).sqrt()
    assert residual["constants"]["nu_alpha"]["value"] == pytest.approx(float(nu.max()))
    start = problems.exact.loss(problems.local.double() + problems.init.double())
    gap = gap_bound(start, problems.init.double(), problems.upper.double(), problems.negative_norm.double())
    assert residual["constants"]["Delta_phi"]["value"] == pytest.approx(float(gap.max()))
    left = 1 - smooth * gamma
    means = learned.residual.cumsum(0) / torch.tensor([[1.0], [2.0]])
    bounds = torch.stack([4 * gap / (gamma * left * m) + 4 * nu**2 / left**2 for m in (1, steps)])
    assert residual["measured"]["value"] == pytest.approx(float(means[-1].mean()))
    assert residual["bound"]["value"] == pytest.approx(float(bounds[-1].mean()))
    assert residual["margin"] == pytest.approx(float((bounds / means).min()))
    assert residual["curve"]["bound"] == pytest.approx(bounds.mean(1).tolist())
    assert residual["curve"]["measured"] == pytest.approx(means.mean(1).tolist())
    exact = (2 * gap / (gamma * left * steps)).mean()
    assert residual["exact_gradient_bound"]["value"] == pytest.approx(float(exact))
    wider = 2 * (1 + smooth * gamma) ** 2 * bounds[-1] + 2 * nu**2
    assert normal["bound"]["value"] == pytest.approx(float(wider.mean()))
    assert normal["measured"]["value"] == pytest.approx(float(learned.stationarity.mean()))


def test_the_smaller_gamma_is_at_most_half_of_what_the_first_estimate_allows(result: Bounds) -> None:
    for one in rows(result, THEOREM, setting=SMALLER):
        (own, *_) = rows(result, THEOREM, setting="as configured", **{k: one[k] for k in ("mechanism", "round")})
        first, later = own["subproblems"], one["subproblems"]
        halves = [min(gamma, 0.5 / smooth) for gamma, smooth in zip(first["gamma"], first["L_alpha"], strict=True)]
        assert later["gamma"] == pytest.approx(halves)
        assert all(new >= old for new, old in zip(later["L_alpha"], first["L_alpha"], strict=True))
        assert one["constants"]["L_alpha"]["count"] > own["constants"]["L_alpha"]["count"]


def test_a_bound_that_fails_is_said_to_fail(context: BoundsContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stationarity, "distortion_bounds", lambda *given: StationarityBounds(1e-9, 1e-9))
    own = rows(stationarity_rows(context, 0, 0), THEOREM, setting=SMALLER)
    assert {one["holds"] for one in own} == {False}
    assert {one["subproblems"]["violated"] for one in own} == {4}
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
    assert {one["subproblems"]["covered"] for one in own} == {4}
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
