"""Gradients per replica: hand-written layers, torch.func and plain autograd agree; what has no such form is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from equipoise.errors import ConfigError, ModelError
from equipoise.models import layers
from equipoise.models.batched import Batched, check_model
from equipoise.models.bundled import MLP, MODELS, LeNetZhu, SmallCNN, build

TOLERANCE = 1e-10
DEVICES = ("cpu", "cuda")  # the device a model is built for: "cuda" means PatchConv, which runs on CPU tensors too
EXACT: dict[str, Any] = {"rtol": TOLERANCE, "atol": TOLERANCE}
Tensors = dict[str, Tensor]


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """In float64, every trainable parameter from U(-0.5, 0.5)."""
    local = torch.Generator().manual_seed(seed)
    model = model.double()
    with torch.no_grad():
        for tensor in filter(lambda p: p.requires_grad, model.parameters()):
            tensor.copy_(torch.rand(tensor.shape, dtype=torch.float64, generator=local) - 0.5)
    return model


def replicas(model: nn.Module, count: int) -> list[Tensors]:
    """Different parameters for every replica."""
    found = []
    for seed in range(count):
        twin = randomised(copy.deepcopy(model), seed + 1)
        found.append({name: tensor.detach().clone() for name, tensor in twin.named_parameters()})
    return found


def by_autograd(model: nn.Module, tensors: Tensors, x: Tensor, y: Tensor) -> tuple[float, Tensor, Tensors]:
    """Loss, outputs and gradients as anyone would compute them, one replica at a time."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            parameter.copy_(tensors[name])
    outputs = twin(x.clone())
    loss = nn.functional.cross_entropy(outputs, y)
    trainable = {n: p for n, p in twin.named_parameters() if p.requires_grad}
    grads = torch.autograd.grad(loss, list(trainable.values()))
    return loss.item(), outputs.detach(), dict(zip(trainable, grads, strict=True))


def assert_equal_to_autograd(batched: Batched, model: nn.Module, x: Tensor, y: Tensor) -> None:
    params = replicas(model, len(x))
    flat = torch.stack([batched.layout.flatten(tensors) for tensors in params])
    kept, images = flat.clone(), x.clone()
    objective = batched.at(x, y)
    buffer = torch.full_like(flat, float("nan"))
    results = [objective.gradient(flat), objective.gradient(flat, out=buffer), objective.gradient(flat)]
    assert results[1] is buffer
    losses, outputs = objective.loss(flat), batched.outputs(flat, x)
    assert torch.equal(flat, kept), "the parameters are not modified"
    assert torch.equal(x, images), "nor are the images"
    for r, tensors in enumerate(params):
        loss, expected_outputs, grads = by_autograd(model, tensors, x[r], y[r])
        assert losses[r].item() == pytest.approx(loss, **{"rel": TOLERANCE, "abs": TOLERANCE})
        torch.testing.assert_close(outputs[r], expected_outputs, **EXACT)
        for gradient in results:  # repeated calls: nothing kept from one spoils the next
            found = batched.layout.unflatten(gradient[r])
            assert list(found) == list(grads)
            for name, expected in grads.items():
                torch.testing.assert_close(found[name], expected, **EXACT, msg=lambda m, n=name: f"{n}: {m}")


def batch(shape: tuple[int, ...], replicas: int = 3, size: int = 4, classes: int = 10) -> tuple[Tensor, Tensor]:
    local = torch.Generator().manual_seed(99)
    x = torch.randn(replicas, size, *shape, dtype=torch.float64, generator=local)
    return x, torch.randint(0, classes, (replicas, size), generator=local)


def is_fast(batched: Batched) -> bool:
    return batched._layers is not None


# --- models the layers know --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [LeNetZhu, MLP, SmallCNN])
@pytest.mark.parametrize("count", [1, 3])
def test_bundled_models_by_layers(make: Callable[[], nn.Module], device: str, count: int) -> None:
    model = randomised(make())
    batched = Batched(model, device=device)
    assert is_fast(batched)
    assert_equal_to_autograd(batched, model, *batch((1, 28, 28), count))


@pytest.mark.parametrize("make", [LeNetZhu, MLP, SmallCNN])
def test_bundled_models_by_torch_func(make: Callable[[], nn.Module]) -> None:
    model = randomised(make())
    batched = Batched(model, fast=False)
    assert not is_fast(batched)
    assert_equal_to_autograd(batched, model, *batch((1, 28, 28), 2))


def test_the_device_decides_the_kind_of_convolution() -> None:
    for device, kind in zip(DEVICES, (layers.GroupedConv, layers.PatchConv), strict=True):
        built = layers.build(LeNetZhu(), torch.device(device))
        assert built is not None
        assert sum(type(layer) is kind for layer in built[0]) == 3


@pytest.mark.parametrize("device", DEVICES)
def test_a_single_precision_gradient_is_close_to_the_double_one(device: str) -> None:
    model = randomised(LeNetZhu())
    x, y = batch((1, 28, 28), 2)
    double = Batched(model, device=device)
    flat = torch.stack([double.layout.flatten(t) for t in replicas(model, 2)])
    expected = double.at(x, y).gradient(flat)
    found = Batched(copy.deepcopy(model).float(), device=device).at(x.float(), y).gradient(flat.float())
    torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=1e-5)


ACTIVATIONS = (nn.Sigmoid, nn.Tanh, nn.ReLU)
pairs = st.tuples(st.integers(1, 3), st.integers(1, 3))


@st.composite
def sequences(draw: Any) -> tuple[nn.Sequential, tuple[int, int, int]]:
    """Up to three convolutions with odd shapes, activations anywhere, one or two linear layers."""
    channels, height, width = draw(st.integers(1, 3)), draw(st.integers(3, 9)), draw(st.integers(3, 9))
    shape = (channels, height, width)
    made: list[nn.Module] = []
    for _ in range(draw(st.integers(0, 3))):
        kernel = draw(st.tuples(st.integers(1, 4), st.integers(1, 4)))
        stride, padding = draw(pairs), draw(st.tuples(st.integers(0, 3), st.integers(0, 3)))
        spread = (height + 2 * padding[0] - kernel[0], width + 2 * padding[1] - kernel[1])
        assume(min(spread) >= 0)
        out = draw(st.integers(1, 3))
        made.append(nn.Conv2d(channels, out, kernel, stride, padding, bias=draw(st.booleans())))
        channels, height, width = out, spread[0] // stride[0] + 1, spread[1] // stride[1] + 1
        made += [kind() for kind in draw(st.lists(st.sampled_from(ACTIVATIONS), max_size=2))]
    made.append(nn.Flatten())
    features = channels * height * width
    assume(features <= 400)
    made += [kind() for kind in draw(st.lists(st.sampled_from(ACTIVATIONS), max_size=1))]
    if draw(st.booleans()):
        made.append(nn.Linear(features, 5, bias=draw(st.booleans())))
        made += [kind() for kind in draw(st.lists(st.sampled_from(ACTIVATIONS), max_size=2))]
        features = 5
    made.append(nn.Linear(features, 4, bias=draw(st.booleans())))
    return nn.Sequential(*made), shape


@settings(max_examples=60)
@given(sequences(), st.sampled_from(DEVICES), st.integers(1, 3), st.integers(1, 3))
def test_any_sequence_of_known_layers(
    made: tuple[nn.Sequential, tuple[int, int, int]], device: str, count: int, size: int
) -> None:
    model, shape = randomised(made[0]), made[1]
    assert_equal_to_autograd(Batched(model, device=device), model, *batch(shape, count, size, classes=4))


CONVOLUTIONS = [
    nn.Sequential(nn.Conv2d(2, 3, (3, 2), stride=(2, 3), padding=(1, 2)), nn.Tanh(), nn.Conv2d(3, 2, 2, bias=False)),
    nn.Sequential(nn.Conv2d(2, 1, 1, stride=3), nn.ReLU(), nn.Conv2d(1, 4, 3, padding=2)),
    nn.Sequential(nn.Conv2d(2, 4, 5, padding=4, bias=False), nn.Sigmoid(), nn.Conv2d(4, 2, 4, stride=3, padding=3)),
    nn.Sequential(nn.Conv2d(2, 2, 2, stride=2), nn.Tanh(), nn.Conv2d(2, 2, 2, stride=2), nn.Tanh()),
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("features", CONVOLUTIONS, ids=range(len(CONVOLUTIONS)))
def test_convolutions_with_odd_sizes_strides_and_paddings(features: nn.Sequential, device: str) -> None:
    size = features(torch.zeros(1, 2, 7, 9)).numel() if next(features.parameters()).dtype == torch.float32 else None
    size = size or features(torch.zeros(1, 2, 7, 9, dtype=torch.float64)).numel()
    model = randomised(nn.Sequential(features, nn.Flatten(), nn.Linear(size, 4)))
    batched = Batched(model, device=device)
    assert is_fast(batched), "nested sequences are known"
    assert_equal_to_autograd(batched, model, *batch((2, 7, 9), classes=4))


SHARED = nn.Tanh()
TRICKY = {
    "one activation object used twice": nn.Sequential(
        nn.Flatten(), nn.Linear(8, 5), SHARED, nn.Linear(5, 5), SHARED, nn.Linear(5, 4)
    ),
    "two activations in a row": nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.Sigmoid(), nn.Tanh(), nn.Linear(5, 4)),
    "relu after sigmoid": nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.Sigmoid(), nn.ReLU(), nn.Linear(5, 4)),
    "an activation on the images": nn.Sequential(nn.Flatten(), nn.Tanh(), nn.Linear(8, 4)),
    "an activation first": nn.Sequential(nn.Tanh(), nn.Flatten(), nn.Linear(8, 4)),
    "an activation last": nn.Sequential(nn.Flatten(), nn.Linear(8, 4), nn.Tanh()),
    "activations around flatten": nn.Sequential(
        nn.Conv2d(1, 3, 1), nn.Sigmoid(), nn.Flatten(), nn.Tanh(), nn.Linear(24, 4)
    ),
    "flatten twice": nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.Flatten(), nn.Sigmoid(), nn.Linear(5, 4)),
    "an activation in place": nn.Sequential(nn.Flatten(), nn.Linear(8, 5), nn.ReLU(inplace=True), nn.Linear(5, 4)),
    "linear on the last axis of images": nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Flatten(), nn.Linear(6, 4)),
    "identity": nn.Sequential(nn.Identity(), nn.Flatten(), nn.Linear(8, 4)),
    "named string padding": nn.Sequential(nn.Conv2d(1, 2, 1, padding="same"), nn.Flatten(), nn.Linear(16, 4)),
    "dilation": nn.Sequential(nn.Conv2d(1, 2, (1, 2), dilation=2), nn.Flatten(), nn.Linear(8, 4)),
    "groups": nn.Sequential(nn.Conv2d(1, 2, 1), nn.Conv2d(2, 2, 1, groups=2), nn.Flatten(), nn.Linear(16, 4)),
    "circular padding": nn.Sequential(
        nn.Conv2d(1, 2, 1, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(48, 4)
    ),
    "pooling": nn.Sequential(nn.Conv2d(1, 2, 1), nn.AvgPool2d((1, 2)), nn.Flatten(), nn.Linear(8, 4)),
    "flatten of some axes": nn.Sequential(nn.Flatten(2), nn.Linear(8, 4), nn.Flatten()),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", TRICKY)
def test_sequences_that_invite_mistakes(name: str, device: str) -> None:
    """Whichever path takes them, the numbers are autograd's."""
    model = randomised(copy.deepcopy(TRICKY[name]))
    assert_equal_to_autograd(Batched(model, device=device), model, *batch((1, 2, 4), classes=4))


def test_tables_instead_of_images() -> None:
    model = randomised(nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3)))
    assert_equal_to_autograd(Batched(model), model, *batch((6,), classes=3))


# --- models only torch.func knows --------------------------------------------------------------------------


class Residual(nn.Module):
    """Not a sequence: a skip connection, a shared layer, a bare parameter and a frozen one."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, padding=1)
        self.mix = nn.Conv2d(3, 3, 3, padding=1)
        self.scale = nn.Parameter(torch.ones(3))
        self.frozen = nn.Parameter(torch.full((3,), 0.5), requires_grad=False)
        self.out = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        for _ in range(2):
            x = x + torch.sigmoid(self.mix(x))
        return self.out(x.mean((2, 3)) * self.scale + self.frozen)


class Grouped(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 4 * 5, 4))


class Doubling(nn.Sequential):
    """A sequence with a forward of its own must not be taken for a plain one."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(42, 4))

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Tied(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(42, 42), nn.Tanh(), nn.Linear(42, 42), nn.Linear(42, 4))
        self[3].weight = self[1].weight


@pytest.mark.parametrize("make", [Residual, Grouped, Doubling, Tied])
def test_models_of_the_users_own(make: Callable[[], nn.Module]) -> None:
    model = randomised(make())
    batched = Batched(model)
    assert not is_fast(batched)
    assert_equal_to_autograd(batched, model, *batch((1, 6, 7), classes=4))
    check_model(model, torch.zeros(2, 1, 6, 7, dtype=torch.float64), classes=4)


def test_a_frozen_layer_of_a_known_sequence_stays_out_of_the_vector() -> None:
    model = randomised(nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)))
    model[1].weight.requires_grad_(False)
    batched = Batched(model)
    assert batched.layout.size == 5 + 20 + 4
    x, y = batch((1, 2, 3), classes=4)
    flat = batched.layout.flatten(dict(model.named_parameters())).repeat(3, 1)
    _, _, grads = by_autograd(model, dict(model.named_parameters()), x[0], y[0])
    found = batched.layout.unflatten(batched.at(x, y).gradient(flat)[0])
    assert "1.weight" not in found
    for name, expected in grads.items():
        torch.testing.assert_close(found[name], expected, **EXACT)


def test_a_loss_of_the_users_own() -> None:
    model = randomised(MLP((1, 2, 3), classes=3, hidden=5))
    batched = Batched(model, loss=lambda outputs, labels: (outputs[:, 0] * labels).mean())
    x, y = batch((1, 2, 3), classes=3)
    flat = batched.layout.flatten(dict(model.named_parameters())).repeat(3, 1)
    loss = (model(x[1])[:, 0] * y[1]).mean()
    assert batched.at(x, y).loss(flat)[1].item() == pytest.approx(loss.item(), rel=1e-12)
    expected = torch.autograd.grad(loss, list(model.parameters()))
    found = batched.layout.unflatten(batched.at(x, y).gradient(flat)[1])
    for one, two in zip(found.values(), expected, strict=True):
        torch.testing.assert_close(one, two, **EXACT)


# --- the flat layout ---------------------------------------------------------------------------------------


def test_the_papers_model_has_13426_parameters() -> None:
    for fast in (True, False):
        assert Batched(LeNetZhu(), fast=fast).layout.size == 13_426
    assert sum(p.numel() for p in LeNetZhu().parameters()) == 13_426


def test_the_papers_model_layer_by_layer() -> None:
    model = LeNetZhu()
    convs = [layer for layer in model if isinstance(layer, nn.Conv2d)]
    assert [(c.in_channels, c.out_channels, c.kernel_size, c.stride, c.padding) for c in convs] == [
        (1, 12, (5, 5), (2, 2), (2, 2)),
        (12, 12, (5, 5), (2, 2), (2, 2)),
        (12, 12, (5, 5), (1, 1), (2, 2)),
    ]
    assert sum(isinstance(layer, nn.Sigmoid) for layer in model) == 3
    assert model.fc.weight.shape == (10, 588)


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    assert all(isinstance(build(name), nn.Module) for name in MODELS)
    with pytest.raises(ConfigError, match=r"Unknown model 'lenet-zu'. Did you mean 'lenet-zhu'\?"):
        build("lenet-zu")


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("make", [LeNetZhu, MLP, SmallCNN, Residual])
def test_flatten_and_unflatten_undo_each_other(make: Callable[[], nn.Module], fast: bool) -> None:
    model = make()
    layout = Batched(model, fast=fast).layout
    tensors = {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}
    flat = layout.flatten(model.state_dict())
    assert flat.shape == (layout.size,)
    assert layout.size == sum(t.numel() for t in tensors.values())
    back = layout.unflatten(flat)
    assert list(back) == list(tensors)
    assert all(torch.equal(back[name], tensor) for name, tensor in tensors.items())
    other = torch.arange(float(layout.size))
    assert torch.equal(layout.flatten(layout.unflatten(other)), other)


def test_every_missing_or_misshapen_tensor_is_named() -> None:
    layout = Batched(MLP((1, 2, 3), classes=3, hidden=5)).layout
    tensors = dict(MLP((1, 2, 3), classes=3, hidden=5).named_parameters())
    del tensors["fc1.bias"], tensors["fc2.bias"]
    tensors["fc2.weight"] = nn.Parameter(torch.zeros(5, 3))
    with pytest.raises(ModelError) as caught:
        layout.flatten(tensors)
    assert "Missing tensors: fc1.bias, fc2.bias" in caught.value.cause
    assert "fc2.weight (5, 3) instead of (3, 5)" in caught.value.cause
    assert "same model" in caught.value.remedy


@pytest.mark.parametrize("shape", [(52,), (54,), (1, 53), (53, 1)])
def test_a_vector_of_another_size_is_refused(shape: tuple[int, ...]) -> None:
    layout = Batched(MLP((1, 2, 3), classes=3, hidden=5)).layout
    assert layout.size == 53
    with pytest.raises(ModelError, match="Expected 53 parameters"):
        layout.unflatten(torch.zeros(shape))


def test_a_model_without_trainable_parameters_is_refused() -> None:
    with pytest.raises(ModelError, match="no trainable parameters"):
        Batched(nn.Sequential(nn.Flatten()))


# --- what cannot be batched --------------------------------------------------------------------------------

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
    assert_equal_to_autograd(Batched(double), double, *batch((1, 4, 4), classes=3))


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
    model = Grouped()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    check_model(model, torch.randn(2, 1, 6, 7, generator=torch.Generator().manual_seed(1)), 4)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training
