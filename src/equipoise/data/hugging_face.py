"""A Hugging Face dataset as ``save_to_disk`` leaves it: JSON beside Arrow files, read without the package ``datasets``.

``state.json`` names the files of a part, ``dataset_info.json`` its classes; several parts lie in folders of their
names. Pictures must lie in the files, not beside them. Arrow data that are compressed are refused, as ``datasets``
writes none and nobody can tell how far they grow; all others are checked before they are used.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError
from .columns import (
    OPTIONS,
    Table,
    Tables,
    assign,
    check_columns,
    classes_of,
    contents_of_tables,
    groups_of,
    missing,
    with_labels,
)
from .contents import (
    NAMED,
    REPLACE,
    Array,
    Contents,
    Files,
    Format,
    Reading,
    bytes_of,
    inside,
    outside,
    pyarrow,
    several,
)
from .csv_files import refuse_twice
from .parquet import damaged, kind_of, table_of, within_room
from .pictures import Picture, form_of, stacked
from .tokens import padded

WHAT = "datasets of Hugging Face"
TOKENS = ("input_ids", "tokens")
BESIDE_TOKENS = ("attention_mask", "token_type_ids", "special_tokens_mask")
"""Columns that a tokenizer adds: padding says the same."""


# --- files ------------------------------------------------------------------------------------------------------------


def _recognises(path: Path) -> bool:
    return (path / "state.json").is_file() or (path / "dataset_dict.json").is_file()


def _files(path: Path, split: str) -> Files:
    """``state.json`` and the Arrow files of a part. A dataset without parts is all ``train``."""
    folder = path
    if (path / "dataset_dict.json").is_file():
        folder = path / split
        if split == "train" and not folder.is_dir():
            raise DataError(f"{path} has no part called train.", "Save one under that name.")
    if split == "test" and (folder == path or not folder.is_dir()):
        return ()
    state = _json(folder / "state.json")
    listed = state.get("_data_files")
    entries = [entry.get("filename") for entry in listed if isinstance(entry, dict)] if isinstance(listed, list) else []
    names = [name for name in entries if isinstance(name, str)]
    if not names or len(names) != len(entries):
        raise DataError(f"{folder / 'state.json'} names no files.", REPLACE)
    for name in names:
        if Path(name).name != name or outside(folder / name, path):
            raise DataError(f"{folder / 'state.json'} names a file outside of its folder.", REPLACE)
        if not (folder / name).is_file():
            raise DataError(f"{folder / name} is missing.", REPLACE)
    return (folder / "state.json", *(folder / name for name in names))


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(bytes_of(inside(path, path.parent)))
    except (ValueError, RecursionError):
        raise DataError(f"{path} is not valid JSON.", REPLACE) from None
    if not isinstance(found, dict):
        raise DataError(f"{path} is not an object of JSON.", REPLACE)
    return found


def _class_names(folder: Path, target: str) -> tuple[str, ...]:
    """The names of a column of classes, where the dataset has them."""
    path = folder / "dataset_info.json"
    about = _json(path).get("features") if path.is_file() else None
    column = about.get(target) if isinstance(about, dict) else None
    names = column.get("names") if isinstance(column, dict) else None
    return tuple(map(str, names)) if isinstance(names, list) else ()


# --- Arrow ------------------------------------------------------------------------------------------------------------


def _batches(path: Path) -> list[Any]:
    """The record batches of a file, mapped into memory rather than read."""
    package = pyarrow(WHAT)
    from pyarrow import ipc

    try:
        with package.memory_map(str(path)) as source:
            for message in ipc.MessageReader.open_stream(source):
                if compressed(message.metadata.to_pybytes()):
                    raise DataError(f"{path} is compressed, so that nobody can tell how far it grows.", REPLACE)
        batches = within_room(path, ipc.open_stream(package.memory_map(str(path))))
        for batch in batches:
            batch.validate(full=True)  # offsets that lead nowhere would be read otherwise
    except (package.ArrowException, OSError, struct.error, ValueError) as problem:
        raise damaged(path, problem) from None
    return batches


def compressed(message: bytes) -> bool:
    """Whether a message of Arrow holds a record batch with compression, by its metadata (a flatbuffer)."""

    def field(table: int, number: int) -> int | None:
        """Where a field of a table lies, if it is there."""
        vtable = table - int(struct.unpack_from("<i", message, table)[0])
        (size,) = struct.unpack_from("<H", message, vtable)
        place = 4 + 2 * number
        offset = struct.unpack_from("<H", message, vtable + place)[0] if place < size else 0
        return table + int(offset) if offset else None

    def follow(place: int) -> int:
        return place + int(struct.unpack_from("<I", message, place)[0])

    root = follow(0)
    if field(root, 4) is not None and b"compression" in message:  # as before version 5 of the format
        return True
    kind, header = field(root, 1), field(root, 2)
    if kind is None or header is None:
        return False
    batch = follow(header)
    if message[kind] == 2:  # a batch of a dictionary: its record batch is the second field
        inner = field(batch, 1)
        if inner is None:
            return False
        batch = follow(inner)
    elif message[kind] != 3:
        return False
    return field(batch, 3) is not None


# --- contents ---------------------------------------------------------------------------------------------------------


def _contents(files: dict[str, Files], reading: Reading) -> Contents:
    package = pyarrow(WHAT)
    batches = {what: [batch for file in some[1:] for batch in _batches(file)] for what, some in files.items()}
    schema = batches["train"][0].schema if batches["train"] else package.schema([])
    refuse_twice(files["train"][0].parent, schema.names)
    left = {*(reading.drop or ()), *BESIDE_TOKENS}
    place = {name: number for number, name in enumerate(schema.names) if name not in left}
    plain = [name for name, number in place.items() if kind_of(package, schema.types[number]) is not None]
    kept = set(plain)
    others = [name for name in place if name not in kept]
    unread = tuple(name for name in schema.names if name not in kept)
    for what, some in batches.items():
        for batch in some:
            if batch.schema.names != schema.names or batch.schema.types != schema.types:
                raise DataError(f"{files[what][0].parent} has other columns than train.", "Give all the same columns.")
    folder = files["train"][0].parent
    tables = {
        what: table_of(
            files[what][0].parent, {name: [batch.column(place[name]) for batch in some] for name in plain}, unread
        )
        for what, some in batches.items()
    }
    if not others or reading.text is not None:
        roles, _ = assign(tables, reading)
        made = contents_of_tables(tables, reading, _class_names(folder, roles.target))
        told = [f"drop: beside the text, {several(others, NAMED)} are left out (say drop=)"] if others else []
        return replace(made, guessed=(*made.guessed, *told))
    return _of_input(tables, batches, _chosen(folder, others), reading)


def _chosen(folder: Path, others: list[str]) -> str:
    """The column of pictures, tokens or lists that is the input."""
    usual = [name for name in others if name in TOKENS]
    if len(others) > 1 and not usual:
        raise DataError(
            f"{folder} has {len(others)} columns that could be the input: {several(others)}.",
            f"Leave out all but one: drop=[{others[0]!r}].",
        )
    return usual[0] if usual else others[0]


def _of_input(tables: Tables, batches: dict[str, list[Any]], name: str, reading: Reading) -> Contents:
    """Contents whose input is one column of pictures or lists; of the plain ones, target and group are used."""
    if not tables["train"].columns:
        raise DataError(f"{tables['train'].file} has no column of classes.", "Say target=COLUMN.")
    for table in tables.values():
        check_columns(table, tables["train"])
    roles, guessed = assign(_with_input(tables, name), reading)
    labels, names = classes_of(tables, roles.target, _class_names(tables["train"].file, roles.target))
    read = _inputs(tables, batches, name, reading)
    told = [f"input: column {name!r} (say drop=)", *guessed, *read.guessed]
    if unused := [column for column in roles.features if column != name]:
        told.append(f"drop: beside {name!r}, {several(unused, NAMED)} are left out (say drop=)")
    parts = with_labels(read.inputs, labels, groups_of(tables, roles.group))
    return Contents(parts, read.vocabulary, names, tuple(told), read.fitted, read.bounded)


@dataclass(frozen=True)
class _Read:
    """A column of inputs, by part; the rest is as in ``Contents``."""

    inputs: dict[str, Tensor]
    guessed: tuple[str, ...] = ()
    fitted: tuple[str, ...] = ()
    bounded: bool = False
    vocabulary: int | None = None


def _with_input(tables: Tables, name: str) -> Tables:
    """With a stand-in for the input, so that roles can be given out."""
    blank = {what: {name: np.zeros(len(table))} for what, table in tables.items()}
    return {
        what: Table(table.file, {**blank[what], **table.columns}, unread=table.unread) for what, table in tables.items()
    }


def _inputs(tables: Tables, batches: dict[str, list[Any]], name: str, reading: Reading) -> _Read:
    package, joined = pyarrow(WHAT), {}
    for what, some in batches.items():
        array = package.concat_arrays([batch.column(batch.schema.get_field_index(name)) for batch in some])
        array = getattr(array, "storage", array)  # an extension of the package: what it is stored as
        if array.null_count:
            row = int(array.is_null().to_numpy(zero_copy_only=False).argmax())
            raise missing(tables[what].place(row, name))
        joined[what] = array
    kind, types = joined["train"].type, package.types
    if types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
        stored = kind.field("bytes").type
        if not types.is_binary(stored) and not types.is_large_binary(stored):
            raise DataError(
                f"The pictures of column {name!r} of {tables['train'].file} are of type {stored}, not bytes.",
                "Save the dataset with its pictures embedded.",
            )
        return _pictures(tables, joined, name, reading)
    if _is_list(types, kind) and types.is_integer(kind.value_type):
        return _token_lists(joined, name, reading)
    if _is_list(types, kind):
        made = {what: _nested(tables[what], name, array) for what, array in joined.items()}
        return _Read({what: torch.from_numpy(rows / (reading.scale or 1)).float() for what, rows in made.items()})
    raise DataError(
        f"Column {name!r} of {tables['train'].file} is of type {kind}, which is not read.",
        f"drop=[{name!r}] or convert it.",
    )


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind))


def _pictures(tables: Tables, joined: dict[str, Any], name: str, reading: Reading) -> _Read:
    pictures = {}
    for what, array in joined.items():
        content = array.field("bytes").to_pylist()
        if None in content:
            place = tables[what].place(content.index(None), name)
            raise DataError(f"{place}: the picture lies in a file elsewhere.", "Embed the pictures before saving.")
        pictures[what] = [Picture(tables[what].place(row, name), one) for row, one in enumerate(content)]
    form = form_of([one for some in pictures.values() for one in some], reading.resize)
    made = {what: torch.from_numpy(stacked(some, form)) for what, some in pictures.items()}
    inputs = {what: some.float().div_(reading.scale or 255) for what, some in made.items()}
    return _Read(inputs, form.guessed, form.fitted, bounded=True)


def _token_lists(joined: dict[str, Any], name: str, reading: Reading) -> _Read:
    made, longest = {}, 0
    for what, array in joined.items():
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        values = array.flatten().to_numpy(zero_copy_only=False)
        longest = max(longest, int(lengths.max()))
        made[what] = padded(values, lengths, reading.text_length)
    told = [f"tokens: {reading.text_length} a row, 0 is padding (say text_length=)"]
    if longest > reading.text_length:
        told.append(f"text_length: rows of up to {longest} tokens are cut (say text_length=)")
    if reading.vocabulary is None:
        told.append("vocabulary: the largest token plus one (say vocabulary=)")
    return _Read(made, tuple(told), vocabulary=reading.vocabulary)


def _nested(table: Table, name: str, array: Any) -> Array:
    """Lists of numbers, within lists or not, that all have one length."""
    types, shape = pyarrow(WHAT).types, [len(array)]
    while _is_list(types, array.type):
        lengths = array.value_lengths().to_numpy(zero_copy_only=False)
        if array.null_count or len(set(lengths.tolist())) != 1:
            raise DataError(f"Column {name!r} of {table.file} has rows of several shapes.", "Give all the same shape.")
        shape.append(int(lengths[0]))
        array = array.flatten()
    if kind_of(pyarrow(WHAT), array.type) != "number" or array.null_count:
        raise DataError(f"Column {name!r} of {table.file} has elements that are no numbers.", "Convert or drop it.")
    values: Array = array.to_numpy(zero_copy_only=False).astype(np.float64)
    return values.reshape(shape)


HUGGING_FACE = Format(_recognises, _files, _contents, takes=(*OPTIONS, "resize"))
