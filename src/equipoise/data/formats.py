"""Files to tensors: idx and npz here, other kinds in files of their own. Nothing is unpickled, no header is believed.

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
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import DataError, closest
from .contents import EXPANSION, REPLACE, ROOM, Array, Contents, Files, Format, Reading, bytes_of, inside, unreadable
from .csv_files import CSV
from .hugging_face import HUGGING_FACE
from .parquet import PARQUET
from .pictures import PICTURES

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
        raise unreadable(path, problem) from problem


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
        f"Put {', '.join(names[:-1])} or {names[-1]} there, or train.npz and test.npz with arrays images and labels; "
        "docs/data.md has folders of pictures, tables and text.",
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


def _idx_files(folder: Path, split: str) -> Files:
    return tuple(inside(find_idx(folder, *part), folder) for part in IDX_FILES[split])


def _idx_contents(files: dict[str, Files], reading: Reading) -> Contents:
    parts: dict[str, tuple[Tensor, ...]] = {}
    for what, (images, labels) in files.items():
        parts[what] = as_pixels(images, read_idx(images), reading.scale), as_classes(labels, read_idx(labels))
    return Contents(parts, bounded=True)


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


KINDS = ("images", "features", "tokens")
"""The array of inputs that an npz file may have."""


def _has_npz(path: Path) -> bool:
    return path.suffix == ".npz" or (path / "train.npz").exists() or (path / "test.npz").exists()


def _npz_files(path: Path, split: str) -> Files:
    if path.suffix == ".npz" and not path.is_dir():
        return (path,) if split == "train" else ()
    file = path / f"{split}.npz"
    if not file.exists():
        raise DataError(f"{file} is missing.", "A folder of npz files needs train.npz and test.npz.")
    return (inside(file, path),)


def _npz_contents(files: dict[str, Files], reading: Reading) -> Contents:
    read = {what: _npz_part(path, what, reading) for what, (path,) in files.items()}
    parts = {what: part for what, (part, _) in read.items()}
    tokens = not parts["train"][0].is_floating_point()
    if reading.vocabulary is not None and not tokens:
        raise DataError(f"{files['train'][0]} holds no tokens, so vocabulary plays no part.", "Leave vocabulary out.")
    guessed = ("vocabulary: the largest token plus one (say vocabulary=)",) if tokens and not reading.vocabulary else ()
    bounded = all(of_bytes for _, of_bytes in read.values())
    return Contents(parts, vocabulary=reading.vocabulary, guessed=guessed, bounded=bounded)


def _npz_part(path: Path, what: str, reading: Reading) -> tuple[tuple[Tensor, ...], bool]:
    """Inputs, labels and perhaps groups; and whether the inputs are stored as bytes."""
    content = bytes_of(path)
    held = _names(content)
    kind = next((name for name in KINDS if name in held), "images")
    if others := [name for name in KINDS if name in held and name != kind]:
        raise DataError(f"{path} has arrays {kind!r} and {others[0]!r}.", "Keep one of them: a row has one input.")
    groups = ["groups"] if what == "train" and "groups" in held else []
    arrays = read_npz(path, content, [kind, "labels", *groups])
    inputs = AS_TENSOR[kind](path, arrays[kind], reading.scale)
    labels = as_classes(path, arrays["labels"])
    part = inputs, labels, *(as_groups(path, arrays[name]) for name in groups)
    return part, arrays[kind].dtype == np.uint8


def _names(content: bytes) -> set[str]:
    """The arrays of a file; none of one that cannot be read, which ``read_npz`` then says."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            return {name.removesuffix(".npy") for name in archive.namelist()}
    except NPZ_FAULTS:
        return set()


# --- all kinds --------------------------------------------------------------------------------------------------------

FORMATS = {
    "npz": Format(_has_npz, _npz_files, _npz_contents, takes=("scale", "vocabulary")),
    "hugging-face": HUGGING_FACE,
    "csv": CSV,
    "parquet": PARQUET,
    "pictures": PICTURES,
    "idx": Format(lambda path: path.is_dir(), _idx_files, _idx_contents, takes=("scale",)),
}
"""In the order in which they are tried. idx takes whatever folder is left: its error says which files would do."""


def format_of(path: Path) -> Format:
    """The first format that recognises the folder or file."""
    for kind in FORMATS.values():
        if kind.recognises(path):
            return kind
    raise DataError(f"{path} is no file of a known kind.", "Give a .csv, .parquet or .npz file, or a folder.")


def contents_of(path: Path, kind: Format, files: dict[str, Files], reading: Reading) -> Contents:
    """What the files of each part hold; options that this kind of files does not have are refused."""
    if unused := [name for name in reading.given() if name not in kind.takes]:
        name = next(name for name, known in FORMATS.items() if known is kind)
        likely = closest(unused[0], list(kind.takes))
        raise DataError(f"{path} is read as {name!r}, which takes no {unused[0]}.{likely}", f"Leave {unused[0]} out.")
    return kind.contents(files, reading)


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


def as_pixels(path: Path, images: Array, scale: float | None = None) -> Tensor:
    """``[N, H, W]`` or ``[N, C, H, W]`` as float32 ``[N, C, H, W]``: bytes divided by 255, floats as they are.

    With a ``scale``, numbers of any kind, divided by it.
    """
    if images.ndim not in (3, 4):
        raise DataError(
            f"Expected images in {path} to be [N, H, W] or [N, C, H, W], got {list(images.shape)}.",
            "Reshape them, or call a table 'features' and token numbers 'tokens'.",
        )
    if images.ndim == 4 and images.shape[3] in (1, 3, 4) and images.shape[1] not in (1, 3, 4):
        raise DataError(
            f"Images in {path} have shape {list(images.shape)}: the channels seem to be last.",
            "Move them to the front: images.transpose(0, 3, 1, 2).",
        )
    if scale is None and images.dtype != np.uint8 and images.dtype.kind != "f":
        raise DataError(
            f"Expected uint8 or float images in {path}, got {images.dtype}.",
            "Convert them to uint8, or say by what they are divided: scale=65535.",
        )
    pixels = _floats(path, "images", images).div_(scale or (255 if images.dtype == np.uint8 else 1))
    return pixels.unsqueeze(1) if pixels.ndim == 3 else pixels


def as_features(path: Path, features: Array, scale: float | None = None) -> Tensor:
    """Numbers ``[N, F]``, or of any other rank from 2 on, as float32."""
    if features.ndim < 2:
        raise DataError(f"Expected features in {path} to be [N, F], got {list(features.shape)}.", "Reshape them.")
    return _floats(path, "features", features).div_(scale or 1)


def as_tokens(path: Path, tokens: Array, scale: float | None = None) -> Tensor:
    """Token numbers ``[N, L]`` as int64."""
    if scale is not None:
        raise DataError(f"{path} holds tokens, which have no scale.", "Leave scale out.")
    if tokens.ndim != 2:
        raise DataError(f"Expected tokens in {path} to be [N, L], got {list(tokens.shape)}.", "Pad them with 0.")
    return _integers(path, "tokens", tokens, "Store token numbers from 1; 0 is padding.")


def _floats(path: Path, what: str, values: Array) -> Tensor:
    if values.dtype.kind not in "fiub":
        raise DataError(f"Expected numbers for {what} in {path}, got {values.dtype}.", "Store plain numbers.")
    with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
        return torch.from_numpy(values.astype(np.float32))


AS_TENSOR = {"images": as_pixels, "features": as_features, "tokens": as_tokens}
