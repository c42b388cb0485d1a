"""Both kinds of batched convolution against the library's own, replica by replica."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from equipoise.models.batched import Batched
from equipoise.models.convolution import FEW, Conv, GroupedConv, PatchConv, channels_last, patches
from equipoise.models.layout import Layout, Slot, add_slot
from tests.models.reference import DEVICES, EXACT, assert_first_order, batch, randomised

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
    assert batched.route == "layers", "nested sequences are known"
    assert_first_order(batched, model, *batch((2, 7, 9), classes=4))


# --- each kind by itself -----------------------------------------------------------------------------------

R, B, H, W = 3, 2, 7, 9
SHAPES = {
    "square": dict(kernel_size=3),
    "strides that leave a rest": dict(kernel_size=(3, 2), stride=(2, 3), padding=(1, 2)),
    "fewer taps than strides": dict(kernel_size=1, stride=3),
    "more padding than kernel": dict(kernel_size=2, padding=3, bias=False),
}


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def numbers_like(tensor: Tensor, seed: int) -> Tensor:
    """In the memory order of the tensor: a layer gets what the layer behind it made."""
    return torch.empty_like(tensor).copy_(numbers(*tensor.shape, seed=seed))


class Case:
    """A convolution, three sets of its parameters, and images for each."""

    def __init__(self, kind: type[Conv], shape: str, channels: int, batch: int = B) -> None:
        self.module = nn.Conv2d(channels, 4, **SHAPES[shape], dtype=torch.float64)
        slots: list[Slot] = []
        weight = add_slot(slots, "weight", self.module.weight, (0, 2, 3, 1))
        bias = None if self.module.bias is None else add_slot(slots, "bias", self.module.bias, (0,))
        self.layer: Any = kind(self.module, weight, bias)
        self.layout = Layout(slots)
        self.params, self.along = (numbers(R, self.layout.size, seed=seed) for seed in (1, 2))
        # in the memory order in which a grouped convolution before it would hand them over
        self.x, self.dx = (numbers(batch, H, W, R, channels, seed=seed).permute(3, 4, 0, 1, 2) for seed in (3, 4))

    def plain(self, r: int, params: Tensor, x: Tensor) -> Tensor:
        """One replica by the library: ``[C, B, H, W]`` -> ``[O, B, oh, ow]``."""
        tensors, module = self.layout.unflatten(params[r]), self.module
        padding = (int(module.padding[0]), int(module.padding[1]))
        y = torch.conv2d(x.transpose(0, 1), tensors["weight"], tensors.get("bias"), module.stride, padding)
        return y.transpose(0, 1)


every_case = pytest.mark.parametrize("shape", SHAPES)
both_kinds = pytest.mark.parametrize("kind", [GroupedConv, PatchConv])
few_and_many = pytest.mark.parametrize("channels", [1, FEW, FEW + 2])


@every_case
@both_kinds
@few_and_many
@pytest.mark.parametrize("batch", [1, B])
def test_forward_and_backward_are_the_librarys(kind: type[Conv], shape: str, channels: int, batch: int) -> None:
    case = Case(kind, shape, channels, batch)
    y, kept = case.layer.forward(case.params, case.x)
    dy = numbers_like(y, 5)
    grad = torch.full_like(case.params, float("nan"))
    dx = case.layer.backward(case.params, kept, dy, grad, False)
    for r in range(R):
        params, x = case.params.clone().requires_grad_(), case.x[r].clone().requires_grad_()
        expected = case.plain(r, params, x)
        torch.testing.assert_close(y[r], expected.detach(), **EXACT)
        to_params, to_x = torch.autograd.grad(expected, (params, x), dy[r])
        torch.testing.assert_close(grad[r], to_params[r], **EXACT)
        torch.testing.assert_close(dx[r], to_x, **EXACT)
    assert case.layer.backward(case.params, kept, dy, grad, True) is dy, "nobody asks the first layer"


@every_case
@both_kinds
@few_and_many
@pytest.mark.parametrize("batch", [1, B])
def test_tangent_and_pull_are_the_librarys(kind: type[Conv], shape: str, channels: int, batch: int) -> None:
    case = Case(kind, shape, channels, batch)
    y, kept = case.layer.forward(case.params, case.x)
    moved = case.layer.tangent(case.params, case.along, kept, case.dx)
    still = case.layer.tangent(case.params, case.along, kept, None)
    first, second = numbers_like(y, 5), numbers_like(y, 6)
    grad = torch.full_like(case.params, float("nan"))
    back = case.layer.pull(case.params, case.along, kept, case.dx, (first, second), grad)
    for r in range(R):
        params, x = case.params.clone().requires_grad_(), case.x[r].clone().requires_grad_()
        output, from_params = case.plain(r, params, x), case.plain(r, case.along, x)
        tangent = from_params + case.plain(r, params, case.dx[r]) - case.plain(r, params, torch.zeros_like(x))
        torch.testing.assert_close(still[r], from_params.detach(), **EXACT)
        torch.testing.assert_close(moved[r], tangent.detach(), **EXACT)
        to_params, to_x = torch.autograd.grad((output, tangent), (params, x), (first[r], second[r]))
        torch.testing.assert_close(grad[r], to_params[r], **EXACT)
        torch.testing.assert_close(back[r], to_x, **EXACT)


def test_patches_are_those_of_unfold() -> None:
    x = numbers(R, B, H, W, 2)
    actual = patches(x, (3, 2), (2, 3))
    for r in range(R):
        expected = nn.functional.unfold(x[r].permute(0, 3, 1, 2), (3, 2), stride=(2, 3))  # [B, C*kh*kw, N]
        by_tap = expected.view(B, 2, 6, -1).permute(0, 3, 2, 1).reshape(-1, 12)
        assert torch.equal(actual[r], by_tap)


@pytest.mark.parametrize(
    ("corner", "size", "expected"),
    [
        ((0, 0), (2, 2), [[1.0, 2.0], [3.0, 4.0]]),
        ((1, 0), (3, 3), [[0.0, 0.0, 0.0], [1.0, 2.0, 0.0], [3.0, 4.0, 0.0]]),
        ((-1, 0), (2, 2), [[3.0, 4.0], [0.0, 0.0]]),
        ((0, 1), (1, 2), [[0.0, 1.0]]),
    ],
)
def test_images_are_placed_and_cropped(
    corner: tuple[int, int], size: tuple[int, int], expected: list[list[float]]
) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]).view(1, 1, 1, 2, 2)
    assert channels_last(x, corner, size).squeeze().tolist() == torch.tensor(expected).squeeze().tolist()
