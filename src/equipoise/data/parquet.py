"""Parquet files: ``train.parquet`` and ``test.parquet`` in a folder, or one file, by pyarrow.

Texts stay the dictionaries that they are stored as: a file of kilobytes may mean gigabytes of repeated strings.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError
from .columns import OPTIONS, Table, contents_of_tables, missing, texts
from .contents import EXPANSION, REPLACE, ROOM, Array, Contents, Files, Format, Reading, pyarrow
from .csv_files import has_tables, tabular_files

WHAT = "Parquet files"


def read_parquet(path: Path, drop: tuple[str, ...] = ()) -> Table:
    """The columns of a file: numbers and texts, without those to ``drop``."""
    package = pyarrow(WHAT)
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, memory_map=False) as file:
            schema, rows = file.schema_arrow, file.metadata.num_rows
        names = [name for name in schema.names if name not in drop]
        _check_schema(path, package, schema, names)
        if rows * len(names) * 8 > max(ROOM, EXPANSION * path.stat().st_size):
            raise DataError(f"{path} grows to {rows} rows of {len(names)} columns: it is not a file of data.", REPLACE)
        strings = [name for name in names if kind_of(package, schema.field(name).type) == "text"]
        with parquet.ParquetFile(path, memory_map=False, read_dictionary=strings) as file:
            batches = within_room(path, file.iter_batches(batch_size=1 << 16, columns=names))
    except package.ArrowException as problem:
        raise damaged(path, problem) from None
    except (OSError, ValueError) as problem:  # OSError is also what pyarrow raises for pages that cannot be unpacked
        raise damaged(path, problem) from None
    return table_of(path, names, batches, tuple(name for name in schema.names if name in drop))


def within_room(path: Path, batches: Iterable[Any]) -> list[Any]:
    """Record batches, as long as a file does not grow beyond all measure."""
    room, result = max(ROOM, EXPANSION * path.stat().st_size), []
    for batch in batches:
        room -= batch.nbytes
        if room < 0:
            raise DataError(f"{path} grows beyond all measure when it is read: it is not a file of data.", REPLACE)
        result.append(batch)
    return result


def damaged(path: Path, problem: Exception) -> DataError:
    """By kind alone: what the library says may quote what it read."""
    return DataError(f"{path} is damaged, or not what its name says ({type(problem).__name__}).", REPLACE)


def _check_schema(path: Path, package: Any, schema: Any, names: list[str]) -> None:
    if twice := [name for place, name in enumerate(names) if name in names[:place]]:
        raise DataError(f"{path} has two columns {twice[0]!r}.", "Rename one.")
    for name in names:
        if kind_of(package, schema.field(name).type) is None:
            raise DataError(
                f"Column {name!r} of {path} is of type {schema.field(name).type}, neither numbers nor text.",
                f"Convert it, or leave it out: drop=[{name!r}].",
            )


def kind_of(package: Any, kind: Any) -> str | None:
    """``"number"`` or ``"text"``, or None for a type of Arrow that is neither."""
    types = package.types
    if types.is_dictionary(kind):
        kind = kind.value_type
        return "text" if types.is_string(kind) or types.is_large_string(kind) else None
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return "number"
    return "text" if types.is_string(kind) or types.is_large_string(kind) else None


def table_of(path: Path, names: list[str], batches: list[Any], unread: tuple[str, ...] = ()) -> Table:
    """Record batches of Arrow as columns, once they are known to be whole."""
    package = pyarrow(WHAT)
    for batch in batches:
        try:
            batch.validate(full=True)  # offsets and indices that lead nowhere would be read otherwise
        except package.ArrowException as problem:
            raise damaged(path, problem) from None
    columns, before = {}, np.cumsum([0, *(len(batch) for batch in batches)])
    for name in names:
        parts = []
        for batch, start in zip(batches, before, strict=False):
            array = batch.column(batch.schema.get_field_index(name))
            if array.null_count:
                row = int(start) + int(array.is_null().to_numpy(zero_copy_only=False).argmax())
                raise missing(f"{path}, row {row}, column {name!r}")
            parts.append(_values(package, array))
        columns[name] = np.concatenate(parts) if parts else np.empty(0)
    return Table(path, columns, unread=unread)


def _values(package: Any, array: Any) -> Array:
    if package.types.is_dictionary(array.type):
        known = texts(array.dictionary.to_pylist())
        chosen: Array = known[array.indices.to_numpy(zero_copy_only=False)]
        return chosen
    if kind_of(package, array.type) == "text":
        return texts(array.to_pylist())
    values: Array = array.to_numpy(zero_copy_only=False)
    return values


def _contents(files: dict[str, Files], reading: Reading) -> Contents:
    tables = {what: read_parquet(file, reading.drop or ()) for what, (file,) in files.items()}
    return contents_of_tables(tables, reading)


PARQUET = Format(
    lambda path: has_tables(".parquet", path),
    lambda path, split: tabular_files(".parquet", path, split),
    contents=_contents,
    takes=OPTIONS,
)
