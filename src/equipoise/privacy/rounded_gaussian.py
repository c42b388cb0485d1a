"""Gaussian noise rounded to whole numbers: the nearest integer to X, X of N(0, scale^2), given uniform words.

A sampler that computes in floats has a distribution of its own: with 53-bit uniform numbers the rounded draw is about
1e-9 in total variation away from the stated one, and whatever it is away has to be paid for in delta, for every
coordinate and round. Here floats only tell where to look.

A draw is a sign (the first bit of a word) and the number V, uniform in (0, 1/2), whose further binary digits are the
other 63 bits and then as many more words as it takes. |X| is the number that exceeds its share V of the upper tail,
Q(|X| / scale) = V with Q(x) = P(N(0, 1) > x), so that

    the draw is at least k > 0 in size  if and only if  V <= Q((k - 1/2) / scale).

1. A first word bounds V to an interval of length 2^-64. ``ndtri`` of its midpoint, in float64, gives |X| / scale to
   within ``GUARD``. If all of that lies in one cell [k - 1/2, k + 1/2), k is the draw.
2. Otherwise (about 2 * GUARD * scale of all draws, and those with V < 2^-20) the cell is found by exact comparisons:
   ``tail`` encloses Q between whole multiples of 2^-places, and V gets more digits while the enclosure meets the
   interval that it is known to lie in.

Which draw belongs to which words is therefore a matter of exact arithmetic alone: the same on every processor, however
it rounds, and whatever its neighbours are.

Proved, for independent uniform words and any scale that is accepted: every draw has exactly the stated distribution,
but for cells that begin beyond ``REACH`` = 32 scales, which are given as the last one before: a total variation below
2 Q(32) < 1e-223 a draw. It rests on one assumption about floating point: that ``torch.special.ndtri`` errs by less than
``GUARD`` less what is lost otherwise (see ``_doubtful``). Measured against exact arithmetic, by the tests: below 4e-15
on [2^-64, 1/2], less than a fiftieth of that. Not claimed: anything about time. A draw that needs exact arithmetic
takes longer, and how long tells which ones did.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Context, Decimal
from fractions import Fraction
from functools import lru_cache
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import BudgetError
from ..randomness import Words

LARGEST_SCALE = 2.0**48
"""Draws up to ``REACH`` scales are then whole numbers that float64 holds."""
GUARD = 2.0**-42
"""More than the error of |X| / scale in float64, V >= 2^-20: that of ndtri and of the midpoint of V's interval."""
REACH = 32
_RARE = 1 << 44  # of 2^64: below, the interval of V is too long for its midpoint to tell enough
_BITS = 64
_TICKS = (1 << 63) - 1
_CHUNK = 1 << 15  # draws at once, for every thread: what is computed on the way stays in its cache


def rounded_gaussian(scale: float, count: int, words: Words) -> NDArray[np.int64]:
    """``count`` independent draws of the nearest integer to N(0, scale^2).

    >>> from equipoise.randomness import experiment_key, keyed_words
    >>> rounded_gaussian(3.0, 8, keyed_words(experiment_key(1, "noise"), 0, 1)).tolist()
    [3, 2, 3, -3, -1, -3, 2, 1]
    """
    first = np.require(words(count), np.uint64, "W").view(np.int64)  # torch has no tensors that cannot be written
    result: NDArray[np.int64] = rounded_gaussians([scale], torch.from_numpy(first).unsqueeze(0), [words])[0].numpy()
    return result


def rounded_gaussians(scales: Sequence[float], first: Tensor, words: Sequence[Words]) -> Tensor:
    """Independent draws for several releases at once, on the device that holds the first words.

    Args:
        scales: of every row.
        first: int64 ``[R, P]``, the bits of one uniform word for every draw.
        words: of every row, for the few draws that need further ones. They are never those of ``first``.

    Returns:
        int64 ``[R, P]``. Row r is what ``rounded_gaussian(scales[r], P, words[r])`` gives, had its first words come
        from ``words[r]``.

    >>> rounded_gaussians([2.5, 1e6], torch.zeros(2, 3, dtype=torch.int64) + (1 << 62), [lambda n: 1 / 0] * 2)
    tensor([[     2,      2,      2],
            [674490, 674490, 674490]])
    """
    for scale in scales:
        _check(scale)
    rows, count = first.shape
    cpu = first.device.type == "cpu"
    height, width = (1, _CHUNK * torch.get_num_threads()) if cpu else (max(1, rows), max(1, count))
    each = torch.tensor(scales, dtype=torch.float64, device=first.device).unsqueeze(1)
    drawn, doubts = torch.empty_like(first), [torch.empty(0, 2, dtype=torch.int64, device=first.device)]
    for top, left in product(range(0, rows, height), range(0, count, width)):
        block = (slice(top, top + height), slice(left, left + width))
        corner = torch.tensor([top, left], device=first.device)
        doubts.append(_guess(each[block[0]], first[block], drawn[block]) + corner)
    row, column = torch.cat(doubts).unbind(1)
    left_over = zip(row.tolist(), first[row, column].tolist(), strict=True)
    exact = [_draw(scales[r], word, words[r]) for r, word in left_over]
    drawn[row, column] = torch.tensor(exact, dtype=torch.int64, device=first.device)
    return drawn


def _check(scale: float) -> None:
    if not 0 < scale <= LARGEST_SCALE:  # not-a-number neither
        raise BudgetError(
            f"Gaussian noise of {scale} steps of the grid cannot be drawn: expected more than 0 and at most 2^48.",
            "Choose a larger epsilon." if scale > LARGEST_SCALE else "Give a scale that is a finite number > 0.",
        )


def _guess(scales: Tensor, first: Tensor, drawn: Tensor) -> Tensor:
    """Write the draws that float64 can tell into ``drawn``; return the places ``[n, 2]`` where it cannot."""
    ticks = first & _TICKS
    place = ticks.double().add_(0.5).mul_(2.0**-_BITS)
    torch.special.ndtri(place, out=place).mul_(-scales).add_(0.5)
    cell = place.floor()
    place.sub_(cell)
    drawn.copy_(cell).mul_((first >> 63).bitwise_or_(1))  # the sign
    return _doubtful(ticks, place, scales)


def _doubtful(ticks: Tensor, within: Tensor, scales: Tensor) -> Tensor:
    """Where float64 cannot tell the cell; ``within`` is the place in it, from 0 to 1, that it gives.

    With V >= 2^-20 the ends of its interval are at most 2^-65 / phi(x) <= 1.26 * 2^-45 = 3.6e-14 from the midpoint (the
    Mills ratio Q / phi is at most 1.26), x is below 5, and the midpoint, the product and the sum are rounded by a part
    in 2^53 each: 2e-15 at most. ``GUARD`` = 2.3e-13 leaves 1.9e-13 for ndtri. What is rounded here is on top of it.
    """
    apart, most = within.sub_(0.5).abs_(), 0.5 - 2.0**-50 - GUARD * scales
    if within.device.type == "cpu" and bool((apart.amax(1, keepdim=True) <= most).all()) and int(ticks.min()) >= _RARE:
        return ticks.new_empty(0, 2)
    return torch.nonzero((apart > most) | (ticks < _RARE))


def _draw(scale: float, first: int, words: Words) -> int:
    """The draw of a first word, exactly. It needs further words where the interval of V meets two cells, only there."""
    ticks = first & _TICKS
    ends = -torch.special.ndtri(torch.tensor([ticks + 1, ticks], dtype=torch.float64) * 2.0**-_BITS)
    last = int(REACH * Fraction(scale) + Fraction(1, 2))
    guard = torch.tensor([-GUARD, GUARD], dtype=torch.float64)
    nearest, furthest = (ends + guard).mul(scale).add(0.5).floor().clamp(0, last).long().tolist()
    size = _cell(scale, ticks, nearest, furthest, words)
    return -size if first < 0 else size


def _cell(scale: float, digits: int, nearest: int, furthest: int, words: Words) -> int:
    """The cell, of those from ``nearest`` to ``furthest``, in which |X| lies, when V begins with ``digits``."""
    known = _BITS
    while nearest < furthest:
        middle = (nearest + furthest + 1) // 2
        low, high = tail(middle, scale, known)
        while digits < high and digits + 1 > low:  # neither V >= Q nor V <= Q is sure
            digits, known = digits << 64 | int(words(1)[0]), known + 64
            low, high = tail(middle, scale, known)
        if digits + 1 <= low:
            nearest = middle
        else:
            furthest = middle - 1
    return nearest


def tail(cell: int, scale: float, places: int) -> tuple[int, int]:
    """Two whole numbers, low <= 2^places * P(N(0, scale^2) > cell - 1/2) <= high, apart by 2 at most; cell >= 1.

    From 1/2 - Q(x) = phi(x) * (x + x^3 / 3 + x^5 / (3 * 5) + ...). Every term is positive and Decimal rounds every step
    correctly, so relative errors add up: in units of the last place, N terms and their sum are off by less than 3 N,
    what is left out (each term at most half of the one before) by less than 1, phi by less than x^2 + 3; their product,
    at most 1/2, is allowed 5 N + x^2 + 20.

    >>> low, high = tail(1, 0.25, 64)  # a Gaussian above twice its standard deviation
    >>> low / 2**64
    0.0227501319481...
    """
    context = Context(prec=places // 3 + 12)
    share = Fraction(2 * cell - 1) / (2 * Fraction(scale))
    x = context.divide(Decimal(share.numerator), Decimal(share.denominator))
    square = context.multiply(x, x)
    twice = context.add(square, square)
    term = total = x
    count, odd = 1, 3
    while odd < twice or term > context.scaleb(total, -context.prec):
        term = context.divide(context.multiply(term, square), Decimal(odd))
        total = context.add(total, term)
        count, odd = count + 1, odd + 2
    density = context.divide(context.exp(context.divide(square, Decimal(-2))), _root(context.prec))
    upper = Fraction(context.multiply(density, total)) * 2**places
    slack = (1 << places) * Fraction(5 * count + int(square) + 20, 10 ** (context.prec - 1))
    half = Fraction(1 << places, 2)
    return math.floor(half - upper - slack), math.ceil(half - upper + slack)


@lru_cache(maxsize=64)
def _root(digits: int) -> Decimal:
    """The root of 2 pi to a relative error of 10^(1 - digits): pi = 16 atan(1/5) - 4 atan(1/239), in whole numbers."""
    one = 10 ** (digits + 10)

    def atan(inverse: int) -> int:  # of 1 / inverse; every term is cut off, by less than 1
        power, total, odd = one // inverse, 0, 1
        while power:
            total += power // odd if odd % 4 == 1 else -(power // odd)
            power, odd = power // inverse**2, odd + 2
        return total

    context = Context(prec=digits + 10)
    return context.sqrt(context.scaleb(Decimal(2 * (16 * atan(5) - 4 * atan(239))), -(digits + 10)))
