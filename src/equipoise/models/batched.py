"""Per-replica losses and gradients of any ``nn.Module``, for R sets of parameters at once.

``Batched(model)`` fixes the flat layout of the parameters; ``at(images, labels)`` fixes a mini-batch per
replica and returns an ``Objective`` whose ``gradient`` maps ``[R, P] -> [R, P]``. Sequences of known layers
run through ``layers.py``; every other functional model runs through ``torch.func``. Both give the same
numbers (a test compares them in float64).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from ..errors import ModelError
from . import layers
from .layers import Slot

Loss = Callable[[Tensor, Tensor], Tensor]
"""(outputs ``[B, ...]``, labels ``[B]``) -> scalar mean loss of the batch."""


class Layout:
    """How the trainable tensors of a module lie in a flat vector of P numbers."""

    def __init__(self, slots: list[Slot]):
        self.slots = slots
        self.size = slots[-1].stop

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """``{name: tensor}`` (a state dict may hold more) -> ``[P]``."""
        if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
            raise ModelError("Expected a state dict: names with tensors.", "Pass model.state_dict().")
        missing = [s.name for s in self.slots if s.name not in tensors]
        wrong = [
            f"{s.name} {tuple(tensors[s.name].shape)} instead of {s.shape}"
            for s in self.slots
            if s.name in tensors and tuple(tensors[s.name].shape) != s.shape
        ]
        if missing or wrong:
            raise ModelError(
                "; ".join(([f"Missing tensors: {', '.join(missing)}"] if missing else []) + wrong) + ".",
                "Give the state dict of the same model.",
            )
        return torch.cat([tensors[s.name].detach().permute(s.axes).reshape(-1) for s in self.slots])

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """``[P]`` -> ``{name: tensor}``; views where the order allows it."""
        if flat.shape != (self.size,):
            raise ModelError(
                f"Expected {self.size} parameters, got shape {tuple(flat.shape)}.", "Use this model's layout."
            )
        return {s.name: s.take(flat.unsqueeze(0))[0].permute(_inverse(s.axes)) for s in self.slots}


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes.index(i) for i in range(len(axes)))


class Objective:
    """The loss of one mini-batch per replica as a function of the parameters ``[R, P]``."""

    def __init__(
        self,
        loss: Callable[[Tensor], Tensor],
        gradient: Callable[..., Tensor],
        per_example: Callable[[Tensor], Tensor] | None = None,
    ):
        self.loss = loss  # [R, P] -> [R]
        self.gradient = gradient  # [R, P] -> [R, P]; writes into `out` where one is given
        self.per_example = per_example  # [R, P] -> [R, B, P]: that of every example by itself


class Batched:
    """A model whose parameters are rows of a matrix.

    >>> from equipoise.models.bundled import LeNetZhu
    >>> batched = Batched(LeNetZhu())
    >>> objective = batched.at(torch.zeros(2, 4, 1, 28, 28), torch.zeros(2, 4, dtype=torch.int64))
    >>> objective.gradient(torch.zeros(2, batched.layout.size)).shape
    torch.Size([2, 13426])
    """

    def __init__(
        self, model: nn.Module, loss: Loss | None = None, device: torch.device | str = "cpu", fast: bool = True
    ):
        self.model, self.device = model, torch.device(device)
        self._loss = loss
        built = layers.build(model, self.device) if fast and loss is None else None
        if built is not None:
            self._layers: list[layers.Layer] | None = built[0]
            self.layout = Layout(built[1])
        else:
            self._layers = None
            self.layout = Layout(_natural_slots(model))

    def at(self, images: Tensor, labels: Tensor) -> Objective:
        """Fix a mini-batch ``[R, B, ...]``, ``[R, B]`` for every replica."""
        if self._layers is None:
            return self._functional(images, labels)
        seen = self._prepare(images)
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

    def outputs(self, params: Tensor, images: Tensor) -> Tensor:
        """``[R, P]``, ``[R, B, ...]`` -> ``[R, B, classes]``."""
        if self._layers is None:
            with torch.no_grad():
                result: Tensor = vmap(self._call)(params, images)
            return result
        return layers.forward(self._layers, params, self._prepare(images))[0]

    def differentiable(self, params: Tensor, images: Tensor, labels: Tensor) -> Tensor:
        """The gradient ``[R, P]`` as a function that autograd can differentiate once more.

        With respect to ``params``, ``images`` and, where they are probabilities ``[R, B, classes]``, ``labels``.
        """
        if self._layers is None:
            measure = self._loss or nn.functional.cross_entropy

            def one(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
                return measure(self._call(flat, x), y)

            found: Tensor = vmap(grad(one))(params, images, labels)
            return found
        result: Tensor = _Gradient.apply(self._sequence, self._prepare, params, images, labels)  # type: ignore[no-untyped-call]
        return result

    @property
    def _sequence(self) -> list[layers.Layer]:
        assert self._layers is not None
        return self._layers

    def _prepare(self, images: Tensor) -> Any:
        # [R, B, C, H, W] -> [R, C, B, H, W]; the first layer's patches or grouped images, shared by all calls
        if images.dim() != 5:
            return images
        first, planes = self._sequence[0], images.transpose(1, 2)
        return first.prepare(planes) if isinstance(first, layers.GroupedConv | layers.PatchConv) else planes

    def _call(self, flat: Tensor, images: Tensor) -> Tensor:
        tensors = {s.name: flat[s.start : s.stop].view(s.shape) for s in self.layout.slots}
        result: Tensor = functional_call(self.model, tensors, (images,))
        return result

    def _functional(self, images: Tensor, labels: Tensor) -> Objective:
        measure = self._loss or nn.functional.cross_entropy

        def one(flat: Tensor, x: Tensor, y: Tensor) -> Tensor:
            return measure(self._call(flat, x), y)

        def loss(params: Tensor) -> Tensor:
            with torch.no_grad():
                result: Tensor = vmap(one)(params, images, labels)
            return result

        def gradient(params: Tensor, out: Tensor | None = None) -> Tensor:
            if len(params) == 1:  # one client: no need to batch, and much less overhead
                result: Tensor = grad(one)(params[0], images[0], labels[0]).detach().unsqueeze(0)
            else:
                result = vmap(grad(one))(params, images, labels).detach()
            return result if out is None else out.copy_(result)

        return Objective(loss, gradient, partial(self._per_example, images, labels))

    def _per_example(self, images: Tensor, labels: Tensor, params: Tensor) -> Tensor:
        # Every example is a replica with a batch of one: no other example can have a part in its gradient. CPU kernels
        # round such replicas alike if they lie at multiples of 16 bytes and there are 8, 16, ... of them.
        x, y = (_filled_up(_filled_up(part, 1, 4), 0, 2) for part in (images, labels))
        alone = self.at(x.flatten(0, 1).unsqueeze(1), y.flatten(0, 1).unsqueeze(1))
        found = alone.gradient(_filled_up(params, 0, 2).repeat_interleave(y.shape[1], dim=0))
        return found.view(*y.shape[:2], -1)[: len(labels), : labels.shape[1]]


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
        found = layers.backward(sequence, params, kept, (chance * total - target) / labels.shape[1], seen=slopes)
        ctx.save_for_backward(params, chance, total)
        ctx.rest = sequence, kept, slopes, images.dim()
        return found

    @staticmethod
    def backward(ctx: Any, *along: Tensor) -> tuple[Tensor | None, ...]:
        (params, chance, total), (sequence, kept, slopes, dim) = ctx.saved_tensors, ctx.rest
        batch = chance.shape[1]
        moved, inputs = layers.tangent(sequence, params, along[0], kept)
        assert moved is not None
        against = (chance * moved).sum(-1, keepdim=True) - moved
        up = chance * against * (total / -batch)
        grad = torch.empty_like(params) if ctx.needs_input_grad[2] else None
        back = layers.pull(sequence, params, along[0], kept, inputs, slopes, up, grad)
        images = back.transpose(1, 2) if dim == 5 else back
        return None, None, grad, images, against / batch if ctx.needs_input_grad[4] else None


def _natural_slots(model: nn.Module) -> list[Slot]:
    slots: list[Slot] = []
    for name, tensor in model.named_parameters():
        if tensor.requires_grad:
            axes = tuple(range(tensor.dim()))
            slots.append(Slot(name, tuple(tensor.shape), slots[-1].stop if slots else 0, axes))
    if not slots:
        raise ModelError("The model has no trainable parameters.", "Set requires_grad on what is to be trained.")
    return slots


_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
_DROPOUTS = (nn.modules.dropout._DropoutNd,)


def check_model(model: nn.Module, images: Tensor, classes: int | None = None) -> None:
    """Refuse a model that cannot be trained for several sets of parameters at once, with all reasons.

    ``images`` is a small batch ``[B, ...]`` of the data the model is for.

    >>> check_model(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 2)), torch.zeros(2, 4))
    Traceback (most recent call last):
    equipoise.errors.ModelError: The model cannot be batched: '1' (BatchNorm1d) keeps running statistics ...
    """
    reasons = _structure(model)
    if not reasons:
        reasons = _trial(model, images, classes)
    if reasons:
        raise ModelError(
            "The model cannot be batched: " + "; ".join(reasons) + ".",
            "Replace BatchNorm by GroupNorm, call eval() on parts that are not to change, and keep forward free of "
            "in-place changes to buffers, of data-dependent control flow and of randomness.",
        )


def _structure(model: nn.Module) -> list[str]:
    reasons = []
    for name, part in model.named_modules():
        label = f"{name or 'model'!r} ({type(part).__name__})"
        if isinstance(part, _NORMS) and part.training and part.track_running_stats:
            reasons.append(f"{label} keeps running statistics of the batch in train mode")
        if isinstance(part, _DROPOUTS) and part.training and part.p > 0:
            reasons.append(f"{label} draws random numbers that no seed reproduces")
        if isinstance(part, nn.RNNBase):
            reasons.append(f"{label} has no batched form")
    for name, tensor in model.named_parameters():
        if not tensor.is_floating_point():
            reasons.append(f"parameter {name!r} is {tensor.dtype}, not floating point")
        elif not torch.isfinite(tensor).all():
            reasons.append(f"parameter {name!r} is not finite")
    return reasons


def _trial(model: nn.Module, images: Tensor, classes: int | None) -> list[str]:
    """Run two replicas through torch.func and compare with the model itself."""
    before = {name: tensor.clone() for name, tensor in model.named_buffers()}
    try:
        with torch.no_grad():
            plain = model(images)
    except Exception as error:
        return [f"its forward failed on a batch of shape {tuple(images.shape)}: {error}"]
    changed = [name for name, tensor in model.named_buffers() if not torch.equal(tensor, before[name])]
    if changed:
        return [f"its forward changes the buffer(s) {', '.join(changed)}"]
    if not isinstance(plain, Tensor):
        return [f"its forward returns {type(plain).__name__}, not a tensor"]
    if classes is not None and plain.shape != (images.shape[0], classes):
        return [f"its output has shape {tuple(plain.shape)}, not {(images.shape[0], classes)}"]
    batched = Batched(model, fast=False)
    params = batched.layout.flatten(dict(model.named_parameters())).repeat(2, 1)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch.func warns of slow fallbacks; speed is not the question here
            outputs = batched.outputs(params, images.repeat(2, *[1] * images.dim()))
    except Exception as error:
        return [f"torch.func cannot batch its forward: {str(error).splitlines()[0]}"]
    if not torch.allclose(outputs[1], plain, rtol=1e-3, atol=1e-4, equal_nan=True):
        return ["two identical sets of parameters gave different outputs"]
    fast = Batched(model)
    quick = fast.outputs(
        fast.layout.flatten(dict(model.named_parameters())).repeat(2, 1), images.repeat(2, *[1] * images.dim())
    )
    if not torch.allclose(quick[1], plain, rtol=1e-3, atol=1e-4, equal_nan=True):
        return ["its batched layers gave other outputs than the model"]  # a defect of layers.py, not of the model
    return []
