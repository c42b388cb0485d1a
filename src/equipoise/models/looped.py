"""The route of plain PyTorch: one replica after the other, forward and backward as torch does them.

Any model runs here, at the speed of a training loop. Where mini-batches are small, kernels are too short for several
threads each; then replicas are dealt to workers, each with one thread for its kernels (``threaded``). A replica's
numbers depend on it alone: not on what is computed beside it, nor, with one thread each, on how many workers there are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from .. import workers
from ..errors import ModelError, place
from .layout import Layout
from .objective import Inputs, Loss, Objective, arguments, map_inputs, mean_loss
from .tensors import every_name
from .vmapped import Vmapped


class Looped:
    """Losses and gradients by autograd, replica by replica, on copies of the model that are this route's own."""

    def __init__(
        self, model: nn.Module, layout: Layout, loss: Loss | None, fixed: Mapping[str, Tensor], threaded: bool = False
    ):
        self.layout, self._loss, self._threaded = layout, loss, threaded
        self._model, self._fixed = model, dict(fixed)
        self._copies: list[_Copy] = []

    def at(self, inputs: Inputs, labels: Tensor) -> Objective:
        def loss(params: Tensor) -> Tensor:
            values = params.new_empty(len(params))
            with torch.no_grad():
                self._all(len(params), lambda mine, r: values[r].copy_(self._value(mine, params[r], inputs, labels, r)))
            return values

        def gradient(params: Tensor, out: Tensor | None = None) -> Tensor:
            grads = torch.empty_like(params) if out is None else out
            self._all(len(params), lambda mine, r: self._gradient(mine, params[r], inputs, labels, r, grads[r]))
            return grads

        return Objective(loss, gradient)

    def each(self, params: Tensor, inputs: Inputs, labels: Tensor) -> Tensor:
        """Each example in a call of its own: no other can have a part in its gradient."""
        replicas, examples = labels.shape[:2]
        grads = params.new_empty(replicas * examples, params.shape[1])
        single = map_inputs(lambda part: part.flatten(0, 1).unsqueeze(1), inputs)
        alone = labels.flatten(0, 1).unsqueeze(1)

        def one(mine: _Copy, i: int) -> None:
            self._gradient(mine, params[i // examples], single, alone, i, grads[i])

        self._all(len(grads), one)
        return grads.view(replicas, examples, -1)

    def outputs(self, params: Tensor, inputs: Inputs) -> Tensor:
        results: list[Any] = [None] * len(params)

        def one(mine: _Copy, r: int) -> None:
            results[r] = mine.call(params[r], inputs, r)

        with torch.no_grad():
            self._all(len(params), one)
        return torch.stack(results)

    def differentiable(self, params: Tensor, inputs: Inputs, labels: Tensor) -> Tensor:
        """As ``torch.func`` would, for one replica at a time: recorded, so that it can be differentiated again."""
        plain = Vmapped(self._model, self.layout, self._loss, self._fixed)
        rows = []
        for r in range(len(params)):
            flat = params[r] if params.requires_grad else params[r].detach().requires_grad_()
            value = plain._value(flat, map_inputs(lambda part, r=r: part[r], inputs), labels[r])  # type: ignore[misc]
            rows.append(torch.autograd.grad(value, flat, create_graph=True)[0])
        return torch.stack(rows)

    def _value(self, mine: _Copy, flat: Tensor, inputs: Inputs, labels: Tensor, r: int) -> Tensor:
        return mean_loss(self._loss, mine.call(flat, inputs, r), labels[r])

    def _gradient(self, mine: _Copy, flat: Tensor, inputs: Inputs, labels: Tensor, r: int, out: Tensor) -> None:
        with torch.enable_grad():
            value = self._value(mine, flat, inputs, labels, r)
            grads = torch.autograd.grad(value, mine.parameters, materialize_grads=True)
        for slot, part in zip(self.layout.slots, grads, strict=True):
            out[slot.start : slot.stop].view(slot.shape).copy_(part)

    def _all(self, count: int, task: Callable[[_Copy, int], Any]) -> None:
        """``task`` for each replica: here, or dealt to the workers in equal runs."""
        parts = min(workers.count(), count) if self._threaded else 1
        while len(self._copies) < max(1, parts):
            self._copies.append(_Copy(self._model, self.layout, self._fixed))

        def run(part: int, start: int, stop: int) -> None:
            for r in range(start, stop):
                task(self._copies[part], r)

        if not self._threaded:
            run(0, 0, count)
            return
        ends = [count * part // parts for part in range(parts + 1)]
        for _ in workers.mapped(lambda item: run(item[0], *item[1]), list(enumerate(pairwise(ends)))):
            pass


class _Copy:
    """A model of one's own whose parameters are set for every call."""

    def __init__(self, model: nn.Module, layout: Layout, fixed: Mapping[str, Tensor]):
        try:
            self._model = copy.deepcopy(model)
        except Exception as error:
            raise ModelError(
                f"The model cannot be copied: {place(error)}.",
                "Make copy.deepcopy(model) work: keep no open files in it.",
            ) from None
        names, self._slots = every_name(self._model), layout.slots
        with torch.no_grad():
            for name, value in fixed.items():
                names[name].copy_(value)
        self.parameters = [names[slot.name] for slot in layout.slots]
        self._pictures_by_pixel = any(isinstance(part, nn.Conv2d) for part in self._model.modules())
        """Channels last: a CPU convolves such pictures a tenth to a third sooner."""

    def call(self, flat: Tensor, inputs: Inputs, r: int) -> Any:
        """What the model returns for the mini-batch of replica ``r``.

        Its parameters stay where they are, as kernels round by where numbers lie.
        """
        for slot, own in zip(self._slots, self.parameters, strict=True):
            own.data.copy_(flat[slot.start : slot.stop].view(slot.shape))
        given, named = arguments(map_inputs(lambda part: self._row(part, r), inputs))
        try:
            return self._model(*given, **named)
        except RuntimeError as error:
            if not self._pictures_by_pixel or "view size" not in str(error):
                raise
            self._pictures_by_pixel = False  # the model takes views of its pictures that need the usual order
            return self.call(flat, inputs, r)

    def _row(self, part: Tensor, r: int) -> Tensor:
        """The part of one replica, copied: how those of others lie beside it must not show."""
        by_pixel = self._pictures_by_pixel and part.dim() == 5 and part.device.type == "cpu"
        return part[r].clone(memory_format=torch.channels_last if by_pixel else torch.contiguous_format)
