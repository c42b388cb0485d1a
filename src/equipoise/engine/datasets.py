"""The datasets that federations train on, split as the settings say."""

from __future__ import annotations

from collections.abc import Iterable

from ..data.dataset import Dataset
from ..data.loading import load_with
from .settings import Settings


def load_dataset(settings: Settings, name: str) -> Dataset:
    """A bundled dataset, whose splits are fixed, or a folder, split as the settings say."""
    fractions = {
        "validation_fraction": settings.data.validation_fraction,
        "public_fraction": settings.data.public_fraction,
    }
    return load_with(name, **fractions)


def load_datasets(settings: Settings, names: Iterable[str]) -> dict[str, Dataset]:
    """Each dataset once, in the order of its first name."""
    return {name: load_dataset(settings, name) for name in dict.fromkeys(names)}
