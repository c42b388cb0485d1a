"""A linear head on fixed features: what is trained and saved, and features that are functions of one record."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from equipoise.data.dataset import Dataset
from equipoise.errors import ModelError
from equipoise.models import features as features_file
from equipoise.models.batched import Batched
from equipoise.models.check import check_model
from equipoise.models.features import FeatureModel, features_of, scatter_linear, zero_head
from equipoise.models.routes import NAMES, Name
from tests.models.reference import assert_first_order, assert_second_order, batch, labelled, randomised

SHAPE = (1, 4, 4)


class Convolution(nn.Module):
    """Features with parameters, a buffer and a layer that knows modes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.drop = nn.Conv2d(1, 2, 3, padding=1), nn.Dropout(0.5)
        self.register_buffer("shift", torch.tensor(0.25))

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(torch.tanh(self.conv(x) + self.shift))


@pytest.fixture
def model() -> FeatureModel:
    return FeatureModel(Convolution(), nn.Linear(32, 3))


def test_the_head_alone_is_trained_and_saved(model: FeatureModel) -> None:
    assert list(model.state_dict()) == ["head.weight", "head.bias"]
    assert [name for name, _ in model.named_parameters()] == ["head.weight", "head.bias"]
    assert not any(p.requires_grad for p in model.features.parameters())
    before = copy.deepcopy(model.features.state_dict())
    model.load_state_dict({"head.weight": torch.ones(3, 32), "head.bias": torch.zeros(3)})
    assert torch.equal(model.head.weight, torch.ones(3, 32))
    assert all(torch.equal(before[name], tensor) for name, tensor in model.features.state_dict().items())


def test_the_features_stay_in_eval_mode(model: FeatureModel) -> None:
    model.train()
    assert not any(part.training for part in model.features.modules())
    x = torch.ones(2, *SHAPE)
    assert torch.equal(model(x), model(x)), "dropout does nothing"


def test_the_features_move_and_are_copied_with_the_model(model: FeatureModel) -> None:
    other = copy.deepcopy(model).double()
    assert {tensor.dtype for tensor in other.features.state_dict().values()} == {torch.float64}
    assert other(torch.ones(2, *SHAPE, dtype=torch.float64)).dtype == torch.float64
    assert {tensor.dtype for tensor in model.features.state_dict().values()} == {torch.float32}
    assert other.features is not model.features


def test_the_model_is_its_head_on_its_features(model: FeatureModel) -> None:
    x = torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))
    features = features_of(model, x)
    assert torch.allclose(model(x), model.head_model()(features), atol=1e-6)
    assert model.head_model().head is model.head
    assert list(model.head_model().state_dict()) == list(model.state_dict())


def test_the_head_of_the_bundled_model_begins_at_zero_and_draws_nothing() -> None:
    state = torch.get_rng_state()
    model = scatter_linear((2, 8, 12), 5)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.head.weight.shape == (5, 2 * 81 * 2 * 3)
    assert not model.head.weight.any()
    assert not model.head.bias.any()
    check_model(model, torch.rand(2, 2, 8, 12), 5)


# -- gradients for many sets of parameters -------------------------------------------------------------------------


@pytest.mark.parametrize("route", NAMES)
def test_gradients_of_the_head_are_those_of_autograd(model: FeatureModel, route: Name) -> None:
    double = model.double()
    batched = Batched(double, route=route)
    assert [slot.name for slot in batched.layout.slots] == ["head.weight", "head.bias"]
    assert_first_order(batched, double, *batch(SHAPE, classes=3))


@pytest.mark.parametrize("route", NAMES)
def test_gradients_can_be_differentiated_to_the_images(model: FeatureModel, route: Name) -> None:
    models: list[nn.Module] = [randomised(copy.deepcopy(model), seed) for seed in range(2)]
    data = labelled("probabilities", 2, 3, SHAPE, classes=3)
    assert_second_order(Batched(models[0], route=route), models, *data)


def test_the_features_of_a_mini_batch_are_computed_once(model: FeatureModel) -> None:
    calls: list[int] = []
    model.features.register_forward_hook(lambda *_: calls.append(1))
    batched = Batched(model)
    objective = batched.at(torch.rand(2, 3, *SHAPE), torch.zeros(2, 3, dtype=torch.int64))
    for _ in range(3):
        objective.gradient(torch.zeros(2, batched.layout.size))
    assert len(calls) == 1


# -- features of records -------------------------------------------------------------------------------------------


def test_alone_a_record_has_the_same_bits_in_any_company(few: Dataset) -> None:
    model, images = scatter_linear(few.shape), few.train.inputs[:7]
    features = features_of(model, images)
    others = torch.cat([few.test.inputs[:4], images[3:4], few.test.inputs[4:9]])
    strided = images.repeat_interleave(2, 0).transpose(2, 3).contiguous().transpose(2, 3)[::2]
    assert torch.equal(features_of(model, others)[4], features[3])
    assert torch.equal(features_of(model, images[3:4])[0], features[3])
    assert not strided.is_contiguous()
    assert torch.equal(features_of(model, strided), features)


def test_each_record_has_a_call_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[tuple[int, bool]] = []

    class Watched(nn.Flatten):
        def forward(self, x: Tensor) -> Tensor:
            sizes.append((len(x), x.is_contiguous()))
            return super().forward(x)

    model = FeatureModel(Watched(), zero_head(16, 2))
    features_of(model, torch.rand(5, 1, 4, 4).transpose(2, 3))
    assert sizes[1:] == [(1, True)] * 5  # the first is of no record
    sizes.clear()
    monkeypatch.setattr(features_file, "CHUNK", 2)
    features_of(model, torch.rand(5, *SHAPE), alone=False)
    assert [size for size, _ in sizes[1:]] == [2, 2, 1]


def test_chunks_give_the_same_numbers(few: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    model, images = scatter_linear(few.shape), few.test.inputs[:21]
    expected = features_of(model, images)
    for chunk in (1, 4, 64):
        monkeypatch.setattr(features_file, "CHUNK", chunk)
        assert torch.allclose(features_of(model, images, alone=False), expected, atol=1e-6)


class Picky(nn.Module):
    """Fails, overflows or returns too much for records that are marked."""

    def forward(self, x: Tensor) -> Tensor:
        if bool((x == 7).any()):
            raise ValueError("cannot use the record of patient 4711")
        if bool((x == 8).any()):
            return x.flatten(1)[:, :3]
        return x.flatten(1).exp() / (x.flatten(1) - 9)


@pytest.mark.parametrize(("mark", "cause"), [(7.0, "ValueError at test_features.py:"), (9.0, "they are not finite"),
                                             (8.0, "RuntimeError")])  # fmt: skip
def test_a_record_without_features_counts_as_zero(mark: float, cause: str, caplog: pytest.LogCaptureFixture) -> None:
    images = torch.zeros(4, *SHAPE)
    images[2, 0, 0, 0] = mark
    model = FeatureModel(Picky(), zero_head(16, 2))
    with caplog.at_level(logging.WARNING, "equipoise"):
        features = features_of(model, images)
    assert not features[2].any()
    assert torch.equal(features[[0, 1, 3]], features_of(model, images[:3] * 0))
    assert [record.getMessage().partition(cause)[0] for record in caplog.records] == [
        "The features of 1 of 4 records count as zero: "
    ]
    assert "4711" not in caplog.text


def test_in_chunks_features_that_are_not_finite_are_zero_and_errors_quote_nothing() -> None:
    images = torch.zeros(4, *SHAPE)
    images[2, 0, 0, 0] = 9
    model = FeatureModel(Picky(), zero_head(16, 2))
    features = features_of(model, images, alone=False)
    assert features.isfinite().all()
    assert features[:, 0].ne(0).tolist() == [True, True, False, True]
    images[0] = 7
    with pytest.raises(ModelError, match=r"shape \(4, 1, 4, 4\).*ValueError at test_features.py") as caught:
        features_of(model, images, alone=False)
    assert "4711" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    ("images", "cause"),
    [
        (torch.zeros(2, 3, 4, 4), "cannot be computed: RuntimeError"),
        (torch.zeros(2, 1, 4, 4, dtype=torch.float64), "torch.float64 cannot be computed"),
        (torch.zeros(0, 3, 4, 4), "cannot be computed: RuntimeError"),
        (torch.zeros(2, 1, 5, 5), r"the head takes 32"),
    ],
)
@pytest.mark.parametrize("alone", [True, False])
def test_what_fails_for_every_record_is_said_at_once(
    model: FeatureModel, images: Tensor, cause: str, alone: bool
) -> None:
    with pytest.raises(ModelError, match=cause):
        features_of(model, images, alone=alone)


@pytest.mark.parametrize("alone", [True, False])
def test_no_records_have_no_features(model: FeatureModel, alone: bool) -> None:
    assert features_of(model, torch.zeros(0, *SHAPE), alone=alone).shape == (0, 32)


def test_features_are_never_part_of_a_graph(model: FeatureModel) -> None:
    images = torch.rand(2, *SHAPE, requires_grad=True)
    call: Callable[..., Tensor] = features_of
    assert not call(model, images).requires_grad
    assert not call(model, images, alone=False).requires_grad


def test_longer_features_are_shortened_alike_where_they_train_and_where_they_are_scored() -> None:
    model = FeatureModel(nn.Flatten(), nn.Linear(16, 3))
    images = torch.stack([torch.full(SHAPE, 100.0), torch.full(SHAPE, 0.1)])
    features = features_of(model, images)
    assert features.norm(dim=1).tolist() == pytest.approx([8.0, 0.4])
    assert torch.equal(features, features_of(model, images, alone=False))
    assert torch.equal(model(images), model.head(features))
