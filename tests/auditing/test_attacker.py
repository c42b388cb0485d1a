"""What the attacker of an update knows: the labels it is granted, the shape and range of the inputs, what it lacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from equipoise.auditing.attacker import Attacker
from equipoise.auditing.update import Truth
from equipoise.errors import ConfigError, DataError, EquipoiseError
from tests.auditing.updates import SHAPE, numbers

X, Y = numbers(2, *SHAPE), torch.tensor([0, 2])
TRUTH = Truth(X, Y)
PUBLIC = 2 * numbers(9, *SHAPE) - 1, torch.arange(9) % 3


@pytest.mark.parametrize("truth", [TRUTH, None], ids=["truth", "no truth"])
def test_the_labels_that_are_granted(truth: Truth | None) -> None:
    other = torch.tensor([1, 1])
    assert Attacker().granted(truth) is (None if truth is None else Y)
    assert Attacker(labels="infer").granted(truth) is None
    assert Attacker(labels=other).granted(truth) is other


def test_the_number_of_examples_is_told_once() -> None:
    assert Attacker().count(TRUTH, 1) == Attacker(labels="infer").count(TRUTH, 2) == 2
    assert Attacker(labels=torch.zeros(4, 3).long()).count(None, 1) == 3
    assert Attacker(examples=6).count(None, 3) == 6
    assert Attacker(examples=2).count(TRUTH, 1) == 2, "told twice, and the same"
    for attacker, truth, steps, words in (
        (Attacker(), None, 1, r"Attacker\(examples=\)"),
        (Attacker(examples=3), TRUTH, 1, "disagree on the number of examples: 2, 2, 3"),
        (Attacker(labels=Y[:1]), TRUTH, 1, "disagree on the number of examples: 2, 1"),
        (Attacker(), TRUTH, 3, "2 examples do not make 3 equal local steps"),
    ):
        with pytest.raises(DataError, match=words):
            attacker.count(truth, steps)


def test_the_shape_is_the_callers_then_that_of_public_inputs_then_of_the_truth() -> None:
    assert Attacker(shape=(3,), public=PUBLIC).input_shape(TRUTH, False) == (3,)
    assert Attacker(public=PUBLIC).input_shape(None, False) == SHAPE
    assert Attacker().input_shape(TRUTH, False) == SHAPE
    assert Attacker().input_shape(Truth(X.unsqueeze(0), Y), True) == SHAPE
    with pytest.raises(ConfigError, match=r"Attacker\(shape="):
        Attacker().input_shape(None, False)


def test_the_range_is_the_callers_then_that_of_public_inputs() -> None:
    assert Attacker(bounds=(-3, 4), public=PUBLIC).input_range() == (-3.0, 4.0)
    assert Attacker(public=PUBLIC).input_range() == (float(PUBLIC[0].min()), float(PUBLIC[0].max()))
    assert Attacker().input_range() == (0.0, 1.0)


def test_the_range_of_a_table_is_that_of_each_column() -> None:
    public = torch.tensor([[0.0, 100.0], [1.0, 300.0]]), torch.tensor([0, 1])
    low, high = Attacker(public=public).input_range(table=True)
    assert isinstance(low, torch.Tensor)
    assert isinstance(high, torch.Tensor)
    assert (low.tolist(), high.tolist()) == ([-0.5, 0.0], [1.5, 400.0])
    assert Attacker(public=public, bounds=(0, 1)).input_range(table=True) == (0.0, 1.0)
    assert Attacker().input_range(table=True) == (0.0, 1.0)


def test_inputs_are_tokens_if_they_are_whole_numbers() -> None:
    tokens = torch.ones(4, 3, dtype=torch.int64)
    known = Attacker(public=(tokens, torch.arange(4)))
    assert known.tokens(None)
    assert known.tokens(Truth(tokens, torch.arange(4)))
    assert not Attacker(public=PUBLIC).tokens(TRUTH)
    assert not Attacker().tokens(None)
    with pytest.raises(DataError, match="one are tokens"):
        known.tokens(Truth(tokens.float(), torch.arange(4)))
    assert known.to(torch.zeros(1, dtype=torch.float64)).public[0].dtype == torch.int64  # type: ignore[index]


def test_what_it_lacks_says_where_that_is_given() -> None:
    assert Attacker(public=PUBLIC).lacks(TRUTH) == {}
    assert set(Attacker(labels="infer").lacks(TRUTH)) == {"labels", "public"}
    nothing = Attacker().lacks(None)
    assert set(nothing) == {"labels", "truth", "candidates", "asked", "companions", "public"}
    assert "truth=(inputs, labels)" in nothing["candidates"]
    assert "Attacker(public=(inputs, labels))" in nothing["public"]


@pytest.mark.parametrize(
    ("counts", "lacking"),
    [
        ([4, 4, 4], {}), ([4, 0, 9], {}), ([3, 9, 4], {"candidates": "4 public inputs of every label"}),
        ([1, 9, 3], {"candidates": "4 public inputs of every label"}),
        ([9, 9, 0], {"public": "public inputs of every label"}),
    ],
    ids=str,
)  # fmt: skip
def test_public_inputs_of_a_label_can_be_too_few(counts: list[int], lacking: dict[str, str]) -> None:
    """Of the labels that an update holds, 0 and 2 here; how many of others there are is of no account."""
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    result = Attacker(public=(numbers(len(labels), *SHAPE), labels)).lacks_of(Y)
    for need, words in lacking.items():
        assert result[need].startswith(words)
    assert ("candidates" in result) == ("asked" in result) == bool(lacking)
    assert ("public" in result) == ("public" in lacking)
    assert Attacker().lacks_of(Y) == {}, "whoever has no public inputs lacks them all: lacks() says it"


def test_it_is_moved_to_the_models_own_precision() -> None:
    moved = Attacker(public=PUBLIC, labels=Y, examples=2).to(torch.zeros(1, dtype=torch.float64))
    assert moved.public is not None
    assert moved.public[0].dtype == torch.float64
    assert moved.public[1].dtype == torch.int64
    assert (moved.labels is Y, moved.examples) == (True, 2)
    assert Attacker(labels="infer").to(torch.zeros(1)).labels == "infer"


def test_it_shows_no_tensors() -> None:
    assert repr(Attacker(public=PUBLIC, labels=Y, examples=2)) == "Attacker(examples=2, shape=None, bounds=None)"


@pytest.mark.parametrize(
    "change",
    [
        {"labels": "guess"}, {"labels": [0, 1]}, {"labels": torch.tensor(1)}, {"examples": 0}, {"examples": True},
        {"bounds": (1.0, 1.0)}, {"bounds": (0.0, float("inf"))}, {"bounds": (0, 1, 2)}, {"bounds": "01"},
        {"public": PUBLIC[0]}, {"public": (PUBLIC[0], [1] * 9)}, {"public": (PUBLIC[0].int(), PUBLIC[1])},
        {"public": (PUBLIC[0], PUBLIC[1][:3])}, {"public": (PUBLIC[0][:0], PUBLIC[1][:0])},
        {"public": (PUBLIC[0] / 0, PUBLIC[1])},
    ],
    ids=lambda change: next(iter(change)),
)  # fmt: skip
def test_what_no_attacker_can_know_is_refused_at_once(change: dict[str, Any]) -> None:
    with pytest.raises(EquipoiseError, match=r"\. [A-Z].*\.$"):
        Attacker(**change)
