"""Files to arrays, and arrays to pixels and classes: nothing is unpickled, and no header is believed.

A file that is missing, truncated, damaged or not what its name says raises ``DataError`` with the path and the remedy.
Another kind of files is one ``Format`` and its entry in ``FORMATS``.
"""

from __future__ import annotations

import gzip
import io
import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import DataError

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Format:
    """A kind of files that a folder may hold its images and labels in.

    ``recognises(folder)`` says whether the folder seems to hold such files, ``files(folder, "train")`` which of them
    make up a split (or ``DataError`` with the one that is missing), and ``read(files)`` gives images and labels.
    ``groups(files)`` says whose each row is, for a format that can hold that and files that do.
    """

    recognises: Callable[[Path], bool]
    files: Callable[[Path, str], tuple[Path, ...]]
    read: Callable[[tuple[Path, ...]], tuple[Array, Array]]
    groups: Callable[[tuple[Path, ...]], Array | None] = lambda files: None


ROOM, EXPANSION = 1 << 26, 100
"""What a compressed file may grow to: 64 MiB, or a hundred times its size. Images never shrink that well; bombs do."""

REPLACE = "Replace it with an undamaged copy of the original."


# --- idx --------------------------------------------------------------------------------------------------------------

IDX_FILES = {
    "train": (("train-images", "idx3-ubyte"), ("train-labels", "idx1-ubyte")),
    "test": (("t10k-images", "idx3-ubyte"), ("t10k-labels", "idx1-ubyte")),
}


def read_idx(path: Path) -> Array:
    """The array of unsigned bytes in an idx file, gzipped when its name ends in ``.gz``.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "labels-idx1-ubyte"
    >>> _ = file.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]))
    >>> read_idx(file)
    array([7, 9], dtype=uint8)
    """
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as stream:
            return _parse_idx(path, stream, max(ROOM, EXPANSION * path.stat().st_size))
    except (EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise DataError(f"{path} is not a complete gzip file: {problem}.", REPLACE) from problem
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror}.", "Check its permissions.") from problem


def find_idx(folder: Path, stem: str, kind: str) -> Path:
    """The idx file of that stem and kind in a folder, by any of its four usual names.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "train-labels.idx1-ubyte.gz").touch()
    >>> find_idx(folder, "train-labels", "idx1-ubyte").name
    'train-labels.idx1-ubyte.gz'
    """
    names = [f"{stem}{separator}{kind}{suffix}" for separator in "-." for suffix in ("", ".gz")]
    for name in names:
        if (folder / name).is_file():
            return folder / name
    raise DataError(
        f"No {names[0]} in {folder}.",
        f"Put {', '.join(names[:-1])} or {names[-1]} there, or train.npz and test.npz with arrays images and labels.",
    )


def _parse_idx(path: Path, stream: io.BufferedIOBase, room: int) -> Array:
    magic = stream.read(4)
    if len(magic) < 4 or magic[:3] != b"\0\0\x08":  # two zeros, the code for unsigned bytes, then the rank
        raise DataError(
            f"Expected {path} to begin with 00 00 08 and a rank, got {magic.hex(' ') or 'no bytes'}.",
            "Give an idx file of unsigned bytes; a gzipped one must have a name ending in .gz.",
        )
    sizes = stream.read(4 * magic[3])
    if len(sizes) < 4 * magic[3]:
        raise DataError(f"{path} is truncated inside its header.", REPLACE)
    shape = struct.unpack(f">{magic[3]}I", sizes)
    expected = math.prod(shape)
    if expected == 0:
        raise DataError(f"{path} is empty: its header says {list(shape)}.", REPLACE)
    body = _read_at_most(stream, min(expected, room) + 1)
    if len(body) > room:
        raise DataError(f"{path} grows to more than {room} bytes: it is not a file of images.", REPLACE)
    if len(body) != expected:
        actual = f"{len(body)}" if len(body) < expected else "more"
        fault = "truncated" if len(body) < expected else "followed by trailing bytes"
        raise DataError(f"{path} is {fault}: its header {list(shape)} means {expected} bytes, got {actual}.", REPLACE)
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def _read_at_most(stream: io.BufferedIOBase, limit: int) -> bytearray:
    """Read in pieces: a header that lies about terabytes must not allocate them."""
    body = bytearray()
    while len(body) < limit and (piece := stream.read(min(limit - len(body), 1 << 20))):
        body += piece
    return body


def _idx_files(folder: Path, split: str) -> tuple[Path, ...]:
    return tuple(find_idx(folder, *part) for part in IDX_FILES[split])


def _read_idx_split(files: tuple[Path, ...]) -> tuple[Array, Array]:
    return read_idx(files[0]), read_idx(files[1])


# --- npz --------------------------------------------------------------------------------------------------------------

NPZ_FAULTS = (
    ValueError, EOFError, OSError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, RuntimeError, MemoryError,
    OverflowError,
)  # fmt: skip
"""What numpy, zipfile and its compressions raise for a damaged, encrypted or unknown file; OSError is that of bz2."""


def read_npz(path: Path, content: bytes, names: list[str]) -> dict[str, Array]:
    """The named arrays of an npz file with the given content."""
    if not zipfile.is_zipfile(io.BytesIO(content)):  # numpy would take anything else for a pickle
        raise DataError(f"{path} is not an npz file, or only the beginning of one.", REPLACE)
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as archive:
            if missing := [name for name in names if name not in archive.files]:
                raise DataError(f"{path} has no array {missing[0]!r}, only {archive.files}.", "Add it and save again.")
            for part in archive.zip.infolist():
                if part.file_size > max(ROOM, EXPANSION * part.compress_size):
                    raise DataError(
                        f"{path} grows to {part.file_size} bytes in {part.filename!r}: it is not a file of images.",
                        "If it is one, save it with numpy.savez instead of numpy.savez_compressed.",
                    )
            arrays = {name: archive[name] for name in names}
    except NPZ_FAULTS as problem:
        if "allow_pickle" in str(problem):  # how numpy words its refusal of an object array
            raise DataError(
                f"{path} holds pickled objects, which can run code when loaded.",
                "Save plain numeric arrays with numpy.savez.",
            ) from problem
        raise DataError(f"{path} is not a readable npz file: {problem}.", REPLACE) from problem
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):  # numpy hands out any other member of the archive as bytes
            raise DataError(f"{path} is not a readable npz file: {name!r} is not an array.", REPLACE)
    return arrays


def _has_npz(folder: Path) -> bool:
    return (folder / "train.npz").exists() or (folder / "test.npz").exists()


def _npz_files(folder: Path, split: str) -> tuple[Path, ...]:
    path = folder / f"{split}.npz"
    if not path.exists():
        raise DataError(f"{path} is missing.", "A folder of npz files needs train.npz and test.npz.")
    return (path,)


def _read_npz_split(files: tuple[Path, ...]) -> tuple[Array, Array]:
    arrays = read_npz(files[0], _content(files[0]), ["images", "labels"])
    return arrays["images"], arrays["labels"]


def _read_npz_groups(files: tuple[Path, ...]) -> Array | None:
    content = _content(files[0])
    with zipfile.ZipFile(io.BytesIO(content)) as archive:  # read as a split before, so it is one
        if not {"groups", "groups.npy"} & set(archive.namelist()):
            return None
    return read_npz(files[0], content, ["groups"])["groups"]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror}.", "Check its permissions.") from problem


# --- folders ----------------------------------------------------------------------------------------------------------

FORMATS = {
    "npz": Format(_has_npz, _npz_files, _read_npz_split, _read_npz_groups),
    "idx": Format(lambda folder: True, _idx_files, _read_idx_split),
}
"""In the order in which they are tried. idx takes whatever is left: its error says which files would do."""


def format_of(folder: Path) -> Format:
    """The first format that recognises the folder."""
    return next(kind for kind in FORMATS.values() if kind.recognises(folder))


# --- arrays -----------------------------------------------------------------------------------------------------------


def as_classes(path: Path, labels: Array) -> Tensor:
    """Class numbers as int64."""
    return _integers(path, "labels", labels, "Store class numbers from 0.")


def as_groups(path: Path, groups: Array) -> Tensor:
    """Numbers of groups as int64; unsigned ones that are larger become negative, and stay different."""
    return _integers(path, "groups", groups, "Store one number for each person, or whatever a group is.")


def _integers(path: Path, what: str, values: Array, remedy: str) -> Tensor:
    if values.dtype.kind not in "iu":
        raise DataError(f"Expected integer {what} in {path}, got {values.dtype}.", remedy)
    return torch.from_numpy(values.astype(np.int64))


def as_pixels(path: Path, images: Array) -> Tensor:
    """``[N, H, W]`` or ``[N, C, H, W]``, bytes or floats in [0, 1], as float32 ``[N, C, H, W]`` in [0, 1]."""
    if images.ndim not in (3, 4):
        raise DataError(
            f"Expected images in {path} to be [N, H, W] or [N, C, H, W], got {list(images.shape)}.", "Reshape them."
        )
    if images.ndim == 4 and images.shape[3] in (1, 3, 4) and images.shape[1] not in (1, 3, 4):
        raise DataError(
            f"Images in {path} have shape {list(images.shape)}: the channels seem to be last.",
            "Move them to the front: images.transpose(0, 3, 1, 2).",
        )
    if images.dtype == np.uint8:
        pixels = torch.from_numpy(images).float().div_(255)
    elif images.dtype.kind == "f":
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
            pixels = torch.from_numpy(images.astype(np.float32))
        outside = int(((pixels < 0) | (pixels > 1)).sum())
        if outside:
            raise DataError(
                f"Expected float images in {path} to be in [0, 1], {outside} of {pixels.numel()} pixels are not.",
                "Store the pixels before normalisation, as uint8 or divided by 255.",
            )
    else:
        raise DataError(f"Expected uint8 or float images in {path}, got {images.dtype}.", "Convert them to uint8.")
    return pixels.unsqueeze(1) if pixels.ndim == 3 else pixels
