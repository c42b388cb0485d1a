"""Models that cannot be trained for several sets of parameters at once are refused, with all reasons."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.models.batched import Batched
from equipoise.models.check import check_model
from tests.models.reference import assert_first_order, batch, randomised

IMAGES = torch.linspace(-1, 1, 2 * 4 * 4).view(2, 1, 4, 4)


def refused(model: nn.Module, classes: int | None = 3) -> ModelError:
    with pytest.raises(ModelError, match=r"^The model cannot be batched: ") as caught:
        check_model(model, IMAGES, classes)
    assert "GroupNorm" in caught.value.remedy
    return caught.value


def head(*body: nn.Module, features: int = 16) -> nn.Sequential:
    return nn.Sequential(*body, nn.Flatten(), nn.Linear(features, 3))


def test_batch_norm_is_refused_in_train_mode_and_accepted_in_eval_mode() -> None:
    model = head(nn.BatchNorm2d(1))
    assert "'0' (BatchNorm2d) keeps running statistics" in refused(model).cause
    model[0].eval()
    check_model(model, IMAGES, 3)
    double = randomised(model)
    assert_first_order(Batched(double), double, *batch((1, 4, 4), classes=3))


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(16), nn.SyncBatchNorm(16), nn.InstanceNorm1d(1, track_running_stats=True)]
)
def test_its_relatives_are_refused_too(layer: nn.Module) -> None:
    assert f"({type(layer).__name__}) keeps running statistics" in refused(nn.Sequential(nn.Flatten(), layer)).cause


def test_dropout_is_refused_unless_it_does_nothing() -> None:
    assert "'0' (Dropout) draws random numbers" in refused(head(nn.Dropout(0.5))).cause
    check_model(head(nn.Dropout(0.0)), IMAGES, 3)
    check_model(head(nn.Dropout(0.5)).eval(), IMAGES, 3)


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.dropout(self.fc(x.flatten(1)), 0.5)


def test_dropout_hidden_in_forward_is_refused() -> None:
    assert refused(FunctionalDropout()).cause


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.fc(x.flatten(1))


def test_a_forward_that_changes_a_buffer_is_refused_by_name() -> None:
    assert "changes the buffer(s) calls" in refused(Counting()).cause


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x.flatten(1))
        return y if bool(y.sum() > 0) else -y


def test_control_flow_on_data_is_refused() -> None:
    assert "torch.func cannot batch its forward" in refused(Branching()).cause


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 3, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x[:, 0])[0][:, -1]


def test_lstm_is_refused() -> None:
    assert "'rnn' (LSTM) has no batched form" in refused(Recurrent()).cause


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.fc(x.flatten(1))
        return y, y


def test_outputs_of_the_wrong_kind_or_size_are_refused() -> None:
    assert "its forward returns tuple, not a tensor" in refused(Pair()).cause
    assert "its output has shape (2, 3), not (2, 10)" in refused(head(), classes=10).cause
    assert "its output has shape (2, 1, 4, 3), not (2, 3)" in refused(nn.Sequential(nn.Linear(4, 3))).cause
    check_model(head(), IMAGES)


def test_a_model_for_other_images_is_refused_with_their_shape() -> None:
    assert "its forward failed on a batch of shape (2, 1, 4, 4)" in refused(head(features=784)).cause


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_non_finite_parameter_is_refused_by_name(bad: float) -> None:
    model = head()
    with torch.no_grad():
        model[1].weight[0, 0] = bad
    assert "parameter '1.weight' is not finite" in refused(model).cause


def test_all_reasons_come_at_once() -> None:
    model = head(nn.BatchNorm2d(1), nn.Dropout(0.1), Recurrent())
    with torch.no_grad():
        model[4].bias[0] = float("nan")
    cause = refused(model).cause
    for part in ("'0' (BatchNorm2d)", "'1' (Dropout)", "'2.rnn' (LSTM)", "'4.bias' is not finite"):
        assert part in cause


def test_checking_leaves_a_good_model_as_it_was() -> None:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 5, 4))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_model(model, torch.randn(2, 1, 6, 7, generator=torch.Generator().manual_seed(1)), 4)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training
