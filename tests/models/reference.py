"""What plain autograd gives, one replica at a time, to compare batched gradients with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.models.batched import Batched

DEVICES = ("cpu", "cuda")  # the device a model is built for: "cuda" means PatchConv, which runs on CPU tensors too
TOLERANCE = 1e-10
EXACT: dict[str, Any] = {"rtol": TOLERANCE, "atol": TOLERANCE}
Tensors = dict[str, Tensor]
KINDS = ("whole labels", "probabilities", "any weights")


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
    results = []
    for seed in range(count):
        twin = randomised(copy.deepcopy(model), seed + 1)
        results.append({name: tensor.detach().clone() for name, tensor in twin.named_parameters()})
    return results


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


def batch(shape: tuple[int, ...], replicas: int = 3, size: int = 4, classes: int = 10) -> tuple[Tensor, Tensor]:
    local = torch.Generator().manual_seed(99)
    x = torch.randn(replicas, size, *shape, dtype=torch.float64, generator=local)
    return x, torch.randint(0, classes, (replicas, size), generator=local)


# --- gradients ------------------------------------------------------------------------------------------------


def first_order(model: nn.Module, tensors: Tensors, x: Tensor, y: Tensor) -> tuple[float, Tensor, Tensors]:
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


def assert_first_order(batched: Batched, model: nn.Module, x: Tensor, y: Tensor) -> None:
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
        loss, expected_outputs, grads = first_order(model, tensors, x[r], y[r])
        assert losses[r].item() == pytest.approx(loss, **{"rel": TOLERANCE, "abs": TOLERANCE})
        torch.testing.assert_close(outputs[r], expected_outputs, **EXACT)
        for gradient in results:  # repeated calls: nothing kept from one spoils the next
            actual = batched.layout.unflatten(gradient[r])
            assert list(actual) == list(grads)
            for name, expected in grads.items():
                torch.testing.assert_close(actual[name], expected, **EXACT, msg=lambda m, n=name: f"{n}: {m}")


# --- second derivatives ---------------------------------------------------------------------------------------


def fresh(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().double()


def flattened(batched: Batched, models: list[nn.Module]) -> Tensor:
    return torch.stack([batched.layout.flatten(dict(model.named_parameters())) for model in models])


def leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_(tensor.is_floating_point())


def labelled(kind: str, replicas: int, size: int, shape: tuple[int, ...] = (1, 28, 28), classes: int = 10) -> Any:
    local = torch.Generator().manual_seed(99)
    x = torch.randn(replicas, size, *shape, dtype=torch.float64, generator=local)
    if kind == "whole labels":
        return x, torch.randint(0, classes, (replicas, size), generator=local)
    y = torch.randn(replicas, size, classes, dtype=torch.float64, generator=local)
    return x, y.softmax(-1) if kind == "probabilities" else y


def second_order(model: nn.Module, x: Tensor, y: Tensor, along: Tensors) -> tuple[Tensors, Tensors, Tensor, Any]:
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


def assert_close(actual: Tensor, expected: Tensor, what: str) -> None:
    assert actual.shape == expected.shape, what
    distance, size = float((actual - expected).norm()), float(expected.norm())
    assert size > 0, f"{what}: nothing to compare with"
    assert distance <= TOLERANCE * size, f"{what}: {distance / size:.2g} relative"


def assert_second_order(batched: Batched, models: list[nn.Module], x: Tensor, y: Tensor) -> None:
    params, x, y = leaf(flattened(batched, models)), leaf(x), leaf(y)
    along = torch.randn(params.shape, dtype=params.dtype, generator=torch.Generator().manual_seed(5))
    actual = batched.differentiable(params, x, y)
    wanted = [params, x] + ([y] if y.requires_grad else [])
    second = torch.autograd.grad((actual * along).sum(), wanted)
    for r, model in enumerate(models):
        names = batched.layout.unflatten(along[r])
        first, to_params, to_images, to_labels = second_order(model, x[r], y[r], names)
        gradient, moved = batched.layout.unflatten(actual[r].detach()), batched.layout.unflatten(second[0][r])
        assert list(gradient) == list(first)
        for name, expected in first.items():
            assert_close(gradient[name], expected.detach(), f"gradient of {name} in replica {r}")
        # one number for all parameters: some second derivatives are zero but for rounding
        ends = (torch.cat([part[name].flatten() for name in first]) for part in (moved, to_params))
        assert_close(*ends, f"second derivative to the parameters in replica {r}")
        assert_close(second[1][r], to_images, f"second derivative to the images in replica {r}")
        if to_labels is not None:
            assert_close(second[2][r], to_labels, f"second derivative to the labels in replica {r}")


def assert_replicas_alone(batched: Batched, inputs: Tensor, labels: Tensor) -> None:
    """R sets of parameters at once have the losses and gradients that each has by plain autograd."""
    model = batched.model
    start = batched.layout.flatten(dict(model.named_parameters()))
    params = start + 0.05 * torch.randn(len(inputs), len(start), generator=torch.Generator().manual_seed(3))
    objective = batched.at(inputs, labels)
    together, losses = objective.gradient(params), objective.loss(params)
    for row, flat in enumerate(params):
        model.load_state_dict(batched.layout.unflatten(flat), strict=False)
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(inputs[row]), labels[row])
        loss.backward()
        alone = batched.layout.flatten({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
        assert torch.allclose(losses[row], loss, rtol=1e-5)
        assert float((together[row] - alone).norm() / alone.norm()) < 1e-5


def odd() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 3, 4, stride=3, padding=1, bias=False),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(3 * 9 * 9, 6, bias=False),
        nn.Tanh(),
        nn.Linear(6, 10),
    )
