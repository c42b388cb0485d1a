"""What the units behind a release add up to, as whole numbers.

A unit is a record, or all records of one person where the data has groups. ``gaussian-dp`` is proved if what a unit
adds is a function of that unit alone, bit for bit: not of its companions' values, nor of how many there are, nor of its
place among them. Two ways lead there:

* ``LinearRecords`` (``linear_units.py``), for a linear head on features of bounded norm, uses only sums of integers
  that float64 holds exactly and operations on single numbers that IEEE 754 fixes: nothing else can come out.
* ``EachRecord``, for every other model, materialises the gradient of each record: in calls of one fixed shape, filled
  up with blank records, or, by routes that take one record after the other, each by itself. That the kernels of this
  machine then treat every record alike is tested before the first one is looked at, on the model and shape in question
  (``slots_for``); where they do not, each record has a call of its own.

Nothing that a record holds makes a release fail: a label that is no class, an input that the model cannot take and a
gradient that is not finite each count as zero.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from .. import workers
from ..errors import ConfigError, place
from ..models.batched import Batched
from ..models.objective import Inputs, map_inputs
from ..models.routes import SHARED
from ..privacy.poisson import included
from ..randomness import Words
from .call_slots import FEW, SLOTS, call_size, one_thread_each
from .l2_grid import EXACT, L2Grid

log = logging.getLogger("equipoise")

ROOM = 6 << 30
"""Bytes that the gradients of one call may take on a GPU."""
LARGEST_SUM = 2**52

Call = tuple[Tensor, Tensor]
"""The records of one call by their places in the pool ``[R, slots]``, and which of these are records."""


@dataclass(frozen=True, eq=False)
class Records:
    """Inputs with their labels, and whose they are: ``groups`` ``[N]``, or None where every record is a unit."""

    inputs: Inputs
    labels: Tensor
    groups: Tensor | None = None

    def units(self, row: Tensor) -> Tensor:
        """For the records ``row`` ``[n]`` of one client the number of their unit, in the order of first appearance."""
        if self.groups is None:
            return torch.arange(len(row))
        seen: dict[int, int] = {}
        numbers = [seen.setdefault(group, len(seen)) for group in self.groups[row].tolist()]
        return torch.tensor(numbers, dtype=torch.int64)

    def sampled(self, row: Tensor, rate: float, words: Words) -> Tensor:
        """Those of ``row`` whose unit is in the batch: all, or each unit with probability ``rate``."""
        if rate == 1:
            return row
        units = self.units(row)
        count = int(units.max()) + 1 if len(units) else 0
        chosen = torch.from_numpy(included(words, count, rate))
        return row[chosen[units].to(row.device)]


class Pool(Protocol):
    """Records that can be summed."""

    records: Records

    def grid(self, clip: float) -> L2Grid:
        """What sums are counted in: of public numbers alone."""
        ...

    def total(self, rows: Sequence[Tensor], start: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        """For each of R clients, with the records ``rows[r]`` and the weights ``start[r]``, the sum of what its units
        add ``[R, P]``, integers in float64, and the share of units that were clipped ``[R]``."""
        ...

    def each(self, row: Tensor, start: Tensor, clip: float) -> Tensor:
        """What every record would come to as the only one, at one set of weights ``[1, P]``: ``[n, P]``, integers.

        For audits, which play the part of a client.
        """
        ...


@dataclass(frozen=True)
class Units:
    """The units behind R releases."""

    pool: Pool
    rows: Sequence[Tensor]  # [R] of [n]: the records of each client, by their place in the pool


class EachRecord:
    """Sums of materialised gradients."""

    def __init__(
        self,
        batched: Batched,
        records: Records,
        classes: int | None = None,
        slots: int | None = None,
        expected: float = SLOTS,
    ):
        """``slots`` of a call were tried; without, they are from memory and from how many records are ``expected``."""
        self.batched, self.records, self.classes, self.slots = batched, records, classes, slots
        self.expected = expected

    def grid(self, clip: float) -> L2Grid:
        return L2Grid.of(clip, self.batched.layout.size)

    def total(self, rows: Sequence[Tensor], start: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        grid = self.grid(clip)
        check_sum(max(map(len, rows), default=0), grid)
        if len(rows) > 1 and (start.device.type == "cpu" or self.records.groups is not None):
            # CPU kernels round differently beside other clients, and learning amplifies that
            sums = self._apart(rows, start, clip)
            return torch.cat([total for total, _ in sums]), torch.cat([share for _, share in sums])
        if self.records.groups is not None:
            (only,) = one_thread_each(self.batched, lambda row: self._by_person(row, start, grid, clip), rows)
            return only
        total = torch.zeros_like(start, dtype=torch.float64)
        clipped, failed = start.new_zeros(len(rows)), 0

        def added(call: Call) -> tuple[Tensor, Tensor, int]:
            gradients, bad = self._gradients(start, *call)
            whole, acted = grid.whole(gradients, clip)
            acted &= call[1]
            return _summed(whole, call[1], grid), acted.sum(1), bad + _lost(whole, acted)

        calls = self._calls(rows, self.slots or self._fitting(start))
        for part, acted, bad in one_thread_each(self.batched, added, calls):
            total, clipped, failed = total.add_(part), clipped + acted, failed + bad
        say_failed(failed, sum(map(len, rows)))
        counts = torch.tensor([max(1, len(row)) for row in rows], device=start.device)
        return total, clipped / counts

    def each(self, row: Tensor, start: Tensor, clip: float) -> Tensor:
        grid, nothing = self.grid(clip), start.new_zeros(0, start.shape[1], dtype=torch.float64)

        def whole(call: Call) -> Tensor:
            gradients, _ = self._gradients(start, *call)
            return grid.whole(gradients[0, : int(call[1].sum())], clip)[0].double()

        calls = self._calls([row], self._fitting(start))  # nothing of it is released
        return torch.cat([nothing, *one_thread_each(self.batched, whole, calls)])

    def _apart(self, rows: Sequence[Tensor], start: Tensor, clip: float) -> list[tuple[Tensor, Tensor]]:
        """Each client by itself; those with the same records and the same weights are computed once."""
        keys = [(content(row), content(start[r])) for r, row in enumerate(rows)]
        first = {key: r for r, key in reversed(list(enumerate(keys)))}

        def run(part: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
            return [self.total(rows[r : r + 1], start[r : r + 1], clip) for r in part]

        some = list(first.values())
        if (self.slots or self._fitting(start)) <= FEW:  # too short for several workers
            done = one_thread_each(self.batched, run, [some])
        elif len(some) >= workers.count():
            done = one_thread_each(self.batched, run, [[r] for r in some])
        else:  # workers share the calls of one client
            done = [run(some)]
        known = dict(zip(first, (each for part in done for each in part), strict=True))
        return [known[key] for key in keys]

    def _calls(self, rows: Sequence[Tensor], slots: int) -> list[Call]:
        """The records in calls of one shape."""
        device, calls = self.records.labels.device, []
        for first in range(0, max(map(len, rows), default=0), slots):
            chosen = torch.zeros(len(rows), slots, dtype=torch.int64, device=device)
            there = torch.zeros(len(rows), slots, dtype=torch.bool, device=device)
            for r, row in enumerate(rows):
                part = row[first : first + slots].to(device)
                chosen[r, : len(part)], there[r, : len(part)] = part, True
            calls.append((chosen, there))
        return calls

    def _fitting(self, start: Tensor) -> int:
        """Slots in experiments, where no guarantee rests on a call's shape; a GPU takes several clients at once."""
        if start.device.type == "cpu":
            return call_size(self.batched, self.expected)
        return max(8, min(1024, ROOM // (24 * start.numel())) // 8 * 8)

    def _gradients(self, start: Tensor, chosen: Tensor, there: Tensor) -> tuple[Tensor, int]:
        """``[R, slots, P]``, and how many records could not be computed with: theirs are zero. Empty slots: any."""
        images = map_inputs(lambda part: part[chosen].contiguous(), self.records.inputs)
        labels = self.records.labels[chosen].contiguous()
        usable = there
        if self.classes is not None:
            usable = there & (labels >= 0) & (labels < self.classes)
        try:
            gradients = self._blanked(start, images, labels, usable)
        except Exception:  # some record's doing, or that of a blank at these weights
            gradients, usable = self._by_themselves(start, images, labels, usable)
        failed = int((there & ~usable).sum())
        if failed:
            gradients = torch.where(usable.unsqueeze(-1), gradients, 0.0)
        return gradients, failed

    def _blanked(self, start: Tensor, images: Inputs, labels: Tensor, usable: Tensor) -> Tensor:
        if self.batched.route not in SHARED and len(start) == 1:  # each in a call of its own, and empty slots in none
            place = usable.nonzero()[:, 1]
            if len(place) == usable.shape[1]:
                return self.batched.each(start, images, labels)
            gradients = start.new_zeros(*usable.shape, start.shape[1])
            if len(place):
                some = map_inputs(lambda part: part[:, place], images)
                gradients[:, place] = self.batched.each(start, some, labels[:, place])
            return gradients

        def blank(values: Tensor) -> Tensor:
            return values.where(_like(usable, values), values.new_zeros(()))

        return self.batched.each(start, map_inputs(blank, images), blank(labels))

    def _by_themselves(self, start: Tensor, images: Inputs, labels: Tensor, usable: Tensor) -> tuple[Tensor, Tensor]:
        """The same where a call fails: each record in a call full of copies of it, so that no other plays a part."""
        gradients, usable = start.new_zeros(*usable.shape, start.shape[1]), usable.clone()
        for r, slot in usable.nonzero().tolist():
            full = partial(_full_of, r, slot)
            try:
                gradients[r, slot] = self.batched.each(start, map_inputs(full, images), full(labels))[r, slot]
            except Exception as error:  # whatever it is: that it came would tell of this record
                log.debug("A record counts as zero: %s.", place(error))
                usable[r, slot] = False
        return gradients, usable

    def _by_person(self, row: Tensor, start: Tensor, grid: L2Grid, clip: float) -> tuple[Tensor, Tensor]:
        """One client whose records are clipped person by person: gradients add up record after record."""
        units = self.records.units(row)
        order = units.argsort(stable=True)
        mine = units[order].tolist()
        total, clipped, failed = torch.zeros_like(start, dtype=torch.float64), start.new_zeros(1), 0
        person: Tensor | None = None
        calls = self._calls([row[order.to(row.device)]], self.slots or self._fitting(start))
        for number, (chosen, there) in enumerate(calls):
            gradients, bad = self._gradients(start, chosen, there)
            failed += bad
            for slot in range(int(there.sum())):
                here = number * chosen.shape[1] + slot
                own = gradients[:, slot]
                person = own if person is None else person + own
                if here + 1 == len(mine) or mine[here + 1] != mine[here]:
                    whole, acted = grid.whole(person, clip)
                    failed += _lost(whole, acted)
                    total, clipped, person = total + whole, clipped + acted, None
        say_failed(failed, len(row))
        return total, clipped / max(1, len(set(mine)))


def _full_of(r: int, slot: int, part: Tensor) -> Tensor:
    """A call with copies of one record in all slots."""
    return part[r, slot].expand_as(part).contiguous()


def _summed(whole: Tensor, there: Tensor, grid: L2Grid) -> Tensor:
    """The integers ``[R, slots, P]`` of those that are there, which are the first of each row, without rounding."""
    few = int(EXACT / (math.sqrt(grid.most) + 1))  # float32 has sums of so many
    if len(there) == 1 and few > 1:
        return torch.stack([part.sum(1).double() for part in whole[:, : int(there.sum())].split(few, 1)]).sum(0)
    return (there.unsqueeze(1).double() @ whole.double()).squeeze(1)


def _lost(whole: Tensor, acted: Tensor) -> int:
    """How many gradients were not finite: of those that are clipped, the only ones that are zero then."""
    if whole.dtype == torch.float32:  # ``L2Grid`` has these where all are finite
        return 0
    return int((acted & ~whole.any(-1)).sum())


def check_sum(count: int, grid: L2Grid) -> None:
    """Refuse more records than can be added exactly; no data set that fits a memory has so many."""
    if count * grid.most**0.5 > LARGEST_SUM:
        raise ConfigError("So many records cannot be added exactly.", "Split the data over several clients.")


def content(values: Tensor) -> bytes:
    """The bits of ``values`` ``[n]``: the same for tensors that hold the same."""
    return values.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()


def _like(mask: Tensor, tensor: Tensor) -> Tensor:
    return mask.view(*mask.shape, *(1,) * (tensor.dim() - 2))


def say_failed(failed: int, count: int) -> None:
    if failed:
        log.warning(
            "%d of %d records could not be computed with, or have gradients that are not finite. They count as zero.",
            failed,
            count,
        )
