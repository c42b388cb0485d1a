"""Texts and lists of numbers as tokens ``[N, L]``: 0 is padding, at the end of a row.

A word's number is a hash of it, so that nothing is fitted: a vocabulary that is collected from private texts tells what
is written there. Two words may share a number; more buckets (``vocabulary``) make that rare.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import torch
from torch import Tensor

from .contents import Array

BUCKETS = 4096
"""Token numbers of a text where the settings name no vocabulary."""

_WORD = re.compile(r"\w+|[^\w\s]")


def words(text: str) -> list[str]:
    """Words and marks in lower case.

    >>> words("It's 5 o'clock.")
    ['it', "'", 's', '5', 'o', "'", 'clock', '.']
    """
    return _WORD.findall(text.lower())


def bucket(word: str, vocabulary: int) -> int:
    """The number of a word in 1 ... vocabulary - 1, the same on every machine.

    >>> bucket("clock", 4096), bucket("clock", 2)
    (461, 1)
    """
    digest = blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return 1 + int.from_bytes(digest, "big") % (vocabulary - 1)


def tokenized(texts: Sequence[str], vocabulary: int, length: int) -> Tensor:
    """Texts as tokens ``[N, length]``; what is longer is cut.

    >>> tokenized(["a clock", "a"], 4096, 3)
    tensor([[3279,  461,    0],
            [3279,    0,    0]])
    """
    different = {text: row for row, text in enumerate(dict.fromkeys(texts))}
    rows = torch.zeros(len(different), length, dtype=torch.int64)
    known: dict[str, int] = {}  # of this call alone: private words outlive nobody
    for text, row in different.items():
        found = words(text)[:length]
        known.update({word: bucket(word, vocabulary) for word in found if word not in known})
        numbers = [known[word] for word in found]
        rows[row, : len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
    return rows[[different[text] for text in texts]]


def padded(values: Array, lengths: Array, length: int) -> Tensor:
    """Lists of numbers that lie one after the other, as rows ``[N, length]``; what is longer is cut.

    >>> padded(np.array([5, 6, 7, 8]), np.array([1, 3]), 2)
    tensor([[5, 0],
            [6, 7]])
    """
    place = np.arange(len(values)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    row = np.repeat(np.arange(len(lengths)), lengths)
    rows = np.zeros((len(lengths), length), np.int64)
    kept = place < length
    rows[row[kept], place[kept]] = values[kept]
    return torch.from_numpy(rows)
