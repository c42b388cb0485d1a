"""Datasets from tensors: what is kept, what is public, and what is refused with which words."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from equipoise.data.dataset import Pair, from_tensors
from equipoise.errors import DataError


def pair(count: int = 12, channels: int = 1) -> Pair:
    return torch.rand(count, channels, 4, 4, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 2


def test_tensors_stay_as_they_are() -> None:
    train, test, validation, public = pair(12), pair(6), pair(8), pair(24)
    dataset = from_tensors(train, test, validation, public, classes=5)
    assert dataset.train.inputs.data_ptr() == train[0].data_ptr()
    for split, given_ in (("train", train), ("test", test), ("validation", validation), ("public", public)):
        assert torch.equal(getattr(dataset, split).inputs, given_[0])
        assert torch.equal(getattr(dataset, split).labels, given_[1])
    assert (dataset.classes, dataset.name) == (5, "user")
    assert torch.equal(dataset.pixels(train[0]), train[0])


def test_other_dtypes_are_converted_and_graphs_cut() -> None:
    images, labels = pair()
    dataset = from_tensors((images.double().requires_grad_(), labels.to(torch.uint8)), pair())
    assert dataset.train.inputs.dtype == torch.float32
    assert not dataset.train.inputs.requires_grad
    assert dataset.train.labels.dtype == torch.int64


def test_stated_normalisation_is_undone() -> None:
    images, labels = pair(channels=2)
    mean, std = (0.1, 0.2), (0.5, 0.25)
    shifted = (images - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    dataset = from_tensors((shifted, labels), (shifted, labels), mean=mean, std=std)
    torch.testing.assert_close(dataset.pixels(dataset.test.inputs), images)


def with_value(value: float, dtype: torch.dtype = torch.float32) -> Pair:
    images, labels = pair()
    images = images.to(dtype)
    images[7, 0, 1, 2] = value
    return images, labels


TENSOR_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"train": pair()[0]}, r"train to be a pair \(inputs, labels\), got Tensor"),
    ({"train": (pair()[0].numpy(), pair()[1])}, "train inputs to be a torch tensor, got ndarray"),
    ({"test": (pair()[0], [0, 1])}, "test labels to be a torch tensor, got list"),
    ({"train": (pair()[0][:, 0, 0, 0], pair()[1])}, r"train inputs to have shape \[N, ...\], got \[12\]"),
    ({"train": (pair()[0].byte(), pair()[1])}, r"train images to be float, got torch\.uint8"),
    ({"test": (pair()[0][:0], pair()[1][:0])}, "at least one test image"),
    ({"validation": with_value(float("nan"))}, "validation images to be finite in float32, got nan in row 7"),
    ({"public": with_value(float("inf"))}, "public images to be finite in float32, got inf in row 7"),
    ({"train": with_value(1e300, torch.float64)}, "train images to be finite in float32, got inf in row 7"),
    ({"train": (pair()[0], pair()[1][:, None])}, r"train labels to have shape \[N\], got \[12, 1\]"),
    ({"train": (pair()[0], pair()[1].float())}, r"train labels to be integers, got torch\.float32"),
    ({"train": (pair()[0], pair()[1].bool())}, r"train labels to be integers, got torch\.bool"),
    ({"test": (pair()[0], pair()[1] - 1)}, "test labels to be >= 0; row 0 is negative"),
    ({"train": (pair()[0], pair()[1][:-1])}, "as many train labels as images, got 11 and 12"),
    ({"test": (pair()[0], pair()[1] + 1), "classes": 2}, "test labels to be < classes=2; row 1 is not"),
    ({"test": (pair()[0], pair()[1] + 1000)}, "test labels name more than 1000 classes"),
    ({"test": pair(channels=3)}, r"test images to have shape \[1, 4, 4\] like the train images, got \[3, 4, 4\]"),
    ({"train": pair(4)}, "largest class has 2 images.*Give validation images"),
    ({"train": (*pair(), pair()[1].float())}, r"train groups to be integers, got torch\.float32"),
    ({"train": (*pair(), pair()[1][1:])}, "as many train groups as images, got 11 and 12"),
    ({"train": (*pair(), [0] * 12)}, "train groups to be a torch tensor, got list"),
    ({"train": (*pair(), pair()[1], pair()[1])}, r"train to be a pair .*got tuple of 4.*groups may come third"),
    ({"test": (*pair(), pair()[1])}, r"test to be a pair \(images, labels\), got tuple of 3"),
    ({"std": 0.0}, "std=0.0 to be > 0"),
    ({"mean": "0"}, "mean to be a finite number"),
]


@pytest.mark.parametrize(("arguments", "words"), TENSOR_PROBLEMS)
def test_unusable_tensors_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_tensors(**({"train": pair(), "test": pair()} | arguments))


def test_public_parts_need_public_images() -> None:
    with pytest.raises(DataError, match="'user' has no public images, so no public_pool"):
        _ = from_tensors(pair(), pair()).public_pool
    with pytest.raises(DataError, match="only 2 public images: public_pool would be empty"):
        _ = from_tensors(pair(), pair(), public=pair(2)).public_pool


def test_public_of_unequal_classes_has_every_class_in_every_part() -> None:
    labels = torch.tensor([0] * 480 + [1] * 120)
    images = torch.zeros(600, 1, 2, 2)
    dataset = from_tensors((images, labels), (images, labels), public=(images, labels))
    for part in (dataset.public_attack, dataset.public_pool, dataset.public_tuning):
        assert int((part.labels == 1).sum()) == len(part) // 5


def test_groups_stay_together_and_go_where_their_rows_go() -> None:
    images, labels = pair(24)
    groups = torch.arange(24) // 2 - 3
    data = from_tensors((images, labels, groups), pair())
    assert data.test.groups is None
    assert data.train.groups is not None
    assert data.validation.groups is not None
    assert not set(data.train.groups.tolist()) & set(data.validation.groups.tolist())
    rows = [int((images == one).flatten(1).all(1).nonzero()[0]) for one in data.train.inputs]
    assert data.train.groups.tolist() == groups[rows].tolist()
    given = from_tensors((images, labels, groups), pair(), validation=pair())
    assert given.train.groups is not None
    assert torch.equal(given.train.groups, groups)


def test_without_groups_there_are_none() -> None:
    data = from_tensors(pair(), pair(), public=pair(24))
    assert all(split is not None and split.groups is None for split in (data.train, data.validation, data.public))


# -- features in place of images -----------------------------------------------------------------------------------


def test_features_take_the_place_of_images_row_by_row() -> None:
    images, labels = pair(24)
    data = from_tensors((images, labels, torch.arange(24)), pair(), public=pair(36), mean=0.5, std=2.0)
    calls: list[int] = []

    def rows(images: torch.Tensor) -> torch.Tensor:
        calls.append(len(images))
        return images.sum(3).requires_grad_()

    made = data.mapped(rows)
    assert calls == [20, 4, 12, 36]
    assert (made.name, made.classes, made.shape, made.mean, made.std) == ("user", 2, (4, 1, 1), 0.0, 1.0)
    for one, two in ((data.train, made.train), (data.test, made.test), (data.public, made.public)):
        assert one is not None
        assert two is not None
        assert torch.equal(two.inputs.flatten(1), one.inputs.sum(3).flatten(1))
        assert two.labels is one.labels
        assert two.groups is one.groups
        assert not two.inputs.requires_grad
    assert torch.equal(made.pixels(made.test.inputs), made.test.inputs)
    assert data.mapped(rows, name="sums").name == "sums"


def test_only_train_needs_the_first_way_to_compute_features() -> None:
    data = from_tensors(pair(24), pair())
    made = data.mapped(lambda images: images.mean(3), evaluation=lambda images: images.mean(3) + 1)
    assert made.public is None
    assert torch.equal(made.train.inputs.flatten(1), data.train.inputs.mean(3).flatten(1))
    assert torch.equal(made.validation.inputs.flatten(1), data.validation.inputs.mean(3).flatten(1) + 1)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda images: images[1:], r"20 rows for the train images, got shape \[19, 1, 4, 4\]"),
        (lambda images: images.sum((1, 2, 3)), r"20 rows for the train images, got shape \[20\]"),
        (lambda images: images.tolist(), "20 rows for the train images, got list"),
        (lambda images: images.flatten(1)[:, : len(images)], "validation images to have shape"),
    ],
)
def test_what_is_no_row_of_features_is_refused(function: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_tensors(pair(24), pair()).mapped(function)


# -- tables and tokens ---------------------------------------------------------------------------------------------


def rows(count: int = 12) -> Pair:
    return torch.rand(count, 5, generator=torch.Generator().manual_seed(3)), torch.arange(count) % 2


def tokens(count: int = 12, largest: int = 9) -> Pair:
    return (torch.arange(count)[:, None] % largest + torch.tensor([1, 0, -count])).clamp(min=0), torch.arange(count) % 2


def test_inputs_of_any_rank_are_taken() -> None:
    table = from_tensors(rows(), rows(), mean=(1.0, 2.0, 3.0, 4.0, 5.0), std=2.0)
    assert (table.kind, table.shape, table.vocabulary) == ("table", (5,), None)
    torch.testing.assert_close(table.pixels(table.test.inputs), rows()[0] * 2 + torch.arange(1.0, 6))
    signals = torch.rand(12, 2, 7), torch.arange(12) % 2
    made = from_tensors(signals, signals, mean=(1.0, 2.0), std=1.0)
    assert (made.kind, made.shape) == ("table", (2, 7))
    torch.testing.assert_close(made.pixels(made.test.inputs), signals[0] + torch.tensor([[1.0], [2.0]]))
    assert from_tensors(pair(), pair()).kind == "image"


def test_tokens_stay_whole_numbers() -> None:
    made = from_tensors((tokens()[0].to(torch.int16), tokens()[1]), tokens(), public=tokens(24))
    assert (made.kind, made.shape, made.vocabulary) == ("tokens", (3,), 10)
    assert made.train.inputs.dtype == torch.int64
    assert made.pixels(made.test.inputs) is made.test.inputs
    assert from_tensors(tokens(), tokens(), vocabulary=50).vocabulary == 50


KIND_PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"train": (tokens()[0] - 3, tokens()[1])}, "train tokens of row 0 are negative.*0 is padding"),
    ({"test": (tokens()[0] * 0, tokens()[1])}, "test tokens of row 0 are all padding"),
    ({"test": (tokens()[0] + 10**7, tokens()[1])}, "test tokens of row 0 are not below 10,000,000"),
    ({"test": (tokens()[0][:0], tokens()[1][:0])}, "at least one test token"),
    ({"test": rows()}, "test inputs are numbers, those of train tokens"),
    ({"test": (tokens()[0][:, :2], tokens()[1])}, r"test rows to have shape \[3\] like the train rows, got \[2\]"),
    ({"vocabulary": 5}, "train tokens to be < vocabulary=5; row 4 is not"),
    ({"train": rows(), "test": rows(), "vocabulary": 5}, "vocabulary=5 is for tokens"),
    ({"train": (rows()[0].byte(), rows()[1])}, r"train rows to be float, got torch\.uint8.*long\(\) for tokens"),
    ({"train": (rows()[0] / 0, rows()[1])}, "train rows to be finite in float32, got inf in row 0"),
    ({"train": (rows()[0], rows()[1][1:])}, "as many train labels as rows, got 11 and 12"),
]


@pytest.mark.parametrize(("arguments", "words"), KIND_PROBLEMS)
def test_unusable_tables_and_tokens_are_refused(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        from_tensors(**({"train": tokens(), "test": tokens()} | arguments))
