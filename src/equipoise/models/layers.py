"""Hand-written batched layers: forward and backward for R sets of parameters at once.

``gradients.py`` uses these for models that are a plain sequence of the layers below, and ``torch.func``
for every other model. The speed comes from four choices, none visible outside this file:

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
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Pair = tuple[int, int]


@dataclass(frozen=True)
class Slot:
    """Where one tensor of the module lives in the flat vector, and in which axis order."""

    name: str
    shape: tuple[int, ...]
    start: int
    axes: tuple[int, ...]  # flat order = tensor.permute(axes)
    stop: int = field(init=False)
    _permuted: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", self.start + torch.Size(self.shape).numel())
        object.__setattr__(self, "_permuted", tuple(self.shape[a] for a in self.axes))

    def take(self, flat: Tensor) -> Tensor:
        """The slot's part of ``[R, P]`` as ``[R, *permuted shape]``, without a copy."""
        return flat[:, self.start : self.stop].view(flat.shape[0], *self._permuted)


class Layer(Protocol):
    """One step of the sequence. ``forward`` returns its output and what ``backward`` needs.

    ``backward`` writes the gradient of its own parameters into ``grad`` and returns that of its input
    (the first layer of a model returns ``dy`` unchanged: nobody asks for the gradient of the images).
    """

    def forward(self, params: Tensor, x: Any) -> tuple[Tensor, Any]: ...

    def backward(self, params: Tensor, kept: Any, dy: Tensor, grad: Tensor, first: bool) -> Tensor: ...

    def tangent(self, params: Tensor, along: Tensor, kept: Any, dx: Tensor | None) -> Tensor | None:
        """The output's rate of change when the parameters move ``along`` and the input moves ``dx`` (None: not)."""
        ...

    def pull(self, params: Tensor, along: Tensor, kept: Any, dx: Tensor | None, up: Any, grad: Tensor | None) -> Tensor:
        """Backward of ``forward`` and ``tangent`` together: the input's adjoint from ``up``, and the parameters'.

        ``up`` is (adjoint of the output, adjoint of its tangent).
        """
        ...


class Conv:
    """``nn.Conv2d`` with groups = dilation = 1 and zero padding. Weights are stored ``[O, kh, kw, C]``."""

    def __init__(self, module: nn.Conv2d, weight: Slot, bias: Slot | None):
        assert not isinstance(module.padding, str)
        self.weight, self.bias = weight, bias
        self.kernel: Pair = (module.kernel_size[0], module.kernel_size[1])
        self.stride: Pair = (module.stride[0], module.stride[1])
        self.padding: Pair = (module.padding[0], module.padding[1])
        self.out_channels, self.in_channels = module.out_channels, module.in_channels


FEW = 3
"""Input channels up to which a grouped convolution's input gradient is summed tap by tap."""


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """Two ``[R, C, B, H, W]`` as one grouped image ``[B, R*2*C, H, W]``, channels last, in a single copy."""
    both = torch.cat([part.permute(2, 3, 4, 0, 1) for part in (first, second)], dim=-1)
    return both.flatten(3).permute(0, 3, 1, 2)


class GroupedConv(Conv):
    """CPU: the replicas are the groups of one convolution."""

    def prepare(self, x: Tensor) -> Tensor:
        r, c, b, h, w = x.shape
        grouped = x.permute(2, 0, 1, 3, 4).reshape(b, r * c, h, w)
        if b == 1:  # any stride passes for contiguous there, and the grouped float64 kernel then reads the wrong ones
            return grouped.clone(memory_format=torch.channels_last)
        return grouped.contiguous(memory_format=torch.channels_last)

    def _split(self, x: Tensor, replicas: int) -> Tensor:
        b, c, h, w = x.shape
        return x.view(b, replicas, c // replicas, h, w).permute(1, 2, 0, 3, 4)

    def forward(self, params: Tensor, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        r = params.shape[0]
        x = x if x.dim() == 4 else self.prepare(x)
        bias = None if self.bias is None else self.bias.take(params).flatten()
        weight = self.weight.take(params).flatten(0, 1).permute(0, 3, 1, 2)  # [R*O, C, kh, kw]
        y = torch.conv2d(x, weight, bias, self.stride, self.padding, groups=r)
        return self._split(y, r), (x, weight)

    def backward(self, params: Tensor, kept: Any, dy: Tensor, grad: Tensor, first: bool) -> Tensor:
        r, (x, weight) = params.shape[0], kept
        dx, dw, db = torch.ops.aten.convolution_backward(
            self.prepare(dy), x, weight, (r * self.out_channels,), self.stride, self.padding,
            (1, 1), False, (0, 0), r, (not first, True, self.bias is not None),
        )  # fmt: skip
        self.weight.take(grad).copy_(dw.view(r, self.out_channels, *dw.shape[1:]).permute(0, 1, 3, 4, 2))
        if self.bias is not None:
            self.bias.take(grad).copy_(db.view(r, self.out_channels))
        return dy if first else self._split(dx, r)

    def tangent(self, params: Tensor, along: Tensor, kept: Any, dx: Tensor | None) -> Tensor:
        r, x = params.shape[0], kept[0]
        turned = self.weight.take(along)
        bias = None if self.bias is None else self.bias.take(along).flatten()
        if dx is not None:  # W dx + V x as one convolution of twice the channels
            x, turned = _joined(self._split(x, r), dx), torch.cat([turned, self.weight.take(params)], dim=-1)
        return self._split(
            torch.conv2d(x, turned.flatten(0, 1).permute(0, 3, 1, 2), bias, self.stride, self.padding, groups=r), r
        )

    def pull(self, params: Tensor, along: Tensor, kept: Any, dx: Tensor | None, up: Any, grad: Tensor | None) -> Tensor:
        r, (x, weight), (first, second) = params.shape[0], kept, up
        if self.in_channels <= FEW:
            back = self._scattered(params, along, x.shape, first, second)
        else:
            weights = torch.cat([self.weight.take(params), self.weight.take(along)], dim=1)  # [R, 2*O, kh, kw, C]
            grouped = torch.ops.aten.convolution_backward(
                _joined(first, second), x, weights.flatten(0, 1).permute(0, 3, 1, 2), None,
                self.stride, self.padding, (1, 1), False, (0, 0), r, (True, False, False),
            )[0]  # fmt: skip
            back = self._split(grouped, r)
        if grad is not None:
            self.backward(params, kept, first, grad, True)
            if dx is not None:
                moved = torch.empty_like(grad)
                self.backward(params, (self.prepare(dx), weight), second, moved, True)
                self.weight.take(grad).add_(self.weight.take(moved))
        return back

    def _scattered(self, params: Tensor, along: Tensor, shape: torch.Size, first: Tensor, second: Tensor) -> Tensor:
        """W^T first + V^T second for few input channels, where the library's grouped kernel is slow."""
        (kh, kw), (sh, sw), (ph, pw), c = self.kernel, self.stride, self.padding, self.in_channels
        r, _, b, oh, ow = first.shape
        weights = (self.weight.take(flat).flatten(2).transpose(1, 2) for flat in (params, along))  # [R, kh*kw*C, O]
        taps = torch.bmm(next(weights), first.flatten(2)).baddbmm_(next(weights), second.flatten(2))
        taps = taps.view(r, kh, kw, c, b, oh, ow)
        h, w = shape[2:]
        out = first.new_zeros(r, c, b, h + 2 * ph + sh, w + 2 * pw + sw)
        for i in range(kh):
            for j in range(kw):
                out[..., i : i + sh * oh : sh, j : j + sw * ow : sw] += taps[:, i, j]
        return out[..., ph : ph + h, pw : pw + w]


def patches(x: Tensor, kernel: Pair, stride: Pair) -> Tensor:
    """``[R, B, H, W, C]`` (padded, contiguous) -> ``[R, B*oh*ow, kh*kw*C]``."""
    r, b, h, w, c = x.shape
    (kh, kw), (sh, sw) = kernel, stride
    oh, ow = (h - kh) // sh + 1, (w - kw) // sw + 1
    steps = (x.stride(0), x.stride(1), sh * w * c, sw * c, w * c, 1)
    return x.as_strided((r, b, oh, ow, kh, kw * c), steps).reshape(r, b * oh * ow, kh * kw * c)


def channels_last(x: Tensor, corner: Pair, size: Pair) -> Tensor:
    """``[R, C, B, H, W]`` -> zeros ``[R, B, *size, C]`` with the image's corner at ``corner``.

    A negative corner crops; what lies outside ``size`` is dropped.
    """
    r, c, b, h, w = x.shape
    out = x.new_zeros(r, b, *size, c)
    top, lead = corner
    rows = slice(max(top, 0), min(top + h, size[0]))
    cols = slice(max(lead, 0), min(lead + w, size[1]))
    inner = x[..., rows.start - top : rows.stop - top, cols.start - lead : cols.stop - lead]
    out[:, :, rows, cols] = inner.permute(0, 2, 3, 4, 1)
    return out


class PatchConv(Conv):
    """GPU: one matrix product per replica on the patches of its input."""

    def __init__(self, module: nn.Conv2d, weight: Slot, bias: Slot | None):
        super().__init__(module, weight, bias)
        self.taps: Pair = (-(-self.kernel[0] // self.stride[0]), -(-self.kernel[1] // self.stride[1]))
        self._index, self._mask = self._phase_index()

    def prepare(self, x: Tensor) -> tuple[Tensor, Pair]:
        h, w = x.shape[3:]
        size = (h + 2 * self.padding[0], w + 2 * self.padding[1])
        return patches(channels_last(x, self.padding, size), self.kernel, self.stride), (h, w)

    def forward(self, params: Tensor, x: Any) -> tuple[Tensor, Any]:
        matrix, (h, w) = x if isinstance(x, tuple) else self.prepare(x)  # [R, N, kh*kw*C]
        weight, columns = self.weight.take(params).flatten(2), matrix.transpose(1, 2)
        if self.bias is None:
            y = torch.bmm(weight, columns)  # [R, O, N]
        else:
            y = torch.baddbmm(self.bias.take(params).unsqueeze(2), weight, columns)
        oh = (h + 2 * self.padding[0] - self.kernel[0]) // self.stride[0] + 1
        ow = (w + 2 * self.padding[1] - self.kernel[1]) // self.stride[1] + 1
        return y.view(*y.shape[:2], -1, oh, ow), (matrix, (h, w))

    def backward(self, params: Tensor, kept: Any, dy: Tensor, grad: Tensor, first: bool) -> Tensor:
        matrix, image = kept
        flat = dy.flatten(2)  # [R, O, N]
        self.weight.take(grad).flatten(2).copy_(torch.bmm(flat, matrix))
        if self.bias is not None:
            self.bias.take(grad).copy_(flat.sum(dim=2))
        return dy if first else self._input_gradient(params, dy, image)

    def tangent(self, params: Tensor, along: Tensor, kept: Any, dx: Tensor | None) -> Tensor:
        y = self.forward(along, kept)[0]
        if dx is None:
            return y
        columns = self.prepare(dx)[0].transpose(1, 2)
        return y.flatten(2).baddbmm_(self.weight.take(params).flatten(2), columns).view_as(y)

    def pull(self, params: Tensor, along: Tensor, kept: Any, dx: Tensor | None, up: Any, grad: Tensor | None) -> Tensor:
        first, second = up
        if grad is not None:
            self.backward(params, kept, first, grad, True)
            if dx is not None:
                moved = torch.bmm(second.flatten(2), self.prepare(dx)[0])
                self.weight.take(grad).flatten(2).add_(moved)
        return self._input_gradient(params, first, kept[1]) + self._input_gradient(along, second, kept[1])

    def _input_gradient(self, params: Tensor, dy: Tensor, image: Pair) -> Tensor:
        # With i + padding = stride*q + phase, input row i receives the output rows q-j through the kernel
        # rows phase + stride*j: one stride-1 window of `taps` output rows serves every phase.
        (h, w), (sh, sw), (ph, pw), (jh, jw) = image, self.stride, self.padding, self.taps
        qh, qw = ph // sh, pw // sw
        nh, nw = (h - 1 + ph) // sh - qh + 1, (w - 1 + pw) // sw - qw + 1
        windows = channels_last(dy, (jh - 1 - qh, jw - 1 - qw), (nh + jh - 1, nw + jw - 1))
        matrix = patches(windows, self.taps, (1, 1))  # [R, B*nh*nw, jh*jw*O]
        r, b = dy.shape[0], dy.shape[2]
        dx = torch.bmm(self._phase_weight(params), matrix.transpose(1, 2))  # [R, C*sh*sw, B*nh*nw]
        grid = dx.view(r, self.in_channels, sh, sw, b, nh, nw).permute(0, 1, 4, 5, 2, 6, 3)
        grid = grid.reshape(r, self.in_channels, b, sh * nh, sw * nw)
        return grid[..., ph - sh * qh : ph - sh * qh + h, pw - sw * qw : pw - sw * qw + w]

    def _phase_index(self) -> tuple[Tensor, Tensor]:
        """Where each entry of the flipped kernel, split by stride phase, lies in the flat vector."""
        (kh, kw), (sh, sw), (jh, jw) = self.kernel, self.stride, self.taps
        place = torch.arange(self.weight.start, self.weight.stop)
        place = place.view(self.out_channels, kh, kw, self.in_channels)
        full = nn.functional.pad(place, (0, 0, 0, jw * sw - kw, 0, jh * sh - kh), value=-1)
        full = full.view(self.out_channels, jh, sh, jw, sw, self.in_channels).flip(1, 3)
        index = full.permute(5, 2, 4, 1, 3, 0).reshape(-1)
        return index.clamp_min(0), index >= 0

    def _phase_weight(self, params: Tensor) -> Tensor:
        """``[R, C*sh*sw, jh*jw*O]``"""
        if self._index.device != params.device:
            self._index, self._mask = self._index.to(params.device), self._mask.to(params.device)
        (sh, sw), (jh, jw) = self.stride, self.taps
        weight = params.index_select(1, self._index)
        if self.kernel != (jh * sh, jw * sw):  # some phases have fewer taps than others
            weight = weight * self._mask
        return weight.view(-1, self.in_channels * sh * sw, jh * jw * self.out_channels)


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


def build(model: nn.Module, device: torch.device) -> tuple[list[Layer], list[Slot]] | None:
    """The model as batched layers and parameter slots, or None if it is not convolutions, Flatten, linear layers.

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

    def slot(name: str, tensor: Tensor, axes: tuple[int, ...]) -> Slot:
        slots.append(Slot(name, tuple(tensor.shape), slots[-1].stop if slots else 0, axes))
        return slots[-1]

    conv = GroupedConv if device.type == "cpu" else PatchConv
    flat = False
    for name, leaf in leaves(model):
        bias = getattr(leaf, "bias", None)
        if type(leaf) is nn.Conv2d and not flat and _plain(leaf):
            weight = slot(f"{name}.weight", leaf.weight, (0, 2, 3, 1))
            layers.append(conv(leaf, weight, None if bias is None else slot(f"{name}.bias", bias, (0,))))
        elif type(leaf) is nn.Linear and flat:
            weight = slot(f"{name}.weight", leaf.weight, (0, 1))
            layers.append(Linear(weight, None if bias is None else slot(f"{name}.bias", bias, (0,))))
        elif type(leaf) is nn.Flatten and (leaf.start_dim, leaf.end_dim) == (1, -1) and not flat:
            layers.append(Flatten())
            flat = True
        elif type(leaf) in ACTIVATIONS and layers and isinstance(layers[-1], Conv | Linear):
            layers.append(Activation(*ACTIVATIONS[type(leaf)]))
        else:
            return None
    return (layers, slots) if slots and flat else None


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
