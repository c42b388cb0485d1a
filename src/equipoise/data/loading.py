"""Load a dataset: one that comes with the package, or files of the user's.

Which bundled datasets there are is in ``bundle.py``, which kinds of files in ``formats.FORMATS``. No split is drawn at
random, so the same files always give the same rows. A damaged or unusable input raises ``DataError`` before any of it
is used, and what nobody said and was guessed is told by the dataset (``Dataset.guessed``).
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, Unpack
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ..errors import DataError, closest, printable
from .bundle import BUNDLED, bundled
from .contents import Contents, Files, Format, Reading, numbered_as
from .dataset import Dataset, Pair, assembled, checked
from .formats import contents_of, format_of
from .normalisation import (
    Moment,
    check_moments,
    column_moments,
    guessed_range,
    measured_moments,
    normalise_,
    rescaled,
)
from .options import FolderOptions, ReadingOptions, refuse_wrong
from .splits import Split, hold_out, mixed

_folders_in_use: WeakValueDictionary[Hashable, Dataset] = WeakValueDictionary()
"""Weak, so that private inputs live no longer than whoever asked for them."""


def load(name_or_path: str | Path, **options: Unpack[FolderOptions]) -> Dataset:
    """A bundled dataset (``"mnist"``, ``"fmnist"``, ``"breast-cancer"``, ``"generated-text"``), or all rows of a path.

    A path is a folder of pictures with a folder for each class, a CSV, Parquet or npz file or a folder of two
    (``train.csv`` and ``test.csv``), a Hugging Face dataset on disk, or a folder of the four idx files; docs/data.md
    has what each may hold. It is read once while in use. Write ``"./mnist"`` for a folder called mnist.

    Where the files have no test part, the last ``test_fraction`` of each class becomes it. The last
    ``validation_fraction`` of each class of the training rows becomes the validation split, and the
    ``public_fraction`` before it the public one. Rows of one group (a column, or an array ``groups``) stay in one
    split, and with one client. ``mean`` and ``std`` default to the usual constants when the name is that of MNIST or
    Fashion-MNIST, else to those of the train split (of a table: of the public one, if there is one): pass your own
    where a guarantee must hold for the data too, as it covers none of ``Dataset.fitted``, what was measured on private
    rows.

    Args:
        name_or_path: the name of a bundled dataset, a folder, or a file.
        options: of a path: ``validation_fraction``, ``public_fraction``, ``test_fraction``, ``mean``, ``std``, and how
            it is read: ``target``, ``group``, ``text``, ``drop``, ``categorical``, ``categories``, ``vocabulary``,
            ``text_length``, ``resize``, ``scale``.

    Returns:
        Four disjoint splits, normalised.

    >>> load("fmnist").public
    Split(inputs=[6000, 1, 28, 28])
    """
    _refuse_unknown(options, [*FolderOptions.__annotations__])
    if isinstance(name_or_path, str) and name_or_path in BUNDLED:
        if options:
            raise DataError(
                f"Bundled dataset {name_or_path!r} has fixed splits and takes no {', '.join(options)}.",
                "Drop the options, or load the original files with them.",
            )
        return bundled(name_or_path)
    return _path(_existing(name_or_path).resolve(), dict(options))


def _existing(source: str | Path) -> Path:
    if not os.path.exists(source):  # unlike Path.exists, no error for names that no file can have
        raise DataError(
            f"{str(source)!r} is neither a bundled dataset nor a folder nor a file.{closest(str(source), [*BUNDLED])}",
            f"Bundled: {', '.join(BUNDLED)}. Otherwise give a path: docs/data.md has the kinds of files.",
        )
    path = Path(source)
    if not path.is_dir() and not path.is_file():
        raise DataError(f"{path} is neither a folder nor a plain file.", "Give a file, not a pipe or a device.")
    return path


def load_with(name_or_path: str | Path, **options: Unpack[FolderOptions]) -> Dataset:
    """``load`` where it is not known whether a bundled dataset is meant: that one has its own splits and columns.

    Of such a one ``validation_fraction`` and ``public_fraction`` play no part; any other option is refused.

    >>> len(load_with("mnist", validation_fraction=0.5, public_fraction=0.1).validation)
    5000
    """
    if isinstance(name_or_path, str) and name_or_path in BUNDLED:
        _refuse_unknown(options, [*FolderOptions.__annotations__])
        reading, others = reading_of(options)
        given = [name for name, value in others.items() if value != FRACTIONS.get(name) and name not in UNUSED]
        _refuse_given(f"Bundled dataset {name_or_path!r}", [*reading.given(), *given])
        return load(name_or_path)
    return load(name_or_path, **options)


FRACTIONS = {"validation_fraction": 1 / 6, "public_fraction": 0.0, "test_fraction": 1 / 6}
"""The shares of files that are held out where nobody says."""
UNUSED = ("validation_fraction", "public_fraction")


def _refuse_given(what: str, names: list[str]) -> None:
    if names:
        raise DataError(f"{what} takes no {names[0]}.", f"Leave {names[0]} out.")


def reading_of(options: Any) -> tuple[Reading, dict[str, Any]]:
    """The options that say how files are read, and the others; None is not given.

    Lists, as a config file gives them, become tuples.
    """
    given = {name: value for name, value in options.items() if value is not None}
    refuse_wrong(given)
    given = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    names = {part.name for part in fields(Reading)}
    reading = Reading(**{name: value for name, value in given.items() if name in names})
    return reading, {name: value for name, value in given.items() if name not in names}


def _refuse_unknown(options: Any, known: list[str]) -> None:
    if unknown := sorted(set(options) - set(known)):
        raise DataError(f"Unknown option {unknown[0]!r}.{closest(unknown[0], known)}", f"Known: {', '.join(known)}.")


# --- public data that an auditor names --------------------------------------------------------------------------------

Public = str | Path | Pair
"""Public data as a user names it: a bundled dataset, a path, or tensors (inputs, labels)."""


def load_public(
    source: Public,
    mean: Moment | None = None,
    std: Moment | None = None,
    *,
    class_names: tuple[str, ...] = (),
    **options: Unpack[ReadingOptions],
) -> tuple[Split, Moment, Moment]:
    """Inputs that belong to no client, for an attacker to work with, and the normalisation that they are in.

    Args:
        source: the name of a bundled dataset, of which its public split is taken; a folder or file as ``load`` takes
            it, of which every row is; or tensors (inputs ``[N, ...]``, labels ``[N]``) that are normalised already.
        mean: with which the clients normalise. Not given: the usual one of a known name, else that of these inputs; of
            image tensors, that which puts their lowest value at pixel 0 and their highest at pixel 1.
        std: likewise.
        class_names: of the clients' data. Where the source has names too, its labels are numbered as these are.
        options: how a path is read, as with ``load``.

    Returns:
        The inputs, normalised, with mean and standard deviation.

    >>> split, mean, std = load_public("mnist")
    >>> len(split), mean, std
    (6000, 0.1307, 0.3081)
    """
    _refuse_unknown(options, [*ReadingOptions.__annotations__])
    reading, _ = reading_of(options)
    if isinstance(source, tuple | list):
        _refuse_given("Public data given as tensors", reading.given())
        split = checked("public", source)
        if mean is None or std is None:
            mean, std = _range_moments(split.inputs) if split.kind == "image" else (0.0, 1.0)
        check_moments(mean, std, split.inputs.shape[1])
        return split, mean, std
    if isinstance(source, str) and source in BUNDLED:
        _refuse_given(f"Bundled dataset {source!r}", reading.given())
        data = load(source)
        assert data.public is not None
        labels = numbered_as(class_names, data.public.labels, data.class_names)
        split, name = Split(data.pixels(data.public.inputs).clone(), labels), source
        if (mean is None or std is None) and data.kind == "table":
            mean, std = data.mean, data.std
    else:
        split, name = _public_path(source, reading, class_names)
        if split.kind == "image" and reading.scale is None:
            _to_pixels({"public": split})
    tokens = split.kind == "tokens"
    mean, std, _ = _normalised(
        name, {"public": split}, None if tokens else mean, None if tokens else std, in_range=True
    )
    return split, mean, std


def _public_path(source: str | Path, reading: Reading, class_names: tuple[str, ...]) -> tuple[Split, str]:
    """All rows of a file or folder, not yet normalised; and the name that it has."""
    path = _existing(source)
    kind, files = _format_and_files(path)
    contents = contents_of(path, kind, files, reading)
    parts = [checked("public", part[:2]) for part in contents.parts.values()]
    if len({part.inputs.shape[1:] for part in parts}) > 1:
        raise DataError(f"The {parts[0].word} of {path.name} have two shapes.", "Resize or crop one part.")
    inputs, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "labels"))
    labels = numbered_as(class_names, labels, contents.class_names)
    return Split(inputs, labels), path.resolve().name if path.is_dir() else path.stem


def _range_moments(images: Tensor) -> tuple[float, float]:
    low, high = float(images.min()), float(images.max())
    if not low < high:
        raise DataError("The public images are all of one value.", "Give images.")
    return -low / (high - low), 1 / (high - low)


# --- paths ------------------------------------------------------------------------------------------------------------


def _format_and_files(path: Path) -> tuple[Format, dict[str, Files]]:
    kind = format_of(path)
    files = {what: kind.files(path, what) for what in ("train", "test")}
    return kind, {what: some for what, some in files.items() if some}


def _path(path: Path, options: dict[str, Any]) -> Dataset:
    reading, others = reading_of(options)
    others = {"name": printable(path.name), "mean": None, "std": None, **FRACTIONS, **others}
    kind, files = _format_and_files(path)
    # With the times and sizes in the key, a file that changed is read again.
    stamps = tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for some in files.values() for file in some)
    key = stamps, reading, frozenset(others.items())
    dataset = _folders_in_use.get(key)
    if dataset is None:
        contents = contents_of(path, kind, files, reading)
        dataset = _dataset(contents, in_range=contents.bounded or reading.scale is not None, **others)
        _folders_in_use[key] = dataset
    return dataset


def _dataset(
    contents: Contents,
    *,
    name: str,
    in_range: bool,
    validation_fraction: float,
    public_fraction: float,
    test_fraction: float,
    mean: Moment | None,
    std: Moment | None,
) -> Dataset:
    _check_fractions(validation_fraction, public_fraction, test_fraction)
    guessed = list(contents.guessed)
    training = checked("train", contents.parts["train"])
    if "test" in contents.parts:
        test = checked("test", contents.parts["test"])
    else:
        training, test, _ = hold_out(training, test_fraction, 0.0, "test")
        guessed.append(f"test part: the last {test_fraction:.3g} of each class (say test_fraction=)")
    train, validation, public = hold_out(training, validation_fraction, public_fraction)
    splits = {"train": train, "validation": validation, "test": test}
    if public_fraction > 0:
        splits["public"] = mixed(public)
    fitted = (*contents.fitted, *_fitted(name, splits, mean is not None, in_range, contents.vocabulary))
    mean, std, told = _normalised(name, splits, mean, std, in_range=in_range)
    more = {"vocabulary": contents.vocabulary, "class_names": contents.class_names, "fitted": fitted}
    classes = len(contents.class_names) or None
    return assembled(name, mean, std, splits, classes, **more, guessed=(*guessed, *told))


def _fitted(name: str, splits: dict[str, Split], stated: bool, in_range: bool, vocabulary: int | None) -> Iterator[str]:
    """What is measured on private rows below, unless the moments are ``stated``."""
    kind = splits["train"].kind
    if kind == "tokens" and vocabulary is None:
        yield "the largest token (say vocabulary=)"
    if kind == "tokens" or stated:
        return
    if kind == "image":
        if not in_range:
            yield "range of the pixels (say scale=)"
        if _usual(name) is None:
            yield "mean and std (say mean=, std=)"
    elif "public" not in splits:
        yield "mean and std of the columns (say mean=, std=, or set rows apart: public_fraction=)"


def _check_fractions(validation: float, public: float, test: float) -> None:
    if not (0 < validation < 1 and 0 <= public < 1 and validation + public < 1):
        raise DataError(
            f"Expected 0 < validation_fraction, 0 <= public_fraction and a sum < 1, got {validation} and {public}.",
            "Leave some of the training set to train on.",
        )
    if not 0 < test < 1:
        raise DataError(f"Expected test_fraction={test} to be > 0 and < 1.", "Leave some rows to train on.")


# --- normalisation ----------------------------------------------------------------------------------------------------


def _normalised(
    name: str, splits: dict[str, Split], mean: Moment | None, std: Moment | None, *, in_range: bool
) -> tuple[Moment, Moment, list[str]]:
    """Normalise all splits in place: the moments that ``Dataset.pixels`` undoes, and what was guessed.

    ``in_range``: pictures have been brought to [0, 1] already, as far as they will be.
    """
    if (mean is None) != (std is None):
        raise DataError(f"Expected mean and std together, got mean={mean}, std={std}.", "Give both or neither.")
    first, guessed = next(iter(splits.values())), []
    if first.kind == "tokens":
        if mean is not None:
            raise DataError("Tokens have no mean and std.", "Leave both out.")
        return 0.0, 1.0, []
    ranged = first.kind == "image" and not in_range
    if mean is None or std is None:
        guessed += _to_pixels(splits) if ranged else []
        mean, std, told = _moments(name, splits)
        guessed.append(told)
        check_moments(mean, std, first.inputs.shape[1])
        undoing = mean, std
    else:  # of the values as they are
        check_moments(mean, std, first.inputs.shape[1])
        low, high = _range(splits) if ranged else (0.0, 1.0)
        undoing = rescaled(mean, std, low, high)
        guessed += _told_range(low, high)
    for split in splits.values():
        normalise_(split.inputs, mean, std)
    return *undoing, guessed


def _to_pixels(splits: dict[str, Split]) -> list[str]:
    """Bring pictures of another range to [0, 1], in place; what was guessed."""
    low, high = _range(splits)
    if (low, high) != (0.0, 1.0):
        for split in splits.values():
            split.inputs.sub_(low).div_(high - low)
    return _told_range(low, high)


def _told_range(low: float, high: float) -> list[str]:
    told = f"pixel range: {low:g} is black, {high:g} white (say scale=, or store values in [0, 1])"
    return [] if (low, high) == (0.0, 1.0) else [told]


def _range(splits: dict[str, Split]) -> tuple[float, float]:
    """The values that are taken for black and white."""
    inputs = [split.inputs for split in splits.values()]
    low, high = min(float(part.min()) for part in inputs), max(float(part.max()) for part in inputs)
    if not low < high:
        return 0.0, 1.0  # constant images: refused when they are normalised
    return guessed_range(low, high, high > 1 and all(bool((part == part.floor()).all()) for part in inputs))


def _moments(name: str, splits: dict[str, Split]) -> tuple[Moment, Moment, str]:
    """The usual ones of a known name; else, of images those of the train split, of a table the public one's if any."""
    part = "train" if "train" in splits else "public"
    if splits[part].kind == "image":
        if (usual := _usual(name)) is not None:
            return usual
        return *measured_moments(splits[part].inputs), f"mean and std: those of the {part} part (say mean=, std=)"
    part = "public" if "public" in splits else "train"
    return *column_moments(splits[part].inputs), f"mean and std: those of the {part} part (say mean=, std=)"


def _usual(name: str) -> tuple[float, float, str] | None:
    for known, about in BUNDLED.items():
        if about.mean is not None and about.std is not None and name.lower() in (known, *about.aliases):
            return about.mean, about.std, f"mean and std: the usual ones of {known} (say mean=, std=)"
    return None
