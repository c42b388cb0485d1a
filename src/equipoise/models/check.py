"""Whether a model can be trained for several sets of parameters at once, and if not, why."""

from __future__ import annotations

import warnings

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .batched import Batched

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
