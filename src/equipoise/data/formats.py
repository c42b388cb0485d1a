"""idx and npz files to arrays, and arrays to pixels: nothing is unpickled, and no header is believed.

A file that is missing, truncated, damaged or not what its name says raises ``DataError`` with the path and the remedy.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..errors import DataError

Array = npt.NDArray[Any]


IDX_FILES = {
    "train": (("train-images", "idx3-ubyte"), ("train-labels", "idx1-ubyte")),
    "test": (("t10k-images", "idx3-ubyte"), ("t10k-labels", "idx1-ubyte")),
}


NPZ_FAULTS = (
    ValueError, EOFError, zlib.error, zipfile.BadZipFile, NotImplementedError, RuntimeError, MemoryError, OverflowError,
)  # fmt: skip


ROOM, EXPANSION = 1 << 26, 100
"""What a compressed file may grow to: 64 MiB, or a hundred times its size. Images never shrink that well; bombs do."""


REPLACE = "Replace it with an undamaged copy of the original."


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
        found = f"{len(body)}" if len(body) < expected else "more"
        fault = "truncated" if len(body) < expected else "followed by trailing bytes"
        raise DataError(f"{path} is {fault}: its header {list(shape)} means {expected} bytes, got {found}.", REPLACE)
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as problem:
        raise DataError(f"{path} cannot be read: {problem.strerror}.", "Check its permissions.") from problem


def _read_at_most(stream: io.BufferedIOBase, limit: int) -> bytearray:
    """Read in pieces: a header that lies about terabytes must not allocate them."""
    body = bytearray()
    while len(body) < limit and (piece := stream.read(min(limit - len(body), 1 << 20))):
        body += piece
    return body


def read_npz(path: Path, content: bytes, names: list[str]) -> dict[str, Array]:
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
            raise DataError(f"{path} is not a readable npz file: {name!r} is no array.", REPLACE)
    return arrays


def as_pixels(path: Path, images: Array) -> Tensor:
    if images.ndim not in (3, 4):
        raise DataError(f"Expected images in {path} to be [N, H, W] or [N, C, H, W], got {list(images.shape)}.")
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
