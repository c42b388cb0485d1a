"""Mechanisms that shape the update: which entries are the largest, and releases of one of the user's own."""

from __future__ import annotations

import ast
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import equipoise
from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.errors import ModelError
from equipoise.mechanism.claims import SHAPED, of_budgets
from equipoise.mechanism.protection import Protection
from equipoise.mechanism.registry import MECHANISMS, Mechanism, get_mechanism
from equipoise.mechanism.release import observed_release
from equipoise.mechanism.shaping import Shaping, largest
from equipoise.models.objective import Objective
from tests.engine.sweeps import rows_of, small, sweep_of

SHAPING = [name for name, kind in MECHANISMS.items() if kind.shaping is not None]
BUDGET = {"pruning": 0.1, "outpost": 1.25}


def test_the_largest_entries_and_the_first_of_equal_ones() -> None:
    sizes = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, 0.0, 0.0, 0.0]])
    assert largest(sizes, torch.tensor([3, 2])).tolist() == [[False, True, True, True], [True, True, False, False]]
    assert largest(sizes, 1).tolist() == [[False, True, False, False], [True, False, False, False]]
    assert largest(torch.tensor([[1.0, math.nan, math.inf]]), 1).tolist() == [[False, True, False]]


def test_a_shaping_of_the_users_own_releases_what_it_says(generator: torch.Generator) -> None:
    """The sign of every coordinate, in the size that the scale asks for."""

    def signs(update: Tensor, start: Tensor, noise: Tensor | None, scale: Tensor, stretches: Any) -> Tensor:
        assert noise is None
        assert stretches == ((0, 6),)
        return update.sign() * scale.unsqueeze(1)

    kind = Mechanism("signs", "share", shaping=Shaping("signs", signs))
    objective = Objective(lambda params: params.sum(1), lambda params, out=None: torch.full_like(params, -2.0))
    objective.stretches = ((0, 6),)
    start = torch.randn(2, 6, dtype=torch.float64, generator=generator)
    made, alpha = observed_release([objective], start, None, 0.5, Protection(kind, torch.tensor([1.0, 3.0])))
    expected = torch.tensor([[1.0] * 6, [3.0] * 6], dtype=torch.float64)
    torch.testing.assert_close(made.parameters - start, expected)
    torch.testing.assert_close(alpha, expected - 1.0), "the plain update is 1 everywhere"
    torch.testing.assert_close(made.record.intensity, torch.tensor([0.0, 2 * 6**0.5], dtype=torch.float64))
    assert torch.equal(made.record.lower, made.record.upper)
    assert made.record.accepted.all()


@pytest.mark.parametrize("name", SHAPING)
def test_without_a_place_for_its_tensors_nothing_is_released(name: str) -> None:
    objective = Objective(lambda params: params.sum(1), lambda params, out=None: torch.ones_like(params))
    with pytest.raises(ModelError, match="where tensors lie"):
        observed_release([objective], torch.zeros(1, 4), torch.zeros(1, 4), 0.1, Protection(get_mechanism(name), 2.0))


@pytest.mark.parametrize("name", SHAPING)
def test_no_result_depends_on_the_chunk(few: Dataset, name: str) -> None:
    federations = [Federation("few", name, BUDGET[name], seed) for seed in (1, 2)]
    params = []
    for chunk in (0, 2, 4):
        sweep = sweep_of(few, federations, small(), rounds=3, chunk=chunk)
        sweep.train(3)
        params.append(sweep.models())
    assert torch.equal(params[0], params[1])
    assert torch.equal(params[0], params[2])


@pytest.mark.parametrize("name", SHAPING)
def test_three_rounds_of_a_sweep_record_what_happened(few: Dataset, name: str) -> None:
    ((row,),) = rows_of(sweep_of(few, [Federation("few", name, BUDGET[name], 1)], rounds=3, evaluate_every=3))
    assert (row["accepted"], row["refused"]) == (12, 0)
    assert math.isfinite(row["utility_loss"])
    assert row["intensity"] > 0
    ((plain,),) = rows_of(sweep_of(few, [Federation("few", "none", None, 1)], rounds=3, evaluate_every=3))
    assert row["loss"] != plain["loss"]


@pytest.mark.parametrize("name", SHAPING)
def test_a_full_record_samples_no_noise_that_is_not_added(few: Dataset, name: str) -> None:
    row = rows_of(sweep_of(few, [Federation("few", name, BUDGET[name], 1)], small(), rounds=1, full_every=1))[0][0]
    assert len(row["full_utility_loss"]) == 4
    assert "expected_utility_loss" not in row


@pytest.mark.parametrize("module", ["shaping", "pruning", "outpost"])
def test_nothing_waits_for_the_host(module: str) -> None:
    """A captured round cannot ask the device for a number, nor have a shape that depends on one."""
    path = Path(equipoise.__file__).parent / "mechanism" / f"{module}.py"
    waiting = {"item", "tolist", "nonzero", "unique", "masked_select", "cpu", "numpy", "quantile", "any", "all"}
    calls = [node for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if isinstance(node, ast.Call)]
    named = {node.func.attr for node in calls if isinstance(node.func, ast.Attribute)}
    assert named, "the search finds calls"
    assert named & waiting == set()


def test_nothing_is_claimed_of_their_budgets() -> None:
    said = of_budgets(["pruning", "outpost", "pl-learn"])
    assert f"A budget of pruning, outpost {SHAPED}. No (epsilon, delta) is claimed for it." in said
    assert "A budget of pl-learn calibrates the distortion" in said
    assert not any(MECHANISMS[name].formal for name in SHAPING)


def test_pruning_draws_no_noise_and_outpost_draws_its_own(few: Dataset) -> None:
    drawn = {
        name: sweep_of(few, [Federation("few", name, BUDGET[name], 1)], small()).noise_table(1) for name in SHAPING
    }
    assert {name: list(table) for name, table in drawn.items()} == {"pruning": [], "outpost": ["gaussian"]}


def test_a_policy_bounds_the_scale_and_not_what_stands_beside_it() -> None:
    from equipoise.flower.policy import needed

    assert {needed(MECHANISMS[name]) for name in SHAPING} == {("least-scale", "most-releases")}
