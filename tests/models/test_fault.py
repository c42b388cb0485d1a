"""What is told of a layer that does not fit its inputs: its path, its type and shapes, and nothing of the data."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.models.check import check_model
from equipoise.models.fault import fault_of, label_of, words_of

PICTURES, TOKENS = torch.zeros(2, 3, 8, 8), torch.ones(2, 16, dtype=torch.int64)


def told(model: nn.Module, inputs: Tensor) -> ModelError:
    with pytest.raises(ModelError, match=r"^The model cannot be used: its forward failed") as caught:
        check_model(model, inputs)
    return caught.value


class Net(nn.Module):
    def __init__(self, *, channels: int = 3, features: int = 144) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(channels, 4, 3), nn.ReLU())
        self.out = nn.Linear(features, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.body(x).flatten(1))


def test_a_linear_layer_of_other_features_is_named_with_both_sizes() -> None:
    error = told(Net(features=100), PICTURES)
    assert "in 'out' (Linear), which has in_features=100 and was given shape (2, 144): RuntimeError" in error.cause
    assert error.remedy.startswith("Build 'out' (Linear) with in_features=144. Check that inputs of this shape")


def test_a_convolution_of_other_channels_is_named_with_both_sizes() -> None:
    error = told(Net(channels=1), PICTURES)
    assert "in 'body.0' (Conv2d), which has in_channels=1 and was given shape (2, 3, 8, 8)" in error.cause
    assert error.remedy.startswith("Build 'body.0' (Conv2d) with in_channels=3. ")


def test_no_size_is_proposed_where_the_shape_tells_none() -> None:
    error = told(Net(), torch.zeros(2, 5))  # no pictures: the number of dimensions differs
    assert "which has in_channels=3 and was given shape (2, 5)" in error.cause
    assert error.remedy.startswith("Check that inputs of this shape")


@pytest.mark.parametrize(
    ("model", "inputs", "size"),
    [
        (nn.Sequential(nn.LSTM(5, 3)), torch.zeros(2, 4, 6), "input_size=5"),
        (nn.Sequential(nn.LayerNorm(5)), torch.zeros(2, 6), "normalized_shape=(5,)"),
        (nn.Sequential(nn.BatchNorm1d(5, track_running_stats=False)), torch.zeros(2, 6), "num_features=5"),
        (nn.Sequential(nn.GroupNorm(1, 5)), torch.zeros(2, 6), "num_channels=5"),
        (nn.Sequential(nn.Embedding(3, 2)), 9 * TOKENS, "num_embeddings=3"),
    ],
)
def test_every_layer_is_told_by_the_setting_that_has_its_size(model: nn.Module, inputs: Tensor, size: str) -> None:
    assert f"which has {size} and was given shape {tuple(inputs.shape)}" in told(model, inputs).cause


class Own(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        raise ValueError("patient 4711")


def test_of_layers_of_ones_own_no_shape_is_told() -> None:
    error = told(nn.Sequential(Own(2, 2)), torch.zeros(2, 2))
    assert "in '0' (Own): ValueError at test_fault.py:" in error.cause
    assert "4711" not in str(error)


@pytest.mark.parametrize(
    ("model", "kind"),
    [
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten()), "pictures"),
        (nn.Sequential(nn.Unflatten(1, (1, 4, 4)), nn.Conv2d(1, 2, 3), nn.Flatten()), "pictures"),
        (nn.Sequential(nn.Unflatten(1, (1, 5, 5)), nn.Conv2d(1, 2, 3), nn.Flatten()), "pictures"),
        (nn.Sequential(nn.Linear(16, 2)), "numbers"),
    ],
)
def test_token_numbers_for_a_model_of_numbers_are_told_as_such(model: nn.Module, kind: str) -> None:
    error = told(model, TOKENS)
    assert error.cause.endswith(f"; the data are token numbers, and the model is for {kind}.")
    assert error.remedy.startswith("Begin the model with nn.Embedding")


def test_a_model_that_embeds_is_not_told_so() -> None:
    error = told(nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(9, 2)), TOKENS)
    assert "token" not in str(error)
    assert error.remedy.startswith("Build '2' (Linear) with in_features=64.")


def test_an_error_from_elsewhere_is_the_models() -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    assert fault_of(ValueError("no"), model).label == label_of(model, "") == "'model' (Sequential)"
    assert (words_of(ValueError("no")), words_of(RuntimeError("yes"))) == ("", "yes")
