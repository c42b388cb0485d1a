"""Load images: the datasets that come with the package, or a folder of files.

Another bundled dataset is an entry of ``BUNDLED`` (its file is built by ``scripts/build_data.py``); another kind of
files is an entry of ``formats.FORMATS``. No split is drawn at random, so the same files always give the same rows.

A damaged or unusable input raises ``DataError`` before any of it is used. Bundled files are compared with the SHA-256
in ``bundled/manifest.json`` first, and nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Hashable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict, Unpack
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ..errors import DataError, closest, printable
from .dataset import Dataset, Pair, assembled, checked
from .formats import FORMATS, Array, Format, as_classes, as_groups, as_pixels, format_of, read_npz
from .normalisation import Moment, as_moment, check_moments, measured_moments, normalise_
from .splits import Split, hold_out, mixed


@dataclass(frozen=True)
class Bundled:
    """A dataset that comes with the package. A folder called like it, or by an alias, gets its mean and std."""

    file: str
    classes: int
    mean: float
    std: float
    aliases: tuple[str, ...] = ()


BUNDLED = {
    "mnist": Bundled("mnist.npz", 10, 0.1307, 0.3081),
    "fmnist": Bundled("fmnist.npz", 10, 0.2860, 0.3530, ("fashion-mnist", "fashion_mnist", "fashionmnist")),
}
BUNDLED_FOLDER = Path(__file__).with_name("bundled")
SPLITS = ("train", "validation", "test", "public")
REBUILD = "Reinstall equipoise, or rebuild the file from the original idx files with scripts/build_data.py."

_folders_in_use: WeakValueDictionary[Hashable, Dataset] = WeakValueDictionary()
"""Weak, so that private images live no longer than whoever asked for them."""


class FolderOptions(TypedDict, total=False):
    """What ``load`` accepts beside a folder. Defaults: the folder's name, 1/6, 0, and see ``load``."""

    name: str
    validation_fraction: float
    public_fraction: float
    mean: Moment
    std: Moment


def load(name_or_path: str | Path, **options: Unpack[FolderOptions]) -> Dataset:
    """The bundled ``"mnist"`` or ``"fmnist"``, or all images of a folder; read once while in use.

    A folder holds either the four idx files under their usual names (``train-images-idx3-ubyte``, also
    with a dot before ``idx`` and with ``.gz``) or ``train.npz`` and ``test.npz``, each with ``images``
    (``[N, H, W]`` or ``[N, C, H, W]``, uint8 or floats in [0, 1]) and ``labels``. An array ``groups`` of integers in
    ``train.npz`` says whose each image is: those of one group stay in one split, and with one client. The last
    ``validation_fraction`` of each class of the training file becomes the validation split, and the
    ``public_fraction`` before it the public one. ``mean`` and ``std`` default to the usual constants when
    the name is that of MNIST or Fashion-MNIST, else to those of the train split: pass your own if even
    these two numbers must not be taken from private images. Write ``"./mnist"`` for a folder called mnist.

    Args:
        name_or_path: the name of a bundled dataset, or a folder.
        options: of a folder: ``validation_fraction``, ``public_fraction``, ``mean``, ``std``.

    Returns:
        Four disjoint splits, normalised.

    >>> load("fmnist").public
    Split(inputs=[6000, 1, 28, 28])
    """
    if unknown := sorted(set(options) - set(FolderOptions.__annotations__)):
        known = list(FolderOptions.__annotations__)
        raise DataError(f"Unknown option {unknown[0]!r}.{closest(unknown[0], known)}", f"Known: {', '.join(known)}.")
    if isinstance(name_or_path, str) and name_or_path in BUNDLED:
        if options:
            raise DataError(
                f"Bundled dataset {name_or_path!r} has fixed splits and takes no {', '.join(options)}.",
                "Drop the options, or load the folder of original files with them.",
            )
        return _bundled(name_or_path)
    path = Path(name_or_path)
    if not os.path.isdir(path):  # unlike Path.is_dir, no error for names that no folder can have
        raise DataError(
            f"{str(name_or_path)!r} is neither a bundled dataset nor a folder.{closest(str(name_or_path), [*BUNDLED])}",
            f"Bundled: {', '.join(BUNDLED)}. Otherwise give a folder of idx or npz files.",
        )
    return _folder(path.resolve(), options)


def load_with(name_or_path: str | Path, *, validation_fraction: float, public_fraction: float) -> Dataset:
    """``load`` where it is not known whether a bundled dataset is meant: that one has its own splits.

    >>> len(load_with("mnist", validation_fraction=0.5, public_fraction=0.1).validation)
    5000
    """
    if isinstance(name_or_path, str) and name_or_path in BUNDLED:
        return load(name_or_path)
    return load(name_or_path, validation_fraction=validation_fraction, public_fraction=public_fraction)


Public = str | Path | Pair
"""Public data as a user names it: a bundled dataset, a folder, an npz file, or tensors (images, labels)."""


def load_public(source: Public, mean: Moment | None = None, std: Moment | None = None) -> tuple[Split, Moment, Moment]:
    """Images that belong to no client, for an attacker to work with, and the normalisation that they are in.

    Args:
        source: the name of a bundled dataset, of which its public split is taken; a folder as ``load`` takes it or one
            npz file with ``images`` and ``labels``, of which every image is; or tensors (images ``[N, C, H, W]``,
            labels ``[N]``) that are normalised already.
        mean: with which the clients normalise. Not given: the usual one of a known name, else that of these images; of
            tensors, that which puts their lowest value at pixel 0 and their highest at pixel 1.
        std: likewise.

    Returns:
        The images, normalised, with mean and standard deviation.

    >>> split, mean, std = load_public("mnist")
    >>> len(split), mean, std
    (6000, 0.1307, 0.3081)
    """
    if isinstance(source, tuple | list):
        split = checked("public", source)
        mean, std = (mean, std) if mean is not None and std is not None else _range_moments(split.inputs)
        check_moments(mean, std, split.inputs.shape[1])
        return split, mean, std
    split, name = _public_pixels(source)
    mean, std = _moments(name, mean, std, split)
    normalise_(split.inputs, mean, std)
    return split, mean, std


def _public_pixels(source: str | Path) -> tuple[Split, str]:
    """Pixels in [0, 1] of a bundled dataset's public split, or of a file or folder whole; and the name that it has."""
    if isinstance(source, str) and source in BUNDLED:
        data = load(source)
        assert data.public is not None
        return Split(data.pixels(data.public.inputs), data.public.labels), source
    path = Path(source)
    if os.path.isfile(path):
        return _read_split(FORMATS["npz"], (path,), "public"), path.stem
    if not os.path.isdir(path):
        raise DataError(
            f"{str(source)!r} is neither a bundled dataset nor a folder nor a file.{closest(str(source), [*BUNDLED])}",
            f"Bundled: {', '.join(BUNDLED)}. Otherwise give a folder of idx or npz files, or an npz file.",
        )
    kind = format_of(path)
    parts = [_read_split(kind, kind.files(path, what), what) for what in ("train", "test")]
    if parts[0].inputs.shape[1:] != parts[1].inputs.shape[1:]:
        raise DataError(f"The images of {path.name} have two shapes.", "Resize or crop one part.")
    images, labels = (torch.cat([getattr(part, name) for part in parts]) for name in ("inputs", "labels"))
    return Split(images, labels), path.resolve().name


def _range_moments(images: Tensor) -> tuple[float, float]:
    low, high = float(images.min()), float(images.max())
    if not low < high:
        raise DataError("The public images are all of one value.", "Give images.")
    return -low / (high - low), 1 / (high - low)


# --- bundled files ----------------------------------------------------------------------------------------------------


def read_bundled(folder: Path, name: str) -> dict[str, Array]:
    """The arrays of a bundled file, once its bytes are known to be those the manifest promises.

    >>> read_bundled(BUNDLED_FOLDER, "mnist")["train_index"].dtype
    dtype('uint16')
    """
    path = folder / BUNDLED[name].file
    try:
        expected = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))["files"][path.name]
        content = path.read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DataError(f"Bundled {path.name} or its manifest cannot be read: {problem!r}.", REBUILD) from problem
    if len(content) < expected["bytes"]:
        raise DataError(f"{path} is truncated: {len(content)} of {expected['bytes']} bytes.", REBUILD)
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected["sha256"]:
        raise DataError(f"Expected SHA-256 {expected['sha256']} of {path}, got {digest}.", REBUILD)
    arrays = [f"{split}_{part}" for split in SPLITS for part in ("images", "labels", "index")]
    return read_npz(path, content, arrays)


@cache
def _bundled(name: str) -> Dataset:
    arrays, about = read_bundled(BUNDLED_FOLDER, name), BUNDLED[name]
    splits = {}
    for split in SPLITS:
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        pixels = torch.from_numpy(images).float().div_(255).unsqueeze(1)
        splits[split] = Split(pixels.sub_(about.mean).div_(about.std), torch.from_numpy(labels).long())
    return assembled(name, about.mean, about.std, splits, about.classes)


# --- folders ----------------------------------------------------------------------------------------------------------


def _folder(folder: Path, options: FolderOptions) -> Dataset:
    options["name"] = options.get("name") or printable(folder.name)
    if "mean" in options:
        options["mean"] = as_moment(options["mean"])
    if "std" in options:
        options["std"] = as_moment(options["std"])
    kind = format_of(folder)
    train, test = kind.files(folder, "train"), kind.files(folder, "test")
    # With the times and sizes in the key, a file that changed is read again.
    stamps = tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in (*train, *test))
    key = stamps, frozenset(options.items())
    dataset = _folders_in_use.get(key)
    if dataset is None:
        dataset = _read_folder(kind, train, test, **options)
        _folders_in_use[key] = dataset
    return dataset


def _read_folder(
    kind: Format,
    train_files: tuple[Path, ...],
    test_files: tuple[Path, ...],
    *,
    name: str,
    validation_fraction: float = 1 / 6,
    public_fraction: float = 0.0,
    mean: Moment | None = None,
    std: Moment | None = None,
) -> Dataset:
    _check_fractions(validation_fraction, public_fraction)
    training, test = _read_split(kind, train_files, "train"), _read_split(kind, test_files, "test")
    train, validation, public = hold_out(training, validation_fraction, public_fraction)
    mean, std = _moments(name, mean, std, train)
    splits = {"train": train, "validation": validation, "test": test}
    if public_fraction > 0:
        splits["public"] = mixed(public)
    for split in splits.values():
        normalise_(split.inputs, mean, std)
    return assembled(name, mean, std, splits, classes=None)


def _read_split(kind: Format, files: tuple[Path, ...], what: str) -> Split:
    """Pixels in [0, 1], not yet normalised."""
    images, labels = kind.read(files)
    classes = as_classes(files[-1], labels)
    pixels, groups = as_pixels(files[0], images), kind.groups(files) if what == "train" else None
    return checked(what, (pixels, classes, *([] if groups is None else [as_groups(files[-1], groups)])))


def _check_fractions(validation: float, public: float) -> None:
    if not (0 < validation < 1 and 0 <= public < 1 and validation + public < 1):
        raise DataError(
            f"Expected 0 < validation_fraction, 0 <= public_fraction and a sum < 1, got {validation} and {public}.",
            "Leave some of the training set to train on.",
        )


def _moments(name: str, mean: Moment | None, std: Moment | None, train: Split) -> tuple[Moment, Moment]:
    """Those given, else the usual ones of a known name, else those of the train split."""
    if (mean is None) != (std is None):
        raise DataError(f"Expected mean and std together, got mean={mean}, std={std}.", "Give both or neither.")
    if mean is None or std is None:
        usual = [(b.mean, b.std) for known, b in BUNDLED.items() if name.lower() in (known, *b.aliases)]
        mean, std = usual[0] if usual else measured_moments(train.inputs)
    check_moments(mean, std, train.inputs.shape[1])
    return mean, std
