"""Second derivatives: the batched gradient, differentiated once more, is what plain double autograd gives."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.attack import descent, invgrad
from equipoise.attack.view import Server, View
from equipoise.models import layers
from equipoise.models.batched import Batched
from equipoise.models.bundled import MLP, LeNetZhu, SmallCNN

DEVICES = ("cpu", "cuda")  # the device a model is built for: "cuda" means PatchConv, which runs on CPU tensors too
KINDS = ("whole labels", "probabilities", "any weights")
TOLERANCE = 1e-10
Tensors = dict[str, Tensor]


def odd() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 4, stride=3, padding=1, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(3 * 9 * 9, 6, bias=False),
        nn.Tanh(),
        nn.Linear(6, 10),
    )


def deep() -> nn.Module:
    """Unlike strides and paddings, two convolutions in a row, an activation at the very end."""
    return nn.Sequential(
        nn.Conv2d(1, 2, (3, 2), stride=(2, 3), padding=(2, 1)),
        nn.Conv2d(2, 3, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(3, 2, 2),
        nn.Sigmoid(),
        nn.Flatten(),
        nn.Linear(2 * 6 * 3, 10),
        nn.Tanh(),
    )


class Residual(nn.Module):
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


def fresh(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().double()


def flattened(batched: Batched, models: list[nn.Module]) -> Tensor:
    return torch.stack([batched.layout.flatten(dict(model.named_parameters())) for model in models])


def some_batch(kind: str, replicas: int, size: int, shape: tuple[int, ...] = (1, 28, 28), classes: int = 10) -> Any:
    local = torch.Generator().manual_seed(99)
    x = torch.randn(replicas, size, *shape, dtype=torch.float64, generator=local)
    if kind == "whole labels":
        return x, torch.randint(0, classes, (replicas, size), generator=local)
    y = torch.randn(replicas, size, classes, dtype=torch.float64, generator=local)
    return x, y.softmax(-1) if kind == "probabilities" else y


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.is_floating_point())


def by_autograd(model: nn.Module, x: Tensor, y: Tensor, along: Tensors) -> tuple[Tensors, Tensors, Tensor, Any]:
    """Of one replica: the gradient, and that of <gradient, along> to the parameters, the images and the labels."""
    x, y = leaf(x), leaf(y)
    parameters = dict(model.named_parameters())
    loss = nn.functional.cross_entropy(model(x), y)
    first = dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values()), create_graph=True), strict=True))
    inner = torch.stack([(first[name] * along[name]).sum() for name in parameters]).sum()
    wanted = [*parameters.values(), x] + ([y] if y.requires_grad else [])
    second = torch.autograd.grad(inner, wanted, allow_unused=True, materialize_grads=True)
    count = len(parameters)
    labels = second[count + 1] if y.requires_grad else None
    return first, dict(zip(parameters, second, strict=False)), second[count], labels


def assert_close(found: Tensor, expected: Tensor, what: str) -> None:
    assert found.shape == expected.shape, what
    distance, size = float((found - expected).norm()), float(expected.norm())
    assert size > 0, f"{what}: nothing to compare with"
    assert distance <= TOLERANCE * size, f"{what}: {distance / size:.2g} relative"


def assert_equal_to_autograd(batched: Batched, models: list[nn.Module], x: Tensor, y: Tensor) -> None:
    params, x, y = leaf(flattened(batched, models)), leaf(x), leaf(y)
    along = torch.randn(params.shape, dtype=params.dtype, generator=torch.Generator().manual_seed(5))
    found = batched.differentiable(params, x, y)
    wanted = [params, x] + ([y] if y.requires_grad else [])
    second = torch.autograd.grad((found * along).sum(), wanted)
    for r, model in enumerate(models):
        names = batched.layout.unflatten(along[r])
        first, to_params, to_images, to_labels = by_autograd(model, x[r], y[r], names)
        gradient, moved = batched.layout.unflatten(found[r].detach()), batched.layout.unflatten(second[0][r])
        assert list(gradient) == list(first)
        for name, expected in first.items():
            assert_close(gradient[name], expected.detach(), f"gradient of {name} in replica {r}")
        # one number for all parameters: some second derivatives are zero but for rounding
        ends = (torch.cat([part[name].flatten() for name in first]) for part in (moved, to_params))
        assert_close(*ends, f"second derivative to the parameters in replica {r}")
        assert_close(second[1][r], to_images, f"second derivative to the images in replica {r}")
        if to_labels is not None:
            assert_close(second[2][r], to_labels, f"second derivative to the labels in replica {r}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [LeNetZhu, MLP, SmallCNN, odd, deep])
@pytest.mark.parametrize("replicas", [1, 3])
def test_sequences_of_known_layers(make: Callable[[], nn.Module], device: str, kind: str, replicas: int) -> None:
    models = [fresh(make, seed) for seed in range(replicas)]
    batched = Batched(models[0], device=device)
    assert batched._layers is not None
    convolutions = [layer for layer in batched._layers if isinstance(layer, layers.Conv)]
    expected = layers.GroupedConv if device == "cpu" else layers.PatchConv
    assert all(type(layer) is expected for layer in convolutions)
    assert_equal_to_autograd(batched, models, *some_batch(kind, replicas, 4))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [LeNetZhu, MLP, SmallCNN, odd, deep])
@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_batches_of_one_image(make: Callable[[], nn.Module], device: str, replicas: int) -> None:
    models = [fresh(make, seed) for seed in range(replicas)]
    batched = Batched(models[0], device=device)
    assert_equal_to_autograd(batched, models, *some_batch("whole labels", replicas, 1))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("replicas", [1, 3])
def test_a_model_that_is_no_sequence(kind: str, replicas: int) -> None:
    models = [fresh(Residual, seed) for seed in range(replicas)]
    batched = Batched(models[0])
    assert batched._layers is None
    assert_equal_to_autograd(batched, models, *some_batch(kind, replicas, 4))


@pytest.mark.parametrize("device", DEVICES)
def test_tables_instead_of_images(device: str) -> None:
    models = [
        fresh(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 10)), s) for s in (0, 1)
    ]
    assert_equal_to_autograd(Batched(models[0], device=device), models, *some_batch("any weights", 2, 3, (6,)))


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
    x, y = some_batch("any weights", 2, 2, (1, 2, 2), 2)
    assert torch.autograd.gradcheck(batched.differentiable, (leaf(flattened(batched, models)), leaf(x), leaf(y)))


@pytest.mark.parametrize("device", DEVICES)
def test_a_graph_can_be_used_twice_and_inputs_stay_as_they_are(device: str) -> None:
    models = [fresh(LeNetZhu, seed) for seed in range(2)]
    batched = Batched(models[0], device=device)
    x, y = some_batch("probabilities", 2, 3)
    inputs = [leaf(flattened(batched, models)), leaf(x), leaf(y)]
    before = [tensor.detach().clone() for tensor in inputs]
    found = batched.differentiable(*inputs)
    kept = found.detach().clone()
    first = torch.autograd.grad(found.square().sum(), inputs, retain_graph=True)
    other = torch.autograd.grad(found.sum(), inputs, retain_graph=True)
    again = torch.autograd.grad(found.square().sum(), inputs)
    assert torch.equal(found, kept)
    for one, two, three, tensor, old in zip(first, again, other, inputs, before, strict=True):
        assert torch.equal(one, two)
        assert not torch.equal(one, three)
        assert torch.equal(tensor, old)


@pytest.mark.parametrize("device", DEVICES)
def test_one_replica_does_not_see_another(device: str) -> None:
    models = [fresh(SmallCNN, seed) for seed in range(3)]
    batched = Batched(models[0], device=device)
    x, y = some_batch("probabilities", 3, 2)
    inputs = [leaf(flattened(batched, models)), leaf(x), leaf(y)]
    parts = torch.autograd.grad(batched.differentiable(*inputs)[1].square().sum(), inputs)
    for part in parts:
        assert not part[[0, 2]].any()
        assert part[1].any()


def test_an_integer_label_is_its_probability_one() -> None:
    models = [fresh(LeNetZhu, seed) for seed in range(2)]
    batched = Batched(models[0])
    x, y = some_batch("whole labels", 2, 4)
    params = flattened(batched, models)
    hot = nn.functional.one_hot(y, 10).double()
    assert_close(batched.differentiable(params, x, hot), batched.differentiable(params, x, y), "gradient")
    assert_close(batched.differentiable(params, x, y), batched.at(x, y).gradient(params), "gradient")


def plain_cost(model: nn.Module, x: Tensor, y: Tensor, target: Tensors, weight: float) -> Tensor:
    """1 - cosine over all parameters, and the total variation, written out for one release."""
    parameters = dict(model.named_parameters())
    loss = nn.functional.cross_entropy(model(x), y)
    found = torch.autograd.grad(loss, list(parameters.values()), create_graph=True)
    inner = sum((one * target[name]).sum() for name, one in zip(parameters, found, strict=True))
    sizes = [sum(t.square().sum() for t in tensors) ** 0.5 for tensors in (found, target.values())]
    down, right = x.diff(dim=-2).abs().mean(), x.diff(dim=-1).abs().mean()
    return 1 - inner / (sizes[0] * sizes[1]) + weight * (down + right)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("make", [LeNetZhu, SmallCNN, odd])
def test_the_cost_of_inverting_gradients(make: Callable[[], nn.Module], device: str) -> None:
    models = [fresh(make, seed) for seed in range(3)]
    batched = Batched(copy.deepcopy(models[0]), device=device)
    truth, y = some_batch("whole labels", 3, 4)
    previous = flattened(batched, models)
    released = previous - 0.25 * batched.at(truth, y).gradient(previous)
    server, view = Server(batched, (1, 28, 28), 10, 4, eta=0.25), View(previous, released, y)
    guess = leaf(truth.flip(1) + 0.3 * truth.roll(3, -1))
    cost = partial(invgrad._cosine, server)(guess, y, view) + 0.02 * descent.total_variation(guess)
    (found,) = torch.autograd.grad(cost.sum(), guess)
    for r, model in enumerate(models):
        target = batched.layout.unflatten((previous[r] - released[r]) / 0.25)
        x = leaf(guess[r])
        expected = plain_cost(model, x, y[r], target, 0.02)
        assert float(cost[r].detach()) == pytest.approx(float(expected.detach()), rel=TOLERANCE)
        assert_close(found[r], torch.autograd.grad(expected, x)[0], f"release {r}")
