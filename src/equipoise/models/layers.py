"""Hand-written batched layers: forward and backward for R sets of parameters at once.

``batched.py`` uses these for models that are a plain sequence of the layers below and of the convolutions in
``convolution.py``, and ``torch.func`` for every other model. The speed comes from four choices, none visible outside
these two files:

* on CPU a convolution is one grouped convolution with the replicas as groups, channels last: the one
  memory order in which the library's grouped backward pass is fast;
* on GPU it is one matrix product per replica on patches copied in runs of ``kernel * channels``
  contiguous numbers, and the input gradient is a stride-1 convolution with one output per stride phase:
  no scatter, and no grouped kernel, which are slow there;
* the part of the first layer that does not depend on the parameters is made once per mini-batch
  (``prepare``), not once per gradient: Algorithm 2 asks for M gradients on the same mini-batch;
* activations and their gradients are computed in place.

Activations travel as ``[R, C, B, H, W]`` (images, in whichever memory order) or ``[R, B, F]`` (features).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from .convolution import Conv, GroupedConv, PatchConv
from .layout import Layout, Slot, add_slot


class Layer(Protocol):
    """One step of the sequence. ``forward`` returns its output and what ``backward`` needs.

    ``backward`` writes the gradient of its own parameters into ``grad`` and returns that of its input
    (the first layer of a model returns ``dy`` unchanged: nobody asks for the gradient of the images).
    """

    def forward(self, params: Tensor, x: Any) -> tuple[Tensor, Any]: ...

    def backward(self, params: Tensor, kept: Any, dy: Tensor, grad: Tensor, first: bool) -> Tensor: ...

    def each(self, params: Tensor, kept: Any, dy: Tensor, grad: Tensor, first: bool) -> Tensor:
        """``backward`` with the gradient of every example apart: ``grad`` is ``[R*B, P]``."""
        ...

    def tangent(self, params: Tensor, along: Tensor, kept: Any, dx: Tensor | None) -> Tensor | None:
        """The output's rate of change when the parameters move ``along`` and the input moves ``dx`` (None: not)."""
        ...

    def pull(self, params: Tensor, along: Tensor, kept: Any, dx: Tensor | None, up: Any, grad: Tensor | None) -> Tensor:
        """Backward of ``forward`` and ``tangent`` together: the input's adjoint from ``up``, and the parameters'.

        ``up`` is (adjoint of the output, adjoint of its tangent).
        """
        ...


class Linear:
    """``nn.Linear`` on features."""

    def __init__(self, weight: Slot, bias: Slot | None):
        self.weight, self.bias = weight, bias

    def forward(self, params: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        weight = self.weight.take(params).transpose(1, 2)  # [R, I, O]
        if self.bias is None:
            return torch.bmm(x, weight), x
        return torch.baddbmm(self.bias.take(params).unsqueeze(1), x, weight), x

    def backward(self, params: Tensor, kept: Tensor, dy: Tensor, grad: Tensor, first: bool) -> Tensor:
        self.weight.take(grad).copy_(torch.bmm(dy.transpose(1, 2), kept))
        if self.bias is not None:
            self.bias.take(grad).copy_(dy.sum(dim=1))
        return dy if first else torch.bmm(dy, self.weight.take(params))

    def each(self, params: Tensor, kept: Tensor, dy: Tensor, grad: Tensor, first: bool) -> Tensor:
        slopes = dy.flatten(0, 1)
        torch.mul(slopes.unsqueeze(2), kept.flatten(0, 1).unsqueeze(1), out=self.weight.take(grad))
        if self.bias is not None:
            self.bias.take(grad).copy_(slopes)
        return dy if first else torch.bmm(dy, self.weight.take(params))

    def tangent(self, params: Tensor, along: Tensor, kept: Tensor, dx: Tensor | None) -> Tensor:
        y = self.forward(along, kept)[0]
        return y if dx is None else torch.baddbmm(y, dx, self.weight.take(params).transpose(1, 2))

    def pull(
        self, params: Tensor, along: Tensor, kept: Tensor, dx: Tensor | None, up: Any, grad: Tensor | None
    ) -> Tensor:
        first, second = up
        if grad is not None:
            self.backward(params, kept, first, grad, True)
            if dx is not None:
                self.weight.take(grad).add_(torch.bmm(second.transpose(1, 2), dx))
        back = torch.bmm(first, self.weight.take(params))
        return torch.baddbmm(back, second, self.weight.take(along))


class Flatten:
    """``nn.Flatten``: images ``[R, C, B, H, W]`` -> features ``[R, B, C*H*W]``."""

    def forward(self, params: Tensor, x: Tensor) -> tuple[Tensor, torch.Size]:
        return (x.transpose(1, 2).flatten(2) if x.dim() == 5 else x), x.shape

    def backward(self, params: Tensor, kept: torch.Size, dy: Tensor, grad: Tensor, first: bool) -> Tensor:
        if len(kept) == 3:
            return dy
        return dy.view(kept[0], kept[2], kept[1], *kept[3:]).transpose(1, 2)

    each = backward

    def tangent(self, params: Tensor, along: Tensor, kept: torch.Size, dx: Tensor | None) -> Tensor | None:
        return None if dx is None else self.forward(params, dx)[0]

    def pull(
        self, params: Tensor, along: Tensor, kept: torch.Size, dx: Tensor | None, up: Any, grad: Tensor | None
    ) -> Tensor:
        return self.backward(params, kept, up[0], params, False)


class Activation:
    """An elementwise function whose derivative follows from its output. Works in place on its input.

    ``build`` puts one only behind a convolution or a linear layer, whose output nobody else needs.
    """

    def __init__(
        self, function: Callable[[Tensor], Tensor], slope: Callable[..., Tensor], bend: Callable[[Tensor], Tensor]
    ):
        self.function, self.slope, self.bend = function, slope, bend

    def forward(self, params: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.function(x)
        return y, y

    def backward(self, params: Tensor, kept: Tensor, dy: Tensor, grad: Tensor, first: bool) -> Tensor:
        same = dy.stride() == kept.stride()  # in place where that is also the memory order to keep
        return self.slope(dy, kept, grad_input=dy if same else torch.empty_like(kept))

    each = backward

    def tangent(self, params: Tensor, along: Tensor, kept: Tensor, dx: Tensor | None) -> Tensor:
        assert dx is not None  # a layer with parameters stands before
        return self.slope(dx, kept, grad_input=torch.empty_like(kept))

    def pull(
        self, params: Tensor, along: Tensor, kept: Tensor, dx: Tensor | None, up: Any, grad: Tensor | None
    ) -> Tensor:
        # `up` holds the adjoint of the tangent at the input, slope included: f'' = bend * f' needs no more
        assert dx is not None
        back = self.slope(up[0], kept, grad_input=torch.empty_like(kept))
        return back.addcmul_(self.bend(kept), dx * up[1])


def _relu_slope(dy: Tensor, y: Tensor, grad_input: Tensor) -> Tensor:
    slope: Tensor = torch.ops.aten.threshold_backward(dy, y, 0, grad_input=grad_input)
    return slope


ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[..., Tensor], Callable[..., Tensor]]] = {
    # the function in place, its backward pass, and f''/f' as a function of the output
    nn.Sigmoid: (torch.sigmoid_, torch.ops.aten.sigmoid_backward, lambda y: 1 - 2 * y),
    nn.Tanh: (torch.tanh_, torch.ops.aten.tanh_backward, lambda y: -2 * y),
    nn.ReLU: (torch.relu_, _relu_slope, torch.zeros_like),
}


def leaves(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """The layers of a (nested) ``nn.Sequential`` in order."""
    for name, child in model._modules.items():  # named_children() leaves out a module that occurs twice
        if child is None:
            continue
        if isinstance(child, nn.Sequential) and type(child).forward is nn.Sequential.forward:
            yield from leaves(child, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", child


def build(model: nn.Module, device: torch.device) -> tuple[list[Layer], Layout] | None:
    """The model as batched layers and their layout, or None if it is not convolutions, Flatten, linear layers.

    Activations may stand behind a convolution or a linear layer. Hooks, shared and frozen parameters are not known
    here either.
    """
    if not isinstance(model, nn.Sequential) or type(model).forward is not nn.Sequential.forward:
        return None
    tensors = list(model.named_parameters(remove_duplicate=False))
    if len(tensors) != len(list(model.parameters())) or not all(p.requires_grad for _, p in tensors):
        return None
    if any(part._forward_hooks or part._forward_pre_hooks for part in model.modules()):
        return None
    layers: list[Layer] = []
    slots: list[Slot] = []
    conv = GroupedConv if device.type == "cpu" else PatchConv
    flat = False
    for name, leaf in leaves(model):
        bias = getattr(leaf, "bias", None)
        if type(leaf) is nn.Conv2d and not flat and _plain(leaf):
            weight = add_slot(slots, f"{name}.weight", leaf.weight, (0, 2, 3, 1))
            layers.append(conv(leaf, weight, None if bias is None else add_slot(slots, f"{name}.bias", bias, (0,))))
        elif type(leaf) is nn.Linear and flat:
            weight = add_slot(slots, f"{name}.weight", leaf.weight, (0, 1))
            layers.append(Linear(weight, None if bias is None else add_slot(slots, f"{name}.bias", bias, (0,))))
        elif type(leaf) is nn.Flatten and (leaf.start_dim, leaf.end_dim) == (1, -1) and not flat:
            layers.append(Flatten())
            flat = True
        elif type(leaf) in ACTIVATIONS and layers and isinstance(layers[-1], Conv | Linear):
            layers.append(Activation(*ACTIVATIONS[type(leaf)]))
        else:
            return None
    return (layers, Layout(slots)) if slots and flat else None


def _plain(leaf: nn.Conv2d) -> bool:
    known = leaf.groups == 1 and leaf.dilation == (1, 1) and leaf.padding_mode == "zeros"
    return known and not isinstance(leaf.padding, str)


def forward(layers: list[Layer], params: Tensor, x: Any) -> tuple[Tensor, list[Any]]:
    """Output of the sequence and what every layer kept for its backward pass."""
    kept = []
    for layer in layers:
        x, keep = layer.forward(params, x)
        kept.append(keep)
    return x, kept


def backward(
    layers: list[Layer],
    params: Tensor,
    kept: list[Any],
    dy: Tensor,
    out: Tensor | None = None,
    seen: list[Tensor] | None = None,
) -> Tensor:
    """Gradient ``[R, P]`` for the output gradient ``dy``; ``seen`` collects every layer's output gradient."""
    grad = torch.empty_like(params) if out is None else out
    for index in range(len(layers) - 1, -1, -1):
        if seen is not None:
            seen.insert(0, dy)
        dy = layers[index].backward(params, kept[index], dy, grad, first=index == 0)
    return grad


def each(layers: list[Layer], params: Tensor, kept: list[Any], dy: Tensor) -> Tensor:
    """The gradients of every example by itself, ``[R*B, P]``, for the output gradient ``dy`` ``[R, B, classes]``."""
    grad = params.new_empty(dy.shape[0] * dy.shape[1], params.shape[1])
    for index in range(len(layers) - 1, -1, -1):
        dy = layers[index].each(params, kept[index], dy, grad, first=index == 0)
    return grad


def tangent(
    layers: list[Layer], params: Tensor, along: Tensor, kept: list[Any]
) -> tuple[Tensor | None, list[Tensor | None]]:
    """The output's rate of change when the parameters move ``along``, and every layer's input's."""
    dx: Tensor | None = None
    inputs = []
    for layer, keep in zip(layers, kept, strict=True):
        inputs.append(dx)
        dx = layer.tangent(params, along, keep, dx)
    return dx, inputs


def pull(
    layers: list[Layer],
    params: Tensor,
    along: Tensor,
    kept: list[Any],
    inputs: list[Tensor | None],
    slopes: list[Tensor],
    up: Tensor,
    *,
    grad: Tensor | None = None,
) -> Tensor:
    """The gradient of <gradient(params), along> with respect to the images, and into ``grad`` to the parameters.

    ``inputs`` come from ``tangent``, ``slopes`` are what ``backward`` has ``seen``, ``up`` is the adjoint of the
    output. An activation needs the slope at its input, which is the output of the layer before it.
    """
    for index in range(len(layers) - 1, -1, -1):
        slope = slopes[index - 1 if isinstance(layers[index], Activation) else index]
        up = layers[index].pull(params, along, kept[index], inputs[index], (up, slope), grad)
    return up
