"""CSV files: ``train.csv`` and ``test.csv`` in a folder, or one file. The first line names the columns.

UTF-8, with commas (or semicolons or tabs, if the first line has more of these) and quotes as RFC 4180 has them.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from dataclasses import replace
from pathlib import Path

from ..errors import DataError
from .columns import NUMBER, OPTIONS, Table, contents_of_tables, texts
from .contents import Contents, Files, Format, Reading, bytes_of, inside

LONGEST = 100_000
"""Characters that a value may have."""
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs"}


def read_csv(path: Path) -> tuple[Table, str]:
    """The columns of a file as texts; and the separator.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = file.write_text("age,class\\n31,yes\\n")
    >>> {name: list(values) for name, values in read_csv(file)[0].columns.items()}
    {'age': ['31'], 'class': ['yes']}
    """
    try:
        text = bytes_of(path).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise DataError(f"{path} is not in UTF-8.", "Save it with that encoding.") from None
    first = text.partition("\n")[0]
    separator = max(SEPARATORS, key=first.count)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows, lines = [], []
    try:
        names = [name.strip() for name in next(reader, [])]
        _check_header(path, names)
        for row in reader:
            if not row:
                continue  # an empty line
            if max(map(len, row)) > LONGEST:
                raise _too_long(path, reader.line_num)
            if len(row) != len(names):
                raise DataError(
                    f"{path}, line {reader.line_num}: {len(row)} values for {len(names)} columns.", "Correct the line."
                )
            rows.append(row)
            lines.append(reader.line_num)
    except csv.Error as problem:
        if "field limit" in str(problem):
            raise _too_long(path, reader.line_num) from None
        raise DataError(f"{path}, line {reader.line_num} is no line of a CSV file.", "Correct its quotes.") from None
    columns = {name: texts([row[place] for row in rows]) for place, name in enumerate(names)}
    return Table(path, columns, lines), separator


def _too_long(path: Path, line: int) -> DataError:
    return DataError(
        f"{path}, line {line}: a value has more than {LONGEST:,} characters.",
        "Shorten it, or close the quotes that it begins with.",
    )


def refuse_twice(path: Path, names: list[str]) -> None:
    """Refuse two columns of one name."""
    if twice := [name for name, times in Counter(names).items() if times > 1]:
        raise DataError(f"{path} has two columns {twice[0]!r}.", "Rename one.")


def _check_header(path: Path, names: list[str]) -> None:
    if names and max(map(len, names)) > LONGEST:
        raise _too_long(path, 1)
    if not names or all(NUMBER.fullmatch(name) for name in names):
        raise DataError(f"{path} has no header: its first line names no columns.", "Put the names there.")
    if "" in names:
        raise DataError(f"{path} has a column without a name, number {1 + names.index('')}.", "Name it.")
    refuse_twice(path, names)


def tabular_files(suffix: str, path: Path, split: str) -> Files:
    """The file of a part: of a folder, that of its name; a single file is all ``train``."""
    if not path.is_dir():
        return (path,) if split == "train" else ()
    file = path / f"{split}{suffix}"
    if split == "train" and not file.is_file():
        raise DataError(f"{file} is missing.", f"Call the training file train{suffix}, or name one file by its path.")
    return (inside(file, path),) if file.is_file() else ()


def has_tables(suffix: str, path: Path) -> bool:
    """Whether a path is a file of this suffix or a folder with one for a part."""
    return path.suffix.lower() == suffix or any((path / f"{split}{suffix}").exists() for split in ("train", "test"))


def _contents(files: dict[str, Files], reading: Reading) -> Contents:
    read = {what: read_csv(file) for what, (file,) in files.items()}
    made = contents_of_tables({what: table for what, (table, _) in read.items()}, reading)
    used = sorted({SEPARATORS[separator] for _, separator in read.values() if separator != ","})
    told = [f"separator: {name} (save the file with commas to say otherwise)" for name in used]
    return replace(made, guessed=(*made.guessed, *told))


CSV = Format(
    lambda path: has_tables(".csv", path),
    lambda path, split: tabular_files(".csv", path, split),
    _contents,
    takes=OPTIONS,
)
