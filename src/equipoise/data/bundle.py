"""The datasets that come with the package: what they are, and their files, read only if these are the promised bytes.

Another one is an entry of ``BUNDLED``; scripts/build_data.py and scripts/build_small_data.py make the files.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import KW_ONLY, dataclass
from functools import cache
from pathlib import Path

import torch

from ..errors import DataError
from .contents import Array
from .dataset import Dataset, assembled
from .formats import read_npz
from .normalisation import Moment, normalise_
from .splits import Kind, Split


@dataclass(frozen=True)
class Bundled:
    """A dataset that comes with the package. A folder called like it, or by an alias, gets its mean and std."""

    file: str
    classes: int
    mean: float | None = None  # of pictures; a table has those of its columns in its file
    std: float | None = None
    aliases: tuple[str, ...] = ()
    _: KW_ONLY
    kind: Kind = "image"
    manifest: str = "manifest.json"
    script: str = "scripts/build_data.py"  # makes the file
    class_names: tuple[str, ...] = ()
    vocabulary: int | None = None

    @property
    def arrays(self) -> list[str]:
        """What the file holds."""
        moments = ["mean", "std"] if self.kind == "table" else []
        return [f"{split}_{part}" for split in SPLITS for part in (INPUTS[self.kind], "labels", "index")] + moments


INPUTS = {"image": "images", "table": "features", "tokens": "tokens"}
"""What the inputs of a kind are called in a file."""
SMALL_MANIFEST, SMALL_SCRIPT = "tables_and_text.json", "scripts/build_small_data.py"
BUNDLED = {
    "mnist": Bundled("mnist.npz", 10, 0.1307, 0.3081),
    "fmnist": Bundled("fmnist.npz", 10, 0.2860, 0.3530, ("fashion-mnist", "fashion_mnist", "fashionmnist")),
    "breast-cancer": Bundled(
        "breast-cancer.npz", 2, kind="table", manifest=SMALL_MANIFEST, script=SMALL_SCRIPT,
        class_names=("malignant", "benign"),
    ),
    "generated-text": Bundled(
        "generated-text.npz", 4, kind="tokens", manifest=SMALL_MANIFEST, script=SMALL_SCRIPT,
        class_names=("topic 0", "topic 1", "topic 2", "topic 3"), vocabulary=400,
    ),
}  # fmt: skip
BUNDLED_FOLDER = Path(__file__).with_name("bundled")
SPLITS = ("train", "validation", "test", "public")


def read_bundled(folder: Path, name: str) -> dict[str, Array]:
    """The arrays of a bundled file, once its bytes are known to be those the manifest promises.

    >>> read_bundled(BUNDLED_FOLDER, "mnist")["train_index"].dtype
    dtype('uint16')
    """
    about = BUNDLED[name]
    path, rebuild = folder / about.file, f"Reinstall equipoise, or rebuild the file with {about.script}."
    try:
        expected = json.loads((folder / about.manifest).read_text(encoding="utf-8"))["files"][path.name]
        content = path.read_bytes()
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise DataError(f"Bundled {path.name} or its manifest cannot be read: {problem!r}.", rebuild) from problem
    if len(content) < expected["bytes"]:
        raise DataError(f"{path} is truncated: {len(content)} of {expected['bytes']} bytes.", rebuild)
    digest = hashlib.sha256(content).hexdigest()
    if digest != expected["sha256"]:
        raise DataError(f"Expected SHA-256 {expected['sha256']} of {path}, got {digest}.", rebuild)
    return read_npz(path, content, about.arrays)


@cache
def bundled(name: str) -> Dataset:
    """A bundled dataset, read once."""
    arrays, about = read_bundled(BUNDLED_FOLDER, name), BUNDLED[name]
    mean: Moment = 0.0 if about.mean is None else about.mean
    std: Moment = 1.0 if about.std is None else about.std
    if about.kind == "table":
        mean, std = tuple(arrays["mean"].tolist()), tuple(arrays["std"].tolist())
    splits = {}
    for split in SPLITS:
        inputs, labels = (torch.from_numpy(arrays[f"{split}_{part}"]) for part in (INPUTS[about.kind], "labels"))
        if about.kind == "image":
            inputs = inputs.float().div_(255).unsqueeze(1)
        if about.kind == "tokens":
            inputs = inputs.long()
        else:
            normalise_(inputs, mean, std)
        splits[split] = Split(inputs, labels.long())
    names = {"class_names": about.class_names, "vocabulary": about.vocabulary}
    return assembled(name, mean, std, splits, about.classes, **names)
