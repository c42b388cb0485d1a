"""The units of one client: which way leads to them, in which layout, and what is refused before a record is looked at.

That a client without records has the grid of one with some is in ``test_no_records.py``.
"""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ConfigError, DataError, ModelError
from equipoise.mechanism import client_units
from equipoise.mechanism.call_slots import APART, SLOTS
from equipoise.mechanism.client_units import units_of
from equipoise.mechanism.linear_units import LinearRecords
from equipoise.mechanism.protect import protected_step
from equipoise.mechanism.protection import ProtectionSettings
from equipoise.mechanism.run_budget import GaussianSettings
from equipoise.mechanism.units import EachRecord
from equipoise.models.features import FeatureModel

SETTINGS = ProtectionSettings(eta=1.0, gaussian=GaussianSettings(rounds=1, divisor=4, clip=1.0, sigmas=[[1e6, 0.01]]))
"""With hardly any noise, so that a step can be read from a release."""


def batch(count: int = 6) -> tuple[Tensor, Tensor]:
    return torch.rand(count, 1, 2, 2, generator=torch.Generator().manual_seed(4)), torch.arange(count) % 3


def on_features(bias: bool = True) -> FeatureModel:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return FeatureModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 5)), nn.Linear(5, 3, bias=bias))


def plain() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return nn.Sequential(nn.Flatten(), nn.Linear(4, 3))


def squares(outputs: Tensor, labels: Tensor) -> Tensor:
    return outputs.square().sum(-1).mean()


def frozen_bias() -> FeatureModel:
    model = on_features()
    model.head.bias.requires_grad_(False)
    return model


# -- which way ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "loss", "kind", "size"),
    [
        (on_features, None, LinearRecords, 18),
        (on_features, squares, EachRecord, 18),
        (lambda: on_features(bias=False), None, EachRecord, 15),
        (frozen_bias, None, EachRecord, 15),
        (plain, None, EachRecord, 15),
        (plain, squares, EachRecord, 15),
    ],
)
@pytest.mark.parametrize("given", [batch(), None], ids=["records", "none"])
def test_every_head_and_loss_has_its_way(build: Any, loss: Any, kind: type, size: int, given: Any) -> None:
    model = build()
    fixed = {name: part for name, part in model.named_parameters() if not part.requires_grad}
    units, layout = units_of(model, fixed, given, loss, None)
    assert type(units.pool) is kind
    assert layout.size == size
    if isinstance(units.pool, EachRecord) and given is not None:
        assert units.pool.slots in (1, APART, SLOTS), "how many records a call may hold was tried"
    assert [len(row) for row in units.rows] == [6 if given else 0]
    total, _ = units.pool.total(units.rows, torch.zeros(1, size), 1.0)
    assert total.shape == (1, size)
    assert units.pool.grid(1.0) == units_of(model, fixed, batch(), loss, None)[0].pool.grid(1.0)


@pytest.mark.parametrize("build", [on_features, lambda: on_features(bias=False), frozen_bias, plain])
def test_a_release_is_a_step_of_torch_up_to_noise_and_grid(build: Any) -> None:
    """Through the whole call, names and order of tensors included."""
    model, (images, labels) = build(), batch()
    expected = {name: torch.zeros_like(part) for name, part in model.named_parameters() if part.requires_grad}
    for i in range(len(labels)):
        model.zero_grad()
        nn.functional.cross_entropy(model(images[i : i + 1]), labels[i : i + 1]).backward()
        grads = {name: part.grad.clone() for name, part in model.named_parameters() if part.requires_grad}
        size = math.sqrt(sum(float(part.square().sum()) for part in grads.values()))
        for name, part in grads.items():
            expected[name] -= part * min(1.0, 1.0 / size) / SETTINGS.gaussian.divisor
    received = {name: part.clone() for name, part in model.state_dict().items()}
    sent = protected_step(
        model, received, (images, labels), "gaussian-dp", 1e6, settings=SETTINGS, round_number=1
    ).parameters
    for name, part in expected.items():
        assert float((sent[name] - received[name] - part).abs().max()) < 0.015
        assert float(part.abs().max()) > 0.02, "the test would be empty"


@pytest.mark.parametrize("build", [on_features, plain])
def test_groups_are_units(build: Any) -> None:
    groups = torch.tensor([1, 1, 1, 1, 1, 1])
    start = torch.zeros(1, 18 if build is on_features else 15)
    pool = units_of(build(), {}, batch(), None, groups)[0].pool
    total, _ = pool.total([torch.arange(6)], start, 0.1)
    assert pool.records.groups is not None
    assert float(total.norm()) * pool.grid(0.1).step <= 0.1 * pool.grid(0.1).stretch


# -- what is refused ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "groups", [[0] * 6, torch.zeros(5, dtype=torch.int64), torch.zeros(6), torch.zeros(6, 1, dtype=torch.int64)]
)
def test_groups_of_another_form_are_refused(groups: Any) -> None:
    with pytest.raises(DataError, match="groups to be whole numbers, one for each record"):
        units_of(plain(), {}, batch(), None, groups)


@pytest.mark.parametrize("build", [on_features, plain])
@pytest.mark.parametrize("given", [7, (torch.zeros(2, 1, 2, 2),), (torch.zeros(2, 1, 2, 2), torch.zeros(3).long())])
def test_batches_of_another_form_are_refused(build: Any, given: Any) -> None:
    with pytest.raises(DataError):
        units_of(build(), {}, given, None, None)


@pytest.mark.parametrize("build", [on_features, plain])
def test_labels_of_another_type_are_refused(build: Any) -> None:
    images, labels = batch()
    with pytest.raises(DataError, match="int64"):
        units_of(build(), {}, (images, labels.float()), None, None)


def test_a_loss_that_is_no_function_is_refused() -> None:
    with pytest.raises(ConfigError, match="Expected loss to be a function, got str"):
        units_of(plain(), {}, batch(), "mse", None)  # type: ignore[arg-type]


def test_a_model_that_cannot_take_the_records_is_refused() -> None:
    with pytest.raises(ModelError):
        units_of(nn.Sequential(nn.Flatten(), nn.Linear(9, 3)), {}, batch(), None, None)


class Remembers(nn.Module):
    """Subtracts what it has seen: the features of a record depend on those before it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> Tensor:
        self.seen = self.get_buffer("seen") + x.flatten(1).mean(0)
        return x.flatten(1) - self.seen


@pytest.mark.parametrize("features", [Remembers(), nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4))])
def test_features_that_remember_or_mix_are_refused(features: nn.Module) -> None:
    model = FeatureModel(features, nn.Linear(4, 3))
    model.features.train(isinstance(features, nn.Sequential))
    with pytest.raises(ModelError, match="cannot be used"):
        units_of(model, {}, batch(), None, None)


def test_features_that_are_switched_are_tried_again() -> None:
    model = FeatureModel(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4)).eval(), nn.Linear(4, 3))
    units_of(model, {}, batch(), None, None)
    model.features.train()
    with pytest.raises(ModelError, match="cannot be used"):
        units_of(model, {}, batch(), None, None)


@pytest.mark.parametrize("build", [on_features, plain])
@pytest.mark.parametrize("value", [math.nan, math.inf, 1e38])
def test_no_value_of_a_record_makes_the_difference_between_units_and_an_error(build: Any, value: float) -> None:
    images, labels = batch()
    images[2], labels[3], labels[4] = value, -5, 10**9
    units, layout = units_of(build(), {}, (images, labels), None, None)
    total, _ = units.pool.total(units.rows, torch.zeros(1, layout.size), 1.0)
    assert torch.isfinite(total).all()
    assert total.any()


@pytest.mark.parametrize("build", [on_features, plain])
def test_a_model_is_tried_on_blank_records_alone(build: Any) -> None:
    """Whatever is refused is so for any records: the checks see zeros."""
    seen: list[Tensor] = []
    true = client_units.check_labels

    def watched(model: nn.Module, images: Tensor, labels: Tensor) -> None:
        seen.extend([images, labels])
        true(model, images, labels)

    with patch.object(client_units, "check_labels", watched):
        units_of(build(), {}, batch(), None, None)
    assert len(seen) >= 2
    assert all(len(part) == 1 and not part.any() for part in seen)
