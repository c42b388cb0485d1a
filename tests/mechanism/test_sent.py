"""Vectors are made of finite numbers alone, and no rounding takes the noise away."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ReleaseError
from equipoise.mechanism.protect import noise_alone, protect, protected_step
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.run_budget import GaussianSettings
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


# --- noise beside the update ----------------------------------------------------------------------------------------

X, Y = torch.rand(4, 6), torch.tensor([0, 1, 2, 0])
SEEDED = {"experiment_seed": 5}


def size(one: dict[str, Tensor], other: dict[str, Tensor]) -> float:
    return float(torch.cat([(one[name].double() - other[name]).flatten() for name in one]).norm())


def copied(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize(
    ("name", "budget"),
    [("pl-identical", 0.98), ("pl-learn", 0.98), ("ls-static", 100.0), ("ls-learn", 100.0), ("gs-static", 100.0)],
)
@pytest.mark.parametrize("least", [0.0, 50.0])
def test_the_record_has_the_noise_beside_the_update(name: str, budget: float, least: float) -> None:
    model = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))
    start = copied(model)
    with torch.no_grad():
        model[0].weight += 0.5
    local = copied(model)
    sent = protect(model, start, (X, Y), name, budget, least_relative=least, **SEEDED)
    if not least:
        expected = size(sent.parameters, local) / size(local, start)
        assert sent.record["noise_to_update"] == pytest.approx(expected, rel=1e-4)
    elif name == "pl-identical":
        assert sent.record["noise_to_update"] == pytest.approx(50, rel=1e-3), "of the update that was shortened"


@pytest.mark.parametrize(("name", "budget"), [("pl-identical", 0.98), ("pl-learn", 0.98), ("ls-static", 100.0)])
def test_the_update_of_a_step_is_that_of_the_step(name: str, budget: float) -> None:
    model = nn.Linear(6, 3)
    start = copied(model)
    own = ProtectionSettings(eta=0.5)
    local = protected_step(model, start, (X, Y), "none", settings=own)
    assert local.record["noise_to_update"] == 0.0
    sent = protected_step(model, start, (X, Y), name, budget, settings=own, **SEEDED)
    expected = size(sent.parameters, local.parameters) / size(local.parameters, start)
    assert sent.record["noise_to_update"] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_the_update_is_measured_whatever_the_types(dtype: torch.dtype) -> None:
    model = nn.Conv2d(2, 3, 3).to(dtype)
    start = copied(model)
    with torch.no_grad():
        model.bias += 3.0
    sent = protect(model, start, None, "pl-identical", 0.9, **SEEDED)
    length = size(copied(model), start)
    assert sent.record["noise_to_update"] == pytest.approx(sent.record["intensity"] / length, rel=1e-3)


@pytest.mark.parametrize("name", ["none", "pl-identical", "pl-learn"])
def test_without_an_update_there_is_no_ratio(name: str) -> None:
    model = nn.Linear(6, 3)
    sent = protect(model, copied(model), (X, Y), name, None if name == "none" else 0.98)
    assert sent.record["noise_to_update"] is None
    if name == "pl-identical":
        assert noise_alone(model, copied(model), name, 0.98).record["noise_to_update"] is None


@pytest.mark.parametrize("name", ["laplace-dp", "gaussian-dp"])
def test_the_record_of_a_guarantee_tells_nothing_of_the_update(name: str) -> None:
    model = nn.Linear(6, 3)
    own = ProtectionSettings(gaussian=GaussianSettings(rounds=2))
    sent = protected_step(model, copied(model), (X, Y), name, 2.0, settings=own, divisor=4, round_number=1)
    assert "noise_to_update" not in sent.record
