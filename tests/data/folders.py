"""Folders of small idx and npz files, for the tests of what reads them."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np

from equipoise.data.formats import Array


def idx(array: Any) -> bytes:
    content: Array = np.asarray(array, np.uint8)
    return bytes([0, 0, 8, content.ndim]) + np.array(content.shape, ">u4").tobytes() + content.tobytes()


def small(count: int, seed: int, side: int = 4) -> tuple[Array, Array]:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, side, side), np.uint8), (np.arange(count) % 3).astype(np.uint8)


def write_idx(folder: Path, separator: str = "-", zipped: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for side, (images, labels) in {"train": small(36, 1), "t10k": small(9, 2)}.items():
        for kind, array in (("images", images), ("labels", labels)):
            path = folder / f"{side}-{kind}{separator}idx{array.ndim}-ubyte{'.gz' if zipped else ''}"
            path.write_bytes(gzip.compress(idx(array)) if zipped else idx(array))
    return folder


def write_npz(folder: Path, **replace: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for side, (images, labels) in {"train": small(36, 1), "test": small(9, 2)}.items():
        np.savez_compressed(folder / f"{side}.npz", **({"images": images, "labels": labels} | replace))
    return folder
