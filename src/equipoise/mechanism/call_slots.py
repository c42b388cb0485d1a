"""How many records one call may hold: what each comes to must not depend on its companions, bit for bit.

Kernels may round otherwise for a record in another slot, or beside others. That is tried on made-up records before any
real one is looked at; where it shows, each record gets a call of its own.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from .. import workers
from ..errors import ModelError, place
from ..models.batched import Batched
from ..models.check import circumstances
from ..models.inputs import listed
from ..models.objective import Inputs, map_inputs
from ..models.routes import SHARED
from ..workers import Item, Result
from .l2_grid import L2Grid

log = logging.getLogger("equipoise")

SLOTS, FEW = 128, 8
"""Records of one call on a CPU, at most and at least."""
APART, NUMBERS = 32, 1 << 22
"""Most records, and most numbers of their gradients, of a call in which kernels see one after the other."""
SIZES = (0.2, 1.0, 4.0, 2.0**24, 1e30)
"""Of the weights that ``slots_for`` tries: usual ones, and some that only a hostile server would send."""
USUAL = SIZES[:3]


def one_thread_each(batched: Batched, task: Callable[[Item], Result], items: Sequence[Item]) -> Iterable[Result]:
    """``task`` of every item, on a CPU side by side, each with one thread for its kernels.

    How many calls there are tells how many records there are: it must not show in how a call is computed.
    """
    return workers.mapped(task, items) if batched.thread_safe else map(task, items)


def call_size(batched: Batched, expected: float = SLOTS) -> int:
    """Slots of a call, by public numbers alone: as many as records are expected, where kernels see several at once.

    Where they do not, empty slots cost nothing, and a call is as large as its gradients are small.

    >>> from equipoise.models.bundled import LeNetZhu
    >>> [call_size(Batched(LeNetZhu()), expected) for expected in (1, 20, 1000)]
    [8, 32, 128]
    """
    if batched.route not in SHARED:
        return max(FEW, min(APART, NUMBERS // batched.layout.size))
    return min(SLOTS, max(FEW, 1 << math.ceil(math.log2(max(expected, 1)))))


_SLOTS: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], tuple[Callable[[], Any], int]]] = WeakKeyDictionary()
"""What ``slots_for`` found, and for which loss; forgotten with the model."""


def slots_for(batched: Batched, inputs: Inputs, label: Tensor, classes: int | None, size: int = SLOTS) -> int:
    """How many records one call may hold here: ``size``, if no slot of such a call shows in the bits of another, or 1.

    A model that remembers what it saw, so that not even calls of one record are independent, is refused. Tried on
    made-up records of the shape of ``inputs`` ``[1, ...]`` and ``label`` ``[1, ...]``, once for each model, shape,
    size, device and number of threads.
    """
    known = _SLOTS.setdefault(batched.model, {})
    shapes = tuple((tuple(part.shape), part.dtype) for part in listed(inputs))
    kinds = shapes, label.dtype, next(batched.model.parameters()).dtype
    key = (
        circumstances(batched.model),
        kinds,
        size,
        batched.route,
        str(label.device),
        torch.get_num_threads(),
        torch.get_float32_matmul_precision(),
        id(batched.loss),
    )
    loss, slots = known.get(key, (None, 0))
    if loss is None or loss() is not batched.loss:  # a new loss may have the id of one that is gone
        (slots,) = one_thread_each(batched, lambda one: _tried(batched, one, label, classes, size), [inputs])
        if slots < size:
            log.warning("Here the gradients of this model depend on their companions' bits: one record at a time.")
        known[key] = _weak(batched.loss), slots
    return slots


def _tried(batched: Batched, inputs: Inputs, label: Tensor, classes: int | None, size: int) -> int:
    drawn = partial(_drawn, inputs, label, classes)
    if batched.route in SHARED and size > 1:
        try:
            if _independent(batched, batched.each, drawn, size, SIZES, _strange):
                return size
        except Exception:  # of these records' doing: perhaps not of one's that is alone
            log.debug("A call of %d made-up records failed.", size)

    def apart(weights: Tensor, inputs: Inputs, labels: Tensor) -> Tensor:
        calls = (map_inputs(partial(_ordered, slice(i, i + 1)), inputs) for i in range(FEW))
        return torch.cat([batched.each(weights, one, labels[:, i : i + 1]) for i, one in enumerate(calls)], 1)

    try:
        kept = _independent(batched, apart, drawn, FEW, USUAL, _other)
    except Exception as error:
        raise ModelError(
            f"The model cannot be tried on made-up records: {place(error)}.",
            "Let forward take any finite numbers, and whole numbers 0 and 1 where it takes these.",
        ) from None
    if not kept:
        raise ModelError(
            "What the model makes of one record depends on those before it, although each has a call of its own.",
            "It draws random numbers or remembers what it saw: take that out of forward, or call eval() on it. "
            "On a GPU its kernels may add in no fixed order: torch.use_deterministic_algorithms(True).",
        )
    return 1 if batched.route in SHARED else size


def _weak(loss: Any) -> Callable[[], Any]:
    """Gives the loss as long as it exists; of one that cannot be watched, nothing."""
    try:
        return ref(loss)
    except TypeError:
        return lambda: None


Each = Callable[[Tensor, Inputs, Tensor], Tensor]
Drawn = Callable[[torch.Generator, int], tuple[Inputs, Tensor]]


def _independent(
    batched: Batched, each: Each, drawn: Drawn, slots: int, sizes: Sequence[float], replaced: Callable[[Tensor], Tensor]
) -> bool:
    """Whether records keep all bits of their gradients in another slot and beside other companions.

    A record that is removed shifts all that come after it by one slot, which is tried; the other order is any. At each
    size of weights it is tried anew, with other records.
    """
    draw = torch.Generator().manual_seed(0)
    grid = L2Grid.of(1.0, batched.layout.size)
    kind = next(batched.model.parameters()).dtype

    def kept(size: float) -> bool:
        """Whether every record is the same one slot further, and every other one beside strange companions."""
        images, labels = drawn(draw, slots)
        weights = ((torch.rand(1, batched.layout.size, generator=draw) - 0.5) * size).to(labels.device, kind)
        strange = map_inputs(replaced, images)
        shifted, mixed = torch.arange(slots).roll(1), torch.randperm(slots, generator=draw)
        usual = mixed % 2 == 0
        plain, moved, beside = (
            _looked_at(each(weights, map_inputs(partial(_ordered, order), seen), labels[:, order]), grid)
            for seen, order in ((images, torch.arange(slots)), (images, shifted), (strange, mixed))
        )
        return all(
            torch.equal(b, a[:, shifted]) and torch.equal(c[:, usual], a[:, mixed[usual]])
            for a, b, c in zip(plain, moved, beside, strict=True)
        )

    return all(kept(size) for size in sizes)


def _drawn(
    inputs: Inputs, label: Tensor, classes: int | None, draw: torch.Generator, slots: int
) -> tuple[Inputs, Tensor]:
    """Records that fill one call."""
    return map_inputs(partial(_made_up, draw, slots), inputs), _labels(label, classes, draw, slots)


def _made_up(draw: torch.Generator, slots: int, part: Tensor) -> Tensor:
    """Inputs that fill one call, of the shape of ``part`` ``[1, ...]``."""
    shape = (1, slots, *part.shape[1:])
    floats = part.is_floating_point()
    values = torch.randn(shape, generator=draw) if floats else torch.randint(2, shape, generator=draw)
    return values.to(part.device, part.dtype)


def _labels(label: Tensor, classes: int | None, draw: torch.Generator, slots: int) -> Tensor:
    """Labels that fill one call, of the shape of ``label`` ``[1, ...]``."""
    labels = torch.zeros(1, slots, *label.shape[1:], dtype=label.dtype)
    if classes is not None:
        labels = torch.randint(classes, labels.shape, generator=draw)
    return labels.to(label.device)


def _other(part: Tensor) -> Tensor:
    """The same with every second record replaced by zeros, which any model takes."""
    result = part.clone()
    result[:, 1::2] = 0
    return result


def _strange(part: Tensor) -> Tensor:
    """The same with every second record replaced by one that numbers end with."""
    result = _other(part)
    if part.is_floating_point():
        result[:, 1::4] = 1e30
        result[:, 3::8] = torch.nan
    return result


def _ordered(order: Tensor | slice, part: Tensor) -> Tensor:
    return part[:, order]


def _looked_at(gradients: Tensor, grid: L2Grid) -> tuple[Tensor, ...]:
    """All that must not depend on companions: the gradients, which of them are no numbers, and their integers."""
    return gradients.nan_to_num(nan=0.0), gradients.isnan(), grid.whole(gradients, 1.0)[0].double()
