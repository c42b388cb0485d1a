"""Parquet files: the same as CSV files give, and what is refused."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import parquet

from equipoise.data import parquet as module
from equipoise.data.loading import load
from equipoise.data.parquet import read_parquet
from equipoise.errors import ConfigError, DataError
from tests.data.test_csv_files import ROWS, write


def columns(**changed: Any) -> dict[str, Any]:
    made = dict(
        zip(("age", "town", "person", "state"), zip(*(row.split(",") for row in ROWS), strict=True), strict=True)
    )
    numbers = {"age": [int(age) for age in made["age"]], "person": [float(one) for one in made["person"]]}
    return {**{name: list(values) for name, values in made.items()}, **numbers, **changed}


def write_parquet(path: Path, **changed: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pa.table(columns(**changed)), path, row_group_size=10)
    return path


def test_a_parquet_file_gives_what_a_csv_file_gives(tmp_path: Path) -> None:
    options: dict[str, Any] = {"target": "state", "group": "person", "validation_fraction": 0.2}
    one = load(write(tmp_path / "a.csv"), **options)
    two = load(write_parquet(tmp_path / "a.parquet"), **options)
    for part in ("train", "validation", "test"):
        assert torch.equal(getattr(one, part).inputs, getattr(two, part).inputs)
        assert torch.equal(getattr(one, part).labels, getattr(two, part).labels)
    write_parquet(tmp_path / "both" / "train.parquet")
    write_parquet(tmp_path / "both" / "test.parquet")
    assert len(load(tmp_path / "both", target="state").test) == 36


def test_dictionaries_booleans_and_floats_are_read(tmp_path: Path) -> None:
    town = pa.array(columns()["town"]).dictionary_encode()
    path = write_parquet(
        tmp_path / "a.parquet", town=town, age=np.arange(36, dtype=np.float32), person=[True, False] * 18
    )
    table = read_parquet(path)
    assert table.columns["town"].tolist() == columns()["town"]
    assert table.columns["age"].dtype == np.float32
    assert load(path, target="state").shape == (4,)


NULLS = [1.5] * 20 + [None] + [2.5] * 15


@pytest.mark.parametrize(
    ("changed", "options", "words"),
    [
        ({"age": NULLS}, {}, "row 20, column 'age': the value is missing"),
        ({"town": ["a"] * 12 + [None] * 24}, {}, "row 12, column 'town': the value is missing"),
        ({"age": [float("nan")] * 36}, {}, "row 0, column 'age': the value is missing"),
        ({"age": [[1]] * 36}, {}, "'age' of .* is of type list<.*>, neither numbers nor text.*drop"),
        ({"age": [b"x"] * 36}, {}, "'age' of .* is of type binary"),
        ({"age": NULLS}, {"drop": ["agee"]}, "no column 'agee', which drop names|'age': the value is missing"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, changed: Any, options: Any, words: str) -> None:
    with pytest.raises(DataError, match=words):
        load(write_parquet(tmp_path / "a.parquet", **changed), target="state", **options)


def test_what_is_dropped_may_be_anything(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet", age=[[1]] * 36, town=[None] * 36)
    assert load(path, target="state", drop=["age", "town"]).shape == (1,)


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array([1, 2]), pa.array([1, 2])], names=["a", "a"])
    parquet.write_table(table, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="two columns 'a'"):
        load(tmp_path / "a.parquet")


@pytest.mark.parametrize("change", [lambda c: c[:-20], lambda c: b"PAR1" + c[:50], lambda c: b"", lambda c: b"x" * 500])
def test_damaged_files_are_refused(tmp_path: Path, change: Any) -> None:
    path = write_parquet(tmp_path / "a.parquet")
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(DataError, match="is damaged, or not what its name says"):
        load(path)


def test_flipped_bytes_are_data_or_a_data_error(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet")
    content = path.read_bytes()
    for place in range(0, len(content), 23):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0x55]) + content[place + 1 :])
        with contextlib.suppress(DataError):
            assert len(read_parquet(path)) <= 36


def test_a_file_that_grows_too_far_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet.write_table(pa.table({"a": np.zeros(40_000), "label": np.zeros(40_000)}), tmp_path / "a.parquet")
    assert len(read_parquet(tmp_path / "a.parquet")) == 40_000
    monkeypatch.setattr(module, "ROOM", 1 << 18)
    monkeypatch.setattr(module, "EXPANSION", 10)
    with pytest.raises(DataError, match="grows to 40000 rows of 2 columns"):
        read_parquet(tmp_path / "a.parquet")


def test_batches_are_counted_as_they_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few rows a file says that it has."""
    (tmp_path / "a").write_bytes(bytes(100))
    batch, taken = pa.record_batch({"a": np.zeros(1000)}), []
    assert len(module.within_room(tmp_path / "a", [batch] * 3)) == 3
    monkeypatch.setattr(module, "ROOM", 3 * batch.nbytes)
    with pytest.raises(DataError, match="grows beyond all measure"):
        module.within_room(tmp_path / "a", (taken.append(one) or batch for one in range(100)))
    assert taken == [0, 1, 2, 3], "and no more of them are read"


@pytest.mark.parametrize("honest", [True, False])
def test_many_columns_of_long_texts_are_refused_before_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, honest: bool
) -> None:
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(4, np.int32)), ["x" * 10_000_000])
    path, read = tmp_path / "a.parquet", []
    parquet.write_table(pa.table({f"column {n}": long for n in range(30)}), path, compression="zstd")
    assert path.stat().st_size < 1 << 17, "of which 300 MB would become"
    iterate = parquet.ParquetFile.iter_batches
    monkeypatch.setattr(
        parquet.ParquetFile,
        "iter_batches",
        lambda *given, **more: read.append(more["columns"]) or iterate(*given, **more),
    )
    if not honest:  # a file that says less of itself
        monkeypatch.setattr(module, "_check_size", lambda *given: None)
    with pytest.raises(DataError, match="grows beyond all measure"):
        read_parquet(path)
    assert read == ([] if honest else [[f"column {n}"] for n in range(7)]), "as many as there is room for, one by one"


def test_columns_of_different_lengths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="its columns have different lengths"):
        module.table_of(tmp_path, {"a": [pa.array([1, 2])], "b": [pa.array([1])]})


def test_long_texts_that_repeat_are_kept_once(tmp_path: Path) -> None:
    repeated = pa.DictionaryArray.from_arrays(pa.array(np.zeros(70_000, np.int32)), ["x" * 500_000])
    table = pa.table({"a": repeated, "label": np.zeros(70_000)}).replace_schema_metadata(None)
    parquet.write_table(table, tmp_path / "a.parquet", store_schema=False)  # so that it is read as plain texts
    assert (tmp_path / "a.parquet").stat().st_size < 1 << 20
    texts = read_parquet(tmp_path / "a.parquet").columns["a"]
    assert len(texts) == 70_000
    assert len({id(text) for text in texts}) <= 40, "35 GB otherwise"


def test_a_column_must_be_left(tmp_path: Path) -> None:
    path = write_parquet(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="no column is left"):
        load(path, drop=list(read_parquet(path).columns))


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_parquet(tmp_path / "a.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"Reading Parquet files needs the extra 'data'"):
        load(path)
