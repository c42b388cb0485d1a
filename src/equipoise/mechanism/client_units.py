"""The units of one client, from what it has at hand: a model, and all of its records.

What can be wrong is public: the model, the loss, and the form of the records. It is tried on a blank record, so that no
record makes the difference between a release and an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import ConfigError, DataError
from ..models.batched import Batched, Loss
from ..models.check import check_model
from ..models.features import FeatureModel
from ..models.layout import Layout
from .batch import check_labels, checked_pair
from .linear_units import LinearRecords
from .records import blank_record, neutral, rehearse
from .units import EachRecord, Pool, Records, Units, slots_for


def units_of(
    model: nn.Module, fixed: Mapping[str, Tensor], batch: Any, loss: Loss | None, groups: Any
) -> tuple[Units, Layout]:
    """All units of a client, and the layout of the parameters; ``batch`` None: it has no records."""
    if batch is None:
        return _nobody(model, fixed, loss)
    images, labels = checked_pair(batch)
    everyone = torch.arange(len(labels), device=labels.device)
    whose = _checked_groups(groups, labels)
    if isinstance(model, FeatureModel) and loss is None:
        from ..models.feature_cache import cached_features  # keeps files, which other models can do without

        check_labels(model, blank_record(images), blank_record(labels))
        features = Records(cached_features(model, images), labels, whose)
        return Units(LinearRecords(features, model.head.out_features), [everyone]), Layout.of(model)
    pool, layout = _each_record(model, fixed, Records(images, labels, whose), loss)
    return Units(pool, [everyone]), layout


def _nobody(model: nn.Module, fixed: Mapping[str, Tensor], loss: Loss | None) -> tuple[Units, Layout]:
    """No units, on the grid that the client's records would have had: another grid would tell that there are none."""
    labels = torch.zeros(0, dtype=torch.int64)
    if isinstance(model, FeatureModel) and loss is None:
        nothing = Records(torch.zeros(0, model.head.in_features), labels)
        return Units(LinearRecords(nothing, model.head.out_features), [labels]), Layout.of(model)
    batched = Batched(model, loss, fixed=fixed)
    return Units(EachRecord(batched, Records(torch.zeros(0), labels)), [labels]), batched.layout


def _each_record(
    model: nn.Module, fixed: Mapping[str, Tensor], records: Records, loss: Loss | None
) -> tuple[Pool, Layout]:
    image, label = blank_record(records.images), blank_record(records.labels)
    plain = neutral(model)  # whether a model serves must not depend on the values it holds
    check_model(plain, image)
    if loss is None:
        check_labels(plain, image, label)
    elif not callable(loss):
        raise ConfigError(f"Expected loss to be a function, got {type(loss).__name__}.", "Pass loss(outputs, labels).")
    classes = rehearse(plain, image, label, loss)
    batched = Batched(model, loss, records.images.device, fixed=fixed)
    return EachRecord(batched, records, classes, slots_for(batched, image, label, classes)), batched.layout


def _checked_groups(groups: Any, labels: Tensor) -> Tensor | None:
    if groups is None:
        return None
    if not isinstance(groups, Tensor) or groups.dtype != torch.int64 or groups.shape != labels.shape[:1]:
        raise DataError("Expected groups to be whole numbers, one for each record.", "Pass a tensor [N] of type int64.")
    return groups.to(labels.device)
