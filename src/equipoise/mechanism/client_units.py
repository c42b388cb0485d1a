"""The units of one client, from what it has at hand: a model, and all of its records.

What can be wrong is public: the model, the loss, and the form of the records. It is tried on a blank record, so that no
record makes the difference between a release and an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..errors import ConfigError, DataError
from ..models.batched import Batched
from ..models.check import check_features, check_model, circumstances
from ..models.features import FeatureModel
from ..models.inputs import listed, only
from ..models.layout import Layout
from ..models.objective import Inputs, Loss, map_inputs
from ..models.routes import Name
from .batch import check_labels, checked_pair
from .call_slots import SLOTS, call_size, slots_for
from .linear_units import LinearRecords, whole_head
from .records import blank_record, neutral, rehearse
from .units import EachRecord, Pool, Records, Units


def units_of(
    model: nn.Module,
    fixed: Mapping[str, Tensor],
    batch: Any,
    loss: Loss | None,
    groups: Any,
    expected: float = SLOTS,
) -> tuple[Units, Layout]:
    """All units of a client, and the layout of the parameters; ``batch`` None: it has no records.

    Its releases then lie on the grid that they would have with records: another one would tell that there are none.
    ``expected`` is how many units a round is expected to take, a public number.
    """
    nobody = batch is None
    records = Records(torch.zeros(0), torch.zeros(0, dtype=torch.int64)) if nobody else _checked_records(batch, groups)
    pool: Pool | None = None
    if isinstance(model, FeatureModel) and loss is None:
        images = torch.zeros(0, model.head.in_features) if nobody else _features(model, records)
        records, classes, model = replace(records, inputs=images), model.head.out_features, model.head_model()
        layout = Layout.of(model)
        pool = LinearRecords(records, classes) if whole_head(layout, records, classes) else None
    if pool is None:
        pool, layout = _each_record(model, fixed, records, loss, expected=None if nobody else expected)
    everyone = torch.arange(len(records.labels), device=records.labels.device)
    return Units(pool, [everyone]), layout


def _checked_records(batch: Any, groups: Any) -> Records:
    images, labels = checked_pair(batch)
    return Records(images, labels, _checked_groups(groups, labels))


def _features(model: FeatureModel, records: Records) -> Tensor:
    from ..models.feature_cache import cached_features  # keeps files, which other models can do without

    images = only(records.inputs)
    _check_frozen(model, images)
    check_labels(model, blank_record(images), blank_record(records.labels))
    return cached_features(model, images)


_CHECKED: WeakKeyDictionary[nn.Module, set[tuple[Any, ...]]] = WeakKeyDictionary()
"""Under which circumstances feature networks were tried."""


def _check_frozen(model: FeatureModel, images: Tensor) -> None:
    """Refuse features that remember, mix or draw: a trial on made-up records."""
    now, passed = circumstances(model.features), _CHECKED.setdefault(model.features, set())
    if now not in passed:
        made_up = torch.rand(3, *images.shape[1:], generator=torch.Generator().manual_seed(0))
        check_features(model.features, made_up.to(images.device, images.dtype))
        passed.add(now)


def _each_record(
    model: nn.Module, fixed: Mapping[str, Tensor], records: Records, loss: Loss | None, *, expected: float | None
) -> tuple[Pool, Layout]:
    """Model and loss are tried on a blank record; a client without records, ``expected`` None, has no form for one."""
    classes = slots = route = None
    if expected is not None:
        inputs, label = map_inputs(blank_record, records.inputs), blank_record(records.labels)
        classes, route = _found(model, inputs, label, loss)
    batched = Batched(model, loss, records.labels.device, route=route, fixed=fixed)
    if expected is not None:
        slots = slots_for(batched, inputs, label, classes, call_size(batched, expected))
    return EachRecord(batched, records, classes, slots), batched.layout


Found = tuple[int | None, Name]
_FOUND: WeakKeyDictionary[nn.Module, dict[tuple[Any, ...], Found]] = WeakKeyDictionary()
"""What ``_found`` found without a loss of the user's, by model and all that it can be told by."""


def _found(model: nn.Module, inputs: Inputs, label: Tensor, loss: Loss | None) -> Found:
    """How many classes there are, if that can be told, and a route; raises where model or loss do not serve."""
    if loss is not None:
        return _tried(model, inputs, label, loss)
    names = tuple(inputs) if isinstance(inputs, dict) else type(inputs)
    key = (
        circumstances(model),
        names,
        *((tuple(one.shape), one.dtype, one.device) for one in (*listed(inputs), label)),
    )
    known = _FOUND.setdefault(model, {})
    if key not in known:
        known[key] = _tried(model, inputs, label, loss)
    return known[key]


def _tried(model: nn.Module, inputs: Inputs, label: Tensor, loss: Loss | None) -> Found:
    plain = neutral(model)  # whether a model serves must not depend on the values it holds
    route = check_model(plain, inputs, loss=loss)
    if loss is None:
        check_labels(plain, inputs, label)
    elif not callable(loss):
        raise ConfigError(f"Expected loss to be a function, got {type(loss).__name__}.", "Pass loss(outputs, labels).")
    return rehearse(plain, inputs, label, loss, route), route


def _checked_groups(groups: Any, labels: Tensor) -> Tensor | None:
    if groups is None:
        return None
    if not isinstance(groups, Tensor) or groups.dtype != torch.int64 or groups.shape != labels.shape[:1]:
        raise DataError("Expected groups to be whole numbers, one for each record.", "Pass a tensor [N] of type int64.")
    return groups.to(labels.device)
