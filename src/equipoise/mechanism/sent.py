"""From tensors to the flat vector of a release, and from a release to what may be sent."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import ReleaseError
from ..models.layout import Layout
from ..models.received import Received
from .intensity import intensity
from .protection import Protection
from .registry import Mechanism
from .release import Release
from .request import Request

CARRIED = 0.05
"""The share of the lower bound that rounding to the received types may change."""


@dataclass(frozen=True)
class Protected:
    """``parameters`` may leave the client. ``record`` describes the release and stays with the client.

    The record's utility loss and clipping, and the ratio of noise to update, are exact functions of private data:
    sending them would undo part of what the distortion protects. A release that no batch was looked at for has no
    utility loss; one of ``laplace-dp`` or ``gaussian-dp`` has no ratio, which their guarantee does not cover.

    >>> from equipoise import LeNetZhu, protected_step
    >>> model = LeNetZhu()
    >>> x, y = torch.randn(4, 1, 28, 28), torch.tensor([0, 1, 2, 3])
    >>> protected_step(model, model.state_dict(), (x, y), "ls-static", 200.0).record["norm"]
    'l1'
    """

    parameters: dict[str, Tensor]
    record: dict[str, Any]


def flat(name: str, state: Mapping[str, Tensor], layout: Layout, like: Tensor) -> Tensor:
    """``[1, P]`` in the type and place of ``like``, finite; nothing else is allocated."""
    result = torch.empty(1, layout.size, dtype=like.dtype, device=like.device)
    for slot in layout.slots:
        slot.take(result)[0].copy_(state[slot.name].detach().permute(slot.axes))
    largest(name, [result], like)
    return result


def largest(name: str, tensors: Iterable[Tensor], like: Tensor) -> Tensor:
    """The largest size of a number among ``tensors``, as ``like`` has it; all of them finite, or it raises."""
    result = torch.zeros((), dtype=like.dtype, device=like.device)
    for tensor in tensors:
        for end in torch.aminmax(tensor.detach()) if tensor.numel() else ():  # NaN among them becomes both
            result = torch.maximum(result, end.to(result).abs())
    if not torch.isfinite(result):
        raise ReleaseError(f"The parameters in {name!r} are not finite.", "Start from healthy parameters.")
    return result


def check_carries(most: Tensor, size: int, protection: Protection) -> None:
    """Refuse parameters so large that their own precision would round the noise away; no data plays a part."""
    if protection.mechanism.distorts and protection.mechanism.shaping is None:
        gap = float(torch.nextafter(most, torch.full_like(most, torch.inf)) - most)
        scale = protection.noise_norm(size) / size**0.5
        if not gap <= scale / 16:
            raise ReleaseError(
                f"The received parameters are as large as {float(most):.3g}, where {most.dtype} has steps of "
                f"{gap:.3g}: noise of {scale:.3g} would be rounded away.",
                "Nothing was released. Start from parameters of usual size.",
            )


def ratio(noise: float, update: float) -> float | None:
    """The noise in terms of the update, both L2 norms; None where there is no update, or no finite ratio.

    >>> ratio(8.0, 2.0), ratio(8.0, 0.0)
    (4.0, None)
    """
    found = noise / update if update > 0 else math.inf
    return found if math.isfinite(found) else None


def length(local: Tensor, received: Mapping[str, Tensor], layout: Layout) -> float:
    """The L2 norm of the update ``local - received``, a tensor at a time; ``local`` is ``[1, P]``."""
    sizes = []
    for slot in layout.slots:
        part = received[slot.name].detach().permute(slot.axes).to(local, copy=True).sub_(slot.take(local)[0])
        sizes.append(float(intensity(part.reshape(1, -1))))
    return math.hypot(*sizes)


def sent(
    result: Release,
    entries: Received,
    layout: Layout,
    request: Request,
    *,
    utility: bool,
    relative: float | None = None,
) -> Protected:
    """The received entries with the released values, and the record.

    Args:
        result: of one client.
        entries: what was received.
        layout: of the vector.
        request: what was asked for.
        utility: whether the record has the loss on the batch.
        relative: the noise in terms of the update; left out under a guarantee.
    """
    record, mechanism = result.record, request.mechanism
    if not bool(record.accepted[0]):
        raise ReleaseError(
            f"The release of client {request.client} in round {request.round_number} is not finite or outside its "
            f"intensity bounds (realised {float(record.intensity[0]):.6g}, asked {float(record.lower[0]):.6g} to "
            f"{float(record.upper[0]):.6g}). Nothing was released.",
            "Use a smaller learning rate, and check the batch, the loss and the size of the weights.",
        )
    names = ("lower", "upper", "intensity", "clipped", *(["utility_loss"] if utility else []))
    numbers = {name: float(getattr(record, name)[0]) for name in names}
    released = layout.unflatten(result.parameters[0])
    if mechanism.formal:
        most = {name: torch.finfo(old.dtype).max for name, old in entries.trainable().items()}
        released = {name: tensor.double().clamp(-most[name], most[name]) for name, tensor in released.items()}
    else:
        _check_rounding(released, float(record.lower[0]), entries, mechanism)
    about = {
        "mechanism": mechanism.name,
        "budget": request.budget,
        "norm": mechanism.norm,
        "client": request.client,
        "round": request.round_number,
    }
    own = {} if mechanism.formal else {"noise_to_update": relative}
    seeded = {"experiment": "seeded" if request.seed is not None else None}
    return Protected(entries.filled(released), {**about, **numbers, **own, **seeded})


def _check_rounding(released: Mapping[str, Tensor], lower: float, entries: Received, mechanism: Mechanism) -> None:
    """Refuse a release whose distortion the types of ``received`` cannot carry."""
    old, lost = entries.trainable(), []
    for name, tensor in released.items():
        if old[name].dtype != tensor.dtype and tensor.numel():
            change = tensor.to(old[name].dtype).to(tensor.dtype).sub_(tensor)
            lost.append(intensity(change.reshape(1, -1), mechanism.norm).double())
    if not lost:
        return
    change = intensity(torch.cat(lost).unsqueeze(0), mechanism.norm)
    if not bool(torch.isfinite(change)) or (mechanism.distorts and float(change) > CARRIED * lower):
        types = sorted({str(tensor.dtype) for tensor in old.values()})
        wide = next(iter(released.values())).dtype
        finite = bool(torch.isfinite(change)) and lower > 0
        share = f"by {float(change) / lower:.1%} of its size" if finite else "without bounds"
        raise ReleaseError(
            f"The received parameters are {', '.join(types)}: rounding to that would change the distortion {share}, "
            f"and at most {CARRIED:.0%} is allowed. Nothing was released.",
            f"Send and receive the model as {wide}: {{n: t.to({wide}) if t.is_floating_point() else t for n, t in "
            "received.items()}; what was trained may keep its type. Or choose a stricter budget, with more noise.",
        )
