"""A state dict that came from a server, held against its model: what is trained, and what stays as it came."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .tensors import every_name

MOST = 8
"""Problems that one message names."""


class Received:
    """The entries of a state dict, each matched with a tensor of the model.

    Tied weights have several names for one tensor; an entry may come under one of them or under all. With ``noised``,
    floating-point buffers count as trained. Without ``copies`` the entries are not copied: for whoever runs no forward
    pass, which could write into them.

    >>> model = nn.Sequential(nn.BatchNorm1d(2), nn.Linear(2, 1))
    >>> received = Received(model, {name: tensor.clone() for name, tensor in model.state_dict().items()})
    >>> sorted(received.trainable()), sorted(received.fixed())
    (['0.bias', '0.weight', '1.bias', '1.weight'], ['0.num_batches_tracked', '0.running_mean', '0.running_var'])
    """

    def __init__(self, model: nn.Module, entries: Mapping[str, Tensor], *, noised: bool = False, copies: bool = True):
        if not isinstance(entries, Mapping):
            raise ModelError(f"Expected a state dict, got {type(entries).__name__}.", "Pass model.state_dict().")
        self._model = every_name(model)
        self._trained = {id(p): name for name, p in model.named_parameters() if p.requires_grad}  # as in a Layout
        self._entries: dict[str, Any] = dict(entries)
        self._buffers = {name: own for name, own in self._model.items() if name in entries and _is_buffer(own)}
        if noised:  # they are released like what is trained
            mine = {id(own) for own in self._buffers.values() if own.is_floating_point()}
            self._trained |= {id(own): name for name, own in model.named_buffers() if id(own) in mine}
        problems = list(self._problems(set(model.state_dict(keep_vars=True))))
        if problems:
            raise ModelError(
                f"The received state dict does not fit the model: {'; '.join(problems[:MOST])}"
                + (f"; and {len(problems) - MOST} more." if len(problems) > MOST else "."),
                "Pass the state dict of this very model as it came from the server, copied before you train. Where the "
                "server does not send what is frozen, leave it out: {n: p for n, p in model.named_parameters() if "
                "p.requires_grad}.",
            )
        if copies:  # whatever forward writes
            self._entries = {name: tensor.detach().clone() for name, tensor in entries.items()}

    def trainable(self) -> dict[str, Tensor]:
        """The received values of all that is trained, by the names of the model's ``Layout``."""
        return {slot: self._entries[name] for name in self._entries if (slot := self._slot(name)) is not None}

    def fitted(self) -> list[str]:
        """The buffers whose values in the model are others than those that were received."""
        return [name for name, own in self._buffers.items() if not _same(self._entries[name], own)]

    def fixed(self) -> dict[str, Tensor]:
        """Copies of frozen parameters and buffers as received, in the model's precision; one name for each."""
        names = {id(own): name for name, own in self._model.items() if name in self._entries}
        rest = {name: self._model[name] for name in names.values() if self._slot(name) is None}
        return {name: self._entries[name].to(own.device, own.dtype, copy=True) for name, own in rest.items()}

    def filled(self, trained: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The received entries again, in their order and types, with new values for all that is trained."""
        return {
            name: old.clone() if (slot := self._slot(name)) is None else torch.empty_like(old).copy_(trained[slot])
            for name, old in self._entries.items()
        }

    def _slot(self, name: str) -> str | None:
        """The layout's name of a trained entry; None for an entry that is not trained."""
        return self._trained.get(id(self._model.get(name)))

    def _problems(self, known: set[str]) -> Iterator[str]:
        for name, tensor in self._entries.items():
            if name not in known:
                yield f"the model has no {name!r}"
            elif not isinstance(tensor, Tensor):
                yield f"{name!r} is {type(tensor).__name__}, not a tensor"
            elif name in self._model and tensor.shape != self._model[name].shape:
                yield f"{name!r} has shape {tuple(tensor.shape)}, expected {tuple(self._model[name].shape)}"
            elif name in self._model and self._slot(name) is None and _same_memory(tensor, self._model[name]):
                yield f"{name!r} is the model's own memory, which may hold what was fitted to private data"
            elif self._slot(name) is not None and not tensor.is_floating_point():
                yield f"{name!r} is {tensor.dtype}, not floating point"
        present = {slot for name in self._entries if (slot := self._slot(name)) is not None}
        yield from (f"{name!r} is missing" for name in self._trained.values() if name not in present)
        yield from self._disagreements()

    def _disagreements(self) -> Iterator[str]:
        first: dict[int, str] = {}
        for name, tensor in self._entries.items():
            own = self._model.get(name)
            if own is None:
                continue
            other = first.setdefault(id(own), name)
            if other != name and not _equal(self._entries[other], tensor):
                yield f"{other!r} and {name!r} are one tensor of the model and hold different values"


def _is_buffer(own: Tensor) -> bool:
    return not isinstance(own, nn.Parameter)


def _same(received: Tensor, own: Tensor) -> bool:
    """The same values, as far as the type of what was received can tell."""
    return torch.equal(received, own.detach().to(received.device, received.dtype))


def _equal(one: Any, two: Any) -> bool:
    both = isinstance(one, Tensor) and isinstance(two, Tensor) and (one.dtype, one.device) == (two.dtype, two.device)
    return both and torch.equal(one, two)


def _same_memory(one: Tensor, two: Tensor) -> bool:
    return one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr() != 0
