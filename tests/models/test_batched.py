"""Gradients per replica: hand-written layers, torch.func and plain autograd agree, once and twice differentiated."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from equipoise.errors import ModelError
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP, LeNetZhu, SmallCNN, build
from equipoise.models.check import check_model
from equipoise.models.features import FeatureModel
from equipoise.models.routes import Name
from tests.models.reference import (
    DEVICES,
    EXACT,
    KINDS,
    Residual,
    assert_close,
    assert_first_order,
    assert_second_order,
    batch,
    first_order,
    flattened,
    fresh,
    labelled,
    leaf,
    randomised,
    replicas,
)


def is_fast(batched: Batched) -> bool:
    return batched.route == "layers"


# --- models the layers know -----------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [LeNetZhu, MLP, SmallCNN])
@pytest.mark.parametrize("count", [1, 3])
def test_bundled_models_by_layers(make: Callable[[], nn.Module], device: str, count: int) -> None:
    model = randomised(make())
    batched = Batched(model, device=device)
    assert is_fast(batched)
    assert_first_order(batched, model, *batch((1, 28, 28), count))


@pytest.mark.parametrize("make", [LeNetZhu, MLP, SmallCNN])
@pytest.mark.parametrize("route", ["vmap", "loop", "threads"])
def test_bundled_models_by_other_routes(make: Callable[[], nn.Module], route: Name) -> None:
    model = randomised(make())
    batched = Batched(model, route=route)
    assert_first_order(batched, model, *batch((1, 28, 28), 2))


@pytest.mark.parametrize("device", DEVICES)
def test_a_single_precision_gradient_is_close_to_the_double_one(device: str) -> None:
    model = randomised(LeNetZhu())
    x, y = batch((1, 28, 28), 2)
    double = Batched(model, device=device)
    flat = torch.stack([double.layout.flatten(t) for t in replicas(model, 2)])
    expected = double.at(x, y).gradient(flat)
    actual = Batched(copy.deepcopy(model).float(), device=device).at(x.float(), y).gradient(flat.float())
    torch.testing.assert_close(actual.double(), expected, rtol=1e-3, atol=1e-5)


# --- models only torch.func knows -----------------------------------------------------------------------------


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
@pytest.mark.parametrize("route", [None, "vmap", "loop", "threads"])
def test_models_of_the_users_own(make: Callable[[], nn.Module], route: Name | None) -> None:
    model = randomised(make())
    batched = Batched(model, route=route)
    assert not is_fast(batched)
    assert_first_order(batched, model, *batch((1, 6, 7), classes=4))
    check_model(model, torch.zeros(2, 1, 6, 7, dtype=torch.float64), classes=4)


def test_a_frozen_layer_of_a_known_sequence_stays_out_of_the_vector() -> None:
    model = randomised(nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)))
    model[1].weight.requires_grad_(False)
    batched = Batched(model)
    assert batched.layout.size == 5 + 20 + 4
    x, y = batch((1, 2, 3), classes=4)
    flat = batched.layout.flatten(dict(model.named_parameters())).repeat(3, 1)
    _, _, grads = first_order(model, dict(model.named_parameters()), x[0], y[0])
    actual = batched.layout.unflatten(batched.at(x, y).gradient(flat)[0])
    assert "1.weight" not in actual
    for name, expected in grads.items():
        torch.testing.assert_close(actual[name], expected, **EXACT)


def test_a_loss_of_the_users_own() -> None:
    model = randomised(MLP((1, 2, 3), classes=3, hidden=5))
    batched = Batched(model, loss=lambda outputs, labels: (outputs[:, 0] * labels).mean())
    x, y = batch((1, 2, 3), classes=3)
    flat = batched.layout.flatten(dict(model.named_parameters())).repeat(3, 1)
    loss = (model(x[1])[:, 0] * y[1]).mean()
    assert batched.at(x, y).loss(flat)[1].item() == pytest.approx(loss.item(), rel=1e-12)
    expected = torch.autograd.grad(loss, list(model.parameters()))
    actual = batched.layout.unflatten(batched.at(x, y).gradient(flat)[1])
    for one, two in zip(actual.values(), expected, strict=True):
        torch.testing.assert_close(one, two, **EXACT)


# --- second derivatives ---------------------------------------------------------------------------------------


class Shared(nn.Module):
    """Not a sequence: a skip connection, a shared layer and a bare parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 3, 3, stride=3)
        self.mix = nn.Conv2d(3, 3, 3, padding=1)
        self.scale = nn.Parameter(torch.rand(3))
        self.out = nn.Linear(3, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        for _ in range(2):
            x = x + torch.sigmoid(self.mix(x))
        return self.out(x.mean((2, 3)) * self.scale)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("route", ["vmap", "loop", "threads"])
def test_a_model_that_is_no_sequence(kind: str, replicas: int, route: Name) -> None:
    models = [fresh(Shared, seed) for seed in range(replicas)]
    batched = Batched(models[0], route=route)
    assert_second_order(batched, models, *labelled(kind, replicas, 4))


def tiny() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 2, 2, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(8, 3, bias=False),
        nn.Sigmoid(),
        nn.Linear(3, 2),
    )


@pytest.mark.parametrize("device", DEVICES)
def test_against_finite_differences(device: str) -> None:
    models = [fresh(tiny, seed) for seed in range(2)]
    batched = Batched(models[0], device=device)
    x, y = labelled("any weights", 2, 2, (1, 2, 2), 2)
    assert torch.autograd.gradcheck(batched.differentiable, (leaf(flattened(batched, models)), leaf(x), leaf(y)))


@pytest.mark.parametrize("device", DEVICES)
def test_a_graph_can_be_used_twice_and_inputs_stay_as_they_are(device: str) -> None:
    models = [fresh(LeNetZhu, seed) for seed in range(2)]
    batched = Batched(models[0], device=device)
    x, y = labelled("probabilities", 2, 3)
    inputs = [leaf(flattened(batched, models)), leaf(x), leaf(y)]
    before = [tensor.detach().clone() for tensor in inputs]
    result = batched.differentiable(*inputs)
    kept = result.detach().clone()
    first = torch.autograd.grad(result.square().sum(), inputs, retain_graph=True)
    other = torch.autograd.grad(result.sum(), inputs, retain_graph=True)
    again = torch.autograd.grad(result.square().sum(), inputs)
    assert torch.equal(result, kept)
    for one, two, three, tensor, old in zip(first, again, other, inputs, before, strict=True):
        assert torch.equal(one, two)
        assert not torch.equal(one, three)
        assert torch.equal(tensor, old)


@pytest.mark.parametrize("device", DEVICES)
def test_one_replica_does_not_see_another(device: str) -> None:
    models = [fresh(SmallCNN, seed) for seed in range(3)]
    batched = Batched(models[0], device=device)
    x, y = labelled("probabilities", 3, 2)
    inputs = [leaf(flattened(batched, models)), leaf(x), leaf(y)]
    parts = torch.autograd.grad(batched.differentiable(*inputs)[1].square().sum(), inputs)
    for part in parts:
        assert not part[[0, 2]].any()
        assert part[1].any()


def test_an_integer_label_is_its_probability_one() -> None:
    models = [fresh(LeNetZhu, seed) for seed in range(2)]
    batched = Batched(models[0])
    x, y = labelled("whole labels", 2, 4)
    params = flattened(batched, models)
    hot = nn.functional.one_hot(y, 10).double()
    assert_close(batched.differentiable(params, x, hot), batched.differentiable(params, x, y), "gradient")
    assert_close(batched.differentiable(params, x, y), batched.at(x, y).gradient(params), "gradient")


def test_fixed_values_take_the_place_of_the_models_own() -> None:
    model = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(6), nn.Linear(6, 4)).double().eval()
    model[2].bias.requires_grad_(False)
    x, y = torch.rand(1, 3, 2, 3, dtype=torch.float64), torch.tensor([[0, 1, 2]])
    other = copy.deepcopy(model)
    fixed = {"1.running_mean": torch.full((6,), 0.5).double(), "2.bias": torch.arange(4).double()}
    other.load_state_dict({**model.state_dict(), **fixed})
    flat = Batched(model).layout.flatten(dict(model.named_parameters())).unsqueeze(0)
    expected = Batched(other).at(x, y).gradient(flat)
    assert_close(Batched(model, fixed=fixed).at(x, y).gradient(flat), expected, "gradient")
    assert not torch.allclose(Batched(model).at(x, y).gradient(flat), expected)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("what", ["gradient", "loss", "per_example", "differentiable"])
def test_a_loss_that_is_not_one_number_is_refused_everywhere(count: int, what: str) -> None:
    def each(outputs: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(outputs, labels, reduction="none")

    batched = Batched(MLP((1, 2, 2), 3, 4), each)
    x, y = torch.rand(count, 5, 1, 2, 2), torch.zeros(count, 5, dtype=torch.int64)
    flat = torch.zeros(count, batched.layout.size)
    again = partial(batched.differentiable, inputs=x, labels=y)
    call = again if what == "differentiable" else getattr(batched.at(x, y), what)
    with pytest.raises(ModelError, match=r"The loss returned shape \(\d,\), expected one number. Return the mean"):
        call(flat)


def test_gradients_of_single_examples_are_taken_behind_frozen_features(generator: torch.Generator) -> None:
    model = FeatureModel(nn.Sequential(nn.Flatten(), nn.Linear(4, 6)), nn.Linear(6, 3))
    batched = Batched(model)
    images, labels = torch.rand(1, 5, 1, 2, 2, generator=generator), torch.tensor([[0, 1, 2, 0, 1]])
    params = torch.randn(1, batched.layout.size, generator=generator)
    each = batched.each(params, images, labels)
    assert torch.allclose(each.mean(1), batched.at(images, labels).gradient(params), atol=1e-6)


def by_name(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A bundled model that is no sequence of known layers, in double precision, with a mini-batch for each replica."""
    if name == "resnet-gn":
        shape, x = (3, 8, 8), torch.rand(3, 2, 3, 8, 8, dtype=torch.float64)
    else:
        shape, x = (6,), torch.randint(1, 20, (3, 2, 6))
        x[..., 4:] = 0  # padding
    vocabulary = None if x.is_floating_point() else 20
    return build(name, shape, 4, vocabulary).double(), x, torch.randint(4, (3, 2))


@pytest.mark.parametrize("name", ["resnet-gn", "transformer", "lstm"])
@pytest.mark.parametrize("route", ["loop", "threads"])
def test_routes_to_a_bundled_model_give_the_same_numbers(name: str, route: Name) -> None:
    model, x, y = by_name(name)
    one, other = Batched(model, route=route), Batched(model, route="vmap")
    own = one.layout.flatten(dict(model.named_parameters()))
    params = own + torch.randn(3, len(own), dtype=torch.float64) / 50
    for task in (
        lambda batched: batched.at(x, y).gradient(params),
        lambda batched: batched.at(x, y).loss(params),
        lambda batched: batched.each(params, x, y),
        lambda batched: batched.outputs(params, x),
    ):
        torch.testing.assert_close(task(one), task(other))
        assert task(one).any()
