"""What is held out of each class, and the order of public rows."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from equipoise.data.splits import Split, distinct, hold_out, mixed, units
from equipoise.errors import DataError

label_lists = st.lists(st.integers(0, 4), min_size=1, max_size=60)


def numbered(values: list[int]) -> Split:
    """A split whose only pixel is the row's number."""
    return Split(torch.arange(float(len(values)))[:, None, None, None], torch.tensor(values))


def rows(split: Split) -> list[int]:
    return split.inputs.flatten().int().tolist()


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
    rows = torch.cat([split.inputs.flatten() for split in splits])
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
    assert repr(numbered([0, 1])) == "Split(inputs=[2, 1, 1, 1])"


def test_rows_that_equal_an_earlier_one_or_one_beside_are_left_out() -> None:
    images = torch.tensor([3.0, 1.0, 3.0, 2.0, 1.0, 4.0])[:, None, None, None]
    assert distinct(images).tolist() == [0, 1, 3, 5]
    assert distinct(images, besides=images[[4, 5]]).tolist() == [0, 3]
    assert distinct(images, besides=images).tolist() == []
    assert distinct(images.expand(-1, 2, 3, 3).transpose(2, 3)).tolist() == [0, 1, 3, 5]


# -- groups --------------------------------------------------------------------------------------------------------

grouped_rows = st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 9)), min_size=1, max_size=60)


def grouped(values: list[tuple[int, int]]) -> Split:
    split = numbered([label for label, _ in values])
    return Split(split.inputs, split.labels, torch.tensor([group for _, group in values]))


def test_groups_go_with_their_rows() -> None:
    split = grouped([(0, 7), (1, 8), (0, 9), (1, 7)])
    for chosen in (torch.tensor([3, 0]), slice(1, 3), split.labels > 0):
        taken = split.take(chosen)
        assert taken.groups is not None
        assert split.groups is not None
        assert taken.groups.tolist() == split.groups[rows(taken)].tolist()
    assert mixed(split).groups is not None
    assert numbered([1, 2]).take(slice(1)).groups is None


@given(grouped_rows)
def test_a_group_has_the_place_of_its_first_row_and_its_most_frequent_label(values: list[tuple[int, int]]) -> None:
    split = grouped(values)
    assert split.groups is not None
    unit, labels = units(split.labels, split.groups)
    names = list(dict.fromkeys(group for _, group in values))
    assert unit.tolist() == [names.index(group) for _, group in values]
    for name, label in zip(names, labels.tolist(), strict=True):
        counts = Counter(own for own, group in values if group == name)
        assert label == min(own for own, count in counts.items() if count == max(counts.values()))


@given(grouped_rows, st.sampled_from([(0.2, 0.0), (0.5, 0.0), (0.25, 0.5)]))
def test_no_group_is_divided_between_splits(values: list[tuple[int, int]], shares: tuple[float, float]) -> None:
    try:
        parts = hold_out(grouped(values), *shares)
    except DataError:
        return
    held = [{values[row][1] for row in rows(part)} for part in parts]
    assert sum(len(part) for part in held) == len(set.union(*held))
    assert sorted(row for part in parts for row in rows(part)) == list(range(len(values)))
    assert all(part.groups is not None and part.groups.tolist() == [values[r][1] for r in rows(part)] for part in parts)


@given(label_lists, st.sampled_from([(0.2, 0.0), (0.25, 0.5)]))
def test_groups_of_one_row_change_nothing(values: list[int], shares: tuple[float, float]) -> None:
    names = torch.arange(len(values)).flip(0) * 5
    plain = numbered(values)
    try:
        expected = [rows(part) for part in hold_out(plain, *shares)]
    except DataError:
        with pytest.raises(DataError, match="groups"):
            hold_out(Split(plain.inputs, plain.labels, names), *shares)
        return
    assert [rows(part) for part in hold_out(Split(plain.inputs, plain.labels, names), *shares)] == expected


def test_two_people_of_one_class_leave_one_to_train_on() -> None:
    train, validation, public = hold_out(grouped([(0, 1), (0, 2), (0, 1), (1, 1), (0, 2)]), 0.5, 0.0)
    assert (rows(train), rows(validation), rows(public)) == ([0, 2, 3], [1, 4], [])
    with pytest.raises(DataError, match=r"The largest class has 2 groups: 0\.4 of that leaves none for validation"):
        hold_out(grouped([(0, 1), (0, 2)] * 9), 0.4, 0.0)
