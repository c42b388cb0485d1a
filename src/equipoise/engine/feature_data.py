"""Datasets as a model with frozen features sees them: computed once, kept on disk, and from then on the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..data.dataset import Dataset
from ..data.splits import Split
from ..models.feature_cache import cached_features
from ..models.features import FeatureModel


def on_features(model: FeatureModel, dataset: Dataset) -> Dataset:
    """The same records with their features ``[N, F, 1, 1]`` for inputs.

    Those of clients' records are computed one by one, as a client of its own would, the others in chunks.
    """
    own = next(model.head.parameters())

    def mapped(split: Split, alone: bool) -> Split:
        features = cached_features(model, split.images.to(own.device, own.dtype), alone=alone)
        return replace(split, images=features.cpu().view(*features.shape, 1, 1))

    public = None if dataset.public is None else mapped(dataset.public, alone=False)
    return replace(
        dataset, mean=0.0, std=1.0, public=public, train=mapped(dataset.train, alone=True),
        validation=mapped(dataset.validation, alone=False), test=mapped(dataset.test, alone=False),
    )  # fmt: skip


def joined_groups(datasets: Sequence[Dataset]) -> Tensor | None:
    """Whose each training record is, dataset after dataset; None where every record is its own unit."""
    groups = [dataset.train.groups for dataset in datasets]
    if all(group is None for group in groups):
        return None
    own = [torch.arange(len(dataset.train)) for dataset in datasets]
    return torch.cat([alone if group is None else group for group, alone in zip(groups, own, strict=True)])
