"""How the trainable tensors of a model lie in a flat vector of P numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from ..errors import ModelError

Stretches = tuple[tuple[int, int], ...]
"""Where every tensor begins and ends in the flat vector."""


@dataclass(frozen=True)
class Slot:
    """Where one tensor of the module lives in the flat vector, and in which axis order."""

    name: str
    shape: tuple[int, ...]
    start: int
    axes: tuple[int, ...]  # flat order = tensor.permute(axes)
    stop: int = field(init=False)
    _permuted: tuple[int, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", self.start + torch.Size(self.shape).numel())
        object.__setattr__(self, "_permuted", tuple(self.shape[a] for a in self.axes))

    def take(self, flat: Tensor) -> Tensor:
        """The slot's part of ``[R, P]`` as ``[R, *permuted shape]``, without a copy."""
        return flat[:, self.start : self.stop].view(flat.shape[0], *self._permuted)


def add_slot(slots: list[Slot], name: str, tensor: Tensor, axes: tuple[int, ...]) -> Slot:
    """Append a slot for the tensor, right behind the last."""
    slots.append(Slot(name, tuple(tensor.shape), slots[-1].stop if slots else 0, axes))
    return slots[-1]


class Layout:
    """The slots of a module's trainable tensors, and their way into the flat vector and back."""

    def __init__(self, slots: list[Slot]):
        self.slots = slots
        self.size = slots[-1].stop

    @classmethod
    def of(cls, model: nn.Module) -> Layout:
        """Every trainable tensor in its own order, in the order of the module.

        >>> [(slot.name, slot.start, slot.stop) for slot in Layout.of(nn.Linear(3, 2)).slots]
        [('weight', 0, 6), ('bias', 6, 8)]
        """
        slots: list[Slot] = []
        for name, tensor in model.named_parameters():
            if tensor.requires_grad:
                add_slot(slots, name, tensor, tuple(range(tensor.dim())))
        if not slots:
            raise ModelError("The model has no trainable parameters.", "Set requires_grad on what is to be trained.")
        return cls(slots)

    @property
    def stretches(self) -> Stretches:
        """Where the tensors lie, for what treats each of them by itself.

        >>> Layout.of(nn.Linear(3, 2)).stretches
        ((0, 6), (6, 8))
        """
        return tuple((slot.start, slot.stop) for slot in self.slots)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """``{name: tensor}`` (a state dict may hold more) -> ``[P]``."""
        if not isinstance(tensors, Mapping) or not all(isinstance(tensor, Tensor) for tensor in tensors.values()):
            raise ModelError("Expected a state dict: names with tensors.", "Pass model.state_dict().")
        missing = [s.name for s in self.slots if s.name not in tensors]
        wrong = [
            f"{s.name} {tuple(tensors[s.name].shape)} instead of {s.shape}"
            for s in self.slots
            if s.name in tensors and tuple(tensors[s.name].shape) != s.shape
        ]
        if missing or wrong:
            raise ModelError(
                "; ".join(([f"Missing tensors: {', '.join(missing)}"] if missing else []) + wrong) + ".",
                "Give the state dict of the same model.",
            )
        return torch.cat([tensors[s.name].detach().permute(s.axes).reshape(-1) for s in self.slots])

    def unflatten(self, flat: Tensor) -> dict[str, Tensor]:
        """``[P]`` -> ``{name: tensor}``; views where the order allows it."""
        if flat.shape != (self.size,):
            raise ModelError(
                f"Expected {self.size} parameters, got shape {tuple(flat.shape)}.", "Use this model's layout."
            )
        return {s.name: s.take(flat.unsqueeze(0))[0].permute(_inverse(s.axes)) for s in self.slots}


def _inverse(axes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axes.index(i) for i in range(len(axes)))
