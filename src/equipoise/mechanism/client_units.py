"""The units of one client, from what it has at hand: a model, and all of its records.

What can be wrong is public: the model, the loss, and the form of the records. It is tried on a blank record, so that no
record makes the difference between a release and an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn

from ..errors import ConfigError, DataError
from ..models.batched import Batched, Loss
from ..models.check import check_features, check_model
from ..models.features import FeatureModel
from ..models.layout import Layout
from .batch import check_labels, checked_pair
from .linear_units import LinearRecords, on_head
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

        _check_frozen(model, images)
        check_labels(model, blank_record(images), blank_record(labels))
        features = Records(cached_features(model, images), labels, whose)
        pool = on_head(Batched(model.head_model(), fixed=fixed), features, model.head.out_features)
        if isinstance(pool, LinearRecords):
            return Units(pool, [everyone]), Layout.of(model)
        pool, layout = _each_record(model.head_model(), fixed, features, loss)
        return Units(pool, [everyone]), layout
    pool, layout = _each_record(model, fixed, Records(images, labels, whose), loss)
    return Units(pool, [everyone]), layout


_CHECKED: WeakSet[nn.Module] = WeakSet()
"""Feature networks that were tried."""


def _check_frozen(model: FeatureModel, images: Tensor) -> None:
    """Refuse features that remember, mix or draw: a trial on made-up records."""
    if model.features not in _CHECKED:
        made_up = torch.rand(3, *images.shape[1:], generator=torch.Generator().manual_seed(0))
        check_features(model.features, made_up.to(images.device, images.dtype))
        _CHECKED.add(model.features)


def _nobody(model: nn.Module, fixed: Mapping[str, Tensor], loss: Loss | None) -> tuple[Units, Layout]:
    """No units, on the grid that the client's records would have had: another grid would tell that there are none."""
    labels = torch.zeros(0, dtype=torch.int64)
    if isinstance(model, FeatureModel) and loss is None:
        nothing = Records(torch.zeros(0, model.head.in_features), labels)
        batched = Batched(model.head_model(), fixed=fixed)
        return Units(on_head(batched, nothing, model.head.out_features), [labels]), batched.layout
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
