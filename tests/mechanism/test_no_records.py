"""A client that has no records, or could load none, releases noise that nothing tells from that of one who has some."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ConfigError
from equipoise.mechanism.client_units import units_of
from equipoise.mechanism.protect import protected_step
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.run_budget import GaussianSettings
from equipoise.models.features import FeatureModel

SETTINGS = ProtectionSettings(eta=1.0, gaussian=GaussianSettings(rounds=1, divisor=1, clip=1.0))


def probe() -> FeatureModel:
    return FeatureModel(nn.Flatten(), nn.Linear(4, 3)).double()


def plain() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(4, 3)).double()


def batches() -> dict[str, Any]:
    x, y = torch.rand(5, 1, 2, 2, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    return {"some": (x, y), "empty": (x[:0], y[:0]), "none": None}


@pytest.mark.parametrize("build", [probe, plain])
@pytest.mark.parametrize("which", ["empty", "none"])
def test_the_grid_is_that_of_records(build: Any, which: str) -> None:
    model, given = build(), batches()
    there, nobody = (units_of(model, {}, given[name], None, None)[0].pool.grid(1.0) for name in ("some", which))
    assert nobody == there


@pytest.mark.parametrize("build", [probe, plain])
@pytest.mark.parametrize("which", ["some", "empty", "none"])
def test_every_release_lies_on_it(build: Any, which: str) -> None:
    model = build()
    zeros = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    step = units_of(model, {}, batches()["some"], None, None)[0].pool.grid(1.0).step
    sent = protected_step(
        model, zeros, batches()[which], "gaussian-dp", 2.0, settings=SETTINGS, round_number=1
    ).parameters
    whole = torch.cat([tensor.flatten() for tensor in sent.values()]) / step
    assert torch.equal(whole, whole.round())
    assert not divisible(whole)


def divisible(whole: Tensor) -> bool:
    """Whether all numbers lie on a grid that is twice as coarse."""
    return bool((whole / 2 == (whole / 2).round()).all())


def test_a_release_must_say_which_of_its_run_it_is() -> None:
    """A default would let any number of releases pass for the first."""
    model = plain()
    with pytest.raises(ConfigError, match=r"needs round_number.*1 to gaussian\.rounds"):
        protected_step(model, model.state_dict(), None, "gaussian-dp", 2.0, settings=SETTINGS)


def test_several_local_steps_are_refused() -> None:
    model, settings = plain(), ProtectionSettings(local_steps=2, gaussian=GaussianSettings(rounds=3))
    with pytest.raises(ConfigError, match="exactly one local step, got 2"):
        protected_step(model, model.state_dict(), None, "gaussian-dp", 2.0, settings=settings, round_number=1)
