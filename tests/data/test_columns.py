"""Columns to features, classes and groups: what is guessed, what is said, and what is refused with which words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.data import columns, tokens
from equipoise.data.columns import MOST_NAMED, Table, Tables, contents_of_tables, texts
from equipoise.data.contents import Reading
from equipoise.data.tokens import BUCKETS, tokenized, words
from equipoise.errors import DataError

COLUMNS: dict[str, Any] = {
    "person": ["p2", "p1", "p2", "p3"],
    "age": np.array([31.0, 40.5, 27.0, 60.0]),
    "town": ["b", "a", "b", "c"],
    "class": ["ill", "well", "ill", "well"],
}


def table(lines: bool = False, **columns: Any) -> Table:
    made = {name: values if isinstance(values, np.ndarray) else texts(values) for name, values in columns.items()}
    return Table(Path("a.csv"), made, list(range(2, 2 + len(next(iter(made.values()))))) if lines else None)


def tables(lines: bool = False, **changed: Any) -> Tables:
    return {"train": table(lines, **{**COLUMNS, **changed})}


def test_numbers_are_features_and_names_one_column_for_each() -> None:
    made = contents_of_tables(tables(), Reading(group="person"))
    inputs, labels, groups = made.parts["train"]
    assert inputs.tolist() == [[31, 0, 1, 0], [40.5, 1, 0, 0], [27, 0, 1, 0], [60, 0, 0, 1]]
    assert inputs.dtype == torch.float32
    assert labels.tolist() == [0, 1, 0, 1]
    assert groups.tolist() == [0, 1, 0, 2]
    assert made.class_names == ("ill", "well")
    assert made.vocabulary is None
    assert made.guessed[0] == "target: column 'class', by its name (say target=)"
    assert made.guessed[1].startswith("columns: 1 of numbers, 1 as one-hot (say categorical=")


def test_codes_are_one_column_in_the_order_of_the_names() -> None:
    made = contents_of_tables(tables(), Reading(group="person", target="class", categories="codes"))
    assert made.parts["train"][0][:, 1].tolist() == [1, 0, 1, 2]
    assert len(made.guessed) == 1


def test_numbers_that_are_names_are_said_to_be() -> None:
    reading = Reading(group="person", categorical=("age",), drop=("town",))
    made = contents_of_tables(tables(age=np.array([7, 9, 7, 8])), reading)
    assert made.parts["train"][0].tolist() == [[1, 0, 0], [0, 0, 1], [1, 0, 0], [0, 1, 0]]


def test_numbers_of_two_types_are_one_category() -> None:
    train, test = table(age=np.array([10, 9, 2]), y=np.arange(3) % 2), table(age=np.array([9.0, 2.0]), y=np.arange(2))
    made = contents_of_tables({"train": train, "test": test}, Reading(target="y", categorical=("age",)))
    assert made.parts["train"][0].tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert made.parts["test"][0].tolist() == [[0, 1, 0], [1, 0, 0]]
    words = table(age=["9", "b"], y=np.arange(2))
    made = contents_of_tables({"train": train, "test": words}, Reading(target="y"))
    assert made.parts["test"][0].tolist() == [[0, 0, 1, 0], [0, 0, 0, 1]], "beside words they are words: 10, 2, 9, b"


@pytest.mark.timeout(30)
def test_a_long_text_of_many_rows_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(tokens, "words", lambda text: calls.append(text) or words(text))
    monkeypatch.setattr(columns, "words", tokens.words)
    said = [" long text" * 100_000, "short"] * 5_000
    made = contents_of_tables(
        tables(town=texts(said), person=np.arange(10_000), age=np.ones(10_000), **{"class": np.arange(10_000) % 2}),
        Reading(text="town", text_length=3),
    )
    assert len(calls) == 4, "two texts, counted and numbered"
    assert made.parts["train"][0][2].tolist() == made.parts["train"][0][0].tolist()
    long = [" " + "1" * 1_000_000, "2"] * 5_000  # of which a copy for each row would be 5 GB
    made = contents_of_tables(
        tables(
            town=texts(long),
            person=np.arange(10_000),
            age=texts(long),
            **{"class": texts([" ill" + " " * 1_000_000, "well"] * 5_000)},
        ),
        Reading(drop=("town", "age")),
    )
    assert made.class_names == ("ill", "well")


def test_a_scale_divides_numbers_alone() -> None:
    inputs = contents_of_tables(tables(), Reading(group="person", scale=10.0)).parts["train"][0]
    assert inputs[:, 0].tolist() == pytest.approx([3.1, 4.05, 2.7, 6.0])
    assert inputs[:, 1:].max() == 1


def test_categories_and_classes_are_those_of_all_parts() -> None:
    both = {
        **tables(),
        "test": table(**{**COLUMNS, "town": ["d", "a", "a", "a"], "class": ["dead", "ill", "ill", "ill"]}),
    }
    made = contents_of_tables(both, Reading(group="person"))
    assert made.class_names == ("dead", "ill", "well")
    assert made.parts["train"][1].tolist() == [1, 2, 1, 2]
    assert made.parts["test"][1].tolist() == [0, 1, 1, 1]
    assert made.parts["test"][0][:, 1:].tolist() == [[0, 0, 0, 1]] + [[1, 0, 0, 0]] * 3
    assert len(made.parts["test"]) == 2, "groups go with train"


@pytest.mark.parametrize(
    ("values", "labels", "names"),
    [
        (["0", "1", "1", "0"], [0, 1, 1, 0], ("0", "1")),
        (np.array([5, 9, 9, 5]), [0, 1, 1, 0], ("5", "9")),
        (np.array([True, False, False, True]), [1, 0, 0, 1], ("0", "1")),
        (np.array([2.0, 1.0, 1.0, 2.0]), [1, 0, 0, 1], ("1", "2")),
        (["1.0", "0.0", "0.0", "1.0"], [1, 0, 0, 1], ("0", "1")),
        (["10", "x", "x", "10"], [0, 1, 1, 0], ("10", "x")),
    ],
)
def test_classes_are_numbered_in_their_order(values: Any, labels: list[int], names: tuple[str, ...]) -> None:
    made = contents_of_tables(tables(**{"class": values}), Reading(drop=("person",)))
    assert made.parts["train"][1].tolist() == labels
    assert made.class_names == names


def test_words_in_one_part_make_all_classes_words() -> None:
    both = {**tables(**{"class": ["0", "1", "0", "1"]}), "test": table(**{**COLUMNS, "class": ["1", "x", "x", "x"]})}
    made = contents_of_tables(both, Reading(drop=("person",)))
    assert made.class_names == ("0", "1", "x")


def test_without_a_usual_name_the_last_column_is_the_target() -> None:
    made = contents_of_tables({"train": table(a=np.arange(4.0), b=["u", "v", "u", "v"])}, Reading())
    assert made.guessed[0] == "target: column 'b', the last (say target=)"


def test_text_becomes_tokens_and_says_what_is_left_out() -> None:
    said = [f"it is day {n} of a long year" for n in range(4)]
    made = contents_of_tables(tables(note=said), Reading(text="note", group="person", text_length=5))
    assert torch.equal(made.parts["train"][0], tokenized(said, BUCKETS, 5))
    assert made.vocabulary == BUCKETS
    told = " ".join(made.guessed)
    assert "texts of up to 8 words are cut to 5" in told
    assert "'age', 'town' are left out" in told


def test_every_column_that_is_left_out_beside_a_text_is_named() -> None:
    more = {f"more{number}": np.arange(4.0) for number in range(6)}
    made = contents_of_tables(tables(note=["a b", "c d", "e f", "g h"], **more), Reading(text="note"))
    told = " ".join(made.guessed)
    assert all(f"'{name}'" in told for name in ("age", "town", *more))


def test_a_lone_column_of_sentences_is_text() -> None:
    lone = {"train": table(words=[f"sentence {n}" for n in range(44)], label=np.arange(44) % 2)}
    made = contents_of_tables(lone, Reading(vocabulary=100))
    assert made.vocabulary == 100
    assert int(made.parts["train"][0].max()) < 100
    assert "text: column 'words', the only one (say text=)" in made.guessed


MANY = [f"name {n}" for n in range(44)]
PROBLEMS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"target": "clas"}, "no column 'clas', which target names. Did you mean 'class'"),
    ({}, {"group": "patient"}, "no column 'patient', which group names.* It has 'person', 'age', 'town', 'class'"),
    ({}, {"drop": ("x",)}, "no column 'x', which drop names"),
    ({}, {"categorical": ("x",)}, "no column 'x', which categorical names"),
    ({}, {"target": "person", "group": "person"}, "target column 'person' has a second role"),
    ({}, {"drop": ("age", "town", "person")}, "no column beside its target 'class'"),
    ({}, {"drop": ("age", "town", "person", "class")}, "no column left for the classes"),
    ({"age": np.array([1, np.nan, 3, 4])}, {}, "a.csv, line 3, column 'age': the value is missing.*drop="),
    ({"town": ["a", "b", " NA ", "c"]}, {}, "a.csv, line 4, column 'town': the value is missing"),
    ({"class": ["a", "b", "a", ""]}, {}, "line 5, column 'class': the value is missing"),
    ({"person": ["a", "b", "a", "?"]}, {"group": "person"}, "line 5, column 'person': the value is missing"),
    ({"age": ["1", "2", "1e999", "3"]}, {}, "line 4, column 'age': not a finite number"),
    ({"class": ["0.5", "1", "0", "1"]}, {}, "line 2, column 'class': not a whole number.*target="),
    ({"class": np.array([0, 1, np.inf, 1])}, {}, "line 4, column 'class': not a whole number"),
    ({"class": ["a", "b", "c", "d"]}, {}, "'class' of a.csv has 4 different values in 4 rows: too many for classes"),
    ({}, {"vocabulary": 50}, "No column is read as text, so vocabulary plays no part"),
]


@pytest.mark.parametrize(("changed", "options", "words"), PROBLEMS)
def test_what_cannot_be_used_is_refused(changed: dict[str, Any], options: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        contents_of_tables(tables(lines=True, **changed), Reading(**options))


def test_texts_of_many_kinds_are_not_guessed_at() -> None:
    many = {"train": table(name=MANY, age=np.arange(44), label=np.arange(44) % 2)}
    with pytest.raises(DataError, match=r"'name' of a.csv holds texts of 44 kinds.*group='name'.*drop=\['name'\]"):
        contents_of_tables(many, Reading())
    assert contents_of_tables(many, Reading(categorical=("name",))).parts["train"][0].shape == (44, 45)
    endless = {"train": table(name=[f"{n}x" for n in range(MOST_NAMED + 1)], label=np.arange(MOST_NAMED + 1) % 2)}
    with pytest.raises(DataError, match="too many for categories"):
        contents_of_tables(
            {"train": table(**endless["train"].columns, age=np.zeros(MOST_NAMED + 1))}, Reading(categorical=("name",))
        )


def test_a_word_among_numbers_is_named_and_not_quoted() -> None:
    ages = [str(n) for n in range(43)] + ["secret"]
    with pytest.raises(DataError, match="row 43, column 'age': not a number, as most of the column are") as caught:
        contents_of_tables({"train": table(age=ages, label=np.arange(44) % 2)}, Reading(drop=()))
    assert "secret" not in str(caught.value)


def test_parts_need_the_same_columns() -> None:
    other = {name: values for name, values in COLUMNS.items() if name != "age"}
    with pytest.raises(DataError, match=r"has no column 'age', a\.csv has"):
        contents_of_tables({**tables(), "test": table(**other)}, Reading())
    with pytest.raises(DataError, match="has no column 'more'"):
        contents_of_tables({**tables(), "test": table(**COLUMNS, more=["x"] * 4)}, Reading())
    with pytest.raises(DataError, match="has no rows"):
        contents_of_tables({**tables(), "test": table(**{name: np.zeros(0) for name in COLUMNS})}, Reading())


def test_a_long_value_costs_its_length_once() -> None:
    """numpy's own strings are all as long as the longest: one long name among many rows would fill the memory."""
    rows = 20_000
    towns = ["a" * 100_000] + ["b"] * (rows - 1)
    made = contents_of_tables({"train": table(town=towns, who=towns, label=np.arange(rows) % 2)}, Reading(group="who"))
    assert made.parts["train"][0].shape == (rows, 2)
