"""A folder of pictures, with a folder for each class: ``train/<class>/*.png`` and ``test/<class>/*.png``, or one tree.

PNG and JPEG by Pillow. Sizes are read from all headers first, so that nothing is unpacked before it is known to fit; a
link that leads out of the folder is refused, not followed. A picture is named in an error, never shown.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import DataError, missing_extra
from .contents import EXPANSION, REPLACE, ROOM, Array, Contents, Files, Format, Reading, outside

SUFFIXES = (".png", ".jpg", ".jpeg")
GREY = {"1", "L", "LA"}
COLOURED = {"P", "PA", "RGB", "RGBA", "CMYK", "YCbCr"}
SIDEWAYS = (5, 6, 7, 8)
"""Values of the EXIF orientation that swap height and width."""


@dataclass(frozen=True)
class Picture:
    """Where a picture comes from: a file, or bytes in another file, with the name that errors give it."""

    name: str
    source: Path | bytes

    def __post_init__(self) -> None:
        assert isinstance(self.source, Path | bytes)  # Pillow would open a text as a path

    @property
    def stored(self) -> int:
        return self.source.stat().st_size if isinstance(self.source, Path) else len(self.source)


# --- one picture ------------------------------------------------------------------------------------------------------


def _pillow() -> Any:
    try:
        import PIL.Image as package
        import PIL.ImageOps  # noqa: F401
    except ImportError:
        raise missing_extra("Reading pictures", "data") from None
    return package


@contextmanager
def _opened(picture: Picture) -> Iterator[Any]:
    """The picture, of which only the header is read so far; whatever Pillow raises for it becomes a ``DataError``."""
    package = _pillow()
    stream = picture.source if isinstance(picture.source, Path) else io.BytesIO(picture.source)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of large pictures and odd chunks: sizes are checked here
            with package.open(stream, formats=("PNG", "JPEG")) as image:
                yield image
    except DataError:
        raise
    except Exception as problem:  # damaged files raise anything
        raise DataError(
            f"{picture.name} is not a readable PNG or JPEG picture: {type(problem).__name__}.", REPLACE
        ) from None


def _header(picture: Picture) -> tuple[tuple[int, int], str]:
    """Height and width as shown, and the mode."""
    with _opened(picture) as image:
        width, height = image.size
        if width * height * 3 > max(ROOM, EXPANSION * picture.stored):
            raise DataError(f"{picture.name} would unpack to {height} x {width} pixels.", "Store it smaller.")
        if image.mode not in GREY | COLOURED:
            raise DataError(
                f"{picture.name} has pixels of kind {image.mode!r}, not of 8 bits.",
                "Convert it to 8 bits, or store such pictures as arrays in npz files and say scale=.",
            )
        turned = image.format == "JPEG" and image.getexif().get(274) in SIDEWAYS
        return ((width, height) if turned else (height, width)), image.mode


def _decoded(picture: Picture, mode: str, size: tuple[int, int]) -> Array:
    """``[C, H, W]`` bytes."""
    with _opened(picture) as image:
        from PIL import ImageOps

        upright = ImageOps.exif_transpose(image) if image.format == "JPEG" else image
        plain = upright.convert(mode)
        height, width = size
        if plain.size != (width, height):
            plain = plain.resize((width, height), _pillow().Resampling.BILINEAR)
        pixels = np.asarray(plain)
        return pixels[None] if mode == "L" else pixels.transpose(2, 0, 1)


# --- many pictures ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Form:
    """What all pictures of a dataset are brought to."""

    mode: str  # of Pillow: "L" or "RGB"
    size: tuple[int, int]  # height, width
    guessed: tuple[str, ...]

    @property
    def fitted(self) -> tuple[str, ...]:
        """As in ``Contents``."""
        return ("colours of the pictures (convert them to one kind)",) if self.guessed else ()


def form_of(pictures: Sequence[Picture], resize: int | tuple[int, int] | None) -> Form:
    """The size and mode of all these pictures, or a ``DataError`` with the first that differs."""
    headers = [_header(picture) for picture in pictures]
    size = headers[0][0] if resize is None else (resize, resize) if isinstance(resize, int) else resize
    for picture, (own, _) in zip(pictures, headers, strict=True):
        if resize is None and own != size:
            raise DataError(
                f"{picture.name} has {own[0]} x {own[1]} pixels, {pictures[0].name} {size[0]} x {size[1]}.",
                "Give them one size: resize=32, or resize=[32, 48] for height and width.",
            )
    coloured = sum(mode in COLOURED for _, mode in headers)
    mode, channels = ("RGB", 3) if coloured else ("L", 1)
    room = max(ROOM, EXPANSION * sum(picture.stored for picture in pictures))
    if len(pictures) * channels * size[0] * size[1] > room:
        raise DataError(
            f"{len(pictures)} pictures of {size[0]} x {size[1]} pixels would unpack to more than {room} bytes.",
            "Make them smaller with resize=.",
        )
    mixed = 0 < coloured < len(pictures)
    note = f"colour: RGB, as {coloured} of {len(pictures)} pictures are (convert them to say otherwise)"
    return Form(mode, size, (note,) if mixed else ())


def stacked(pictures: Sequence[Picture], form: Form) -> Array:
    """The pictures as bytes ``[N, C, H, W]``."""
    made = np.empty((len(pictures), 1 if form.mode == "L" else 3, *form.size), np.uint8)
    for row, picture in enumerate(pictures):
        made[row] = _decoded(picture, form.mode, form.size)
    return made


# --- the folder -------------------------------------------------------------------------------------------------------


def _recognises(path: Path) -> bool:
    root = path / "train" if (path / "train").is_dir() else path
    if not root.is_dir():
        return False
    return any(name.lower().endswith(SUFFIXES) for folder in _subfolders(root) for name in os.listdir(folder))


def _subfolders(root: Path) -> list[Path]:
    return sorted(entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))


def _files(path: Path, split: str) -> Files:
    """All pictures of a part, class by class, by name. Those of a single tree are all ``train``."""
    root = path / split if (path / "train").is_dir() else path
    if split == "test" and (root == path or not root.is_dir()):
        return ()
    found: list[Path] = []
    for folder in _subfolders(root):
        mine = [entry for entry in sorted(folder.iterdir()) if not entry.name.startswith(".")]
        if not mine:
            raise DataError(f"{folder} has no pictures.", "Remove the folder, or put pictures of its class there.")
        for entry in mine:
            if outside(entry, path):
                raise DataError(
                    f"{entry} is a link that leads out of {path.name}, or in a circle.", "Copy the picture there."
                )
            if not entry.is_file() or not entry.name.lower().endswith(SUFFIXES):
                raise DataError(f"{entry} is not a PNG or JPEG file.", "Convert it, or move it elsewhere.")
        found += mine
    return tuple(found)


def _contents(files: dict[str, Files], reading: Reading) -> Contents:
    every = {what: [Picture(str(path), path) for path in some] for what, some in files.items()}
    form = form_of([picture for some in every.values() for picture in some], reading.resize)
    names = sorted({path.parent.name for path in files["train"]})
    if all(name.isascii() and name.isdigit() for name in names):
        names.sort(key=int)
    number = {name: place for place, name in enumerate(names)}
    parts: dict[str, tuple[torch.Tensor, ...]] = {}
    for what, some in files.items():
        if unknown := [path for path in some if path.parent.name not in number]:
            raise DataError(f"{unknown[0].parent} is no class of the training pictures.", "Name it like one of them.")
        pixels = torch.from_numpy(stacked(every[what], form)).float().div_(reading.scale or 255)
        parts[what] = pixels, torch.tensor([number[path.parent.name] for path in some])
    return Contents(parts, class_names=tuple(names), guessed=form.guessed, fitted=form.fitted, bounded=True)


PICTURES = Format(_recognises, _files, _contents, takes=("resize", "scale"))
