"""Lemma C.1: its two sides by hand, and on runs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load
from torch import Tensor, nn

from equipoise.bounds import one_step
from equipoise.bounds.global_objective import GlobalObjective
from equipoise.bounds.one_step import one_step_row
from equipoise.bounds.repeated_rounds import RepeatedRound
from equipoise.bounds.rows import Row, figure
from equipoise.bounds.run import Bounds, bounds_run
from equipoise.data.dataset import Dataset
from equipoise.engine.datasets import load_dataset
from equipoise.engine.federation import Federation
from equipoise.models.bundled import build
from equipoise.runs.config import resolve
from equipoise.runs.run import Run
from tests.audit_helpers import SIDE, settings_for
from tests.bounds.runs import CHEAP, rows, untrained

SEEN = RepeatedRound(
    decrease=torch.tensor([[1.0], [3.0]]), distortion=torch.tensor([[4.0], [8.0]]),
    clipped=torch.tensor([[0.0], [0.5]]), refused=torch.tensor([[0.25], [0.25]]),
)  # fmt: skip


def by_hand(few: Dataset, smoothness: float, round_number: int = 0, budget: Any = 0.98, **settings: Any) -> Row:
    """|grad F|^2 = 25, sigma_g^2 = 5; eta = 0.1."""
    context = untrained(few, Federation("few", "pl-identical", budget), **settings)
    objective = GlobalObjective(
        context, gradient={round_number: torch.tensor([[3.0, 4.0]])}, curvatures=[torch.tensor([smoothness])],
        variance={round_number: [figure(5.0, 8, "mean")]}, bias={round_number: [1.0]},
    )  # fmt: skip
    return one_step_row(objective, 0, round_number, 0.1, SEEN, "as configured")


def test_both_sides_by_hand(few: Dataset) -> None:
    result = by_hand(few, smoothness=2.0, server_rate=0.5)
    assert result["constants"]["eta"]["value"] == pytest.approx(0.05)
    assert result["measured"]["value"] == pytest.approx(0.05 / 2 * 25)
    assert result["measured"]["count"] == 160  # examples of F
    right = 2.0 + 2 * 0.05**2 * 5 + (1 / 0.05 + 2) * 6
    assert result["bound"]["value"] == pytest.approx(right)
    assert (result["bound"]["count"], result["holds"]) == (2, True)
    assert result["margin"] == pytest.approx(right / 0.625)
    assert result["constants"]["F(W) - F(W_t)"]["value"] == 2.0
    assert result["constants"]["|Delta|^2"]["value"] == 6.0
    assert result["constants"]["largest eta"]["value"] == pytest.approx(0.125)
    (biased,) = [check for check in result["assumptions"] if check["name"].startswith("unbiased")]
    assert (biased["figures"]["clipped_share"]["value"], biased["figures"]["refused_share"]["value"]) == (0.25, 0.25)


def test_a_step_that_the_lemma_does_not_cover_has_no_bound(few: Dataset) -> None:
    assert by_hand(few, smoothness=2.5)["holds"] is True  # eta = 1/(4 L), which is still allowed
    result = by_hand(few, smoothness=2.6)
    assert (result["bound"], result["holds"], result["margin"]) == (None, None, None)
    assert result["status"] == "does not apply"
    assert result["measured"]["value"] == pytest.approx(1.25)


def test_a_bound_that_fails_is_said_to_fail(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_step, "one_step_bound", lambda *given: -1.0)
    result = by_hand(few, smoothness=2.0)
    assert (result["holds"], result["margin"]) == (False, pytest.approx(-1 / 1.25))


def test_the_servers_rate_is_that_of_the_coming_round(few: Dataset) -> None:
    budget = {"rounds": [1, 4], "values": [0.98, 0.96]}
    early, late = (by_hand(few, 2.0, at, budget, server_rate="auto")["constants"]["eta"]["value"] for at in (2, 3))
    assert (early, late) == (pytest.approx(0.1 / 7.99975), pytest.approx(0.1 / 15.99975))


# --- on runs ----------------------------------------------------------------------------------------------------


def squared_gradient(weights: dict[str, Tensor], images: Tensor, labels: Tensor) -> float:
    """|grad F|^2 by autograd, in float64, from a state dict."""
    model = build("lenet-zhu", (1, SIDE, SIDE), 4).double()
    model.load_state_dict({name: tensor.double() for name, tensor in weights.items()})
    loss = nn.functional.cross_entropy(model(images.double()), labels)
    return sum(float(slope.square().sum()) for slope in torch.autograd.grad(loss, list(model.parameters())))


def check_gradient_norms(result: Bounds, run: Path) -> None:
    config = resolve(run / "config.toml")
    data = load_dataset(config.settings, config.federations()[0].dataset)
    tensors = load((run / "snapshots" / "round-000002.safetensors").read_bytes())
    for place, fed in enumerate(config.federations()):
        head = f"federation-{place}/"
        mine = {name.removeprefix(head): value for name, value in tensors.items() if name.startswith(head)}
        squared = squared_gradient(mine, data.train.inputs, data.train.labels)
        where = {"mechanism": fed.mechanism, "seed": fed.seed, "round": 2, "setting": "as configured"}
        (one,) = rows(result, "one_step", **where)
        assert one["measured"]["value"] == pytest.approx(0.1 / 2 * squared, rel=1e-3)
        assert one["measured"]["count"] == len(data.train)


def test_gradient_norms_are_those_of_each_federation(result: Bounds, run: Path) -> None:
    check_gradient_norms(result, run)


def test_federations_that_the_sweep_reorders_keep_their_own_weights(pictures: Path, tmp_path: Path) -> None:
    blocks = [("pl-identical", 1), ("none", 1), ("pl-identical", 2)]
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings_for(model="lenet-zhu", init="uniform").items()]
    for name, seed in blocks:
        lines += ["[[sweep]]", f'datasets = ["{pictures}"]', f'mechanisms = ["{name}"]', f"seeds = [{seed}]"]
        lines += ["budgets = [0.98]"] if name != "none" else []
    (tmp_path / "sweep.toml").write_text("\n".join(lines))
    Run(tmp_path / "run", resolve(tmp_path / "sweep.toml")).execute()
    result = bounds_run(tmp_path / "run", replace(CHEAP, targets=0, snapshots=[2]))
    assert list(dict.fromkeys((one["mechanism"], one["seed"]) for one in result.rows)) == blocks
    check_gradient_norms(result, tmp_path / "run")


def test_a_smaller_eta_is_the_one_that_is_taken(result: Bounds) -> None:
    for one in rows(result, "one_step", mechanism="none", setting="eta = 1/(8 L)"):
        fall = one["constants"]["F(W) - F(W_t)"]["value"]
        assert abs(fall) < 10 * one["measured"]["value"]  # about eta * |grad F|^2, twice what is measured


def test_undistorted_rounds_have_no_distortion(result: Bounds) -> None:
    for one in rows(result, "one_step", mechanism="none"):
        assert one["constants"]["|Delta|^2"]["value"] == 0
    for one in rows(result, "one_step", mechanism="pl-identical"):
        assert 1 < one["constants"]["|Delta|^2"]["value"] <= 8.0**2


def test_schedules_stand_still_while_a_round_is_repeated(pictures: Path, tmp_path: Path) -> None:
    budgets = {"rounds": [1, 4], "values": [0.98, 0.9]}
    sweep = {"datasets": [str(pictures)], "mechanisms": ["pl-identical"], "budgets": [budgets]}
    given = settings_for(snapshots=[2], gamma={"rounds": [1, 4], "values": [0.1, 0.2]})
    Run(tmp_path / "run", resolve(overrides=given, sweep=sweep)).execute()
    result = bounds_run(tmp_path / "run", replace(CHEAP, snapshots=[2], targets=0))
    (one,) = rows(result, "one_step", setting="as configured")
    assert one["constants"]["|Delta|^2"]["value"] < 8.0**2  # at 0.9 it would be about 40^2 / 4
