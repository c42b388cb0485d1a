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
from .csv_files import has_tables, refuse_twice, tabular_files

WHAT = "Parquet files"


def read_parquet(path: Path, drop: tuple[str, ...] = ()) -> Table:
    """The columns of a file: numbers and texts, without those to ``drop``."""
    package = pyarrow(WHAT)
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path, memory_map=False) as file:
            schema, metadata = file.schema_arrow, file.metadata
        left = set(drop)
        names = [name for name in schema.names if name not in left]
        _check_schema(path, package, schema, names)
        _check_size(path, metadata, set(names))
        strings = [name for name in names if kind_of(package, schema.field(name).type) == "text"]
        with parquet.ParquetFile(path, memory_map=False, read_dictionary=strings) as file:
            columns = _columns(path, file, names)
    except package.ArrowException as problem:
        raise damaged(path, problem) from None
    except (OSError, ValueError) as problem:  # OSError is also what pyarrow raises for pages that cannot be unpacked
        raise damaged(path, problem) from None
    return table_of(path, columns, tuple(name for name in schema.names if name in left))


def _check_size(path: Path, metadata: Any, names: set[str]) -> None:
    """Refuse what says itself that it grows too far, before anything is unpacked."""
    rows, room = metadata.num_rows, _room(path)
    if rows * len(names) * 8 > room:
        raise DataError(f"{path} grows to {rows} rows of {len(names)} columns: it is not a file of data.", REPLACE)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in map(group.column, range(group.num_columns)):
            room -= max(0, column.total_uncompressed_size) if column.path_in_schema in names else 0
    if room < 0:
        raise _too_large(path)


def _columns(path: Path, file: Any, names: list[str]) -> dict[str, list[Any]]:
    """The arrays of each column, one column of a row group at a time: what a file says of its sizes may be a lie."""
    columns: dict[str, list[Any]] = {name: [] for name in names}
    batches = (
        batch.select([name])
        for name in names
        for group in range(file.metadata.num_row_groups)
        for batch in file.iter_batches(batch_size=1 << 16, row_groups=[group], columns=[name])
    )
    for batch in within_room(path, batches):
        columns[batch.schema.names[0]].append(batch.column(0))
    return columns


def _room(path: Path) -> int:
    return max(ROOM, EXPANSION * path.stat().st_size)


def _too_large(path: Path) -> DataError:
    return DataError(f"{path} grows beyond all measure when it is read: it is not a file of data.", REPLACE)


def within_room(path: Path, batches: Iterable[Any]) -> list[Any]:
    """Record batches, as long as a file does not grow beyond all measure."""
    room, result = _room(path), []
    for batch in batches:
        room -= batch.nbytes
        if room < 0:
            raise _too_large(path)
        result.append(batch)
    return result


def damaged(path: Path, problem: Exception) -> DataError:
    """By kind alone: what the library says may quote what it read."""
    return DataError(f"{path} is damaged, or not what its name says ({type(problem).__name__}).", REPLACE)


def _check_schema(path: Path, package: Any, schema: Any, names: list[str]) -> None:
    refuse_twice(path, names)
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


def table_of(path: Path, arrays: dict[str, list[Any]], unread: tuple[str, ...] = ()) -> Table:
    """The arrays of Arrow that make up each column, once they are known to be whole."""
    package, columns = pyarrow(WHAT), {}
    for name, some in arrays.items():
        parts, row = [], 0
        for array in some:
            try:
                array.validate(full=True)  # offsets and indices that lead nowhere would be read otherwise
            except package.ArrowException as problem:
                raise damaged(path, problem) from None
            if array.null_count:
                row += int(array.is_null().to_numpy(zero_copy_only=False).argmax())
                raise missing(f"{path}, row {row}, column {name!r}")
            parts.append(_values(package, array))
            row += len(array)
        columns[name] = np.concatenate(parts) if parts else np.empty(0)
    if len({len(values) for values in columns.values()}) > 1:
        raise DataError(f"{path} is damaged: its columns have different lengths.", REPLACE)
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
    _contents,
    takes=OPTIONS,
)
