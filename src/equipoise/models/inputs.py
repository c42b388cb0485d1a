"""What a model is called with: one tensor, a tuple of tensors by place, or a dict of tensors by name.

Every tensor has the records of the batch along the same dimension; what holds for one is done to each.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor, nn

from ..errors import ModelError

Inputs = Tensor | tuple[Tensor, ...] | dict[str, Tensor]


def mapped(function: Callable[[Tensor], Tensor], inputs: Inputs) -> Inputs:
    """The same for every tensor, in the same form.

    >>> import torch
    >>> mapped(lambda x: x[:1], {"a": torch.zeros(3, 2), "b": torch.ones(3)})
    {'a': tensor([[0., 0.]]), 'b': tensor([1.])}
    """
    if isinstance(inputs, Tensor):
        return function(inputs)
    if isinstance(inputs, Mapping):
        return {name: function(tensor) for name, tensor in inputs.items()}
    return tuple(function(tensor) for tensor in inputs)


def listed(inputs: Inputs) -> list[Tensor]:
    """All tensors, in their order.

    >>> import torch
    >>> len(listed((torch.zeros(1), torch.zeros(2))))
    2
    """
    if isinstance(inputs, Tensor):
        return [inputs]
    return list(inputs.values() if isinstance(inputs, Mapping) else inputs)


def only(inputs: Inputs) -> Tensor:
    """The one tensor that there is.

    >>> import torch
    >>> only({"input": torch.ones(2)})
    tensor([1., 1.])
    """
    parts = listed(inputs)
    if len(parts) != 1:
        raise ModelError(f"This model takes one input, got {len(parts)}.", "Pass the batch as (x, y).")
    return parts[0]


def arguments(inputs: Inputs) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """By place and by name: ``model(*args, **kwargs)``.

    >>> import torch
    >>> arguments((torch.zeros(()),))
    ((tensor(0.),), {})
    """
    if isinstance(inputs, Mapping):
        return (), dict(inputs)
    return (inputs,) if isinstance(inputs, Tensor) else tuple(inputs), {}


def called(model: nn.Module, inputs: Inputs) -> Any:
    """What the model makes of them.

    >>> import torch
    >>> called(nn.Identity(), {"input": torch.ones(2)})
    tensor([1., 1.])
    """
    args, kwargs = arguments(inputs)
    return model(*args, **kwargs)


def described(inputs: Inputs) -> str:
    """Their public form, in words: shapes and types.

    >>> import torch
    >>> described(torch.zeros(2, 3))
    'batch of shape (2, 3) and type torch.float32'
    """
    parts = listed(inputs)
    if len(parts) == 1:
        return f"batch of shape {tuple(parts[0].shape)} and type {parts[0].dtype}"
    return "batch of " + " and ".join(f"{tuple(part.shape)} {part.dtype}" for part in parts)


def tensors_in(value: Any) -> list[Tensor]:
    """Every tensor in what a model returned: alone, in tuples, lists and dicts, or as attributes of an object.

    >>> import torch
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
