"""Scattering features on disk: computed once per set of records, in the user's cache folder.

Other features are computed every time. A file is for a whole set of records: if it could be that of an earlier version
of a user's network, one record more or less would decide which version all others get.

``EQUIPOISE_CACHE`` names another folder, or turns this off: ``EQUIPOISE_CACHE=off``. Features are as private as
the records that they come from: the folder and its files are for their owner alone, and lie outside of every run
folder. A file is named by a SHA-256 of all that its content depends on. One that is damaged, or that somebody else
wrote or could write, is as good as none; a folder that cannot be written costs time, never a run.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.contents import Array
from ..data.formats import read_npz
from ..errors import EquipoiseError, StorageError
from ..files import open_plain, storage_error, storage_errors, write_bytes
from .features import FeatureModel, features_of
from .scattering import Scattering
from .tensors import every_name

OFF = "off"
FOLDER = "features"
KEPT: tuple[type, ...] = (Scattering,)
"""Feature modules of which ``identity`` sees all that their features depend on."""
KINDS = ("torch.float32", "torch.float64")
"""Of numbers that numpy's files know too; others are computed every time."""

log = logging.getLogger("equipoise")
_warned: set[str] = set()


def cached_features(model: FeatureModel, images: Tensor, *, alone: bool = True) -> Tensor:
    """``features_of``, from the disk where they are known and else computed and kept there.

    >>> from equipoise.models.bundled import build
    >>> cached_features(build("scatter-linear"), torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 3969])
    """
    if type(model.features) not in KEPT:
        return features_of(model, images, alone=alone)
    try:
        folder = _own_folder()
        if folder is None:
            return features_of(model, images, alone=alone)
        path = folder / f"{_key(model, images, alone)}.npz"
        known = _read(path, (len(images), model.head.in_features))
    except StorageError as error:
        _warn_once(error)
        return features_of(model, images, alone=alone)
    if known is not None:
        return known.to(images.device)
    features = features_of(model, images, alone=alone)
    if str(features.dtype) not in KINDS:
        return features
    try:
        write_bytes(path, _content(features), mode=0o600)
    except StorageError as error:
        if _read(path, tuple(features.shape)) is None:  # unless another process had the same to write
            _warn_once(error)
    return features


def _own_folder() -> Path | None:
    """The folder of features, made where it is missing, for its owner alone; None where the cache is turned off."""
    given = os.environ.get("EQUIPOISE_CACHE", "")
    if given.strip().lower() == OFF:
        return None
    folder = (Path(given) if given else _user_cache()) / FOLDER
    with storage_errors(folder):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        about = folder.lstat()
        if not stat.S_ISDIR(about.st_mode):
            raise StorageError("The folder of cached features is a link.", "Set EQUIPOISE_CACHE to a folder.")
        if about.st_uid == os.geteuid() and stat.S_IMODE(about.st_mode) != 0o700:
            folder.chmod(0o700)
    if about.st_uid != os.geteuid():
        raise StorageError("The folder of cached features belongs to another user.", "Set EQUIPOISE_CACHE.")
    return folder


def _user_cache() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    try:
        return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "equipoise"
    except RuntimeError as error:  # neither HOME nor an entry of this user
        raise StorageError("There is no home folder to keep features in.", "Set EQUIPOISE_CACHE.") from error


# -- what a file is called -------------------------------------------------------------------------------------------


def _key(model: FeatureModel, images: Tensor, alone: bool) -> str:
    """A digest of the records, of how they are computed with, and of what computes the features."""
    digest = hashlib.sha256(repr((identity(model, images), alone)).encode())
    _add(digest, "records", images)
    return digest.hexdigest()


def identity(model: FeatureModel, images: Tensor) -> str:
    """What tells these features, on the device and in the precision of ``images``, from any other.

    Tensors, what torch computes with, and what comes of two records that are nobody's, for code has no digest.
    """
    machine = torch.__version__, torch.backends.cpu.get_cpu_capability(), torch.get_num_threads(), images.device.type
    digest = hashlib.sha256(repr(machine).encode())
    for name, part in model.features.named_modules():
        digest.update(repr((name, type(part).__module__, type(part).__qualname__)).encode())
    for name, tensor in every_name(model.features).items():
        _add(digest, name, tensor)
    drawn = torch.rand(images.shape[1:], generator=torch.Generator().manual_seed(0))
    _add(digest, "drawn", features_of(model, torch.stack([drawn, drawn.round()]).to(images.device, images.dtype)))
    return digest.hexdigest()


def _add(digest: Any, name: str, tensor: Tensor) -> None:
    digest.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
    digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)


# -- the file ----------------------------------------------------------------------------------------------------------


def _content(features: Tensor) -> bytes:
    array = features.cpu().numpy()
    file = io.BytesIO()
    np.savez(file, features=array, sha256=_sha256(array))
    return file.getvalue()


def _read(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """The features in a file; None where there is none, or none that this user wrote whole and for himself."""
    try:
        with open(open_plain(path, os.O_RDONLY), "rb") as file:
            about = os.fstat(file.fileno())
            if about.st_uid != os.geteuid() or stat.S_IMODE(about.st_mode) & 0o077:
                return None
            content = file.read()
        arrays = read_npz(path, content, ["features", "sha256"])
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(error, path, "read") from error
    except EquipoiseError:
        return None
    array = arrays["features"]
    if array.shape != shape or f"torch.{array.dtype}" not in KINDS:
        return None
    return torch.from_numpy(array) if np.array_equal(_sha256(array), arrays["sha256"]) else None


def _sha256(array: Array) -> Array:
    return np.frombuffer(hashlib.sha256(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data).digest(), np.uint8)


def _warn_once(error: StorageError) -> None:
    if error.cause not in _warned:
        _warned.add(error.cause)
        log.warning("Features are not kept for the next time: %s %s", error.cause, error.remedy)
