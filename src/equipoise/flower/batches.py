"""The records behind a release, from whatever a train function has them in, with none that decides about the others.

A mechanism with a guarantee must not refuse because of one record, and a single one can change the form of all: a
missing label among whole numbers makes all labels of a batch floating-point ones, and a number of another precision all
inputs. What cannot be read is then no record at all; what can be computed with as whole numbers alone is made whole.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from ..errors import DataError, EquipoiseError, ModelError, place

log = logging.getLogger("flwr.equipoise")
T = TypeVar("T")
Parts = tuple[Tensor, ...]
"""Inputs, labels, and whose each record is where that is told."""


def read_batch(data: Any, keys: tuple[str, ...], model: nn.Module, *, spare: bool, whole: bool) -> Parts | None:
    """The mini-batch, or with ``whole`` all there is, where the model is.

    With ``spare``, none where that fails: that it did is private.
    """
    try:
        given = data() if callable(data) else data
        parts = all_records(given, keys) if whole else first_batch(given, keys)
        like = next(model.parameters(), parts[0])
        parts = tuple(part.to(like.device) for part in parts)
        return _one_form(parts, like.dtype) if spare else parts
    except BaseException as error:  # a panic in a loader's foreign code too
        if not spare or type(error) is KeyboardInterrupt:
            raise
        log.error("No example could be read, noise alone is sent: %s", place(error))
        return None


def spared(make: Callable[[Parts | None], T], parts: Parts | None) -> T:
    """What ``make`` makes of the records, in the first form that serves; an error only where none does.

    What is wrong with model, loss or the shape of the records is wrong in every form, and may be told. Any other error
    may be one record's doing: then ``make`` has none.
    """
    first: EquipoiseError | None = None
    for form in _forms(parts):
        try:
            return make(form)
        except (DataError, ModelError) as error:
            first = first or error
        except EquipoiseError:
            raise
        except BaseException as error:
            if type(error) is KeyboardInterrupt:
                raise
            log.error("No example could be computed with, noise alone is sent: %s", place(error))
            return make(None)
    assert first is not None
    raise first


def _forms(parts: Parts | None) -> Iterator[Parts | None]:
    """The records as they came; then with whole numbers for labels, for inputs, for both."""
    yield parts
    if parts is not None:
        able = [i for i in (1, 0) if parts[i].dtype != torch.int64 and not parts[i].is_complex()]
        for chosen in [*((i,) for i in able), *([(0, 1)] if len(able) == 2 else [])]:
            yield _whole(parts, chosen)


def _one_form(parts: Parts, dtype: torch.dtype) -> Parts:
    """As many of each, inputs in the model's precision, and whole numbers for groups."""
    if len({len(part) for part in parts}) != 1:
        raise DataError("There are not as many inputs as labels.", "Load every batch with the same lengths.")
    if parts[0].is_floating_point() and dtype.is_floating_point:
        parts = (parts[0].to(dtype), *parts[1:])
    return _whole(parts, (2,)) if len(parts) > 2 and parts[2].dtype != torch.int64 else parts


def _whole(parts: Parts, chosen: tuple[int, ...]) -> Parts:
    """The records with these parts as int64, without those that have none there: they count as zero.

    Numbers so large that their type may have rounded them are none.
    """
    able = torch.ones(len(parts[0]), dtype=torch.bool, device=parts[0].device)
    for part in (parts[i] for i in chosen if parts[i].is_floating_point()):
        fine = (part == part.trunc()) & (part.abs() <= 1 / torch.finfo(part.dtype).eps)
        able &= fine.flatten(1).all(1) if part.dim() > 1 else fine
    left = int((~able).sum())
    if left:
        log.warning("%d of %d records count as zero: they lack a whole number.", left, len(able))
    return tuple(part[able].long() if i in chosen else part[able] for i, part in enumerate(parts))


def first_batch(data: Any, keys: tuple[str, ...]) -> tuple[Tensor, Tensor]:
    """The mini-batch that ``data`` is or begins with."""
    batches = _batches(data, most=1)
    if not batches:
        raise DataError("The loader is empty.", "Give this client data, or leave it out.")
    x, y = _parts(batches[0], keys, (2,))
    return x, y


def all_records(data: Any, keys: tuple[str, ...]) -> tuple[Tensor, ...]:
    """All batches of ``data`` as one: inputs, labels, and groups where there are any.

    >>> all_records([(torch.zeros(2, 3), torch.tensor([0, 1])), (torch.ones(1, 3), torch.tensor([2]))].__iter__(), ())
    (tensor([[0., 0., 0.],...
    """
    parts = [_parts(batch, keys, (2, 3)) for batch in _batches(data, most=None)]
    if not parts:
        raise DataError("The loader is empty.", "Give this client data, or leave it out.")
    if any(len({len(part) for part in batch}) != 1 for batch in parts) or any(
        len({part.dtype for part in columns}) != 1 for columns in zip(*parts, strict=True)
    ):
        raise DataError("Not all records are of one type.", "Load every batch with the same types and lengths.")
    return tuple(torch.cat(columns) for columns in zip(*parts, strict=True))


def _batches(data: Any, most: int | None) -> list[Any]:
    """A mini-batch that is given as such, or the first ``most`` of a loader's."""
    if isinstance(data, Mapping | tuple | list):
        return [data]
    if not isinstance(data, Iterable):
        raise DataError(f"Expected a mini-batch or a loader, got {type(data).__name__}.", "Pass your trainloader.")
    return _read(data, most)


def _parts(data: Any, keys: tuple[str, ...], widths: tuple[int, ...]) -> tuple[Tensor, ...]:
    """The tensors of one batch; as many as one of ``widths``."""
    if isinstance(data, Mapping):
        missing = [key for key in keys if key not in data]
        if missing:
            raise DataError(f"The batch has no {missing[0]!r}; it has {', '.join(map(str, data))}.", "Pass keys=.")
        data = tuple(data[key] for key in keys)
    tensors = isinstance(data, tuple | list) and all(isinstance(part, Tensor) for part in data)
    if not tensors or len(data) not in widths:
        raise DataError("Expected a mini-batch of two tensors, inputs and labels.", "Pass (x, y), or a dict and keys=.")
    return tuple(data)


def _read(loader: Iterable[Any], most: int | None) -> list[Any]:
    try:
        return list(islice(loader, most))
    except EquipoiseError:
        raise
    except Exception as error:
        remedy = (
            "Iterate over it by itself to see the whole error; its words are left out here, as they may quote data."
        )
        raise DataError(f"The loader failed: {place(error)}.", remedy) from None
