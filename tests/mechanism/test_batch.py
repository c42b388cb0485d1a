"""A batch is checked by its form, and its labels by the model's classes; ``test_protect.py`` has the messages."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from equipoise.errors import DataError, ModelError
from equipoise.mechanism.batch import check_labels, checked_batch, checked_pair

X, Y = torch.rand(3, 4), torch.tensor([0, 1, 2])


def test_a_pair_of_tensors_is_a_batch() -> None:
    images, labels = checked_batch([X, Y])
    assert images is X
    assert labels is Y


@pytest.mark.parametrize("batch", [None, (X,), (X, 3), (X, Y[:2]), (torch.tensor(1.0), Y)])
def test_what_has_no_form_of_a_batch_is_refused(batch: Any) -> None:
    with pytest.raises(DataError):
        checked_pair(batch)


def test_a_pair_may_be_empty_or_hold_anything_and_a_batch_may_not() -> None:
    for pair in ((X[:0], Y[:0]), (X * torch.nan, Y)):
        checked_pair(pair)
        with pytest.raises(DataError):
            checked_batch(pair)


@pytest.mark.parametrize("labels", [torch.tensor([0, 1, 3]), torch.tensor([-1, 0, 1]), Y.float(), Y.unsqueeze(1)])
def test_labels_are_numbers_of_classes(labels: Any) -> None:
    check_labels(nn.Linear(4, 3), X, Y)
    with pytest.raises(DataError):
        check_labels(nn.Linear(4, 3), X, labels)


def test_cross_entropy_needs_a_number_per_class() -> None:
    with pytest.raises(ModelError, match="Cross-entropy needs outputs"):
        check_labels(nn.Flatten(0), X, Y)
