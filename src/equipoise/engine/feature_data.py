"""Datasets as a model with frozen features sees them: computed once, kept on disk, and from then on the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from ..data.dataset import Dataset
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
