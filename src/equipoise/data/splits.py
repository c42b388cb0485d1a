"""Images with their labels, row by row, and which rows are held out. No row is drawn at random."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DataError


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels, row by row. Shared between callers: treat both tensors as read-only."""

    images: Tensor  # [N, C, H, W] float32, normalised
    labels: Tensor  # [N] int64

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:  # sizes only: pixel values must not slip into logs
        return f"Split(images={list(self.images.shape)})"

    def take(self, rows: Tensor | slice) -> Split:
        """The rows of these numbers, of a slice, or those where a mask is true."""
        return Split(self.images[rows], self.labels[rows])


def hold_out(split: Split, validation: float, public: float) -> tuple[Split, Split, Split]:
    """Train, validation and public rows: of each class the last go to validation, those before to public.

    >>> import torch
    >>> parts = hold_out(Split(torch.zeros(6, 1, 2, 2), torch.zeros(6, dtype=torch.int64)), 1 / 6, 1 / 3)
    >>> [len(part) for part in parts]
    [3, 1, 2]
    """
    ranks, counts = _ranks(split.labels)
    from_end = counts - ranks  # n for the first row of a class, 1 for the last
    # Rounded down, so that every class keeps a row to train on; the tiny term makes 6 * (1 / 6) count as 1.
    held = (counts.double() * validation + 1e-9).floor()
    shared = held + (counts.double() * public + 1e-9).floor()
    if not bool((held > 0).any()):
        raise DataError(
            f"The largest class has {int(counts.max())} images: {validation:g} of that leaves none for validation.",
            "Give validation images, a larger validation_fraction or more training images.",
        )
    if public > 0 and bool((shared == held).all()):
        raise DataError(
            f"The largest class has {int(counts.max())} images: public_fraction={public:g} leaves none.",
            "Raise public_fraction or give more training images.",
        )
    given = (from_end > held) & (from_end <= shared)
    return split.take(from_end > shared), split.take(from_end <= held), split.take(given)


def mixed(split: Split) -> Split:
    """Rows reordered so that every stretch has the classes in about the proportions of the whole.

    >>> import torch
    >>> mixed(Split(torch.zeros(6, 1, 2, 2), torch.tensor([0, 0, 0, 0, 1, 1]))).labels
    tensor([0, 1, 0, 0, 1, 0])
    """
    ranks, counts = _ranks(split.labels)
    by_class = torch.argsort(split.labels, stable=True)
    place = ((ranks.double() + 0.5) / counts)[by_class]
    return split.take(by_class[torch.argsort(place, stable=True)])


def distinct(images: Tensor, besides: Tensor | None = None) -> Tensor:
    """Rows of ``images`` that equal none before them, nor any of ``besides``: ``[n]``, ascending.

    >>> import torch
    >>> distinct(torch.tensor([[1.0], [2.0], [1.0], [3.0]]), besides=torch.tensor([[3.0]])).tolist()
    [0, 1]
    """
    first: dict[bytes, int] = {}
    for row, digest in enumerate(_digests(images)):
        first.setdefault(digest, row)
    known = set() if besides is None else set(_digests(besides))
    rows = [row for digest, row in first.items() if digest not in known]
    return torch.tensor(rows, dtype=torch.int64, device=images.device)


def _digests(images: Tensor) -> Iterator[bytes]:
    for image in images.detach().cpu().contiguous().numpy():
        yield hashlib.sha256(image.tobytes()).digest()


def _ranks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each row: how many rows of its class came before it, and how many its class has in all."""
    _, inverse, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    order = torch.argsort(inverse, stable=True)
    first = counts.cumsum(0) - counts
    ranks = torch.empty_like(inverse)
    ranks[order] = torch.arange(len(labels), device=labels.device) - first[inverse[order]]
    return ranks, counts[inverse]
