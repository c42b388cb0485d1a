"""Lemma D.1 and Remark 1: by hand from what an attack might have found, and on runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from equipoise.bounds import leakage
from equipoise.bounds.attacked_releases import AttackedReleases
from equipoise.bounds.leakage import leakage_rows
from equipoise.bounds.rows import Row
from equipoise.bounds.run import Bounds
from equipoise.bounds.theory import leakage_step_bound
from equipoise.data.dataset import Dataset, from_tensors
from equipoise.engine.federation import Federation
from equipoise.errors import DataError
from tests.bounds.runs import CHEAP, rows, untrained

LEMMA, REMARK = "privacy_leakage", "conditional_preservation"
PL, LS = Federation("few", "pl-identical", 0.98), Federation("few", "ls-static", 200.0)


def by_hand(
    few: Dataset, monkeypatch: pytest.MonkeyPatch, fed: Federation = PL, snapshots: tuple[int, ...] = (0,),
    **change: Any,
) -> list[Row]:  # fmt: skip
    """The rows of three releases, of which the second one's attack overflowed; D = 56, c_a = 0.56, c_res = 0.01."""
    result = AttackedReleases(
        cells=[(0, snapshots[0])], beta=torch.tensor([8.0, 99.0, 10.0]), leakage=torch.tensor([0.1, 9.0, 0.3]),
        beyond=torch.tensor([0.0, 1.0, 0.5]), farthest=torch.tensor([50.0, 1e9, 55.0]),
        ratios=torch.tensor([[0.7, 0.01, 0.9], [0.8, 0.01, torch.nan]]), public=torch.tensor([[0.75]]),
        residuals=torch.tensor([2.0, 99.0, 1.0]).expand(4, 3), alive=torch.tensor([True, False, True]),
    )  # fmt: skip
    context = untrained(few, fed, snapshots=snapshots)
    monkeypatch.setattr(leakage, "attack_releases", lambda *given: replace(result, **change))
    return leakage_rows(context)


def checks(row: Row) -> dict[str, str]:
    return {check["name"]: check["status"] for check in row["assumptions"]}


def test_the_score_with_the_runs_constants(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = rows(by_hand(few, monkeypatch), LEMMA, setting="as configured")
    assert one["bound"]["value"] == pytest.approx(1 - (0.56 * 9 + 0.56 * 0.01 * 4**-0.5) / (4 * 56))
    assert (one["measured"]["value"], one["measured"]["count"]) == (pytest.approx(0.2), 2)
    assert (one["most"], one["holds"]) == (pytest.approx(0.3), True)
    values = {name: figure["value"] for name, figure in one["constants"].items()}
    assert values == {
        "beta": 9.0, "c_a": pytest.approx(0.7), "c_b": pytest.approx(0.9), "p (fitted)": pytest.approx(1.0),
        "c_2 for p": 4.0, "mean r_i": 1.5, "D seen": 55.0, "D": 56.0, "p": 0.5, "I": 4,
    }  # fmt: skip
    assert checks(one) == {
        "bi-Lipschitz, c_a": "held", "bi-Lipschitz, c_b": "not checkable", "residual envelope": "violated",
        "beta >= threshold": "held", "distances <= D": "held",
    }  # fmt: skip
    figures = {check["name"]: check["figures"] for check in one["assumptions"]}
    assert figures["residual envelope"]["value"]["value"] == 8.0  # 4 iterations of 2
    assert figures["residual envelope"]["limit"]["value"] == pytest.approx(0.01 * 4**0.5)
    assert figures["beta >= threshold"]["value"]["value"] == pytest.approx(2 * 0.01 * 4**-0.5)
    assert figures["distances <= D"]["share_beyond"]["value"] == 0.25
    assert one["status"] == "does not apply"


def test_a_score_below_the_leakage_does_not_hold(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    result = by_hand(few, monkeypatch, leakage=torch.tensor([0.1, 0.0, 0.99]))
    assert rows(result, LEMMA, setting="as configured")[0]["holds"] is False
    assert rows(result, LEMMA, setting="estimated")[0]["holds"] is False
    assert rows(result, LEMMA, setting="step of the proof")[0]["holds"] is False


def test_violations_are_seen(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = torch.tensor([[0.5, 0.01, torch.inf], [0.8, 0.01, torch.nan]])
    small, far = torch.tensor([0.001, 99.0, 10.0]), torch.tensor([50.0, 1.0, 57.0])
    residuals = torch.full((4, 3), 1e-3)
    result = by_hand(few, monkeypatch, ratios=ratios, beta=small, farthest=far, residuals=residuals)
    own = rows(result, LEMMA, setting="as configured")[0]
    assert checks(own) == {
        "bi-Lipschitz, c_a": "violated", "bi-Lipschitz, c_b": "violated", "residual envelope": "held",
        "beta >= threshold": "violated", "distances <= D": "violated",
    }  # fmt: skip
    estimated = rows(result, LEMMA, setting="estimated")[0]
    assert (estimated["bound"], estimated["holds"]) == (None, None)  # without a c_b there is no score
    assert checks(estimated)["distances <= D"] == "violated"


def test_the_lemma_with_constants_that_fit_these_releases(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = rows(by_hand(few, monkeypatch), LEMMA, setting="estimated")
    c_a, c_b, c_2, decay = 0.7, 0.9, 4.0, 4**-0.5
    assert one["bound"]["value"] == pytest.approx(1 - (c_a * 9 + c_2 * c_b * decay) / (4 * 56), rel=1e-6)
    assert (one["holds"], one["status"]) == (True, "applies")
    (threshold,) = [check for check in one["assumptions"] if check["name"].startswith("beta")]
    assert threshold["figures"]["value"]["value"] == pytest.approx(2 * c_2 * c_b / c_a * decay)
    (one,) = rows(by_hand(few, monkeypatch, beta=torch.tensor([5.1, 99.0, 10.0])), LEMMA, setting="estimated")
    assert (one["bound"], one["holds"], one["status"]) == (None, None, "does not apply")  # 5.1 < 5.14


def test_the_step_of_the_proof(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = rows(by_hand(few, monkeypatch), LEMMA, setting="step of the proof")
    assert one["bound"]["value"] == pytest.approx(1 - 0.7 * ((8 - 2) + (10 - 1)) / 2 / 56, rel=1e-6)
    assert (one["holds"], one["status"]) == (True, "applies")


@pytest.mark.parametrize(("beta", "kept"), [(8.0, True), (7.9993, True), (7.99, False)])
def test_the_remark_by_hand(few: Dataset, monkeypatch: pytest.MonkeyPatch, beta: float, kept: bool) -> None:
    """The budget asks for 7.99975; a release's norm may lack a ten-thousandth of that by rounding."""
    (one,) = rows(by_hand(few, monkeypatch, beta=torch.tensor([beta, 0.0, 9.0])), REMARK)
    assert (one["bound"]["value"], one["holds"]) == (0.98, kept)
    assert one["measured"]["value"] == pytest.approx(1 - (0.56 * beta + 0.56 * 0.01 / 40) / (4 * 56))
    assert one["constants"]["lower"]["value"] == pytest.approx(7.99975)


def test_the_remark_is_about_the_budget_of_the_coming_round(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    fed = replace(PL, budget={"rounds": [1, 3], "values": [0.98, 0.96]})
    for at, budget in ((1, 0.98), (2, 0.96)):
        (one,) = rows(by_hand(few, monkeypatch, fed, (at,)), REMARK)
        assert (one["bound"]["value"], one["holds"]) == (budget, budget == 0.98)


def test_other_budgets_are_not_covered(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    result = by_hand(few, monkeypatch, LS)
    own = rows(result, LEMMA, setting="as configured")[0]
    assert own["status"] == "not covered"
    assert own["bound"]["value"] > 0  # at the measured norm
    assert [one["status"] for one in rows(result, REMARK)] == ["not covered"]


def test_an_attack_that_overflowed_says_nothing(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    result = by_hand(few, monkeypatch, alive=torch.tensor([False] * 3))
    assert [one["result"] for one in result] == [LEMMA, REMARK]
    for one in result:
        assert (one["status"], one["reason"]) == ("not checkable", "the attack's cost overflowed")


# --- without an attack ------------------------------------------------------------------------------------------


def test_no_attack_is_run_where_there_is_nothing_to_attack(few: Dataset) -> None:
    train = few.train.inputs, few.train.labels
    bare = from_tensors(train, train, classes=10, name="bare")
    fed = replace(PL, dataset="bare")
    for one in leakage_rows(untrained(bare, fed)):
        assert (one["status"], "public" in one["reason"]) == ("not checkable", True)


def test_without_an_attack_neither_the_lemma_nor_the_remark_is_checked(few: Dataset) -> None:
    result = leakage_rows(untrained(few, PL, LS, options=replace(CHEAP, targets=0)))
    for one, (name, mechanism) in zip(result[:2], ((LEMMA, "pl-identical"), (REMARK, "pl-identical")), strict=True):
        assert (one["result"], one["mechanism"]) == (name, mechanism)
        assert (one["status"], one["reason"]) == ("not checkable", "no attack was asked for")
    assert [(one["result"], one["status"]) for one in result[2:]] == [
        (LEMMA, "not checkable"), (REMARK, "not covered"),
    ]  # fmt: skip


def test_what_the_attack_refuses_is_the_reason(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> AttackedReleases:
        raise DataError("There are 3 public images.", "Give more.")

    monkeypatch.setattr(leakage, "attack_releases", refuse)
    for one in leakage_rows(untrained(few, PL)):
        assert (one["status"], "3 public images" in one["reason"]) == ("not checkable", True)


def test_several_local_steps_are_not_covered(few: Dataset) -> None:
    result = leakage_rows(untrained(few, PL, snapshots=[0, 1], local_steps=2))
    assert [(one["round"], one["result"]) for one in result] == [
        (0, LEMMA), (0, REMARK), (1, LEMMA), (1, REMARK),
    ]  # fmt: skip
    assert {one["status"] for one in result} == {"not covered"}
    assert checks(result[0]) == {"update is one mean gradient": "not covered"}


# --- on runs ----------------------------------------------------------------------------------------------------


def test_the_lemma_is_reported_with_what_it_needs(result: Bounds) -> None:
    for one in rows(result, LEMMA, mechanism="pl-learn", setting="as configured"):
        assert one["status"] == "does not apply"
        assert "residual envelope" in one["reason"]
        assert one["bound"]["value"] == pytest.approx(0.98, abs=0.01)
        assert checks(one)["beta >= threshold"] == "held"
        assert one["constants"]["beta"]["value"] >= 7.99
    for one in rows(result, LEMMA, setting="estimated"):
        assert one["status"] == "does not apply"  # the c_2 that these residuals take puts beta below the threshold
        assert one["bound"] is None
    for one in rows(result, LEMMA, setting="step of the proof"):
        assert one["holds"] is True
        c, least = one["constants"], one["constants"]["c_a"]["value"]
        mean = leakage_step_bound(least, c["D"]["value"], c["beta"]["value"], c["mean r_i"]["value"])
        assert one["bound"]["value"] == pytest.approx(mean, rel=1e-6)
    for one in rows(result, REMARK, mechanism="pl-identical"):
        assert one["holds"] is True
        assert one["bound"]["value"] == 0.98
        assert one["measured"]["value"] <= 0.98 + 1e-4
        assert one["status"] == "does not apply"  # kept, but the lemma behind it does not apply
