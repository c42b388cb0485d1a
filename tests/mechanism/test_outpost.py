"""Outpost: risks, the places of noise and its size, by hand and by statistics that can fail."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from equipoise.errors import BudgetError
from equipoise.mechanism.outpost import OutpostBudget, perturbed, risks
from equipoise.mechanism.protect import protect
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.pruning import pruned

# --- the budget ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", [0, -1.0, math.nan, math.inf, "1", None, True])
def test_a_budget_that_is_none_is_refused(budget: Any) -> None:
    with pytest.raises(BudgetError, match="one over the noise base"):
        OutpostBudget().lower(budget)


def test_a_budget_that_asks_for_infinite_noise_is_refused() -> None:
    with pytest.raises(BudgetError, match="infinite scale"):
        OutpostBudget().lower(1e-320)


def test_a_scale_of_nothing_has_no_budget() -> None:
    with pytest.raises(BudgetError, match="scale"):
        OutpostBudget().leakage(0.0)


def test_the_authors_default_is_noise_of_four_fifths_on_a_gradient() -> None:
    """0.8 in terms of the gradient; a step of 0.1 makes 0.08 of it, four steps twice that."""
    assert OutpostBudget(eta=0.1).lower(1.25) == pytest.approx(0.08)
    assert OutpostBudget(eta=0.1, local_steps=4).lower(1.25) == pytest.approx(0.16)
    settings = ProtectionSettings(eta=0.5, local_steps=9)
    assert settings.at("outpost", 1.25, 1).scale == pytest.approx(0.5 * 3 * 0.8)


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1.0))
def test_a_smaller_budget_is_stricter_and_comes_back(budget: float, eta: float) -> None:
    measure = OutpostBudget(eta)
    assert measure.leakage(measure.lower(budget)) == pytest.approx(budget)
    assert measure.lower(budget / 2) > measure.lower(budget)


# --- the arithmetic -----------------------------------------------------------------------------------------------


def test_a_risk_is_the_variance_of_the_weights_and_at_most_one() -> None:
    weights = torch.tensor([[0.0, 0.2, 0.4, 10.0, -10.0, 3.0], [1.0, 1.0, 1.0, 0.0, 0.5, 9.0]])
    result = risks(weights, ((0, 3), (3, 5), (5, 6)))
    torch.testing.assert_close(result, torch.tensor([[0.04, 1.0, 0.0], [0.0, 0.125, 0.0]]))


def test_noise_goes_where_gradients_are_largest_in_the_size_of_the_risk_and_small_entries_go() -> None:
    """Ten coordinates: four of them get noise, two of the first tensor and two of the second; one of five is kept."""
    update = torch.tensor([[9.0, -8.0, 0.1, 0.2, 0.3, 7.0, 6.0, 0.4, 0.5, -5.0]])
    weights = torch.tensor([[0.0, 0.0, 0.0, 0.0, 1.0, 100.0, 0.0, 0.0, 0.0, 0.0]])
    tensors, noise = ((0, 5), (5, 10)), torch.arange(1.0, 11.0).unsqueeze(0)
    result = perturbed(update, weights, noise, torch.tensor([2.0]), tensors)
    risk = 0.2  # of the first tensor; 1 of the second
    noised = [2 * risk * 1, 2 * risk * 2, 0, 0, 0, 2 * 6.0, 2 * 7.0, 0, 0, 0]
    pruned = [9.0, 0, 0, 0, 0, 7.0, 0, 0, 0, 0]
    expected = torch.tensor([[a + b for a, b in zip(noised, pruned, strict=True)]])
    torch.testing.assert_close(result, expected)


def test_without_noise_it_is_pruning_to_a_fifth() -> None:
    update, weights = torch.randn(3, 100), torch.randn(3, 100)
    tensors, five = ((0, 60), (60, 100)), torch.full((3,), 5.0)
    result = perturbed(update, weights, torch.zeros(3, 100), torch.ones(3), tensors)
    assert torch.equal(result, pruned(update, five, tensors))
    assert result.count_nonzero(1).tolist() == [20, 20, 20]


def test_noise_has_the_deviation_that_its_risk_asks_for() -> None:
    """20,000 draws: a deviation is known to half a percent, and 10 % more would be seen."""
    generator = torch.Generator().manual_seed(3)
    update = torch.linspace(1.0, 2.0, 50_000).unsqueeze(0)
    weights = 0.5 * torch.randn(1, 50_000, generator=generator)
    noise = torch.randn(1, 50_000, generator=generator)
    tensors, scale = ((0, 50_000),), torch.tensor([0.3])
    added = perturbed(update, weights, noise, scale, tensors) - pruned(update, torch.tensor([5.0]), tensors)
    there = added[added != 0]
    assert len(there) == 20_000
    assert float(there.std()) == pytest.approx(0.3 * 0.25, rel=0.03)
    assert (added[0, :30_000] == 0).all(), "the largest are the last"


def test_no_row_influences_another() -> None:
    update, weights, noise = (torch.randn(4, 40) for _ in range(3))
    tensors, scale = ((0, 25), (25, 40)), torch.tensor([0.1, 0.2, 0.3, 0.4])
    whole = perturbed(update, weights, noise, scale, tensors)
    for row in range(4):
        one = slice(row, row + 1)
        assert torch.equal(perturbed(update[one], weights[one], noise[one], scale[one], tensors), whole[one])


# --- a release ----------------------------------------------------------------------------------------------------


def test_protect_leaves_what_is_neither_kept_nor_noised_as_it_was_received() -> None:
    torch.manual_seed(1)
    model = nn.Linear(50, 20)
    received = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    one, two = (protect(model, received, mechanism="outpost", budget=0.01) for _ in range(2))
    same = sum(int((one.parameters[name] == received[name]).sum()) for name in received)
    assert same == 1020 - 408, "the fifth that is kept is among the two fifths with noise"
    assert not torch.equal(one.parameters["weight"], two.parameters["weight"]), "noise is fresh"
    assert one.record["intensity"] > 0
    assert one.record["norm"] == "l2"
