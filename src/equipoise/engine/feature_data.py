"""Datasets as a model with frozen features sees them: computed once, kept on disk, and from then on the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..mechanism.linear_units import on_head
from ..mechanism.protection import ProtectionSettings
from ..mechanism.units import EachRecord, Pool, Records
from ..models.batched import Batched
from ..models.feature_cache import cached_features
from ..models.features import FeatureModel


def on_features(model: FeatureModel, dataset: Dataset) -> Dataset:
    """The same records with their features for inputs.

    Those of clients' records are computed one by one, as a client of its own would, the others in chunks.
    """
    return dataset.mapped(partial(cached_features, model), evaluation=partial(cached_features, model, alone=False))


def joined_groups(datasets: Sequence[Dataset]) -> Tensor | None:
    """Whose each training record is, dataset after dataset; None where every record is its own unit."""
    groups = [dataset.train.groups for dataset in datasets]
    if all(group is None for group in groups):
        return None
    own = [torch.arange(len(dataset.train)) for dataset in datasets]
    return torch.cat([alone if group is None else group for group, alone in zip(groups, own, strict=True)])


def pool_of(batched: Batched, records: Records, classes: int, protection: ProtectionSettings, features: bool) -> Pool:
    """What sums the records of a sweep: of a linear head on ``features``, or of any model."""
    if features:
        return on_head(batched, records, classes)
    expected = protection.gaussian.sampling_rate * protection.gaussian.divisor
    return EachRecord(batched, records, classes, expected=expected)
