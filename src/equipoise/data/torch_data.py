"""A torch ``Dataset`` as a dataset of this package: every item is asked for once, and kept as tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, place
from .dataset import Dataset, from_tensors
from .normalisation import Moment


def from_torch(
    train: Any,
    test: Any,
    validation: Any = None,
    public: Any = None,
    *,
    classes: int | None = None,
    vocabulary: int | None = None,
    name: str = "user",
    mean: Moment = 0.0,
    std: Moment = 1.0,
) -> Dataset:
    """A dataset from torch datasets whose items are ``(input, label)``; in ``train`` a third may say whose the item is.

    Inputs are tensors or numpy arrays of one shape, as a model takes them: a picture still needs its ``ToTensor``. Each
    item is asked for once, so a transform that draws at random is drawn once. The rest is as with ``from_tensors``.

    Args:
        train: a ``torch.utils.data.Dataset``, or anything else that can be iterated over; what is dealt to the clients.
        test: what global models are scored on.
        validation: chooses the best round; the last sixth of each class of ``train`` unless given.
        public: belongs to no client and is all that an attacker may train on.
        classes: their number; the largest label plus one unless given.
        vocabulary: of tokens: how many numbers there are; the largest plus one unless given.
        name: for messages and records.
        mean: of a normalisation that the items already have, for ``pixels`` to undo.
        std: likewise.

    Returns:
        The dataset. What cannot be used raises ``DataError``, which names the item.

    >>> from torch.utils.data import TensorDataset
    >>> items = TensorDataset(torch.rand(12, 5), torch.arange(12) % 2)
    >>> from_torch(items, items).shape
    (5,)
    """
    given = {"train": train, "test": test, "validation": validation, "public": public}
    tensors: dict[str, Any] = {what: collected(what, items) for what, items in given.items() if items is not None}
    return from_tensors(**tensors, classes=classes, vocabulary=vocabulary, name=name, mean=mean, std=std)


def collected(what: str, items: Any) -> tuple[Tensor, ...]:
    """The items of a dataset, stacked: inputs, labels, and groups where they have them."""
    rows = [_row(what, number, item) for number, item in enumerate(_items(what, items))]
    if not rows:
        raise DataError(f"The {what} dataset has no items.", "Give some.")
    for number, row in enumerate(rows):
        if len(row) != len(rows[0]) or row[0].shape != rows[0][0].shape or row[0].dtype != rows[0][0].dtype:
            raise DataError(
                f"Item {number} of {what} differs from item 0 in shape, type or number of parts.",
                "Give all items one form: resize pictures, pad tokens with 0.",
            )
    return tuple(torch.stack(list(part)) for part in zip(*rows, strict=True))


def _items(what: str, items: Any) -> Iterator[Any]:
    """By number where there is one: a Dataset with a length but no end would be iterated over for ever."""
    try:
        if hasattr(items, "__len__") and hasattr(items, "__getitem__"):
            for number in range(len(items)):
                yield items[number]
        elif isinstance(items, Iterable):
            yield from items
        else:
            raise DataError(f"Expected {what} to be a torch Dataset, got {type(items).__name__}.", "Give one.")
    except DataError:
        raise
    except Exception as problem:  # the user's own code: its words may quote what it read
        raise DataError(f"The {what} dataset failed: {place(problem)}.", "Ask it for its items by itself.") from None


def _row(what: str, number: int, item: Any) -> list[Tensor]:
    """An item as tensors."""
    if not isinstance(item, tuple | list) or not 2 <= len(item) <= (3 if what == "train" else 2):
        raise DataError(
            f"Expected item {number} of {what} to be (input, label), got {type(item).__name__}.",
            "Return a tuple of the two; with train, a group may come third.",
        )
    row = []
    for part, value in zip(("input", "label", "group"), item, strict=False):
        if not isinstance(value, Tensor | np.ndarray | np.generic | int) or (
            part == "input" and isinstance(value, int)
        ):
            raise DataError(
                f"The {part} of item {number} of {what} is of type {type(value).__name__}.",
                "Return tensors: a picture needs a transform like ToTensor." if part == "input" else "Return integers.",
            )
        row.append(torch.as_tensor(value).detach().cpu())
    return row
