"""CSV files: what is read, how parts are found, and what is refused with its line."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from equipoise.data.csv_files import read_csv
from equipoise.data.loading import load, load_public
from equipoise.errors import DataError

ROWS = [f"{30 + n % 7},{'ab'[n % 2]},{n // 2},{('well', 'ill', 'well')[n % 3]}" for n in range(36)]


def write(path: Path, rows: list[str] = ROWS, header: str = "age,town,person,state") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


def test_one_file_is_split_and_says_so(tmp_path: Path) -> None:
    data = load(write(tmp_path / "people.csv"), public_fraction=0.2)
    assert (data.name, data.kind, data.shape, data.class_names) == ("people.csv", "table", (4,), ("ill", "well"))
    assert [len(split) for split in (data.train, data.validation, data.test)] == [20, 4, 6]
    assert data.public is not None
    assert len(data.public) == 6
    told = " ".join(data.guessed)
    for words in ("target: column 'state', the last", "test part: the last 0.167", "those of the public part"):
        assert words in told


def test_numbers_are_normalised_by_column_and_come_back(tmp_path: Path) -> None:
    data = load(write(tmp_path / "people.csv"), drop=["town"], target="state", group="person")
    assert data.shape == (1,)
    rows = data.train.inputs.double()
    assert abs(float(rows.mean())) < 1e-6
    assert abs(float(rows.std(correction=0)) - 1) < 1e-6
    assert set(data.pixels(data.train.inputs).flatten().round(decimals=3).tolist()) <= {float(30 + n) for n in range(7)}
    own = load(tmp_path / "people.csv", drop=["town"], target="state", group="person", mean=30.0, std=2.0)
    assert (own.mean, own.std) == (30.0, 2.0)
    torch.testing.assert_close(own.test.inputs * 2 + 30, data.pixels(data.test.inputs))


def test_a_persons_rows_stay_together(tmp_path: Path) -> None:
    rows = [f"{n},{n // 2},{n % 2}" for n in range(60)]
    data = load(write(tmp_path / "a.csv", rows, "age,person,label"), group="person")
    parts = [data.train, data.validation, data.test]
    owners = [set(part.groups.tolist()) for part in parts if part.groups is not None]
    assert sum(map(len, owners)) == len(set.union(*owners)) == 30
    assert data.shape == (1,), "whose row it is, is no feature"


def test_a_column_of_one_value_stays_finite(tmp_path: Path) -> None:
    data = load(write(tmp_path / "a.csv", [f"7,{n},{n % 2}" for n in range(24)], "a,b,label"))
    assert torch.equal(data.train.inputs[:, 0], torch.zeros(len(data.train)))


def test_a_folder_has_train_and_test(tmp_path: Path) -> None:
    write(tmp_path / "data" / "train.csv")
    alone = load(tmp_path / "data", target="state")
    write(tmp_path / "data" / "test.csv", ROWS[:9])
    both = load(tmp_path / "data", target="state")
    assert (len(alone.test), len(both.test)) == (6, 9)
    assert not any("test part" in guess for guess in both.guessed)
    (tmp_path / "data" / "train.csv").unlink()
    with pytest.raises(DataError, match=r"train\.csv is missing.*Call the training file train\.csv"):
        load(tmp_path / "data")


def test_every_row_of_a_file_can_be_public(tmp_path: Path) -> None:
    split, mean, std = load_public(write(tmp_path / "people.csv"), target="state", drop=["town", "person"])
    assert split.inputs.shape == (36, 1)
    again, *_ = load_public(tmp_path / "people.csv", mean, std, target="state", drop=["town", "person"])
    assert torch.equal(split.inputs, again.inputs)


@pytest.mark.parametrize(
    ("found", "known", "numbers"),
    [
        ("bc", ("a", "b", "c"), [1, 2]),
        ("bc", (), [0, 1]),
        ("12", ("0", "1", "2"), [1, 2]),
        ("01", ("no", "yes"), [0, 1]),  # the file numbers its classes itself
    ],
)
def test_public_labels_have_the_numbers_of_the_names_that_are_known(
    tmp_path: Path, found: str, known: tuple[str, ...], numbers: list[int]
) -> None:
    path = write(tmp_path / "a.csv", [f"{n},{found[n % 2]}" for n in range(8)], "x,label")
    assert load_public(path, class_names=known)[0].labels.tolist() == numbers * 4


@pytest.mark.parametrize(("found", "others"), [("ad", "'d'"), ("12", "'1', '2'")])
def test_public_labels_with_unknown_names_are_refused(tmp_path: Path, found: str, others: str) -> None:
    path = write(tmp_path / "a.csv", [f"{n},{found[n % 2]}" for n in range(8)], "x,label")
    with pytest.raises(DataError, match=f"have the classes {others}, which .* these have 'a', 'b', 'c'"):
        load_public(path, class_names=("a", "b", "c"))
    with pytest.raises(DataError, match="have the classes 'malignant', 'benign'"):
        load_public("breast-cancer", class_names=("a", "b"))


@pytest.mark.parametrize(("separator", "name"), [(";", "semicolons"), ("\t", "tabs")])
def test_other_separators_are_guessed_and_told(tmp_path: Path, separator: str, name: str) -> None:
    expected = load(write(tmp_path / "one.csv"))
    rows = [row.replace(",", separator) for row in ROWS]
    data = load(write(tmp_path / "two.csv", rows, separator.join(["age", "town", "person", "state"])))
    assert torch.equal(data.train.inputs, expected.train.inputs)
    assert any(guess.startswith(f"separator: {name}") for guess in data.guessed)


def test_quotes_marks_and_empty_lines_are_read(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'\xef\xbb\xbf"a, b", c\r\n"x ""y""\r\nz",1\r\n\r\nw,2\r\n')
    table, _ = read_csv(path)
    assert {name: list(values) for name, values in table.columns.items()} == {
        "a, b": ['x "y"\r\nz', "w"],
        "c": ["1", "2"],
    }
    assert table.lines == [3, 5]


PROBLEMS: list[tuple[bytes, str]] = [
    (b"", "has no header"),
    (b"1,2.5\n3,4\n", "has no header"),
    (b"a,,b\n", "column without a name, number 2"),
    (b"a,b, a\n", "two columns 'a'"),
    (b"a,b\n1,2\n1,2,3\n", r"line 3: 3 values for 2 columns"),
    (b"a,b\n1,2\n\n1\n", r"line 4: 1 values for 2 columns"),
    (b'a,b\n1,"2"x\n', "line 2 is no line of a CSV file"),
    (b'a,b\n1,"2\n', "is no line of a CSV file"),
    (b"a,b\n\xff\xfe,2\n", "is not in UTF-8"),
    (b"a,b\n1,2\n1," + b"x" * 100_001 + b"\n", "line 3: a value has more than 100,000 characters"),
    (b"a,b\n1," + b"x" * 200_000 + b"\n", "line 2: a value has more than 100,000 characters"),
    (b"a" * 100_001 + b",b\n", "line 1: a value has more than 100,000 characters"),
    (b"a,b\n", "has no rows"),
]


@pytest.mark.parametrize(("content", "words"), PROBLEMS)
def test_damaged_files_are_refused(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError, match=words):
        load(tmp_path / "a.csv")


@pytest.mark.timeout(20)
def test_long_numbers_and_many_columns_take_no_time(tmp_path: Path) -> None:
    """Either would take minutes, if time grew with the square."""
    with pytest.raises(DataError, match="line 2, column 'age': not a number"):
        load(write(tmp_path / "a.csv", ["1" * 99_999 + "x,0", *(f"{n},{n % 2}" for n in range(60))], "age,label"))
    names = [f"column {n}" for n in range(40_000)]
    with pytest.raises(DataError, match="two columns 'column 7'"):
        load(write(tmp_path / "b.csv", [], ",".join([*names, "column 7"])))
    with pytest.raises(DataError, match="has no column left for the classes"):
        load(write(tmp_path / "c.csv", [",".join(["1"] * 40_000)] * 2, ",".join(names)), drop=names)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_table_or_a_data_error(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(b"a,b\n" + content)
    with contextlib.suppress(DataError):
        load(path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"resize": 32}, "is read as 'csv', which takes no resize"),
        ({"scale": 0.0}, "scale=0.0 to be finite and > 0"),
        ({"text_length": 0}, "text_length=0 to be >= 1"),
        ({"vocabulary": 1}, "vocabulary=1 to be >= 2"),
        ({"categories": "hot"}, "categories='hot' to be one of one-hot, codes"),
        ({"resize": [1, 2, 3]}, r"resize=\[1, 2, 3\] to be one size >= 1, or height and width"),
        ({"test_fraction": 1.0}, "test_fraction=1.0 to be > 0 and < 1"),
        (
            {"test_fraction": 0.01},
            "largest class has 24 rows: 0.01 of that leaves none for test.* larger test_fraction",
        ),
        ({"mean": [1.0, 2.0], "std": 1.0}, "mean to be a finite number or 4 of them"),
    ],
)
def test_impossible_options_are_refused(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        load(write(tmp_path / "people.csv"), **options)
