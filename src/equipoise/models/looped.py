"""The route of plain PyTorch: one replica after the other, forward and backward as torch does them.

Any model runs here, at the speed of a training loop. Where mini-batches are small, kernels are too short for several
threads each; then replicas are dealt to workers, each with one thread for its kernels (``threaded``). A replica's
numbers depend on it alone: not on what is computed beside it, nor, with one thread each, on how many workers there are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

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
                self._all(
                    inputs,
                    len(params),
                    lambda mine, r: values[r].copy_(self._value(mine, params[r], inputs, labels, r)),
                )
            return values

        def gradient(params: Tensor, out: Tensor | None = None) -> Tensor:
            grads = torch.empty_like(params) if out is None else out
            self._all(inputs, len(params), lambda mine, r: self._gradient(mine, params[r], inputs, labels, r, grads[r]))
            return grads

        return Objective(loss, gradient)

    def each(self, params: Tensor, inputs: Inputs, labels: Tensor) -> Tensor:
        """Each example in a call of its own, on one thread: no other can have a part in its gradient."""
        replicas, examples = labels.shape[:2]
        grads = params.new_empty(replicas * examples, params.shape[1])
        single = map_inputs(lambda part: part.flatten(0, 1).unsqueeze(1), inputs)
        alone = labels.flatten(0, 1).unsqueeze(1)

        def one(mine: _Copy, i: int) -> None:
            self._gradient(mine, params[i // examples], single, alone, i, grads[i])

        self._all(single, len(grads), one, dealt=True)
        return grads.view(replicas, examples, -1)

    def outputs(self, params: Tensor, inputs: Inputs) -> Tensor:
        results: list[Any] = [None] * len(params)

        def one(mine: _Copy, r: int) -> None:
            results[r] = mine.call(params[r], inputs, r)

        with torch.no_grad():
            self._all(inputs, len(params), one)
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
        torch.cat([part.reshape(-1) for part in grads], out=out)

    def _all(self, inputs: Inputs, count: int, task: Callable[[_Copy, int], Any], dealt: bool = False) -> None:
        """``task`` for each replica: here, or dealt to the workers in equal runs."""
        dealt = dealt or self._threaded
        parts = min(workers.count(), count) if dealt else 1
        while len(self._copies) < max(1, parts):
            by_pixel = self._copies[0].by_pixel if self._copies else None
            self._copies.append(_Copy(self._model, self.layout, self._fixed, inputs, by_pixel))

        def run(part: int, start: int, stop: int) -> None:
            for r in range(start, stop):
                task(self._copies[part], r)

        if not dealt:
            run(0, 0, count)
            return
        ends = [count * part // parts for part in range(parts + 1)]
        for _ in workers.mapped(lambda item: run(item[0], *item[1]), list(enumerate(pairwise(ends)))):
            pass


class _Copy:
    """A model of one's own whose parameters are set for every call, and which remembers nothing of the last one.

    A CPU convolves pictures a tenth to a third sooner if they lie channels last (``by_pixel``). Whether the model can
    take them so is tried on made-up numbers, once: no record may decide on how another one is computed.
    """

    def __init__(
        self, model: nn.Module, layout: Layout, fixed: Mapping[str, Tensor], inputs: Inputs, by_pixel: bool | None
    ):
        try:
            self._model = copy.deepcopy(model)
        except Exception as error:
            raise ModelError(
                f"The model cannot be copied: {place(error)}.",
                "Make copy.deepcopy(model) work: keep no open files in it.",
            ) from None
        names = every_name(self._model)
        self.parameters = [names[slot.name] for slot in layout.slots]
        for own in self.parameters:
            own.data = own.data.contiguous()
        self._values = [own.data.view(-1) for own in self.parameters]
        self._sizes = [own.numel() for own in self.parameters]
        trained, values = {id(own) for own in self.parameters}, {**every_name(model), **fixed}
        self._others = {id(own): (own, values[name]) for name, own in names.items() if id(own) not in trained}
        self._seen: dict[int, int] = {}
        self.by_pixel = self._takes_pixels(inputs) if by_pixel is None else by_pixel

    def call(self, flat: Tensor, inputs: Inputs, r: int) -> Any:
        """What the model returns for the mini-batch of replica ``r``.

        Its parameters stay where they are, as kernels round by where numbers lie.
        """
        with torch.no_grad():
            torch._foreach_copy_(self._values, flat.split(self._sizes))
        try:
            return self._returned(inputs, r, self.by_pixel)
        except RuntimeError as error:
            if not self.by_pixel or "view size" not in str(error):
                raise
            return self._returned(inputs, r, False)  # this one takes a view that made-up numbers did not

    def _returned(self, inputs: Inputs, r: int, by_pixel: bool) -> Any:
        self._forget()
        given, named = arguments(map_inputs(partial(_row, r, by_pixel), inputs))
        return self._model(*given, **named)

    def _forget(self) -> None:
        """Frozen parameters and buffers as they were given: a layer may write into them while it computes."""
        with torch.no_grad():
            for key, (own, value) in self._others.items():
                if not isinstance(own, nn.Parameter) or self._seen.get(key) != own._version:
                    own.copy_(value)
                    self._seen[key] = own._version

    def _takes_pixels(self, inputs: Inputs) -> bool:
        if not any(isinstance(part, nn.Conv2d) for part in self._model.modules()):
            return False
        draw = torch.Generator().manual_seed(0)
        try:
            with torch.no_grad():
                for own in self.parameters:
                    own.copy_(torch.rand(own.shape, generator=draw) - 0.5)
                made_up = map_inputs(partial(_made_up, draw), inputs)
                plain, other = (tree_leaves(self._returned(made_up, 0, by_pixel)) for by_pixel in (False, True))
                return all(torch.allclose(*pair, rtol=1e-3, atol=1e-4) for pair in zip(plain, other, strict=True))
        except Exception:  # a view that it takes of its pictures needs the usual order
            return False


def _row(r: int, by_pixel: bool, part: Tensor) -> Tensor:
    """The part of one replica, copied: how those of others lie beside it must not show."""
    by_pixel = by_pixel and part.dim() == 5 and part.device.type == "cpu"
    return part[r].clone(memory_format=torch.channels_last if by_pixel else torch.contiguous_format)


def _made_up(draw: torch.Generator, part: Tensor) -> Tensor:
    """A mini-batch of the form of those of ``part``, for one replica."""
    if not part.is_floating_point():
        return torch.zeros_like(part[:1])
    return torch.rand(part[:1].shape, generator=draw).to(part.device, part.dtype)
