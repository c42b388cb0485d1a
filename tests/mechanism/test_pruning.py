"""Gradient pruning: exact arithmetic by hand, ties, and the share that is kept, from a budget to a release."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from equipoise.data.dataset import Dataset
from equipoise.engine.federation import Federation
from equipoise.errors import BudgetError, ConfigError, ReleaseError
from equipoise.mechanism.protect import protect, protected_step
from equipoise.mechanism.protection import Protection, ProtectionSettings
from equipoise.mechanism.pruning import ShareBudget, pruned
from equipoise.mechanism.registry import get_mechanism
from equipoise.mechanism.release import distort_given
from equipoise.models.objective import Objective
from tests.engine.sweeps import small, sweep_of

# --- the budget ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0, -0.1, 1.5, math.nan, math.inf, "0.1", None, True])
def test_a_share_that_is_none_is_refused(budget: Any) -> None:
    with pytest.raises(BudgetError, match=r"Expected budget=.* to lie in \(0, 1\]. It is the share"):
        ShareBudget().lower(budget)


def test_a_share_so_small_that_its_ratio_is_infinite_is_refused() -> None:
    with pytest.raises(BudgetError, match="infinite ratio"):
        ShareBudget().lower(5e-324)


@pytest.mark.parametrize("ratio", [0.5, math.nan])
def test_no_ratio_keeps_more_than_everything(ratio: float) -> None:
    with pytest.raises(BudgetError, match="At most all"):
        ShareBudget().leakage(ratio)


@given(st.floats(1e-6, 1.0))
def test_a_smaller_share_is_stricter_and_comes_back(share: float) -> None:
    budget = ShareBudget()
    assert budget.lower(share) >= 1
    assert budget.leakage(budget.lower(share)) == pytest.approx(share)
    assert budget.lower(share / 2) > budget.lower(share)


# --- the arithmetic -----------------------------------------------------------------------------------------------


def kept(values: list[float], share: float, stretches: Any = None) -> list[float]:
    row = torch.tensor([values], dtype=torch.float64)
    ratio = torch.tensor([1 / share], dtype=torch.float64)
    return pruned(row, ratio, stretches or ((0, len(values)),))[0].tolist()


def test_the_largest_by_magnitude_stay_and_the_rest_is_zero() -> None:
    assert kept([3.0, -4.0, 1.0, 2.0], 0.5) == [3.0, -4.0, 0.0, 0.0]
    assert kept([3.0, -4.0, 1.0, 2.0], 1.0) == [3.0, -4.0, 1.0, 2.0]


def test_every_tensor_keeps_its_own_share_and_at_least_one() -> None:
    values = [9.0, 8.0, 7.0, 6.0, 0.1, 0.2, 0.4, 0.3, 0.05]
    assert kept(values, 0.5, ((0, 4), (4, 8), (8, 9))) == [9.0, 8.0, 0.0, 0.0, 0.0, 0.0, 0.4, 0.3, 0.05]
    assert kept(values, 0.01, ((0, 4), (4, 8), (8, 9))) == [9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.4, 0.0, 0.05]


def test_of_equal_magnitudes_the_first_ones_stay() -> None:
    assert kept([1.0, -2.0, 2.0, -2.0, 2.0], 0.4) == [0.0, -2.0, 2.0, 0.0, 0.0]
    many = torch.ones(3, 10_007)
    assert pruned(many, torch.full((3,), 10.0), ((0, 10_007),)).sum(1).tolist() == [1000.0] * 3
    assert pruned(many, torch.full((3,), 10.0), ((0, 10_007),))[:, :1000].all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("size", "share", "count"),
    [(10, 0.3, 3), (10, 0.7, 7), (5, 0.3, 1), (30, 0.1, 3), (13_426, 0.001, 13), (7, 0.99, 6)],
)
def test_the_share_is_exact_however_its_ratio_was_rounded(
    dtype: torch.dtype, size: int, share: float, count: int
) -> None:
    ratio = torch.tensor([1 / share], dtype=dtype)
    assert int(pruned(torch.rand(1, size) + 1, ratio, ((0, size),)).count_nonzero()) == count


def test_rows_have_ratios_of_their_own() -> None:
    rows = torch.arange(1.0, 9.0).expand(3, -1)
    result = pruned(rows, torch.tensor([1.0, 2.0, 8.0]), ((0, 8),))
    assert result.count_nonzero(1).tolist() == [8, 4, 1]
    assert torch.equal(result[2], torch.tensor([0.0] * 7 + [8.0]))


def test_an_empty_tensor_is_no_tensor() -> None:
    assert kept([1.0, 2.0], 0.5, ((0, 2), (2, 2))) == [0.0, 2.0]


def test_what_is_not_finite_is_never_dropped_unseen() -> None:
    row = torch.tensor([[5.0, 1.0, math.nan, 7.0]])
    assert torch.isnan(pruned(row, torch.tensor([4.0]), ((0, 4),))).any()


# --- a release ----------------------------------------------------------------------------------------------------


def test_nan_in_an_update_is_refused_by_name_and_harms_no_other() -> None:
    start = torch.zeros(3, 8)
    local = torch.arange(24.0).view(3, 8)
    local[1, 0] = math.nan
    objective = Objective(lambda params: params.sum(1), lambda params, out=None: params)
    objective.stretches = ((0, 8),)
    made = distort_given(objective, start, local, None, Protection(get_mechanism("pruning"), 4.0))
    assert made.record.accepted.tolist() == [True, False, True]
    assert made.parameters[0].count_nonzero() == 2
    model = nn.Linear(3, 2)
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        model.weight[0, 0] = math.nan
    with pytest.raises(ReleaseError, match="'model' are not finite"):
        protect(model, received, mechanism="pruning", budget=0.5)


def test_protect_on_a_plain_model_sends_the_share_and_what_was_received() -> None:
    model = nn.Sequential(nn.Linear(20, 10), nn.Tanh(), nn.Linear(10, 3))
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn_like(parameter)
    sent = protect(model, received, mechanism="pruning", budget=0.1)
    lost = 0.0
    for name, tensor in sent.parameters.items():
        update = model.state_dict()[name] - received[name]
        count = max(1, tensor.numel() // 10)
        cut = update.abs().flatten().sort(descending=True).values[count - 1]
        expected = torch.where(update.abs() >= cut, update, 0.0)
        assert int((tensor != received[name]).sum()) == count, name
        torch.testing.assert_close(tensor - received[name], expected, rtol=1e-5, atol=1e-6)
        lost += float((update - expected).square().sum())
    assert sent.record["intensity"] == pytest.approx(math.sqrt(lost), rel=1e-5)
    assert sent.record["lower"] == sent.record["upper"] == sent.record["intensity"]
    assert sent.record["noise_to_update"] < 1, "a part of the update cannot be larger than all of it"


def test_a_plain_step_and_what_protect_makes_of_it_are_one_release() -> None:
    model, (x, y) = small(), (torch.rand(4, 1, 28, 28), torch.tensor([0, 1, 2, 3]))
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    step = protected_step(model, received, (x, y), "pruning", 0.05)
    nn.functional.cross_entropy(model(x), y).backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 0.1 * parameter.grad
    given = protect(model, received, mechanism="pruning", budget=0.05)
    for name in received:
        torch.testing.assert_close(given.parameters[name], step.parameters[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": None}, "needs a budget"), ({"budget": 0}, r"\(0, 1\]"), ({"budget": 1.5}, r"\(0, 1\]"),
        ({"budget": math.nan}, "budget"), ({"budget": 0.1, "least_relative": 1.0}, "no noise of a known size"),
        ({"budget": 0.1, "settings": ProtectionSettings(buffers="noised")}, "shapes the update"),
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for_is_refused(change: dict[str, Any], message: str) -> None:
    model = nn.Linear(3, 2)
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises((ConfigError, BudgetError), match=message):
        protect(model, received, mechanism="pruning", **change)


# --- a sweep ------------------------------------------------------------------------------------------------------


def test_a_sweep_sends_the_share_of_every_client_in_every_round(few: Dataset) -> None:
    shares = [0.5, 0.1, 0.05, 0.01]
    sweep = sweep_of(few, [Federation("few", "pruning", shares, 1)], small(), rounds=3, evaluate_every=3)
    counts: list[list[int]] = []

    def seen(block: Any, released: Tensor) -> None:
        moved = released != sweep.state.params[0]
        counts.append([int(row.sum()) for row in moved[: len(block.rows)]])

    sweep.on_releases = seen
    (row,) = [row for event in sweep.run() for row in event.rows]
    most = [sum(max(1, int(n * share + 1e-9)) for n in (784, 4, 40, 10)) for share in shares]
    assert len(counts) == 3
    for each in counts:
        assert all(0.8 * top <= count <= top for count, top in zip(each, most, strict=True)), (each, most)
    assert (row["accepted"], row["refused"]) == (12, 0)
    assert 0 < row["noise_to_update"] < 1
