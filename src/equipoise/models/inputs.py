"""What a model is called with, tensor by tensor, and the tensors in what it returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .objective import Inputs, arguments

Kind = Literal["image", "table", "tokens"]
"""What one input is: a picture ``[C, H, W]``, any other array of numbers, or whole numbers that stand for tokens."""


def placed(inputs: Tensor, device: torch.device, dtype: torch.dtype) -> Tensor:
    """The inputs on a device and in a precision; tokens stay whole numbers.

    >>> placed(torch.tensor([[3, 0]]), torch.device("cpu"), torch.float64).dtype
    torch.int64
    """
    return inputs.to(device, dtype) if inputs.is_floating_point() else inputs.to(device)


def listed(inputs: Inputs) -> list[Tensor]:
    """All tensors, in their order.

    >>> len(listed((torch.zeros(1), torch.zeros(2))))
    2
    """
    if isinstance(inputs, Tensor):
        return [inputs]
    return list(inputs.values() if isinstance(inputs, Mapping) else inputs)


def only(inputs: Inputs) -> Tensor:
    """The one tensor that there is.

    >>> only({"input": torch.ones(2)})
    tensor([1., 1.])
    """
    parts = listed(inputs)
    if len(parts) != 1:
        raise ModelError(f"This model takes one input, got {len(parts)}.", "Pass the batch as (x, y).")
    return parts[0]


def called(model: nn.Module, inputs: Inputs) -> Any:
    """What the model makes of them.

    >>> called(nn.Identity(), {"input": torch.ones(2)})
    tensor([1., 1.])
    """
    args, kwargs = arguments(inputs)
    return model(*args, **kwargs)


def described(inputs: Inputs) -> str:
    """Their public form, in words: shapes and types.

    >>> described(torch.zeros(2, 3))
    'batch of shape (2, 3) and type torch.float32'
    """
    parts = listed(inputs)
    if len(parts) == 1:
        return f"batch of shape {tuple(parts[0].shape)} and type {parts[0].dtype}"
    return "batch of " + " and ".join(f"{tuple(part.shape)} {part.dtype}" for part in parts)


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in what a model returned: alone, in tuples, lists and dicts, or as attributes of an object.

    >>> len(tensors_in({"logits": torch.zeros(1), "states": (torch.zeros(2), [torch.zeros(3)])}))
    3
    """
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, tuple | list):
        parts = list(value)
    else:
        parts = list(getattr(value, "__dict__", {}).values())
    return [tensor for part in parts for tensor in tensors_in(part)]


class Listed(nn.Module):
    """A model that returns the tensors of whatever it returns, as a tuple: what ``torch.func`` can hand on."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Tensor, **kwargs: Tensor) -> tuple[Tensor, ...]:
        return tuple(tensors_in(self.model(*args, **kwargs)))
