"""The route of hand-written layers: all replicas in each kernel, nothing recorded for autograd.

For sequences of the layers in ``layers.py`` and ``convolution.py``, under cross-entropy, and for such heads on fixed
features.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import layers
from .convolution import GroupedConv, PatchConv
from .layout import Layout
from .objective import Objective


class Layered:
    """Losses and gradients by ``layers``; ``features`` is what frozen features come from, if the model has some."""

    def __init__(self, sequence: list[layers.Layer], layout: Layout, features: nn.Module | None = None):
        self.sequence, self.layout, self._features = sequence, layout, features

    def at(self, inputs: Tensor, labels: Tensor) -> Objective:
        seen = self._prepare(self._inputs(inputs))
        hot: Tensor | None = None

        def loss(params: Tensor) -> Tensor:
            outputs, _ = layers.forward(self.sequence, params, seen)
            return nn.functional.cross_entropy(outputs.transpose(1, 2), labels, reduction="none").mean(1)

        def gradient(params: Tensor, out: Tensor | None = None) -> Tensor:
            nonlocal hot
            outputs, kept = layers.forward(self.sequence, params, seen)
            if hot is None:
                hot = nn.functional.one_hot(labels, outputs.shape[-1]).to(outputs.dtype)
            slope = torch.softmax(outputs, dim=-1).sub_(hot).div_(labels.shape[1])  # of the mean cross-entropy
            return layers.backward(self.sequence, params, kept, slope, out)

        return Objective(loss, gradient)

    def each(self, params: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        outputs, kept = layers.forward(self.sequence, params, self._prepare(self._inputs(inputs)))
        hot = nn.functional.one_hot(labels, outputs.shape[-1]).to(outputs.dtype)
        slope = torch.softmax(outputs, dim=-1).sub_(hot)
        return layers.each(self.sequence, params, kept, slope).view(*labels.shape, -1)

    def outputs(self, params: Tensor, inputs: Tensor) -> Tensor:
        return layers.forward(self.sequence, params, self._prepare(self._inputs(inputs)))[0]

    def differentiable(self, params: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
        seen = self._inputs(inputs)
        result: Tensor = _Gradient.apply(self.sequence, self._prepare, params, seen, labels)  # type: ignore[no-untyped-call]
        return result

    def _inputs(self, inputs: Tensor) -> Tensor:
        """What the layers see of ``[R, B, ...]``: the inputs, or their features ``[R, B, F]``, once per mini-batch."""
        if self._features is None:
            return inputs
        features: Tensor = self._features(inputs.flatten(0, 1)).flatten(1)
        return features.view(*inputs.shape[:2], -1)

    def _prepare(self, inputs: Tensor) -> Any:
        # [R, B, C, H, W] -> [R, C, B, H, W]; the first layer's patches or grouped images, shared by all calls
        if inputs.dim() != 5:
            return inputs.flatten(2) if isinstance(self.sequence[0], layers.Flatten) else inputs
        first, planes = self.sequence[0], inputs.transpose(1, 2)
        return first.prepare(planes) if isinstance(first, GroupedConv | PatchConv) else planes


class _Gradient(torch.autograd.Function):
    """Gradients through the batched layers, with the gradient of <gradient, v> as their backward pass."""

    @staticmethod
    def forward(ctx: Any, sequence: Any, prepare: Any, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        outputs, kept = layers.forward(sequence, params, prepare(images))
        chance = torch.softmax(outputs, dim=-1)
        target = labels if labels.is_floating_point() else nn.functional.one_hot(labels, outputs.shape[-1])
        total = target.sum(-1, keepdim=True)  # 1, but not to a derivative
        slopes: list[Tensor] = []
        result = layers.backward(sequence, params, kept, (chance * total - target) / labels.shape[1], seen=slopes)
        ctx.save_for_backward(params, chance, total)
        ctx.rest = sequence, kept, slopes, images.shape
        return result

    @staticmethod
    def backward(ctx: Any, *along: Tensor) -> tuple[Tensor | None, ...]:
        (params, chance, total), (sequence, kept, slopes, shape) = ctx.saved_tensors, ctx.rest
        batch = chance.shape[1]
        moved, inputs = layers.tangent(sequence, params, along[0], kept)
        assert moved is not None
        against = (chance * moved).sum(-1, keepdim=True) - moved
        up = chance * against * (total / -batch)
        grad = torch.empty_like(params) if ctx.needs_input_grad[2] else None
        back = layers.pull(sequence, params, along[0], kept, inputs, slopes, up, grad=grad)
        images = back.transpose(1, 2) if len(shape) == 5 else back.view(shape)
        return None, None, grad, images, against / batch if ctx.needs_input_grad[4] else None
