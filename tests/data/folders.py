"""Folders of small idx and npz files, for the tests of what reads them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from equipoise.data.contents import Array


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


def write_pictures(
    folder: Path, parts: dict[str, dict[str, int]], mode: str = "RGB", size: tuple[int, int] = (6, 5)
) -> Path:
    """PNG files of noise: ``{"train": {"cat": 12}}`` is ``train/cat/0.png`` and so on; the part "" is the folder."""
    generator = np.random.default_rng(4)
    for part, classes in parts.items():
        for name, count in classes.items():
            inner = folder / part / name
            inner.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                shape = size if mode == "L" else (*size, 3)
                pixels = generator.integers(0, 256, shape, np.uint8)
                Image.fromarray(pixels).save(inner / f"{number:03d}.png")
    return folder


def write_arrow(folder: Path, table: Any, features: dict[str, Any] | None = None, files: int = 1) -> Path:
    """A table of pyarrow as ``Dataset.save_to_disk`` of Hugging Face leaves it."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"data-{number:05d}-of-{files:05d}.arrow" for number in range(files)]
    share = -(-len(table) // files)
    for number, name in enumerate(names):
        with pa.OSFile(str(folder / name), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(number * share, share), max_chunksize=16)
    state = {"_data_files": [{"filename": name} for name in names], "_fingerprint": "0", "_split": None}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text(json.dumps({"features": features or {}}))
    return folder
