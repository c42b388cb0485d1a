"""What a run would make of a dataset: its shape, classes, clients, groups, normalisation, and all that was guessed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from ..data.bundle import BUNDLED
from ..data.dataset import Dataset
from ..data.formats import format_of
from ..data.splits import Split
from .datasets import dealt, load_dataset
from .settings import Settings


def overview(settings: Settings, name: str) -> dict[str, Any]:
    """The dataset as these settings read it and deal it; numbers and names alone, no row of it.

    >>> overview(Settings.flat(clients=2), "breast-cancer")["clients"]
    {'partition': 'identical', 'rows': [100, 100], 'classes': [[38, 62], [37, 63]]}
    """
    data = load_dataset(settings, name)
    counts = {what: len(split) for what, split in _splits(data).items()}
    return {
        "name": data.name,
        "kind": data.kind,
        "shape": list(data.shape),
        "vocabulary": data.vocabulary,
        "rows": counts,
        "classes": [
            {"name": data.class_names[number] if data.class_names else str(number), "train": count}
            for number, count in enumerate(_counts(data.train, data.classes))
        ],
        "clients": _clients(settings, data),
        "groups": None if data.train.groups is None else len(torch.unique(data.train.groups)),
        "group_column": name not in BUNDLED and "group" in format_of(Path(name)).takes,
        "mean": data.mean,
        "std": data.std,
        "guessed": list(data.guessed),
        "fitted": list(data.fitted),
    }


def _splits(data: Dataset) -> dict[str, Split]:
    named = {"train": data.train, "validation": data.validation, "test": data.test, "public": data.public}
    return {what: split for what, split in named.items() if split is not None}


def _counts(split: Split, classes: int) -> list[int]:
    counts: list[int] = torch.bincount(split.labels, minlength=classes).tolist()
    return counts


def _clients(settings: Settings, data: Dataset) -> dict[str, Any]:
    parts, _ = dealt(settings, data)
    return {
        "partition": settings.data.partition,
        "rows": [len(part) for part in parts],
        "classes": [_counts(data.train.take(part), data.classes) for part in parts],
    }
