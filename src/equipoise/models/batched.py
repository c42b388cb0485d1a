"""Per-replica losses and gradients of any ``nn.Module``, for R sets of parameters at once.

``Batched(model)`` fixes the flat layout of the parameters; ``at(images, labels)`` fixes a mini-batch per
replica and returns an ``Objective`` whose ``gradient`` maps ``[R, P] -> [R, P]``. Sequences of known layers
and linear heads on fixed features run through ``layers.py``; every other functional model runs through
``torch.func``. Both give the same numbers (a test compares them in float64).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ..errors import ModelError
from . import layers
from .convolution import GroupedConv, PatchConv
from .features import FeatureModel
from .layout import Layout

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs ``[B, ...]``, labels ``[B, ...]``) -> the mean loss of the batch, one number."""


def places(model: nn.Module) -> dict[str, list[str]]:
    """For every name of a tensor, the places that hold it: one for each module, whatever its names.

    torch's own ``tie_weights`` puts a tensor twice into a module that has two names, and then leaves it there.

    >>> layer = nn.Linear(2, 2, bias=False)
    >>> places(nn.Sequential(layer, nn.ReLU(), layer))
    {'0.weight': ['0.weight'], '2.weight': ['0.weight']}
    """
    held: dict[int, list[str]] = {}
    for prefix, module in model.named_modules():  # every module once, by its first name
        for name, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None:
                held.setdefault(id(tensor), []).append(f"{prefix}.{name}" if prefix else name)
    return {name: held[id(tensor)] for name, tensor in every_name(model).items()}


def every_name(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers under every name: tied weights and shared modules have several."""
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


class Objective:
    """The loss of one mini-batch per replica as a function of the parameters ``[R, P]``."""

    def __init__(
        self,
        loss: Callable[[Tensor], Tensor],
        gradient: Callable[..., Tensor],
        per_example: Callable[[Tensor], Iterable[Tensor]] | None = None,
        units: Any = None,
    ):
        self.loss = loss  # [R, P] -> [R]
        self.gradient = gradient  # [R, P] -> [R, P]; writes into `out` where one is given
        self.per_example = per_example  # [R, P] -> B times [R, P]: the gradient of every example by itself
        self.units = units  # all records of R clients, for the mechanism that draws its own batch


class Batched:
    """A model whose parameters are rows of a matrix.

    ``fixed`` holds values of frozen parameters and buffers; those it does not name are the model's own.

    >>> from equipoise.models.bundled import LeNetZhu
    >>> batched = Batched(LeNetZhu())
    >>> objective = batched.at(torch.zeros(2, 4, 1, 28, 28), torch.zeros(2, 4, dtype=torch.int64))
    >>> objective.gradient(torch.zeros(2, batched.layout.size)).shape
    torch.Size([2, 13426])
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Loss | None = None,
        device: torch.device | str = "cpu",
        fast: bool = True,
        fixed: Mapping[str, Tensor] | None = None,
    ):
        self.model, self.device = model, torch.device(device)
        self._loss, self._fixed, self._places = loss, dict(fixed or {}), places(model)
        self._features = model.features if isinstance(model, FeatureModel) else None
        trained = model.head_model() if isinstance(model, FeatureModel) else model
        built = layers.build(trained, self.device) if fast and loss is None else None
        self._layers: list[layers.Layer] | None
        self._layers, self.layout = built if built is not None else (None, Layout.of(model))

    @property
    def thread_safe(self) -> bool:
        """Whether several threads may compute at once: on a CPU, where no module of the user's is called."""
        return self.device.type == "cpu" and self._layers is not None and self._features is None

    def at(self, images: Tensor, labels: Tensor) -> Objective:
        """Fix a mini-batch ``[R, B, ...]``, ``[R, B]`` for every replica."""
        if self._layers is None:
            return self._functional(images, labels)
        seen = self._prepare(self._inputs(images))
        hot: Tensor | None = None

        def loss(params: Tensor) -> Tensor:
            outputs, _ = layers.forward(self._sequence, params, seen)
            return nn.functional.cross_entropy(outputs.transpose(1, 2), labels, reduction="none").mean(1)

        def gradient(params: Tensor, out: Tensor | None = None) -> Tensor:
            nonlocal hot
            outputs, kept = layers.forward(self._sequence, params, seen)
            if hot is None:
                hot = nn.functional.one_hot(labels, outputs.shape[-1]).to(outputs.dtype)
            slope = torch.softmax(outputs, dim=-1).sub_(hot).div_(labels.shape[1])  # of the mean cross-entropy
            return layers.backward(self._sequence, params, kept, slope, out)

        return Objective(loss, gradient, partial(self._per_example, images, labels))

    def each(self, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """The gradient of every example by itself: ``[R, P]``, ``[R, B, ...]``, ``[R, B]`` -> ``[R, B, P]``."""
        if self._layers is None:
            one = vmap(grad(self._value), in_dims=(None, 0, 0))
            result: Tensor = vmap(one)(params, images.unsqueeze(2), labels.unsqueeze(2))
            return result.detach()
        outputs, kept = layers.forward(self._sequence, params, self._prepare(self._inputs(images)))
        hot = nn.functional.one_hot(labels, outputs.shape[-1]).to(outputs.dtype)
        slope = torch.softmax(outputs, dim=-1).sub_(hot)
        return layers.each(self._sequence, params, kept, slope).view(*labels.shape, -1)

    def outputs(self, params: Tensor, images: Tensor) -> Tensor:
        """``[R, P]``, ``[R, B, ...]`` -> ``[R, B, classes]``."""
        if self._layers is None:
            with torch.no_grad():
                result: Tensor = vmap(self._call)(params, images)
            return result
        return layers.forward(self._layers, params, self._prepare(self._inputs(images)))[0]

    def differentiable(self, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """The gradient ``[R, P]`` as a function that autograd can differentiate once more.

        With respect to ``params``, ``images`` and, where they are probabilities ``[R, B, classes]``, ``labels``.
        """
        if self._layers is None:
            outcome: Tensor = vmap(grad(self._value))(params, images, labels)
            return outcome
        inputs = self._inputs(images)
        result: Tensor = _Gradient.apply(self._sequence, self._prepare, params, inputs, labels)  # type: ignore[no-untyped-call]
        return result

    @property
    def _sequence(self) -> list[layers.Layer]:
        assert self._layers is not None
        return self._layers

    def _inputs(self, images: Tensor) -> Tensor:
        """What the layers see of ``[R, B, ...]``: the images, or their features ``[R, B, F]``, once per mini-batch."""
        if self._features is None:
            return images
        features: Tensor = self._features(images.flatten(0, 1)).flatten(1)
        return features.view(*images.shape[:2], -1)

    def _prepare(self, images: Tensor) -> Any:
        # [R, B, C, H, W] -> [R, C, B, H, W]; the first layer's patches or grouped images, shared by all calls
        if images.dim() != 5:
            return images
        first, planes = self._sequence[0], images.transpose(1, 2)
        return first.prepare(planes) if isinstance(first, GroupedConv | PatchConv) else planes

    def _call(self, flat: Tensor, images: Tensor) -> Tensor:
        tensors = {s.name: flat[s.start : s.stop].view(s.shape) for s in self.layout.slots}
        put = {place: tensor for name, tensor in {**self._fixed, **tensors}.items() for place in self._places[name]}
        result: Tensor = functional_call(self.model, put, (images,), tie_weights=False)  # ``places`` has tied them
        return result

    def _value(self, flat: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        outputs = self._call(flat, images)
        if self._loss is None:
            return nn.functional.cross_entropy(outputs, labels)
        return _one_number(self._loss(outputs, labels))

    def _functional(self, images: Tensor, labels: Tensor) -> Objective:
        def loss(params: Tensor) -> Tensor:
            with torch.no_grad():
                result: Tensor = vmap(self._value)(params, images, labels)
            return result

        def gradient(params: Tensor, out: Tensor | None = None) -> Tensor:
            if len(params) == 1:  # one client: no need to batch, and much less overhead
                result: Tensor = grad(self._value)(params[0], images[0], labels[0]).detach().unsqueeze(0)
            else:
                result = vmap(grad(self._value))(params, images, labels).detach()
            return result if out is None else out.copy_(result)

        return Objective(loss, gradient, partial(self._per_example, images, labels))

    def _per_example(self, images: Tensor, labels: Tensor, params: Tensor) -> tuple[Tensor, ...]:
        # Every example is a replica with a batch of one: no other example can have a part in its gradient. CPU kernels
        # round such replicas alike if they lie at multiples of 16 bytes and there are 8, 16, ... of them.
        x, y = (_filled_up(_filled_up(part, 1, 4), 0, 2) for part in (images, labels))
        alone = self.at(x.flatten(0, 1).unsqueeze(1), y.flatten(0, 1).unsqueeze(1))
        result = alone.gradient(_filled_up(params, 0, 2).repeat_interleave(y.shape[1], dim=0))
        return result.view(*y.shape[:2], -1)[: len(labels), : labels.shape[1]].unbind(1)


def _one_number(value: Any) -> Tensor:
    """What a loss of the user's returned, if it can be differentiated."""
    if not isinstance(value, Tensor):
        remedy = "Return the tensor itself, without .item() or float()."
        raise ModelError(f"The loss returned {type(value).__name__}, expected one number in a tensor.", remedy)
    if value.dim() > 0:
        remedy = "Return the mean over the batch: reduction='mean', or .mean()."
        raise ModelError(f"The loss returned shape {tuple(value.shape)}, expected one number.", remedy)
    if not value.is_floating_point():
        remedy = "Return a loss that can be differentiated, such as cross-entropy; counts cannot."
        raise ModelError(f"The loss returned {value.dtype}, expected a floating-point number.", remedy)
    return value


def _filled_up(tensor: Tensor, dim: int, multiple: int) -> Tensor:
    """The last entry along ``dim`` repeated until their number is a multiple."""
    spare = -tensor.shape[dim] % multiple
    return torch.cat([tensor, *[tensor.narrow(dim, -1, 1)] * spare], dim) if spare else tensor


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
        ctx.rest = sequence, kept, slopes, images.dim()
        return result

    @staticmethod
    def backward(ctx: Any, *along: Tensor) -> tuple[Tensor | None, ...]:
        (params, chance, total), (sequence, kept, slopes, dim) = ctx.saved_tensors, ctx.rest
        batch = chance.shape[1]
        moved, inputs = layers.tangent(sequence, params, along[0], kept)
        assert moved is not None
        against = (chance * moved).sum(-1, keepdim=True) - moved
        up = chance * against * (total / -batch)
        grad = torch.empty_like(params) if ctx.needs_input_grad[2] else None
        back = layers.pull(sequence, params, along[0], kept, inputs, slopes, up, grad=grad)
        images = back.transpose(1, 2) if dim == 5 else back
        return None, None, grad, images, against / batch if ctx.needs_input_grad[4] else None
