"""Words as numbers: the same everywhere, within the vocabulary, padded at the end."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.data.tokens import bucket, padded, tokenized, words


def test_words_and_marks_are_told_apart() -> None:
    assert words("  Don't stop: 3 ÄPFEL!\n") == ["don", "'", "t", "stop", ":", "3", "äpfel", "!"]
    assert words(" \t\n") == []


@given(st.text(min_size=1), st.integers(2, 10_000))
def test_a_word_has_a_number_of_the_vocabulary_and_never_that_of_padding(word: str, vocabulary: int) -> None:
    assert 1 <= bucket(word, vocabulary) < vocabulary


def test_the_number_of_a_word_is_its_hash() -> None:
    digest = hashlib.blake2b(b"clock", digest_size=8).hexdigest()
    assert bucket("clock", 4096) == 1 + int(digest, 16) % 4095


def test_texts_are_padded_and_cut() -> None:
    made = tokenized(["one two three", "one"], 4096, 2)
    assert made.dtype == torch.int64
    assert made.tolist() == [[bucket("one", 4096), bucket("two", 4096)], [bucket("one", 4096), 0]]


@pytest.mark.parametrize("length", [1, 3, 8])
def test_lists_are_padded_and_cut(length: int) -> None:
    lists = [[5], [], [6, 7, 8, 9], [1, 2]]
    values = np.array([value for row in lists for value in row], np.int32)
    expected = [(row + [0] * length)[:length] for row in lists]
    assert padded(values, np.array([len(row) for row in lists]), length).tolist() == expected
