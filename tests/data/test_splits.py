"""What is held out of each class, and the order of public rows."""

from __future__ import annotations

import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from equipoise.data.splits import Split, distinct, hold_out, mixed

label_lists = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def numbered(values: list[int]) -> Split:
    """A split whose only pixel is the row's number."""
    return Split(torch.arange(float(len(values)))[:, None, None, None], torch.tensor(values))


def rows(split: Split) -> list[int]:
    return split.images.flatten().int().tolist()


@given(st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(2, 60), st.integers(0, 4))
@settings(max_examples=60, deadline=None)
@example([1], 49, 1)  # 49 * (1 / 49) < 1 in floating point
@example([7001], 6, 1)
def test_hold_out_takes_the_floor_of_each_class(sizes: list[int], parts: int, public: int) -> None:
    counts = [size * parts for size in sizes]
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    images = torch.arange(len(labels), dtype=torch.float32)[:, None, None, None]
    share = min(public, parts - 2) / parts
    splits = hold_out(Split(images, labels), 1 / parts, share)
    for label, size in enumerate(sizes):
        train, validation, given_ = (int((split.labels == label).sum()) for split in splits)
        assert validation == size
        assert given_ == size * min(public, parts - 2)
        assert train == counts[label] - validation - given_ > 0
    rows = torch.cat([split.images.flatten() for split in splits])
    assert torch.equal(rows.sort().values, images.flatten())


def test_the_last_rows_of_each_class_are_held_out_and_those_before_are_public() -> None:
    train, validation, public = hold_out(numbered([0, 1, 0, 1, 0, 1, 0, 1]), 0.25, 0.5)
    assert (rows(train), rows(public), rows(validation)) == ([0, 1], [2, 3, 4, 5], [6, 7])
    assert validation.labels.tolist() == [0, 1]


def test_a_class_of_half_as_many_rows_comes_half_as_often() -> None:
    assert mixed(numbered([0, 0, 0, 0, 1, 1])).labels.tolist() == [0, 1, 0, 0, 1, 0]


@given(label_lists)
def test_mixing_spreads_every_class_evenly_and_keeps_its_order(values: list[int]) -> None:
    result = mixed(numbered(values))
    assert sorted(rows(result)) == list(range(len(values)))
    assert [values[row] for row in rows(result)] == result.labels.tolist()
    for label in set(values):
        own = [row for row in rows(result) if values[row] == label]
        assert own == sorted(own)
        for length in range(1, len(values) + 1):
            seen = result.labels[:length].tolist().count(label)
            # a class is at most half a row early or late, and so is every other class
            assert abs(seen - length * len(own) / len(values)) <= (len(set(values)) + 1) / 2


def test_rows_are_taken_by_number_slice_and_mask() -> None:
    split = numbered([5, 6, 7, 8])
    assert rows(split.take(torch.tensor([3, 0]))) == [3, 0]
    assert rows(split.take(slice(1, 3))) == [1, 2]
    taken = split.take(split.labels > 6)
    assert (rows(taken), taken.labels.tolist(), len(taken)) == ([2, 3], [7, 8], 2)


def test_a_split_is_printed_without_its_pixels() -> None:
    assert repr(numbered([0, 1])) == "Split(images=[2, 1, 1, 1])"


def test_rows_that_equal_an_earlier_one_or_one_beside_are_left_out() -> None:
    images = torch.tensor([3.0, 1.0, 3.0, 2.0, 1.0, 4.0])[:, None, None, None]
    assert distinct(images).tolist() == [0, 1, 3, 5]
    assert distinct(images, besides=images[[4, 5]]).tolist() == [0, 3]
    assert distinct(images, besides=images).tolist() == []
    assert distinct(images.expand(-1, 2, 3, 3).transpose(2, 3)).tolist() == [0, 1, 3, 5]
