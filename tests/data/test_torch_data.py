"""Datasets of torch: items become rows, and what is wrong with one is told by its number."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, TensorDataset

from equipoise.data.dataset import from_tensors
from equipoise.data.torch_data import from_torch
from equipoise.errors import DataError


class Items(Dataset[Any]):
    def __init__(self, *items: Any) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, number: int) -> Any:
        return self.items[number]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.ones(3) * n, n % 2) for n in range(12)])


ROWS, LABELS = torch.rand(24, 3, 4, 4, generator=torch.Generator().manual_seed(2)), torch.arange(24) % 2


def test_items_become_rows() -> None:
    items = TensorDataset(ROWS, LABELS)
    made = from_torch(items, items, public=items, name="mine", mean=0.5, std=2.0)
    expected = from_tensors((ROWS, LABELS), (ROWS, LABELS), public=(ROWS, LABELS))
    assert (made.name, made.mean, made.std) == ("mine", 0.5, 2.0)
    for part in ("train", "validation", "test", "public"):
        assert torch.equal(getattr(made, part).inputs, getattr(expected, part).inputs)
        assert torch.equal(getattr(made, part).labels, getattr(expected, part).labels)


def test_arrays_numbers_groups_and_streams_are_taken() -> None:
    items = Items(*((np.full(3, n, np.float32), np.int64(n % 2), n // 2) for n in range(24)))
    made = from_torch(items, Stream())
    assert made.shape == (3,)
    assert made.train.groups is not None
    assert len(made.test) == 12
    tokens = Items(*((torch.tensor([1 + n, 0]), n % 2) for n in range(12)))
    assert from_torch(tokens, tokens, vocabulary=40).vocabulary == 40


def failing() -> Any:
    class Failing(Items):
        def __getitem__(self, number: int) -> Any:
            raise KeyError("patient 4711")

    return Failing(1, 2)


@pytest.mark.parametrize(
    ("items", "words"),
    [
        (Items(), "The train dataset has no items"),
        (3, "train to be a torch Dataset, got int"),
        (Items({"x": 1}), r"item 0 of train to be \(input, label\), got dict"),
        (Items((torch.ones(3), 0), (torch.ones(3),)), "item 1 of train to be"),
        (Items((object(), 0)), "input of item 0 of train is of type object.*ToTensor"),
        (Items((torch.ones(3), "cat")), "label of item 0 of train is of type str"),
        (Items((torch.ones(3), 0), (torch.ones(4), 0)), "Item 1 of train differs from item 0"),
        (Items((torch.ones(3), 0), (torch.ones(3).double(), 0)), "Item 1 of train differs from item 0"),
        (failing(), "The train dataset failed: KeyError at test_torch_data.py"),
    ],
)
def test_what_cannot_be_used_is_told_by_its_number(items: Any, words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        from_torch(items, Items((torch.ones(3), 0)))
    assert "4711" not in str(caught.value)


def test_groups_are_for_train() -> None:
    with pytest.raises(DataError, match="item 0 of test to be"):
        from_torch(TensorDataset(ROWS, LABELS), Items((ROWS[0], 0, 1)))
