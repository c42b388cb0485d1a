"""Load and normalise images: the bundled subsets, a folder of idx or npz files, or tensors.

Every dataset ends as a ``Dataset`` of four disjoint splits: ``train`` and ``validation``, which
``partition.py`` deals to the clients, ``test``, and ``public``, which belongs to no client and is all that
an attacker may train on. No split is drawn at random, so the same files always give the same rows.

What a damaged or unusable input does: it raises ``DataError`` before any of it is used, and the message names rows,
never a pixel or a label. Bundled files are compared with the SHA-256 in ``bundled/manifest.json`` first, and nothing
is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, closest
from .formats import IDX_FILES, Array, as_pixels, find_idx, read_bytes, read_idx, read_npz

Pair = tuple[Tensor, Tensor]
Moment = float | tuple[float, ...]

BUNDLED = ("mnist", "fmnist")
BUNDLED_FOLDER = Path(__file__).with_name("bundled")
SPLITS = ("train", "validation", "test", "public")
PUBLIC_PARTS = {"attack": 3000, "candidates": 2000, "targets": 500, "tuning": 500}
NORMALISATION = {"mnist": (0.1307, 0.3081), "fmnist": (0.2860, 0.3530)}
ALIASES = dict.fromkeys(("fashion-mnist", "fashion_mnist", "fashionmnist"), "fmnist")
REBUILD = "Reinstall equipoise, or rebuild the file from the original idx files with scripts/build_data.py."


@dataclass(frozen=True, eq=False)
class Split:
    """Images and their labels, row by row. Shared between callers: treat both tensors as read-only."""

    images: Tensor  # [N, C, H, W] float32, normalised
    labels: Tensor  # [N] int64

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:  # sizes only: pixel values must not slip into logs
        return f"Split(images={list(self.images.shape)})"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Four disjoint splits with the normalisation that was applied to them.

    >>> data = load("mnist")
    >>> data.shape, len(data.train), len(data.public_candidates)
    ((1, 28, 28), 4000, 2000)
    """

    name: str
    classes: int
    mean: Moment
    std: Moment
    train: Split
    validation: Split
    test: Split
    public: Split | None

    @property
    def shape(self) -> tuple[int, int, int]:
        """Channels, height and width of one image."""
        channels, height, width = self.train.images.shape[1:]
        return channels, height, width

    @property
    def public_attack(self) -> Split:
        """What an attacker trains on: half of ``public`` (3,000 bundled)."""
        return self._public_part("attack")

    @property
    def public_candidates(self) -> Split:
        """Decoys for identification: a third of ``public`` (2,000 bundled, 200 of each class)."""
        return self._public_part("candidates")

    @property
    def public_targets(self) -> Split:
        """Images an attack is scored on, and non-members: a twelfth of ``public`` (500 bundled)."""
        return self._public_part("targets")

    @property
    def public_tuning(self) -> Split:
        """What the settings of an attack are chosen on: a twelfth of ``public`` (500 bundled)."""
        return self._public_part("tuning")

    def pixels(self, images: Tensor) -> Tensor:
        """Undo the normalisation: the dataset's own images come back to [0, 1], up to rounding.

        Values outside the range, as an attack may produce, stay outside; nothing is clamped.

        >>> data = load("mnist")
        >>> round(float(data.pixels(data.test.images).max()), 6)
        1.0
        """
        return images * _per_channel(self.std, images) + _per_channel(self.mean, images)

    def _public_part(self, part: str) -> Split:
        if self.public is None:
            raise DataError(
                f"Dataset {self.name!r} has no public images, so no public_{part}.",
                "Give some: public=(images, labels) with from_tensors, public_fraction=0.1 with load.",
            )
        position, sizes, total = list(PUBLIC_PARTS).index(part), list(PUBLIC_PARTS.values()), len(self.public)
        start, stop = (total * sum(sizes[:end]) // sum(sizes) for end in (position, position + 1))
        if start == stop:
            raise DataError(
                f"Dataset {self.name!r} has only {total} public images: public_{part} would be empty.",
                "Give at least 12.",
            )
        return Split(self.public.images[start:stop], self.public.labels[start:stop])


class FolderOptions(TypedDict, total=False):
    """What ``load`` accepts beside a folder. Defaults: the folder's name, 1/6, 0, and see ``load``."""

    name: str
    validation_fraction: float
    public_fraction: float
    mean: Moment
    std: Moment


def load(name_or_path: str | Path, **options: Unpack[FolderOptions]) -> Dataset:
    """The bundled ``"mnist"`` or ``"fmnist"``, or all images of a folder; read once per process.

    A folder holds either the four idx files under their usual names (``train-images-idx3-ubyte``, also
    with a dot before ``idx`` and with ``.gz``) or ``train.npz`` and ``test.npz``, each with ``images``
    (``[N, H, W]`` or ``[N, C, H, W]``, uint8 or floats in [0, 1]) and ``labels``. The last
    ``validation_fraction`` of each class of the training file becomes the validation split, and the
    ``public_fraction`` before it the public one. ``mean`` and ``std`` default to the usual constants when
    the name is that of MNIST or Fashion-MNIST, else to those of the train split: pass your own if even
    these two numbers must not be taken from private images. Write ``"./mnist"`` for a folder called mnist.

    >>> load("fmnist").public
    Split(images=[6000, 1, 28, 28])
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
    if not path.is_dir():
        raise DataError(
            f"{str(name_or_path)!r} is neither a bundled dataset nor a folder.{closest(str(name_or_path), [*BUNDLED])}",
            f"Bundled: {', '.join(BUNDLED)}. Otherwise give a folder of idx or npz files.",
        )
    if "mean" in options:
        options["mean"] = _hashable(options["mean"])
    if "std" in options:
        options["std"] = _hashable(options["std"])
    files = _folder_files(path.resolve())
    stamps = tuple((file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    return _folder(files, stamps, **options)


def from_tensors(
    train: Pair,
    test: Pair,
    validation: Pair | None = None,
    public: Pair | None = None,
    classes: int | None = None,
    name: str = "user",
    mean: Moment = 0.0,
    std: Moment = 1.0,
) -> Dataset:
    """A dataset from pairs ``(images [N, C, H, W] float, labels [N] integer)``; the images stay as they are.

    Without ``validation`` the last sixth of each class of ``train`` is held out for it. ``public`` is put
    in an order that gives its four parts the same mix of classes. ``classes`` defaults to the largest
    label plus one. ``mean`` and ``std`` state a normalisation already applied, for ``pixels`` to undo.

    >>> import torch
    >>> pair = torch.rand(12, 3, 8, 8), torch.arange(12) % 2
    >>> data = from_tensors(train=pair, test=pair)
    >>> data.classes, len(data.train), len(data.validation)
    (2, 10, 2)
    """
    training = _checked("train", train)
    if validation is None:
        training, held_out, _ = _held_out(training, 1 / 6, 0.0)
    else:
        held_out = _checked("validation", validation)
    splits = {"train": training, "validation": held_out, "test": _checked("test", test)}
    if public is not None:
        splits["public"] = _mixed(_checked("public", public))
    mean, std = _hashable(mean), _hashable(std)
    _check_moments(mean, std, training)
    return _dataset(name, mean, std, splits, classes)


def read_bundled(folder: Path, name: str) -> dict[str, Array]:
    """The arrays of a bundled file, once its bytes are known to be those the manifest promises.

    >>> read_bundled(BUNDLED_FOLDER, "mnist")["train_index"].dtype
    dtype('uint16')
    """
    path = folder / f"{name}.npz"
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


@lru_cache
def _bundled(name: str) -> Dataset:
    arrays = read_bundled(BUNDLED_FOLDER, name)
    mean, std = NORMALISATION[name]
    splits = {}
    for split in SPLITS:
        images, labels = arrays[f"{split}_images"], arrays[f"{split}_labels"]
        pixels = torch.from_numpy(images).float().div_(255).unsqueeze(1)
        splits[split] = Split(pixels.sub_(mean).div_(std), torch.from_numpy(labels).long())
    return _dataset(name, mean, std, splits, classes=10)


# Two folders at most: a full dataset can take hundreds of megabytes.
@lru_cache(maxsize=2)
def _folder(
    files: tuple[Path, ...],
    stamps: tuple[tuple[int, int], ...],  # only in the cache's key: a file that changed is read again
    name: str | None = None,
    validation_fraction: float = 1 / 6,
    public_fraction: float = 0.0,
    mean: Moment | None = None,
    std: Moment | None = None,
) -> Dataset:
    name = name or files[0].parent.name
    _check_fractions(validation_fraction, public_fraction)
    half = len(files) // 2
    training, test = _read_split(files[:half], "train"), _read_split(files[half:], "test")
    train, validation, public = _held_out(training, validation_fraction, public_fraction)
    mean, std = _moments(name, mean, std, train)
    splits = {"train": train, "validation": validation, "test": test}
    if public_fraction > 0:
        splits["public"] = _mixed(public)
    for split in splits.values():
        split.images.sub_(_per_channel(mean, split.images)).div_(_per_channel(std, split.images))
    return _dataset(name, mean, std, splits, classes=None)


def _folder_files(folder: Path) -> tuple[Path, ...]:
    """``train.npz`` and ``test.npz``, or the four idx files: train images and labels, test images and labels."""
    archives = folder / "train.npz", folder / "test.npz"
    if any(archive.exists() for archive in archives):
        for archive in archives:
            if not archive.exists():
                raise DataError(f"{archive} is missing.", "A folder of npz files needs train.npz and test.npz.")
        return archives
    return tuple(find_idx(folder, *part) for pair in IDX_FILES.values() for part in pair)


def _read_split(files: tuple[Path, ...], what: str) -> Split:
    """One npz file, or an idx file of images and one of labels; pixels in [0, 1], not yet normalised."""
    if len(files) == 1:
        arrays = read_npz(files[0], read_bytes(files[0]), ["images", "labels"])
        images, labels = arrays["images"], arrays["labels"]
    else:
        images, labels = read_idx(files[0]), read_idx(files[1])
    if labels.dtype.kind not in "iu":
        raise DataError(f"Expected integer labels in {files[-1]}, got {labels.dtype}.", "Store class numbers from 0.")
    return _checked(what, (as_pixels(files[0], images), torch.from_numpy(labels.astype(np.int64))))


def _checked(what: str, pair: Any) -> Split:
    """The pair as a split, or a ``DataError`` that names the tensor, the row and the value."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        raise DataError(f"Expected {what} to be a pair (images, labels), got {type(pair).__name__}.")
    for part, value in zip(("images", "labels"), pair, strict=True):
        if not isinstance(value, Tensor):
            raise DataError(
                f"Expected {what} {part} to be a torch tensor, got {type(value).__name__}.",
                "Convert them with torch.as_tensor.",
            )
    images, labels = _checked_images(what, pair[0]), _checked_labels(what, pair[1])
    if len(images) != len(labels):
        raise DataError(f"Expected as many {what} labels as images, got {len(labels)} and {len(images)}.")
    return Split(images, labels)


def _checked_images(what: str, images: Tensor) -> Tensor:
    if images.ndim != 4:
        raise DataError(
            f"Expected {what} images to have shape [N, C, H, W], got {list(images.shape)}.",
            "Add the missing axes: images.unsqueeze(1) for [N, H, W], images[:, None, None] for [N, features].",
        )
    if not images.is_floating_point():
        raise DataError(f"Expected {what} images to be float, got {images.dtype}.", "Convert: images.float() / 255.")
    if images.numel() == 0:
        raise DataError(f"Expected at least one {what} image, got shape {list(images.shape)}.")
    images = images.detach().to(torch.float32)
    finite = torch.isfinite(images)
    if not bool(finite.all()):
        row = int((~finite).flatten(1).any(1).nonzero()[0])
        value = float(images[row][~finite[row]][0])
        raise DataError(
            f"Expected {what} images to be finite in float32, got {value} in row {row}.", "Remove or repair that image."
        )
    return images


def _checked_labels(what: str, labels: Tensor) -> Tensor:
    if labels.ndim != 1:
        raise DataError(f"Expected {what} labels to have shape [N], got {list(labels.shape)}.", "Give one per image.")
    if labels.is_floating_point() or labels.is_complex() or labels.dtype == torch.bool:
        raise DataError(f"Expected {what} labels to be integers, got {labels.dtype}.", "Convert: labels.long().")
    labels = labels.long()
    if bool((labels < 0).any()):
        row = int((labels < 0).nonzero()[0])
        raise DataError(f"Expected {what} labels to be >= 0, row {row} has another.", "Number the classes from 0.")
    return labels


def _dataset(name: str, mean: Moment, std: Moment, splits: dict[str, Split], classes: int | None) -> Dataset:
    if classes is None:
        largest, what = max((int(split.labels.max()), what) for what, split in splits.items())
        classes, most = 1 + largest, max(1000, len(splits["train"]))
        if classes > most:  # one wrong label would ask for a model of terabytes
            raise DataError(
                f"The {what} labels name more than {most} classes.", "Number the classes from 0, without gaps."
            )
    shape = splits["train"].images.shape[1:]
    for what, split in splits.items():
        if split.images.shape[1:] != shape:
            raise DataError(
                f"Expected {what} images to have shape {list(shape)} like the train images, "
                f"got {list(split.images.shape[1:])}.",
                "Resize or crop one of the two.",
            )
        if bool((split.labels >= classes).any()):
            row = int((split.labels >= classes).nonzero()[0])
            raise DataError(
                f"Expected {what} labels to be < classes={classes}, row {row} has another.",
                "Raise classes or relabel the row.",
            )
    return Dataset(name, classes, mean, std, public=splits.pop("public", None), **splits)


def _check_fractions(validation: float, public: float) -> None:
    if not (0 < validation < 1 and 0 <= public < 1 and validation + public < 1):
        raise DataError(
            f"Expected 0 < validation_fraction, 0 <= public_fraction and a sum < 1, got {validation} and {public}.",
            "Leave some of the training set to train on.",
        )


def _moments(name: str, mean: Moment | None, std: Moment | None, train: Split) -> tuple[Moment, Moment]:
    if (mean is None) != (std is None):
        raise DataError(f"Expected mean and std together, got mean={mean}, std={std}.", "Give both or neither.")
    if mean is None or std is None:
        known = NORMALISATION.get(ALIASES.get(name.lower(), name.lower()))
        mean, std = known or _measured_moments(train)
    _check_moments(mean, std, train)
    return mean, std


def _measured_moments(train: Split) -> tuple[Moment, Moment]:
    variances, means = torch.var_mean(train.images, dim=(0, 2, 3), correction=0)
    mean, std = tuple(means.tolist()), tuple(variances.sqrt().tolist())
    return (mean[0], std[0]) if len(mean) == 1 else (mean, std)


def _check_moments(mean: Moment, std: Moment, train: Split) -> None:
    channels = train.images.shape[1]
    for what, moment in (("mean", mean), ("std", std)):
        values = moment if isinstance(moment, tuple) else (moment,)
        if len(values) not in (1, channels) or not all(isinstance(v, int | float) and math.isfinite(v) for v in values):
            raise DataError(f"Expected {what} to be a finite number or {channels} of them, got {moment}.")
        if what == "std" and min(values) <= 0:
            raise DataError(f"Expected std={std} to be > 0.", "Pass another std; constant images cannot be normalised.")


def _hashable(moment: Any) -> Any:
    """Lists, as a config file gives them, cannot be part of a cache's key."""
    return tuple(moment) if isinstance(moment, list) else moment


def _per_channel(moment: Moment, like: Tensor) -> Tensor:
    values = moment if isinstance(moment, tuple) else (moment,)
    return torch.tensor(values, dtype=like.dtype, device=like.device)[:, None, None]  # [C or 1, 1, 1]


def _ranks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """For each row: how many rows of its class came before it, and how many its class has in all."""
    _, inverse, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    order = torch.argsort(inverse, stable=True)
    first = counts.cumsum(0) - counts
    ranks = torch.empty_like(inverse)
    ranks[order] = torch.arange(len(labels), device=labels.device) - first[inverse[order]]
    return ranks, counts[inverse]


def _held_out(split: Split, validation: float, public: float) -> tuple[Split, Split, Split]:
    """Train, validation and public rows: of each class the last go to validation, those before to public."""
    ranks, counts = _ranks(split.labels)
    from_end = counts - ranks  # n for the first row of a class, 1 for the last
    # Rounded down, so that every class keeps a row to train on; the tiny term makes 6 * (1 / 6) count as 1.
    held = (counts.double() * validation + 1e-9).floor()
    shared = held + (counts.double() * public + 1e-9).floor()
    if not bool((held > 0).any()):
        raise DataError(
            f"The largest class has {int(counts.max())} images: {validation:g} of that leaves none for validation.",
            "Give validation images, a larger validation_fraction or more training images.",
        )
    if public > 0 and bool((shared == held).all()):
        raise DataError(
            f"The largest class has {int(counts.max())} images: public_fraction={public:g} leaves none.",
            "Raise public_fraction or give more training images.",
        )
    chosen = from_end > shared, from_end <= held, (from_end > held) & (from_end <= shared)
    train, kept, given = (Split(split.images[rows], split.labels[rows]) for rows in chosen)
    return train, kept, given


def _mixed(split: Split) -> Split:
    """Rows reordered so that every stretch has the classes in about the proportions of the whole."""
    ranks, counts = _ranks(split.labels)
    by_class = torch.argsort(split.labels, stable=True)
    place = ((ranks.double() + 0.5) / counts)[by_class]
    order = by_class[torch.argsort(place, stable=True)]
    return Split(split.images[order], split.labels[order])
