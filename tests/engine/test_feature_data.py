"""Datasets as a model with frozen features sees them, and whose their records are."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equipoise.data.dataset import Dataset, from_tensors
from equipoise.engine.feature_data import joined_groups, on_features
from equipoise.engine.federation import Federation
from equipoise.engine.settings import Settings
from equipoise.engine.sweep import Sweep
from equipoise.mechanism.linear_units import LinearRecords
from equipoise.mechanism.units import EachRecord
from equipoise.models import feature_cache
from equipoise.models.features import FeatureModel, features_of


class Counted(nn.Module):
    """Features that remember how many records were computed with, and in calls of which size."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Tensor] = []

    def forward(self, images: Tensor) -> Tensor:
        self.calls.append(images.detach().clone())
        return images.flatten(1)[:, :5] * 2 + 1

    def sizes(self) -> list[int]:
        return [len(call) for call in self.calls]


def data(count: int = 12, groups: Tensor | None = None, seed: int = 11, name: str = "few") -> Dataset:
    draw = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 1, 3, 3, generator=draw)
    labels = torch.arange(count) % 2
    train = (images, labels) if groups is None else (images, labels, groups)
    others = [(torch.rand(6, 1, 3, 3, generator=draw), torch.arange(6) % 2) for _ in range(2)]
    return from_tensors(train, others[0], others[1], classes=2, name=name)


def model(bias: bool = True) -> tuple[FeatureModel, Counted]:
    features = Counted()
    return FeatureModel(features, nn.Linear(5, 2, bias=bias)), features


@pytest.fixture(autouse=True)
def _empty_cache(tmp_path: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EQUIPOISE_CACHE", str(tmp_path))


def test_inputs_are_features_and_all_else_stays() -> None:
    network, given = model()[0], data(groups=torch.arange(12) // 3)
    found = on_features(network, given)
    for split in ("train", "validation", "test"):
        before, after = getattr(given, split), getattr(found, split)
        assert torch.equal(after.inputs[:, :, 0, 0], features_of(network, before.inputs))
        assert torch.equal(after.labels, before.labels)
    assert found.train.groups is not None
    assert given.train.groups is not None
    assert torch.equal(found.train.groups, given.train.groups)
    assert (found.classes, found.name, found.shape) == (2, given.name, (5, 1, 1))


def test_clients_records_are_computed_one_by_one_and_others_together() -> None:
    network, counted = model()
    given = data()
    on_features(network, given)
    records = {tuple(image.flatten().tolist()) for image in given.train.inputs}
    calls = [call for call in counted.calls if any(tuple(row.flatten().tolist()) in records for row in call)]
    assert [len(call) for call in calls] == [1] * 12, "each of them, once, alone"
    assert 6 in counted.sizes()


def test_features_are_computed_once_for_all_that_uses_them(monkeypatch: pytest.MonkeyPatch) -> None:
    network, counted = model()
    monkeypatch.setattr(feature_cache, "KEPT", (type(network.features),))
    first = on_features(network, data())
    counted.calls.clear()
    again = on_features(network, data())
    assert sum(len(call) for call in counted.calls if call.any()) <= 3 * 2, "but for the two drawn records of a key"
    assert torch.equal(first.train.inputs, again.train.inputs)


def test_groups_are_joined_dataset_after_dataset() -> None:
    persons = torch.tensor([7, 7, 7, 7, 7, 7, 9, 9, 9, 9, 9, 9])
    one, two = data(groups=persons), data(4)
    assert joined_groups([two, two]) is None
    joined = joined_groups([one, two])
    assert joined is not None
    assert joined.tolist() == [*persons.tolist(), 0, 1, 2, 3]
    assert joined_groups([one]) is not None


@pytest.mark.parametrize(("bias", "kind", "size"), [(True, LinearRecords, 12), (False, EachRecord, 10)])
def test_a_sweep_sums_the_units_of_the_head(bias: bool, kind: type, size: int) -> None:
    """In the layout of its own parameters: gradients are those of torch."""
    network, given = model(bias)[0], data()
    settings = Settings.flat(rounds=2, clients=2, dtype="float64", gaussian={"clip": 100.0})
    sweep = Sweep(settings, [Federation("few", "gaussian-dp", 8.0)], {"few": given}, network.double())
    assert type(sweep.pool) is kind
    assert sweep.batched.layout.size == size
    draw = torch.Generator().manual_seed(2)
    start = torch.randn(1, size, generator=draw, dtype=torch.float64)
    found, _ = sweep.pool.total([torch.arange(12)], start, 100.0)
    x, y = sweep.inputs.view(1, 12, -1), sweep.labels.view(1, -1)
    head = nn.Linear(5, 2, bias=bias).double()
    head.load_state_dict({name[5:]: part for name, part in sweep.batched.layout.unflatten(start[0]).items()})
    (nn.functional.cross_entropy(head(x[0]), y[0]) * 12).backward()
    grads = {f"head.{name}": part.grad for name, part in head.named_parameters() if part.grad is not None}
    expected = sweep.batched.layout.flatten(grads)
    assert float((found[0] * sweep.pool.grid(100.0).step - expected).abs().max()) < 0.02 * float(expected.abs().max())
    sweep.train(2)
    assert torch.isfinite(sweep.state.params).all()
