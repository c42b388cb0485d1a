"""The records behind a formal release, each looked at by itself.

A gradient that is computed beside others can differ in its last bits from the same gradient computed alone, and an
error in one record would undo all of them. Here each record is copied, so that nothing tells how its batch lay in
memory, and has a call of its own, whose shape never changes: what comes of it depends on that record and on public
things; where nothing does, its gradient is zero.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import EquipoiseError, place
from ..models.batched import Batched
from ..models.check import loss_error
from ..models.objective import Inputs, Loss, Objective, map_inputs
from ..models.routes import Name
from .units import Units

log = logging.getLogger("equipoise")


def records(batched: Batched, inputs: Inputs, labels: Tensor, classes: int | None) -> Objective:
    """The objective of one client, ``[1, P]``, whose ``per_example`` no record can make fail.

    Labels that are not below ``classes`` are not computed with at all: on a GPU that would end the process.
    """

    def each(params: Tensor) -> Iterator[Tensor]:
        failed: list[str] = []
        for i in range(len(labels)):
            x, y = map_inputs(partial(_copied, i), inputs), _copied(i, labels)
            gradient = torch.zeros_like(params)
            if classes is not None and not 0 <= int(y) < classes:
                failed.append("its label is out of range")
            else:
                try:
                    gradient = batched.at(*_as_client(x, y)).gradient(params)
                except Exception as error:  # whatever it is: that it came would tell of this record
                    failed.append(place(error))
            yield gradient
        if failed:
            log.warning("%d of %d records count as zero, the first one: %s.", len(failed), len(labels), failed[0])

    return _one_by_one(each)


def no_records() -> Objective:
    """The objective of a client that has none: noise is all that it will release."""
    return _one_by_one(lambda params: ())


def of_units(units: Units) -> Objective:
    """The objective of R clients whose mechanism draws its own batch from all of their records."""
    result = _one_by_one(lambda params: ())
    result.units = units
    return result


def _one_by_one(each: Callable[[Tensor], Iterable[Tensor]]) -> Objective:
    def together(*_: Any, **__: Any) -> Tensor:
        raise AssertionError("a formal release looks at one record at a time")

    return Objective(together, together, each)


def neutral(model: nn.Module) -> nn.Module:
    """A copy with values of its own, the same every time: whether a model serves must not depend on any that it holds.

    A server chooses the received ones, and those of a local copy may be fitted to private data.
    """
    result, draw = copy.deepcopy(model), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for tensor in (*result.parameters(), *result.buffers()):
            if tensor.is_floating_point():
                tensor.copy_((torch.rand(tensor.shape, generator=draw) + 0.5) / 20)  # positive: it may be a variance
    return result


def blank_record(part: Tensor) -> Tensor:
    """Inputs or labels of one record with zeros in it: to try a model on, before any record is looked at."""
    return part.new_zeros((1, *part.shape[1:]))


def _copied(place: int, part: Tensor) -> Tensor:
    """One record, in memory of its own."""
    return part[place : place + 1].clone(memory_format=torch.contiguous_format)


def _as_client(inputs: Inputs, labels: Tensor) -> tuple[Inputs, Tensor]:
    """A batch as that of one client among R = 1."""
    return map_inputs(lambda part: part.unsqueeze(0), inputs), labels.unsqueeze(0)


def rehearse(
    model: nn.Module, inputs: Inputs, label: Tensor, loss: Loss | None, route: Name | None = None
) -> int | None:
    """Try what is public on a blank record; the number of classes where the loss is our cross-entropy."""
    batched = Batched(model, loss, label.device, route=route)
    params = batched.layout.flatten(dict(model.named_parameters())).unsqueeze(0)
    if loss is None:
        return batched.outputs(params, _as_client(inputs, label)[0]).shape[-1]
    try:
        batched.at(*_as_client(inputs, label)).gradient(params)
    except EquipoiseError:
        raise
    except Exception as error:
        raise loss_error(error, batched.model, loss, inputs, label) from None
    return None
