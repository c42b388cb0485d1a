"""Whether a model can be trained for several sets of parameters at once, and if not, why, and what to do about it.

Errors of a model's own ``forward`` or of a user's loss are told by type and place: their words may quote the batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..errors import ModelError, place
from .batched import Batched, Loss

_DROPOUTS = (nn.modules.dropout._DropoutNd,)
_BATCH_NORMS = (nn.modules.batchnorm._BatchNorm,)
_INSTANCE_NORMS = (nn.modules.instancenorm._InstanceNorm,)


class _Problem(NamedTuple):
    reason: str
    remedy: str


def check_model(model: nn.Module, images: Tensor, classes: int | None = None) -> None:
    """Refuse a model that cannot be trained for several sets of parameters at once, with all reasons.

    ``images`` is a small batch ``[B, ...]`` of the data the model is for.

    >>> check_model(nn.Sequential(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 2)), torch.zeros(2, 4))
    Traceback (most recent call last):
    equipoise.errors.ModelError: The model cannot be used: '1' (BatchNorm1d) keeps running statistics ...
    """
    problems = [*_layer_problems(model), *_parameter_problems(model)]
    if problems:
        raise _refusal(*problems)
    plain = _plain_outputs(model, images, classes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch.func warns of slow fallbacks; speed is not the question here
        _check_replicas(model, images, plain)


def loss_error(error: Exception, model: nn.Module, loss: Loss | None, images: Tensor, labels: Tensor) -> ModelError:
    """What to tell of an ``error`` in the loss, or its gradient, of a model that passed its check.

    Raise it ``from None``: what the error itself says may quote the batch.
    """
    if isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in _words(error):
        return ModelError(
            f"A gradient of this batch does not fit into the memory of {images.device}.", "Use a smaller batch."
        )
    try:
        with torch.no_grad():
            (loss or nn.functional.cross_entropy)(model(images), labels)
    except Exception as plain:
        return ModelError(f"The loss of this batch cannot be computed: {place(plain)}.", _TRY_LOSS)
    reason, remedy = _torch_func_problem(error, "the loss")
    return ModelError(f"The gradient of the loss cannot be computed: {reason}.", remedy)


def _refusal(*problems: _Problem) -> ModelError:
    reasons, remedies = ("; ".join(p.reason for p in problems), dict.fromkeys(p.remedy for p in problems))
    return ModelError(f"The model cannot be used: {reasons}.", " ".join(remedies))


# -- what can be seen without running it ---------------------------------------------------------------------------


def _layer_problems(model: nn.Module) -> list[_Problem]:
    problems = []
    for name, part in model.named_modules():
        label = _label(model, name)
        statistics = f"{label} keeps running statistics of the batch in train mode"
        if isinstance(part, _BATCH_NORMS) and part.training and part.track_running_stats:
            problems.append(_Problem(statistics, "Replace BatchNorm by GroupNorm, or call eval() on it."))
        if isinstance(part, _INSTANCE_NORMS) and part.training and part.track_running_stats:
            problems.append(_Problem(statistics, "Set track_running_stats=False, or call eval() on it."))
        if isinstance(part, _DROPOUTS) and part.training and part.p > 0:
            problems.append(_Problem(f"{label} draws random numbers", "Call eval() on dropout, or set p=0."))
        if isinstance(part, nn.RNNBase):
            problems.append(_Problem(f"{label} has no batched form", "Loop over nn.GRUCell or nn.RNNCell instead."))
    return problems


def _parameter_problems(model: nn.Module) -> list[_Problem]:
    problems = []
    for name, tensor in model.named_parameters():
        if not tensor.is_floating_point():
            reason = f"parameter {name!r} is {tensor.dtype}, not floating point"
            problems.append(_Problem(reason, "Make it a buffer, or convert it: .float()."))
        elif not torch.isfinite(tensor).all():
            remedy = "Load finite parameters, and train with a smaller learning rate."
            problems.append(_Problem(f"parameter {name!r} is not finite", remedy))
    return problems


# -- its forward pass by itself ------------------------------------------------------------------------------------

_TRY_FORWARD = "Call model(x) by itself to see the whole error; its words are left out here, as they may quote data."
_TRY_LOSS = (
    "Call loss(model(x), y) by itself to see the whole error; its words are left out here, as they may quote data."
)


def _plain_outputs(model: nn.Module, images: Tensor, classes: int | None) -> Tensor:
    before = {name: tensor.clone() for name, tensor in model.named_buffers()}
    try:
        with torch.no_grad():
            plain = model(images)
    except Exception as error:
        raise _refusal(_forward_problem(error, model, images)) from None
    changed = [name for name, tensor in model.named_buffers() if not torch.equal(tensor, before[name])]
    if changed:
        reason = f"its forward changes the buffer(s) {', '.join(changed)}"
        raise _refusal(_Problem(reason, "Change buffers outside of forward, or in train mode alone and call eval()."))
    if not isinstance(plain, Tensor):
        reason = f"its forward returns {type(plain).__name__}, not a tensor"
        raise _refusal(_Problem(reason, "Wrap it in a module that returns the tensor of outputs alone."))
    if classes is not None and plain.shape != (images.shape[0], classes):
        reason = f"its output has shape {tuple(plain.shape)}, not {(images.shape[0], classes)}"
        raise _refusal(_Problem(reason, f"End it with a layer of {classes} outputs, one for each class."))
    return plain


def _forward_problem(error: Exception, model: nn.Module, images: Tensor) -> _Problem:
    """The remedy is guessed from what torch says of tensors that do not fit; none of it is quoted."""
    like, words = next(model.parameters(), images), _words(error).lower()
    about = f"batch of shape {tuple(images.shape)} and type {images.dtype}"
    reason = f"its forward failed on a {about}: {place(error)}"
    if images.device != like.device or "device" in words:
        where = f"; inputs are on {images.device}, parameters on {like.device}"
        return _Problem(reason + where, "Move both to one device: model.to(device), x.to(device).")
    if (images.is_floating_point() and images.dtype != like.dtype) or "type" in words:
        return _Problem(reason, f"Convert the inputs: to {like.dtype}, or to torch.int64 where embeddings come first.")
    if any(word in words for word in ("shape", "size", "channels", "dimension")):
        return _Problem(reason, "Check that inputs of this shape are what its layers are built for.")
    return _Problem(reason, _TRY_FORWARD)


# -- features, one record at a time ----------------------------------------------------------------------------------


def check_features(network: nn.Module, images: Tensor) -> None:
    """Refuse a network whose outputs are no function of one image each, and name the module at fault.

    ``images`` is a small batch ``[B, ...]``, B > 1, of any pixels; the network is in the mode in which it will be used.

    >>> check_features(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)), torch.rand(2, 1, 4, 4))
    Traceback (most recent call last):
    equipoise.errors.ModelError: The model cannot be used: its forward changes the buffer(s) 1.running_mean, ...
    """
    outputs = _plain_outputs(network, images, None)
    if outputs.dim() < 1 or outputs.shape[0] != len(images) or not outputs.is_floating_point():
        reason = f"its output is {outputs.dtype} of shape {tuple(outputs.shape)} for {len(images)} images"
        raise _refusal(_Problem(reason, "Let it return floating-point numbers, one row for each image."))
    together, again = _seen(network, images), _seen(network, images)
    fault = _first_difference(together, again, slice(None))
    if fault is not None:
        remedy = "Take randomness, and whatever changes from call to call, out of forward."
        raise _refusal(_Problem(f"{_label(network, fault)} gave other outputs for the same images", remedy))
    for row in range(len(images)):
        fault = _first_difference(together, _seen(network, images[row : row + 1]), slice(row, row + 1))
        if fault is not None:
            reason = f"{_label(network, fault)} mixes the images of a batch: alone, one has other outputs"
            remedy = "Use a layer that looks at one image, such as GroupNorm, or BatchNorm with running statistics."
            raise _refusal(_Problem(reason, remedy))


def _seen(network: nn.Module, images: Tensor) -> list[tuple[str, Tensor]]:
    """Every tensor that a module returns, with its name, in the order in which they finish: parts before the whole."""
    seen: list[tuple[str, Tensor]] = []

    def keep(name: str) -> Callable[..., None]:
        def hook(module: nn.Module, inputs: Any, output: Any) -> None:
            if isinstance(output, Tensor):
                seen.append((name, output.detach().clone()))

        return hook

    handles = [part.register_forward_hook(keep(name)) for name, part in network.named_modules()]
    try:
        with torch.no_grad():
            network(images)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _first_difference(together: list[tuple[str, Tensor]], other: list[tuple[str, Tensor]], rows: slice) -> str | None:
    """The module whose output differs from its ``rows`` of that for the whole batch; None where none does."""
    count = together[-1][1].shape[0]
    for (name, whole), (_, part) in zip(together, other, strict=False):
        if whole.dim() and whole.shape[0] == count and not _alike(part, whole[rows]):
            return name
    return None if len(together) == len(other) else ""


def _alike(one: Tensor, two: Tensor) -> bool:
    if one.shape != two.shape or not (two.is_floating_point() or two.is_complex()):
        return torch.equal(one, two)
    size = float(two.abs().nan_to_num(0.0, 0.0, 0.0).max()) if two.numel() else 0.0
    return torch.allclose(one, two, rtol=1e-3, atol=1e-4 * size, equal_nan=True)


def _label(network: nn.Module, name: str) -> str:
    return f"{name or 'model'!r} ({type(network.get_submodule(name)).__name__})"


# -- its forward pass for two sets of parameters -------------------------------------------------------------------

_TORCH_FUNC = (
    (("data-dependent", ".item()", "dynamic shape"), "decides by the values in a tensor (if, .item(), a mask)",
     "Use torch.where, and shapes that do not depend on values."),
    (("randomness",), "draws random numbers", "Draw them before, or call eval(): the same inputs must give the same."),
    (("inplace", "in-place", "broadcast shape"), "changes a tensor in place",
     "Make new tensors: x = x + y instead of x += y, torch.stack instead of filling in."),
    (("data pointer",), "leaves torch", "Stay with torch operations: no numpy, no data_ptr."),
    (("batching rule",), "has an operation without a batched form", "Write that operation with other torch functions."),
)  # fmt: skip
"""Words of torch.func's own errors, what they mean, and what to do."""


def _torch_func_problem(error: Exception, what: str) -> _Problem:
    words = _words(error).lower()
    for signs, meaning, remedy in _TORCH_FUNC:
        if any(sign in words for sign in signs):
            return _Problem(f"{what} {meaning}, which torch.func cannot run ({place(error)})", remedy)
    remedy = "Use torch operations alone, without changes in place, randomness or decisions by values."
    return _Problem(f"torch.func cannot run {what} ({place(error)})", remedy)


def _check_replicas(model: nn.Module, images: Tensor, plain: Tensor) -> None:
    """Run two replicas through torch.func, and through the batched layers, and compare with the model itself."""
    batched, inputs = Batched(model, fast=False), images.repeat(2, *[1] * images.dim())
    params = batched.layout.flatten(dict(model.named_parameters())).repeat(2, 1)
    try:
        outputs = batched.outputs(params, inputs)
    except Exception as error:
        raise _refusal(_torch_func_problem(error, "its forward")) from None
    if not _close(outputs[1], plain):
        reason = "the same parameters and inputs gave different outputs"
        raise _refusal(_Problem(reason, "Take randomness, and whatever changes from call to call, out of forward."))
    fast = Batched(model)
    params = fast.layout.flatten(dict(model.named_parameters())).repeat(2, 1)
    if not _close(fast.outputs(params, inputs)[1], plain):  # a defect of layers.py, not of the model
        raise _refusal(_Problem("its batched layers gave other outputs than the model", "Report this, with the model."))


def _close(one: Tensor, two: Tensor) -> bool:
    return torch.allclose(one, two, rtol=1e-3, atol=1e-4, equal_nan=True)


def _words(error: BaseException) -> str:
    """torch's own words, to tell causes apart; never shown. Those of other errors are not asked for."""
    return str(error) if isinstance(error, RuntimeError) else ""
