"""``protect``: one client's release from your own PyTorch loop, by the same code the engine runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..errors import ConfigError, DataError, ReleaseError, is_whole
from ..models.batched import Batched, Loss
from ..models.check import check_model
from ..randomness import experiment_key, system_uniform, uniform
from .noise import standard_noise
from .protection import ProtectionSettings, check_protection
from .registry import Mechanism, checked
from .release import Release, distort_given, release
from .schedule import Schedule

_CHECKED: WeakKeyDictionary[nn.Module, set[tuple[Any, ...]]] = WeakKeyDictionary()
"""Circumstances under which a model passed its check; forgotten with the model."""


@dataclass(frozen=True)
class Protected:
    """``parameters`` may leave the client. ``record`` describes the release and stays with the client.

    The record's utility loss and clipping are exact functions of the private batch: sending them would undo part of
    what the distortion protects.
    """

    parameters: dict[str, Tensor]
    record: dict[str, Any]


def protect(
    model: nn.Module,
    start: Mapping[str, Tensor],
    batch: tuple[Tensor, Tensor],
    mechanism: str | Mechanism,
    budget: Schedule | None = None,
    *,
    loss: Loss | None = None,
    local: Mapping[str, Tensor] | None = None,
    settings: ProtectionSettings | None = None,
    client: int = 0,
    round: int = 1,
    experiment_seed: int | None = None,
) -> Protected:
    """Train one local step from ``start`` on ``batch``, distort the result, and return what may be sent.

    ``start`` are the global parameters (a state dict). With ``local``, the parameters your own training loop reached,
    no step is made and those are distorted; ``laplace-dp`` refuses that, as its guarantee is about its own step on
    ``batch``. ``loss(outputs, labels)`` defaults to cross-entropy. ``settings`` holds eta, M, gamma, lambda, clip and
    the calibration constants; ``client`` and ``round`` pick from its schedules. Buffers and frozen parameters are those
    of ``model``.

    The noise comes from the operating system's cryptographic generator. ``experiment_seed`` replaces it by reproducible
    noise keyed by (seed, client, round), for experiments only: whoever knows the seed can subtract the noise.

    >>> from equipoise.models.bundled import LeNetZhu
    >>> model = LeNetZhu()
    >>> x, y = torch.randn(4, 1, 28, 28), torch.tensor([0, 1, 2, 3])
    >>> sent = protect(model, model.state_dict(), (x, y), "pl-learn", 0.98)
    >>> 7.99 < sent.record["intensity"] < 16
    True
    """
    settings = settings or ProtectionSettings()
    check_protection(settings)
    _check_place(client, round, experiment_seed)
    mechanism = checked(mechanism, budget)
    images, labels = _checked_batch(batch)
    batched = _batched(model, images, labels, loss, alone=mechanism.per_example)
    layout, like = batched.layout, next(p for p in model.parameters() if p.requires_grad)
    begin = _flat("start", start, batched, like)
    protection = replace(settings, batch=len(images)).at(mechanism, budget, round, client)
    objective = batched.at(images.unsqueeze(0), labels.unsqueeze(0))
    noise = _noise(mechanism, layout.size, like, experiment_seed, client, round)
    if local is None:
        result = release([objective], begin, noise, settings.eta, protection)
    else:
        result = distort_given(objective, _flat("local", local, batched, like), noise, protection)
    return _sent(result, batched, mechanism, budget, experiment_seed, client, round)


def _flat(name: str, state: Mapping[str, Tensor], batched: Batched, like: Tensor) -> Tensor:
    """``[1, P]`` in the model's own precision, finite."""
    flat = batched.layout.flatten(state).to(like.device, like.dtype)
    if not torch.isfinite(flat).all():
        raise ReleaseError(f"The parameters in {name!r} are not finite.", "Start from healthy parameters.")
    return flat.unsqueeze(0)


def _sent(
    result: Release,
    batched: Batched,
    mechanism: Mechanism,
    budget: Any,
    seed: int | None,
    client: int,
    round_number: int,
) -> Protected:
    record = result.record
    if not bool(record.accepted[0]):
        raise ReleaseError(
            f"The release of client {client} in round {round_number} is not finite or outside its intensity bounds "
            f"(realised {float(record.intensity[0]):.6g}, asked {float(record.lower[0]):.6g} to "
            f"{float(record.upper[0]):.6g}). Nothing was released.",
            "Use a smaller learning rate, and check the batch, the loss and the size of the weights.",
        )
    names = ("lower", "upper", "intensity", "clipped", "utility_loss")
    numbers = {name: float(getattr(record, name)[0]) for name in names}
    parameters = {name: tensor.clone() for name, tensor in batched.layout.unflatten(result.parameters[0]).items()}
    about = {
        "mechanism": mechanism.name,
        "budget": budget,
        "norm": mechanism.norm,
        "client": client,
        "round": round_number,
    }
    return Protected(parameters, {**about, **numbers, "experiment": "seeded" if seed is not None else None})


def _noise(
    mechanism: Mechanism, size: int, like: Tensor, seed: int | None, client: int, round_number: int
) -> Tensor | None:
    if not mechanism.distorts:
        return None
    if seed is None:
        numbers = system_uniform(size, like.dtype, like.device).unsqueeze(0)
    else:
        numbers = uniform([experiment_key(seed, "noise")], [client], [round_number], size, like.dtype, like.device)[0]
    return standard_noise(numbers, mechanism.noise)


def _check_place(client: Any, round_number: Any, seed: Any) -> None:
    for name, value in (("client", client), ("round", round_number), ("experiment_seed", 0 if seed is None else seed)):
        if not is_whole(value) or value < 0:
            raise ConfigError(
                f"Expected {name}={value!r} to be a whole number >= 0.", "Number your clients and rounds."
            )


def _checked_batch(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
        raise DataError("Expected the batch to be a pair of tensors (inputs, labels).", "Pass (x, y).")
    images, labels = batch
    if images.dim() == 0 or labels.dim() == 0 or len(images) == 0 or len(images) != len(labels):
        shapes = f"{tuple(images.shape)} and {tuple(labels.shape)}"
        raise DataError(f"Expected as many inputs as labels, at least one, got shapes {shapes}.", "Pass a full batch.")
    if images.is_floating_point() and not torch.isfinite(images).all():
        raise DataError("The inputs of the batch are not finite.", "Remove NaN and Inf before training.")
    return images, labels


def _batched(model: nn.Module, images: Tensor, labels: Tensor, loss: Loss | None, alone: bool) -> Batched:
    """The model in batched form, checked again whenever something that matters has changed."""
    modes = tuple((type(part), part.training) for part in model.modules())
    trained = tuple(parameter.requires_grad for parameter in model.parameters())
    circumstances = (images.dtype, str(images.device), tuple(images.shape[1:]), modes, trained, alone)
    passed = _CHECKED.setdefault(model, set())
    if circumstances not in passed:
        check_model(model, images[: 1 if alone else 2])
        passed.add(circumstances)
    if loss is None:
        _check_labels(model, images, labels)
    return Batched(model, loss, images.device)


def _check_labels(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Cross-entropy needs class numbers; anything else would be a crash or a wrong loss."""
    with torch.no_grad():
        classes = model(images[:2]).shape[-1]  # of one example alone some layers cannot be evaluated
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise DataError(
            f"Expected labels [B] of type int64, got {labels.dtype} {tuple(labels.shape)}.",
            "Convert them with labels.long(), or pass a loss= that takes them.",
        )
    if int(labels.min()) < 0 or int(labels.max()) >= classes:
        raise DataError(
            f"Expected labels in 0..{classes - 1}; at least one lies outside.",
            "Number the classes from 0, or give the model an output for each.",
        )
