"""Build the bundled table and the bundled generated text, and their manifest.

    python scripts/build_small_data.py [--csv breast_cancer.csv] [--out DIR] [--check]

The table is the Wisconsin diagnostic breast cancer data (569 rows, 30 features), from the file breast_cancer.csv of the
package scikit-learn: that of an installed one, or the one given. Of each class the rows are dealt by a fixed stride:
200 to ``train``, 69 to ``validation``, 200 to ``public``, 100 to ``test``, in the proportions of the classes. Mean and
standard deviation of each column are those of ``public``, rounded to 7 digits.

The text is generated here, from a grammar and a seed: sentences of 6 to 24 words in four classes that share most of
their words. ``--check`` writes nothing and exits with 1 unless the result is what is in the folder.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import importlib.resources
import json
import random
import sys
from collections.abc import Sequence
from math import gcd
from pathlib import Path
from typing import Any

import numpy as np
from build_data import content_digest, pack, write

from equipoise.data.bundle import BUNDLED, BUNDLED_FOLDER, SMALL_MANIFEST, SPLITS
from equipoise.data.contents import Array
from equipoise.errors import DataError

ROWS = {"train": 200, "validation": 69, "public": 200, "test": 100}
CSV_SHA256 = "fed3eb72d0575ef6192293f5093c6e801b1476b577d0386bf4455504522172ed"
SENTENCES = {"train": 4000, "validation": 800, "test": 1000, "public": 1500}
SEED = 20240607
VOCABULARY, SHORTEST, LONGEST = 400, 6, 24
OWN, PAIRED, COMMON = 40, 30, 99
"""Words of one class, of each two neighbouring classes, and of all: 4 * 40 + 4 * 30 + 99 = 379, and 20 of grammar."""
SHARES = (0.18, 0.36)
"""How often a word is one of the class's own, and how often one of those or of a pair's; else it is a common one."""


# --- the table --------------------------------------------------------------------------------------------------------


def table(content: bytes) -> dict[str, Array]:
    """The arrays of the bundled table from the content of scikit-learn's file."""
    digest = hashlib.sha256(content).hexdigest()
    if digest != CSV_SHA256:
        raise DataError(f"Expected SHA-256 {CSV_SHA256} of breast_cancer.csv, got {digest}.", "Give the original.")
    lines = list(csv.reader(content.decode("ascii").splitlines()))[1:]
    values = np.array([line[:-1] for line in lines], np.float64).astype(np.float32)
    labels = np.array([line[-1] for line in lines], np.uint8)
    index = dealt(labels)
    arrays: dict[str, Array] = {}
    for split in SPLITS:
        rows = index[split]
        arrays |= {f"{split}_features": values[rows], f"{split}_labels": labels[rows], f"{split}_index": rows}
    known = arrays["public_features"].astype(np.float64)
    for name, moment in (("mean", known.mean(0)), ("std", known.std(0))):
        arrays[name] = np.array([float(f"{value:.7g}") for value in moment])
    return arrays


def dealt(labels: Array) -> dict[str, Array]:
    """The rows of each split: every class by a stride through the file, and within a split the classes in turn."""
    order = []
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        stride = next(k for k in range(round(0.618 * len(rows)), len(rows)) if gcd(k, len(rows)) == 1)
        strided = rows[np.arange(len(rows)) * stride % len(rows)]
        order += [((place + 0.5) / len(rows), int(label), int(row)) for place, row in enumerate(strided)]
    rows = np.array([row for *_, row in sorted(order)], np.uint16)  # any stretch has the classes of the whole
    ends = np.cumsum(list(ROWS.values()))
    return {split: rows[end - size : end] for (split, size), end in zip(ROWS.items(), ends, strict=True)}


# --- the text ---------------------------------------------------------------------------------------------------------


def text() -> dict[str, Array]:
    """The arrays of the generated text. Only ``random()`` is drawn, which is the same in every version of Python."""
    source, classes = random.Random(SEED), len(BUNDLED["generated-text"].class_names)
    arrays: dict[str, Array] = {}
    seen: set[bytes] = set()
    for split, size in SENTENCES.items():
        rows = np.zeros((size, LONGEST), np.uint16)
        for row in range(size):
            while not rows[row].any() or rows[row].tobytes() in seen:  # no sentence occurs twice
                rows[row] = sentence(source, row % classes, classes)
            seen.add(rows[row].tobytes())
        labels = (np.arange(size) % classes).astype(np.uint8)
        index = np.arange(size, dtype=np.uint16)
        arrays |= {f"{split}_tokens": rows, f"{split}_labels": labels, f"{split}_index": index}
    return arrays


def sentence(source: random.Random, label: int, classes: int) -> Array:
    """A subject and phrases of two or three words with a word of grammar between them."""
    length = SHORTEST + below(source, LONGEST - SHORTEST + 1)
    row, place, until = np.zeros(LONGEST, np.uint16), 0, 1 + below(source, 3)
    while place < length:
        if until == 0:
            row[place], until = 1 + below(source, 20), 2 + below(source, 2)
        else:
            row[place], until = word(source, label, classes), until - 1
        place += 1
    return row


def word(source: random.Random, label: int, classes: int) -> int:
    """One of the class's own words, of a pair's that it is in, or of all; frequent ones first, as in language."""
    share, own = source.random(), 21
    paired, common = own + classes * OWN, own + classes * (OWN + PAIRED)
    if share < SHARES[0]:
        return own + label * OWN + frequent(source, OWN)
    if share < SHARES[1]:
        return paired + (label + below(source, 2)) % classes * PAIRED + frequent(source, PAIRED)
    return common + frequent(source, COMMON)


def below(source: random.Random, limit: int) -> int:
    return int(source.random() * limit)


def frequent(source: random.Random, limit: int) -> int:
    return int(source.random() ** 2 * limit)


# --- files ------------------------------------------------------------------------------------------------------------

ABOUT = {
    "breast-cancer": {
        "origin": "Breast Cancer Wisconsin (Diagnostic) by William H. Wolberg, W. Nick Street and Olvi L. Mangasarian, "
        "UCI Machine Learning Repository, doi 10.24432/C5DW2B; breast_cancer.csv as in scikit-learn",
        "licence": "CC-BY-4.0",
        "source_sha256": CSV_SHA256,
        "splits": ROWS,
    },
    "generated-text": {
        "origin": f"generated by scripts/build_small_data.py with seed {SEED}; nobody's text",
        "licence": "Apache-2.0",
        "splits": SENTENCES,
    },
}


def build(content: bytes) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Both files, and their entries of the manifest."""
    files, entries = {}, {}
    for name, arrays in (("breast-cancer", table(content)), ("generated-text", text())):
        file = BUNDLED[name].file
        files[file] = pack(arrays)
        digest = hashlib.sha256(files[file]).hexdigest()
        about = {"sha256": digest, "bytes": len(files[file]), "content_sha256": content_digest(arrays)}
        entries[file] = {**about, **ABOUT[name]}
    return files, entries


def check(entries: dict[str, Any], out: Path) -> int:
    """Compare with the folder's manifest and files; 0 when they agree. Another zlib may compress differently."""
    committed, failed = json.loads((out / SMALL_MANIFEST).read_text(encoding="utf-8"))["files"], False
    for file, entry in entries.items():
        there = committed.get(file, {})
        same = there.get("content_sha256") == entry["content_sha256"]
        whole = hashlib.sha256((out / file).read_bytes()).hexdigest() == there.get("sha256")
        print(f"{file}: {'same data' if same else 'other data'}{'' if whole else ', and not the file of its manifest'}")
        failed |= not (same and whole)
    return int(failed)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--csv", type=Path, help="breast_cancer.csv of scikit-learn; that of an installed one")
    parser.add_argument("--out", type=Path, default=BUNDLED_FOLDER, help="folder to write to or to check")
    parser.add_argument("--check", action="store_true", help="write nothing, compare with what is in the folder")
    options = parser.parse_args(arguments)
    installed = "sklearn.datasets.data", "breast_cancer.csv"
    content = options.csv.read_bytes() if options.csv else importlib.resources.read_binary(*installed)
    files, entries = build(content)
    if options.check:
        return check(entries, options.out)
    options.out.mkdir(parents=True, exist_ok=True)
    for file, packed in files.items():
        write(options.out / file, packed)
        print(f"{entries[file]['sha256']}  {options.out / file}  {len(packed)} bytes")
    manifest = json.dumps({"schema": 1, "files": entries}, indent=2) + "\n"
    write(options.out / SMALL_MANIFEST, manifest.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
