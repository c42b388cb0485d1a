"""The softmax by operations that IEEE 754 fixes to the last bit, one number at a time.

A library's ``exp`` may round differently at the end of a vector than in its middle, so that the bits of a row depend on
where it lies. Additions, multiplications and divisions of single numbers do not: what is built of nothing else gives a
row the same bits alone, among others and on every machine.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_LOG2_HIGH = 0.693147180369123816490  # 32 bits of ln 2, so that k * _LOG2_HIGH is exact
_LOG2_LOW = 1.90821492927058770002e-10
_TERMS = tuple(1.0 / math.factorial(k) for k in range(14, -1, -1))
_LEAST = -700.0


def softmax(logits: Tensor) -> Tensor:
    """Of float64 rows ``[..., classes]``; rows with NaN or +inf give NaN, and -inf counts as far below the rest.

    >>> softmax(torch.tensor([[0.0, 0.0], [1e30, 0.0]], dtype=torch.float64)).tolist()
    [[0.5, 0.5], [1.0, 9.8...e-305]]
    """
    powers = exp(logits - logits.amax(-1, keepdim=True))
    return powers / _total(powers)


def exp(x: Tensor) -> Tensor:
    """e^x for x <= 0 in float64, to a few units in the last place; below -700 as if x were -700.

    >>> float(exp(torch.tensor(-1.0, dtype=torch.float64))) * math.e
    1.0
    """
    x = x.clamp_min(_LEAST)
    k = (x * (1 / math.log(2)) + 0.5).floor()
    r = (x - k * _LOG2_HIGH) - k * _LOG2_LOW
    result = torch.full_like(r, _TERMS[0])
    for term in _TERMS[1:]:
        result = result * r + term
    return result * ((k.nan_to_num().long() + 1023) << 52).view(torch.float64)  # 2^k, by its bits


def _total(values: Tensor) -> Tensor:
    """The sum over the last dimension, by halves: every addition is one of two single numbers."""
    while values.shape[-1] > 1:
        half = values.shape[-1] // 2
        rest = values[..., 2 * half :]
        values = torch.cat([values[..., :half] + values[..., half : 2 * half], rest], dim=-1)
    return values
