"""The route of plain PyTorch: one replica after the other, forward and backward as torch does them.

Any model runs here, at the speed of a training loop. Where mini-batches are small, kernels are too short for several
threads each; then replicas are dealt to workers, each with one thread for its kernels (``threaded``). A replica's
numbers depend on it alone: not on what is computed beside it, nor, with one thread each, on how many workers there are.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from threading import Barrier
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ModelError, place
from .layout import Layout
from .objective import Inputs, Loss, Objective, arguments, map_inputs, mean_loss
from .tensors import every_name
from .vmapped import Vmapped

MOST_WORKERS = 8


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
            results[r] = mine.call(params[r], _row(inputs, r))

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
        return mean_loss(self._loss, mine.call(flat, _row(inputs, r)), labels[r])

    def _gradient(self, mine: _Copy, flat: Tensor, inputs: Inputs, labels: Tensor, r: int, out: Tensor) -> None:
        with torch.enable_grad():
            value = self._value(mine, flat, inputs, labels, r)
            grads = torch.autograd.grad(value, mine.parameters, materialize_grads=True)
        for slot, part in zip(self.layout.slots, grads, strict=True):
            out[slot.start : slot.stop].copy_(part.reshape(-1))

    def _all(self, count: int, task: Callable[[_Copy, int], Any]) -> None:
        """``task`` for each replica: here, or dealt to the workers in equal runs."""
        workers = min(worker_count(), count) if self._threaded else 1
        while len(self._copies) < max(1, workers):
            self._copies.append(_Copy(self._model, self.layout, self._fixed))
        if not self._threaded or torch.get_num_threads() == 1:
            for r in range(count):
                task(self._copies[0], r)
            return
        recording = torch.is_grad_enabled()

        def run(worker: int, start: int, stop: int) -> None:
            with torch.set_grad_enabled(recording):
                for r in range(start, stop):
                    task(self._copies[worker], r)

        ends = [count * worker // workers for worker in range(workers + 1)]
        waiting = [_pool().submit(run, worker, *part) for worker, part in enumerate(pairwise(ends))]
        for one in waiting:
            one.result()


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

    def call(self, flat: Tensor, inputs: Inputs) -> Any:
        """What the model returns; its parameters stay where they are, as kernels round by where numbers lie."""
        for slot, own in zip(self._slots, self.parameters, strict=True):
            own.data.copy_(flat[slot.start : slot.stop].view(slot.shape))
        given, named = arguments(inputs)
        return self._model(*given, **named)


def _row(inputs: Inputs, r: int) -> Inputs:
    """The mini-batch of one replica, copied: how those of others lie beside it must not show."""
    return map_inputs(lambda part: part[r].clone(memory_format=torch.contiguous_format), inputs)


_pools: dict[tuple[int, int], ThreadPoolExecutor] = {}
"""By process, as threads do not outlive a fork, and number of workers."""


def _pool() -> ThreadPoolExecutor:
    key = os.getpid(), worker_count()
    if key not in _pools:
        before, together = torch.get_num_threads(), Barrier(key[1])
        pool = ThreadPoolExecutor(key[1], "equipoise", _one_thread)
        for one in [pool.submit(together.wait) for _ in range(key[1])]:  # all of them start now
            one.result()
        torch.set_num_threads(before)  # that of a worker is also what threads made later would begin with
        _pools[key] = pool
    return _pools[key]


def _one_thread() -> None:
    torch.get_num_threads()  # else the first kernel would set the number again
    torch.set_num_threads(1)


def worker_count() -> int:
    """How many workers replicas are dealt to: as many as torch would give threads to a kernel."""
    return min(MOST_WORKERS, torch.get_num_threads())
