"""The mini-batch behind a release, before anything is computed with it: its form, and that labels are classes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import DataError, ModelError
from ..models.check import loss_error


def checked_batch(batch: Any) -> tuple[Tensor, Tensor]:
    images, labels = checked_pair(batch, ", at least one")
    if images.is_floating_point() and not torch.isfinite(images).all():
        raise DataError("The inputs of the batch are not finite.", "Remove NaN and Inf before training.")
    return images, labels


def checked_pair(batch: Any, least: str = "") -> tuple[Tensor, Tensor]:
    """Whether a batch has the form of one; its values play no part."""
    if not isinstance(batch, tuple | list) or len(batch) != 2 or not all(isinstance(part, Tensor) for part in batch):
        raise DataError("Expected the batch to be a pair of tensors (inputs, labels).", "Pass (x, y).")
    images, labels = batch
    if images.dim() == 0 or labels.dim() == 0 or len(images) != len(labels) or (least and not len(labels)):
        shapes = f"{tuple(images.shape)} and {tuple(labels.shape)}"
        raise DataError(f"Expected as many inputs as labels{least}, got shapes {shapes}.", "Pass a full batch.")
    if images.device != labels.device:
        raise DataError(
            f"The inputs are on {images.device}, the labels on {labels.device}.", "Move both to one device."
        )
    return images, labels


def check_labels(model: nn.Module, images: Tensor, labels: Tensor) -> None:
    """Cross-entropy needs class numbers; anything else would be a crash or a wrong loss."""
    try:
        with torch.no_grad():
            shape = tuple(model(images[:2]).shape)  # of one example alone some layers cannot be evaluated
    except Exception as error:
        raise loss_error(error, model, None, images, labels) from None
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
