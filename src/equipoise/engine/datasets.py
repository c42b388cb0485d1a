"""The datasets that federations train on, split as the settings say."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path

from torch import Tensor

from ..data.bundle import BUNDLED
from ..data.dataset import Dataset
from ..data.loading import load_with
from ..data.partition import partition
from ..errors import DataError, printable
from .data_settings import FILES, LATER
from .settings import Settings


def load_dataset(settings: Settings, name: str) -> Dataset:
    """A bundled dataset, whose splits are fixed, or files, read and split as the settings say."""
    given = {key: getattr(settings.data, key) for key in FILES if getattr(settings.data, key) != LATER[key]}
    fractions = {key: getattr(settings.data, key) for key in ("validation_fraction", "public_fraction")}
    return load_with(name, **fractions, **given)


def load_datasets(settings: Settings, names: Iterable[str]) -> dict[str, Dataset]:
    """Each dataset once, in the order of its first name."""
    return {name: load_dataset(settings, name) for name in dict.fromkeys(names)}


def dealt(settings: Settings, dataset: Dataset) -> tuple[list[Tensor], dict[str, list[Tensor]]]:
    """The training rows of each client, and those that it is tested and validated on, by the prefix of the metric.

    There are none of the latter where these splits have fewer rows than there are clients.
    """
    own, clients, train = settings.data, settings.protection.clients, dataset.train
    parts = partition(
        train.labels, clients, own.partition, dirichlet=own.dirichlet, shards=own.shards, sizes=own.sizes,
        seed=own.partition_seed, groups=train.groups,
    )  # fmt: skip
    held = {}
    for prefix, split in (("", dataset.test), ("validation_", dataset.validation)):
        try:
            held[prefix] = partition(split.labels, clients, "identical", sizes=own.sizes, groups=split.groups)
        except DataError:  # settings that are wrong were refused above
            held[prefix] = []
    return parts, held


def alike(datasets: Mapping[str, Dataset]) -> Dataset:
    """The first of the datasets of a sweep, which all others are like."""
    sample = next(iter(datasets.values()))
    for name, dataset in datasets.items():
        if (dataset.shape, dataset.classes, dataset.kind) != (sample.shape, sample.classes, sample.kind):
            raise DataError(
                f"The datasets of a sweep must be alike; {name!r} has shape {dataset.shape}, {dataset.classes} "
                f"classes, the first one {sample.shape}, {sample.classes}.",
                "Train them in separate runs.",
            )
    return sample


def folder_name(name: str) -> str:
    """What the folder of a dataset is called, without what no terminal and no SVG should be told."""
    return printable(Path(os.path.abspath(name)).name) or "data"


def dataset_labels(names: Iterable[str]) -> dict[str, str]:
    """What records call each dataset: a folder goes by its own name, so that no path of a machine is kept.

    Folders of one name are numbered. A label is its own label, and a bundled dataset's name means that one alone.

    >>> dataset_labels(["mnist", "/a/scans", "/b/scans", "/c/mnist"])
    {'mnist': 'mnist', '/a/scans': 'scans', '/b/scans': 'scans-2', '/c/mnist': 'mnist-2'}
    """
    names = list(dict.fromkeys(names))
    bases = {name: name if name in BUNDLED else folder_name(name) for name in names}
    labels = {name: name for name, base in bases.items() if name == base}
    taken = {*BUNDLED, *labels}
    for name in [name for name in names if name not in labels]:
        numbered = (f"{bases[name]}-{number}" for number in count(2))
        labels[name] = bases[name] if bases[name] not in taken else next(one for one in numbered if one not in taken)
        taken.add(labels[name])
    return {name: labels[name] for name in names}
