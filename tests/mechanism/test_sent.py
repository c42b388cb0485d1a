"""Vectors are made of finite numbers alone, and no rounding takes the noise away."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ReleaseError
from equipoise.mechanism.protect import protect
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.sent import check_carries, flat, largest
from equipoise.models.batched import Batched
from equipoise.models.bundled import LeNetZhu
from equipoise.models.layout import Layout

LIKE = torch.empty(0)


def test_the_vector_is_the_layouts() -> None:
    model = LeNetZhu()
    layout, state = Batched(model).layout, dict(model.named_parameters())
    assert torch.equal(flat("model", state, layout, LIKE)[0], layout.flatten(state))
    half = {name: tensor.detach().half() for name, tensor in state.items()}
    assert torch.equal(flat("model", half, layout, LIKE)[0], layout.flatten(half).float())


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_one_number_that_is_not_finite_is_found(bad: float, dtype: torch.dtype) -> None:
    model = nn.Linear(3, 2).to(dtype)
    state = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    flat("received", state, Layout.of(model), LIKE)
    state["weight"][1, 2] = bad
    with pytest.raises(ReleaseError, match="'received' are not finite"):
        flat("received", state, Layout.of(model), LIKE)


def test_the_largest_size_is_that_of_all_tensors() -> None:
    tensors = [torch.zeros(0), torch.tensor([1.0, -7.0]), torch.tensor([[3.0]], dtype=torch.float64)]
    assert largest("x", tensors, LIKE).item() == 7
    with pytest.raises(ReleaseError):
        largest("x", [torch.tensor([1e300], dtype=torch.float64)], LIKE)


def test_numbers_that_would_swallow_the_noise_are_refused() -> None:
    protection = ProtectionSettings().at("pl-identical", 0.98, 1)
    check_carries(torch.tensor(10.0), 100, protection)
    with pytest.raises(ReleaseError, match="would be rounded away"):
        check_carries(torch.tensor(1e8), 100, protection)
    check_carries(torch.tensor(1e8), 100, ProtectionSettings().at("none", None, 1))


def rounded(model: nn.Module, received: dict[str, Tensor], budget: float) -> Any:
    return protect(model, received, None, "ls-static", budget).parameters


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_rule_on_rounding_and_both_its_remedies(dtype: torch.dtype) -> None:
    """A budget of 10^5 has noise of 1e-4 beside weights of up to 1."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = nn.Linear(300, 20).to(dtype)
    with torch.no_grad():
        model.weight.mul_(10)
    received = {name: tensor.detach().clone() for name, tensor in model.named_parameters()}
    with pytest.raises(ReleaseError, match=rf"are {dtype}: rounding to that .* at most 5% is allowed") as caught:
        rounded(model, received, 1e5)
    wide = eval(caught.value.remedy.split(": ", 1)[1].partition(";")[0], {"received": received, "torch": torch})
    sent = rounded(model, wide, 1e5)
    assert {tensor.dtype for tensor in sent.values()} == {torch.float32}
    stricter = rounded(model, received, 50.0)
    assert {tensor.dtype for tensor in stricter.values()} == {dtype}
