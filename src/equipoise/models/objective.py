"""The loss of one mini-batch per replica, and what a model is called with and returns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..errors import ModelError
from .layout import Stretches

Loss = Callable[[Any, Tensor], Tensor]
"""(what the model returns for ``[B, ...]``, labels ``[B, ...]``) -> the mean loss of the batch, one number."""

Inputs = Any
"""A tensor, a tuple of tensors (``model(*inputs)``) or a mapping of tensors (``model(**inputs)``)."""


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
        self.stretches: Stretches | None = None  # of the tensors in P, where they are known
        self.units = units  # all records of R clients, for the mechanism that draws its own batch


def map_inputs(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """``function`` of every tensor in the inputs.

    >>> map_inputs(lambda x: x[0], (torch.zeros(2, 3), torch.zeros(2, 5)))[1].shape
    torch.Size([5])
    """
    return function(inputs) if isinstance(inputs, Tensor) else tree_map(function, inputs)


def arguments(inputs: Inputs) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and named arguments of ``forward``.

    >>> arguments({"ids": 1}), arguments((1, 2))
    (((), {'ids': 1}), ((1, 2), {}))
    """
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)), {}


def mean_loss(loss: Loss | None, outputs: Any, labels: Tensor) -> Tensor:
    """The loss of one batch: cross-entropy, or the user's, if it can be differentiated."""
    if loss is None:
        if not isinstance(outputs, Tensor):
            raise ModelError(
                f"The model returns {type(outputs).__name__}, and cross-entropy needs a tensor.",
                "Say which part of it counts: loss=lambda outputs, labels: cross_entropy(outputs['logits'], labels).",
            )
        return nn.functional.cross_entropy(outputs, labels)
    value: Any = loss(outputs, labels)
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


def filled_up(tensor: Tensor, dim: int, multiple: int) -> Tensor:
    """The last entry along ``dim`` repeated until their number is a multiple.

    >>> filled_up(torch.tensor([1, 2, 3]), 0, 4)
    tensor([1, 2, 3, 3])
    """
    spare = -tensor.shape[dim] % multiple
    return torch.cat([tensor, *[tensor.narrow(dim, -1, 1)] * spare], dim) if spare else tensor
