"""The units of a linear head on features of bounded norm, in factored form: no gradient is ever written out.

The gradient of a record is the outer product of its residual r = p - y and its features a = (x, 1). Both are rounded to
integers apart; a sum of their outer products is one matrix product, exact in float64 as long as it stays below 2^53.
The logits are such a product too, of integers, as the weights are public and may be rounded: so no bit depends on the
order in which a library adds. What remains works on single numbers (``exact_softmax.py``).

Formal guarantee: the integers that a unit adds have an L2 norm of at most ``clip / step`` and follow from this unit and
from the received weights alone, whatever these are. A unit of several records is bounded by the sum of their norms.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction

import torch
from torch import Tensor

from ..models.batched import Batched
from ..models.inputs import only
from ..models.layout import Layout
from ..models.scattering import NORM
from .exact_softmax import softmax
from .l2_grid import FINENESS, L2Grid, largest_power, towards_zero
from .units import EachRecord, Pool, Records, check_sum, content, say_failed

PIECE = 4096
"""Records whose numbers are turned into float64 at once."""
ROOM = 1 << 30
"""Bytes up to which they are kept in float64."""
_MARGIN = 1 - 2.0**-30
"""Taken off every bound: more than rounding can add to a sum of a million norms."""
_LONGEST = NORM**2 + 1
"""The square of the longest features with the 1 of the bias beside them."""


class LinearRecords:
    """Features ``[N, F]`` of norm ``NORM`` at most (longer ones are shortened) as integers, with their labels."""

    def __init__(self, records: Records, classes: int):
        self.records, self.classes = records, classes
        features = only(records.inputs).flatten(1).double()
        norms = _norm(features)
        good = torch.isfinite(norms)  # nor is a record of use whose squares are too large for floats
        features = torch.where(norms > NORM, features * (NORM / norms), features)
        labels = records.labels.unsqueeze(-1)
        self.good = good & (labels >= 0) & (labels < classes)  # [N, 1]
        say_failed(int((~self.good).sum()), len(labels))
        ones = torch.ones_like(features[:, :1])
        wide = torch.cat([torch.where(good, features, 0.0), ones], dim=1)
        self.width = wide.shape[1]
        self._exponent = largest_power(Fraction(NORM) ** 2 / (4 * FINENESS**2 * self.width))
        whole = towards_zero(wide * 2.0**-self._exponent)
        self.length = _norm(whole) * 2.0**self._exponent  # [N, 1]
        exact = NORM * 2.0**-self._exponent <= 2**24  # in float32
        self.features = whole.float() if exact and whole.numel() * 8 > ROOM else whole

    def grid(self, clip: float) -> L2Grid:
        return self._fine(clip).coarser(clip, self.classes * self.width)[0]

    def _fine(self, clip: float) -> L2Grid:
        return L2Grid.at(self._exponent + self._residual_exponent(clip), clip)

    def _residual_exponent(self, clip: float) -> int:
        return largest_power(Fraction(clip) ** 2 / (4 * FINENESS**2 * self.classes * Fraction(_LONGEST)))

    def total(self, rows: Sequence[Tensor], start: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        check_sum(max(map(len, rows), default=0), self._fine(clip))
        if self.records.groups is None and bool((start == start[:1]).all()) and _overlapping(rows):
            return self._at_one(rows, start[:1], clip)
        total = torch.zeros_like(start, dtype=torch.float64)
        clipped = start.new_zeros(len(rows))
        for same in _alike(rows):  # federations whose client has the same records share its features
            total[same], share = self._of_one(rows[same[0]], start[same], clip)
            clipped[same] = share.to(start.dtype)
        return total, clipped

    def _of_one(self, row: Tensor, start: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        """The sums of one client's records at r sets of weights ``[r, P]``."""
        row = row.to(self.features.device)
        pieces = [row[first : first + PIECE] for first in range(0, len(row), PIECE)]
        features = self.features[row].double() if len(row) <= PIECE else None  # else piece by piece, twice
        residuals = [self._residuals(piece, start, features) for piece in pieces]  # each [n, r, classes]
        whole, clipped = self._clipped(row, residuals, clip)
        total = start.new_zeros(len(start) * self.classes, self.width, dtype=torch.float64)
        for number, piece in enumerate(pieces):
            part = whole[number * PIECE : number * PIECE + len(piece)]
            total += part.flatten(1).T @ (self.features[piece].double() if features is None else features)
        return self._rounded(total.view(len(start), self.classes, self.width), clip), clipped

    def _at_one(self, rows: Sequence[Tensor], start: Tensor, clip: float) -> tuple[Tensor, Tensor]:
        """The sums of many clients at one set of weights ``[1, P]``: each record is looked at once for all of them.

        Whole numbers add up to the same whatever the order, so these are the sums of ``_of_one``.
        """
        records, place = torch.cat(list(rows)).to(self.features.device).unique(return_inverse=True)
        counts = torch.tensor([len(row) for row in rows], device=records.device)
        there = torch.zeros(len(rows), len(records), dtype=torch.float64, device=records.device)
        there[torch.arange(len(rows), device=records.device).repeat_interleave(counts), place] = 1.0
        whole, features, clipped = self._alone(records, start, clip)
        parts = there.unsqueeze(1) * whole.T.unsqueeze(0)  # [R, classes, n]
        share = there @ clipped.double() / counts.clamp_min(1)
        return self._rounded(parts @ features, clip), share.to(start.dtype)

    def each(self, row: Tensor, start: Tensor, clip: float) -> Tensor:
        whole, features, _ = self._alone(row.to(self.features.device), start, clip)
        return self._rounded(whole.unsqueeze(2) * features.unsqueeze(1), clip)

    def _alone(self, row: Tensor, start: Tensor, clip: float) -> tuple[Tensor, Tensor, Tensor]:
        """Residuals of records that are their own units ``[n, classes]`` and features ``[n, F + 1]``, both as integers,
        and which were clipped ``[n]``."""
        features = self.features[row].double()
        residuals = self._residuals(row, start, features)
        clipped = (_norm(residuals)[:, 0] * self.length[row] > clip).squeeze(1)
        return self._clipped(row, [residuals], clip)[0].squeeze(1), features, clipped

    def _rounded(self, total: Tensor, clip: float) -> Tensor:
        """Sums ``[R, classes, F + 1]`` as ``[R, P]`` on the grid."""
        flat = torch.cat([total[..., :-1].flatten(1), total[..., -1]], dim=1)
        coarse = self._fine(clip).coarser(clip, flat.shape[1], flat)[1]
        return flat if coarse is None else coarse

    def _residuals(self, piece: Tensor, start: Tensor, features: Tensor | None) -> Tensor:
        weights, steps = self._weights(start)  # integers [r, classes, F + 1], and what one of each is worth [r]
        features = self.features[piece].double() if features is None else features
        logits = features @ weights.flatten(0, 1).T
        logits = logits.view(len(piece), len(start), self.classes) * steps.view(1, -1, 1)
        hot = torch.nn.functional.one_hot(self.records.labels[piece].clamp(0, self.classes - 1), self.classes)
        residuals = softmax(logits) - hot.unsqueeze(1)
        return torch.where(self.good[piece].unsqueeze(1), residuals, 0.0)

    def _weights(self, start: Tensor) -> tuple[Tensor, Tensor]:
        """The received weights, rounded so that every logit is an exact sum; entries that are not finite are zero."""
        inputs = self.width - 1
        flat = torch.where(torch.isfinite(start), start, 0.0).double()
        weight = flat[:, : self.classes * inputs].view(-1, self.classes, inputs)
        weights = torch.cat([weight, flat[:, self.classes * inputs :].unsqueeze(-1)], dim=-1)
        largest = weights.abs().flatten(1).amax(1).clamp_min(2.0**-400)
        # |w| |a| <= 2^52 in integers, where |a|^2 <= _LONGEST in units of 2^exponent
        room = math.frexp(math.sqrt(_LONGEST * self.width))[1] - self._exponent - 52
        exponents = torch.frexp(largest)[1] + room
        steps = torch.tensor([2.0**e for e in exponents.tolist()], dtype=torch.float64, device=start.device)
        return towards_zero(weights / steps.view(-1, 1, 1)), steps * 2.0**self._exponent

    def _clipped(self, row: Tensor, residuals: Sequence[Tensor], clip: float) -> tuple[Tensor, Tensor]:
        """Residuals as integers ``[n, r, classes]``, so short that no unit exceeds the clip."""
        if not residuals:
            return torch.zeros(0, 1, self.classes), torch.zeros(())
        residual, step = torch.cat(list(residuals)), 2.0 ** self._residual_exponent(clip)
        length = self.length[row].unsqueeze(1)  # [n, 1, 1]
        norm = _norm(residual) * length  # [n, r, 1]: of every record's gradient
        units, whole_unit = self._together(row, norm)
        factor = clip / whole_unit.clamp_min(clip)
        whole = (residual * (factor / step)).trunc_()
        most = norm * factor * _MARGIN / (length * step)  # its own share of the clip, in integers
        whole = torch.where(_norm(whole) <= most, whole, (whole * (1 - 2.0**-20)).trunc_())
        whole = torch.where(_norm(whole) <= most, whole, 0.0)
        return whole, (units > clip)[..., 0].double().mean(0)

    def _together(self, row: Tensor, norm: Tensor) -> tuple[Tensor, Tensor]:
        """The sum of the norms of every unit, added record after record, and for every record that of its unit."""
        if self.records.groups is None:
            return norm, norm
        units = self.records.units(row)
        result = norm.new_zeros(int(units.max()) + 1, *norm.shape[1:])
        turn = torch.tensor(_turns(units.tolist()))
        for t in range(int(turn.max()) + 1):  # at most one record of each unit in a turn
            here = turn == t
            result[units[here]] = result[units[here]] + norm[here]
        return result, result[units]


def on_head(batched: Batched, records: Records, classes: int) -> Pool:
    """Features as the records of a linear head; one that has no bias, or is frozen in part, is like any other model."""
    linear = whole_head(batched.layout, records, classes)
    return LinearRecords(records, classes) if linear else EachRecord(batched, records, classes)


def whole_head(layout: Layout, records: Records, classes: int) -> bool:
    """Whether the trained parameters are all of a linear head on these features, with a bias."""
    return layout.size == classes * (math.prod(only(records.inputs).shape[1:]) + 1)


def _norm(values: Tensor) -> Tensor:
    """The L2 norm over the last dimension, each number by itself; of integers exact up to its square root."""
    squares = values * values
    while squares.shape[-1] > 1:
        half = squares.shape[-1] // 2
        squares = torch.cat([squares[..., :half] + squares[..., half : 2 * half], squares[..., 2 * half :]], dim=-1)
    return squares.sqrt()


def _alike(rows: Sequence[Tensor]) -> list[list[int]]:
    """Clients by their records: the same tensor, or one with the same content."""
    known: dict[bytes, list[int]] = {}
    for r, row in enumerate(rows):
        known.setdefault(content(row), []).append(r)
    return list(known.values())


def _overlapping(rows: Sequence[Tensor]) -> bool:
    """Whether clients have so many records in common, and so few in all, that to look at each once is less work."""
    count = sum(map(len, rows))
    return len(rows) > 2 and count > 0 and 2 * len(torch.cat(list(rows)).unique()) < min(count, 2 * PIECE)


def _turns(units: list[int]) -> list[int]:
    """How many records of its unit come before each record."""
    seen: Counter[int] = Counter()
    turns = []
    for unit in units:
        turns.append(seen[unit])
        seen[unit] += 1
    return turns
