"""Inputs with their labels, row by row, and which rows are held out. No row is drawn at random."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import DataError

Kind = Literal["image", "table", "tokens"]


@dataclass(frozen=True, eq=False)
class Split:
    """Inputs and their labels, row by row. Shared between callers: treat the tensors as read-only."""

    inputs: Tensor  # [N, ...]: float32, normalised, or int64 tokens
    labels: Tensor  # [N] int64
    groups: Tensor | None = None  # [N] int64, whose row it is: rows of one person, say; None where each is its own

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:  # sizes only: values must not slip into logs
        return f"Split(inputs={list(self.inputs.shape)})"

    @property
    def kind(self) -> Kind:
        """What a row is: a picture ``[C, H, W]``, a sequence of tokens, or numbers of any other shape."""
        if not self.inputs.is_floating_point():
            return "tokens"
        return "image" if self.inputs.ndim == 4 else "table"

    @property
    def word(self) -> str:
        """What messages call the inputs."""
        return "images" if self.kind == "image" else "rows"

    def take(self, rows: Tensor | slice) -> Split:
        """The rows of these numbers, of a slice, or those where a mask is true."""
        return Split(self.inputs[rows], self.labels[rows], None if self.groups is None else self.groups[rows])


def hold_out(split: Split, validation: float, public: float, part: str = "validation") -> tuple[Split, Split, Split]:
    """Train, validation and public rows: of each class the last go to validation, those before to public.

    ``part`` is what messages call the validation rows, where these are for something else. Where rows have groups, no
    group is divided: a group counts as one row of the class that it has most often, in the place of its first row, and
    takes all its rows along.

    >>> import torch
    >>> parts = hold_out(Split(torch.zeros(6, 1, 2, 2), torch.zeros(6, dtype=torch.int64)), 1 / 6, 1 / 3)
    >>> [len(part) for part in parts]
    [3, 1, 2]
    """
    if split.groups is None:
        parts = _held_out(split.labels, validation, public, part, split.word)
    else:
        unit, labels = units(split.labels, split.groups)
        parts = [chosen[unit] for chosen in _held_out(labels, validation, public, part, "groups")]
    train, held, shared = (split.take(rows) for rows in parts)
    return train, held, shared


def _held_out(labels: Tensor, validation: float, public: float, part: str, what: str) -> list[Tensor]:
    """Which of ``labels`` are in each part: three masks ``[N]``."""
    ranks, counts = _ranks(labels)
    from_end = counts - ranks  # n for the first row of a class, 1 for the last
    # Rounded down, so that every class keeps a row to train on; the tiny term makes 6 * (1 / 6) count as 1.
    held = (counts.double() * validation + 1e-9).floor()
    shared = held + (counts.double() * public + 1e-9).floor()
    if not bool((held > 0).any()):
        raise DataError(
            f"The largest class has {int(counts.max())} {what}: {validation:g} of that leaves none for {part}.",
            f"Give {part} {what}, a larger {part}_fraction or more training {what}.",
        )
    if public > 0 and bool((shared == held).all()):
        raise DataError(
            f"The largest class has {int(counts.max())} {what}: public_fraction={public:g} leaves none.",
            f"Raise public_fraction or give more training {what}.",
        )
    return [from_end > shared, from_end <= held, (from_end > held) & (from_end <= shared)]


def units(labels: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """The number of each row's group, in the order in which groups first appear, and the label of every group.

    That is the label which most of its rows have; of several, the lowest.

    >>> import torch
    >>> units(torch.tensor([5, 1, 1, 5, 0]), torch.tensor([70, 30, 70, 70, 30]))
    (tensor([0, 1, 0, 0, 1]), tensor([5, 0]))
    """
    names, inverse = torch.unique(groups, return_inverse=True)
    rows = torch.arange(len(groups), device=groups.device)
    first = torch.full((len(names),), len(groups), device=groups.device).scatter_reduce(0, inverse, rows, "amin")
    unit = torch.argsort(torch.argsort(first))[inverse]
    pairs, counts = torch.unique(torch.stack([unit, labels]), dim=1, return_counts=True)  # ascending
    order = torch.argsort(counts, descending=True, stable=True)
    order = order[torch.argsort(pairs[0, order], stable=True)]
    sizes = torch.bincount(pairs[0], minlength=len(names))
    return unit, pairs[1, order[sizes.cumsum(0) - sizes]]


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


def strangers(images: Tensor, others: Tensor) -> Tensor:
    """Rows of ``images`` that equal none of ``others``: ``[n]``, ascending.

    >>> import torch
    >>> strangers(torch.tensor([[1.0], [2.0], [1.0], [3.0]]), torch.tensor([[3.0]])).tolist()
    [0, 1, 2]
    """
    known = set(_digests(others))
    rows = [row for row, digest in enumerate(_digests(images)) if digest not in known]
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
