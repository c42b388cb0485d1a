"""``protect``: one client's release from your own PyTorch loop, by the same code the engine runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from .errors import ConfigError, DataError, ReleaseError
from .gradients import Batched, Loss, check_model
from .mechanisms import Mechanism, mechanism
from .randomness import experiment_key, fresh_key, standard_noise, uniform
from .release import Protection, Release, distort_given, release
from .settings import Settings

_known: WeakKeyDictionary[nn.Module, dict[Any, Batched]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Protected:
    """What may leave the client: the distorted parameters, and numbers that describe the distortion."""

    parameters: dict[str, Tensor]
    record: dict[str, Any]


def protect(
    model: nn.Module,
    start: Mapping[str, Tensor],
    batch: tuple[Tensor, Tensor],
    mechanism: str | Mechanism,
    budget: float | None = None,
    *,
    loss: Loss | None = None,
    local: Mapping[str, Tensor] | None = None,
    settings: Settings | None = None,
    client: int = 0,
    round: int = 0,
    experiment_seed: int | None = None,
) -> Protected:
    """Train one local step from ``start`` on ``batch``, distort the result, and return what may be sent.

    ``start`` are the global parameters (a state dict). With ``local``, the parameters your own training loop
    reached, no step is made and those are distorted. ``loss(outputs, labels)`` defaults to cross-entropy.
    ``settings`` holds eta, M, gamma, lambda, clip and the calibration constants.

    The noise comes from the operating system's entropy. ``experiment_seed`` replaces it by reproducible noise keyed
    by (seed, client, round), for experiments only: whoever knows the seed can subtract the noise.

    >>> from equipoise.models import LeNetZhu
    >>> model = LeNetZhu()
    >>> x, y = torch.randn(4, 1, 28, 28), torch.tensor([0, 1, 2, 3])
    >>> sent = protect(model, model.state_dict(), (x, y), "pl-learn", 0.98)
    >>> 7.99 < sent.record["intensity"] < 16
    True
    """
    settings = settings or Settings()
    kind = _checked_mechanism(mechanism, budget)
    images, labels = _checked_batch(batch)
    batched = _batched(model, images, loss)
    layout = batched.layout
    begin = layout.flatten(start).to(images).unsqueeze(0)  # [1, P]
    for name, tensor in (("start", begin),) + ((("local", layout.flatten(local)),) if local is not None else ()):
        if not torch.isfinite(tensor).all():
            raise ReleaseError(f"The parameters in {name!r} are not finite.", "Start from healthy parameters.")
    measure = settings.measure(kind.name) if kind.distorts else None
    scale = 0.0 if measure is None or budget is None else measure.lower(budget)
    protection = Protection(
        mechanism=kind,
        scale=scale,
        factor=settings.factor,
        steps=settings.steps,
        lr=float(settings.lr),
        negative_norm=float(settings.negative_norm),
        clip=settings.clip,
        clip_norm=settings.clip_norm,
    )
    objective = batched.at(images.unsqueeze(0), labels.unsqueeze(0))
    noise = _noise(kind, layout.size, images, experiment_seed, client, round)
    if local is None:
        found = release([objective], begin, noise, settings.eta, protection)
    else:
        found = distort_given(objective, layout.flatten(local).to(images).unsqueeze(0), noise, protection)
    return _sent(found, batched, kind, budget, experiment_seed, client, round)


def _sent(
    found: Release, batched: Batched, kind: Mechanism, budget: float | None, seed: int | None, client: int, when: int
) -> Protected:
    record = found.record
    if not bool(record.accepted[0]):
        raise ReleaseError(
            f"The release of client {client} in round {when} is not finite or outside its intensity bounds "
            f"(realised {float(record.intensity[0]):.6g}, asked {float(record.lower[0]):.6g} to "
            f"{float(record.upper[0]):.6g}). Nothing was released.",
            "Use a smaller learning rate, and check the batch and the loss.",
        )
    numbers = {
        name: float(getattr(record, name)[0]) for name in ("lower", "upper", "intensity", "clipped", "utility_loss")
    }
    parameters = {name: tensor.clone() for name, tensor in batched.layout.unflatten(found.parameters[0]).items()}
    about = {"mechanism": kind.name, "budget": budget, "norm": kind.norm, "client": client, "round": when}
    return Protected(parameters, {**about, **numbers, "experiment": "seeded" if seed is not None else None})


def _noise(kind: Mechanism, size: int, like: Tensor, seed: int | None, client: int, when: int) -> Tensor | None:
    if not kind.distorts:
        return None
    key = fresh_key() if seed is None else experiment_key(seed, "noise")
    return standard_noise(uniform([key], [client], [when], size, like.dtype, like.device)[0], kind.noise)


def _checked_mechanism(name: str | Mechanism, budget: float | None) -> Mechanism:
    kind = mechanism(name)
    if kind.distorts and budget is None:
        raise ConfigError(f"The mechanism {kind.name!r} needs a budget.", "For example 0.98 for pl-*, 200 for ls-*.")
    if not kind.distorts and budget is not None:
        raise ConfigError(f"The mechanism 'none' takes no budget, got {budget!r}.", "Leave the budget out.")
    return kind


def _checked_batch(batch: Any) -> tuple[Tensor, Tensor]:
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
        raise DataError("Expected the batch to be a pair of tensors (inputs, labels).", "Pass (x, y).")
    images, labels = batch
    if len(images) == 0 or len(images) != len(labels):
        raise DataError(
            f"Expected as many inputs as labels, got {len(images)} and {len(labels)}.", "Pass a full batch."
        )
    if images.is_floating_point() and not torch.isfinite(images).all():
        raise DataError("The inputs of the batch are not finite.", "Remove NaN and Inf before training.")
    return images, labels


def _batched(model: nn.Module, images: Tensor, loss: Loss | None) -> Batched:
    """Checked once per model and loss."""
    known = _known.setdefault(model, {})
    key = (loss, str(images.device))
    if key not in known:
        check_model(model, images[:2])
        known[key] = Batched(model, loss, images.device)
    return known[key]
