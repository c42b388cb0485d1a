"""The mini-batch behind a release, before anything is computed with it: its form, and that labels are classes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import DataError, ModelError
from ..models.check import loss_error
from ..models.inputs import called, listed
from ..models.objective import Inputs, map_inputs

Batch = tuple[Inputs, Tensor]
"""Inputs with their labels: ``(x, y)``; of several inputs ``((x1, x2), y)``, or by name ``({"a": x1, "b": x2}, y)``."""


def checked_batch(batch: Any) -> Batch:
    inputs, labels = checked_pair(batch, ", at least one")
    if not all(torch.isfinite(part).all() for part in listed(inputs) if part.is_floating_point()):
        raise DataError("The inputs of the batch are not finite.", "Remove NaN and Inf before training.")
    return inputs, labels


def checked_pair(batch: Any, least: str = "") -> Batch:
    """Whether a batch has the form of one; its values play no part."""
    inputs = _inputs(batch[0]) if isinstance(batch, tuple | list) and len(batch) == 2 else None
    if inputs is None or not isinstance(batch[1], Tensor):
        raise DataError(
            "Expected the batch to be a pair of tensors (inputs, labels).",
            "Pass (x, y); of several inputs ((x1, x2), y), or ({'a': x1, 'b': x2}, y) with the names of forward.",
        )
    labels = batch[1]
    for part in listed(inputs):
        if part.dim() == 0 or labels.dim() == 0 or len(part) != len(labels) or (least and not len(labels)):
            shapes = f"{tuple(part.shape)} and {tuple(labels.shape)}"
            raise DataError(f"Expected as many inputs as labels{least}, got shapes {shapes}.", "Pass a full batch.")
        if part.device != labels.device:
            raise DataError(
                f"The inputs are on {part.device}, the labels on {labels.device}.", "Move both to one device."
            )
    return inputs, labels


def _inputs(given: Any) -> Inputs | None:
    """One tensor, or several by place or by name; None for anything else."""
    if isinstance(given, Tensor):
        return given
    if not isinstance(given, tuple | list | Mapping) or not given:
        return None
    named = dict(given) if isinstance(given, Mapping) else dict(zip(map(str, range(len(given))), given, strict=True))
    if not all(isinstance(name, str) and isinstance(part, Tensor) for name, part in named.items()):
        return None
    return named if isinstance(given, Mapping) else tuple(given)


def check_labels(model: nn.Module, inputs: Inputs, labels: Tensor) -> None:
    """Cross-entropy needs class numbers; anything else would be a crash or a wrong loss."""
    try:
        with torch.no_grad():  # of one example alone some layers cannot be evaluated
            shape = tuple(called(model, map_inputs(lambda part: part[:2], inputs)).shape)
    except Exception as error:
        raise loss_error(error, model, None, inputs, labels) from None
    if len(shape) != 2:
        raise ModelError(
            f"Cross-entropy needs outputs [B, classes], got {shape}.", "Return a number per class, or pass loss=."
        )
    if labels.dtype != torch.int64 or labels.dim() != 1:
        raise DataError(
            f"Expected labels [B] of type int64, got {labels.dtype} {tuple(labels.shape)}.",
            "Convert them with labels.long(), or pass a loss= that takes them.",
        )
    if int(labels.min()) < 0 or int(labels.max()) >= shape[-1]:
        raise DataError(
            f"Expected labels in 0..{shape[-1] - 1}; at least one lies outside.",
            "Number the classes from 0, or give the model an output for each.",
        )
