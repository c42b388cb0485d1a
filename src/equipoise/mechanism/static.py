"""Releases by mechanisms that do not learn: what was trained and noise, no forward pass, no batch.

Nothing is asked of the model but its tensors: any ``nn.Module`` in any mode, of any precision, with any inputs and
outputs. Beside what the caller holds, a release needs room for two vectors of all parameters at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ReleaseError
from ..models import layers
from ..models.features import FeatureModel
from ..models.layout import Layout, add_slot
from ..models.received import Received
from .constants import warn_of_constants
from .intensity import intensity
from .release import shaped_release, shorten, static_release
from .request import Request
from .sent import Protected, check_carries, flat, largest, length, ratio, sent

VARIANCE = "running_var"
"""The name of buffers that no noise may make negative."""


def noised(
    model: nn.Module, received: Any, request: Request, *, update: bool = True, own_loss: bool = False
) -> Protected:
    """What the model holds, or without ``update`` what was received, and noise on top.

    Noise has its place in the vector that the model's batched form uses; with a loss of the user's that is another.
    """
    warn_of_constants(model, request.mechanism, request.budget, request.settings)
    buffers = request.settings.buffers
    entries = Received(model, received, noised=buffers == "noised", copies=False)
    if update:
        check_fitted(entries, buffers)
    layout, like = _layout(model, own_loss, entries), _like(model)
    own = request.settings.at(request.mechanism, request.budget, request.round_number, request.client)
    protection = replace(own, least_relative=request.least_relative)
    begin = entries.trainable()
    check_carries(largest("received", begin.values(), like), layout.size, protection)
    held: Mapping[str, Tensor] = {**dict(model.named_parameters()), **dict(model.named_buffers())} if update else begin
    local = flat("model", held, layout, like)
    if request.least_relative:
        shorten(flat("received", begin, layout, like), local, protection)
    moved = length(local, begin, layout)
    noise = request.noise(layout.size, like)
    assert noise is None or isinstance(noise, Tensor)
    if request.mechanism.shaping is None:
        result = static_release(local, noise, protection)
    else:
        origin = flat("received", begin, layout, like)
        result = shaped_release(origin, local, noise, protection, layout.stretches)
    relative = ratio(float(intensity(local)) if request.mechanism.distorts else 0.0, moved)
    del local, noise  # room for what is sent
    return _variances(sent(result, entries, layout, request, utility=False, relative=relative), buffers)


def check_fitted(entries: Received, buffers: str) -> None:
    """Refuse a release whose buffers may not differ from the received ones, and do."""
    changed = entries.fitted() if buffers == "refused" else []
    if changed:
        names = ", ".join(map(repr, changed[:8])) + (f" and {len(changed) - 8} more" if len(changed) > 8 else "")
        raise ReleaseError(
            f"The model's buffers differ from the received ones, and buffers='refused': {names}. Nothing was released.",
            "Call eval() on the layers that have them while you train, use layers without such buffers (GroupNorm), or "
            "choose what is to happen: buffers='received' keeps them here, buffers='noised' sends them under noise.",
        )


def _layout(model: nn.Module, own_loss: bool, entries: Received) -> Layout:
    """Where parameters, and buffers that are released like them, lie in the vector."""
    trained = model.head_model() if isinstance(model, FeatureModel) else model
    built = None if own_loss else layers.build(trained, _like(model).device)
    slots = list((Layout.of(model) if built is None else built[1]).slots)
    present = entries.trainable()
    for name, tensor in model.named_buffers():
        if name in present:
            add_slot(slots, name, tensor, tuple(range(tensor.dim())))
    return Layout(slots)


def _like(model: nn.Module) -> Tensor:
    """An empty tensor where the model is, of the type that sums are made in: never half precision."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    double = any(parameter.dtype == torch.float64 for parameter in trained)
    device = trained[0].device if trained else None
    return torch.empty(0, dtype=torch.float64 if double else torch.float32, device=device)


def _variances(release: Protected, buffers: str) -> Protected:
    """A variance under noise may come out below zero: raising it to zero is post-processing, which tells nothing."""
    for name, tensor in release.parameters.items() if buffers == "noised" else ():
        if name.rpartition(".")[2] == VARIANCE:
            tensor.clamp_(min=0)
    return release
