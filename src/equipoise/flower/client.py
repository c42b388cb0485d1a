"""``protect`` and ``protected_step`` in a train function: the library's own, as a Flower message and context say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from itertools import islice
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message
from torch import Tensor, nn

from ..errors import DataError, EquipoiseError, PolicyError, ReleaseError, place
from ..mechanism import protect as core
from ..models.objective import Loss
from .admission import counting
from .client_guard import begin, let_pass, log


def protect(
    model: nn.Module,
    data: Any,
    msg: Message,
    context: Context,
    *,
    loss: Loss | None = None,
    keys: tuple[str, ...] = ("img", "label"),
    experiment_seed: int | None = None,
) -> ArrayRecord:
    """Distort what your train function trained, as the run config asks, and return the arrays that it may send.

    Args:
        model: holds the parameters that your training reached. It is left as it is.
        data: the mini-batch that a learned distortion is learned on: a pair ``(x, y)``, a dict with ``keys``, or a
            loader, of which the first batch is taken; or a function that returns one of these.
        msg: the message of this round, with the global model and the number of the round.
        context: has the run config (mechanism, budget, settings) and the node config (the policy).
        loss: ``loss(outputs, labels)``, the mean over the batch; cross-entropy unless given.
        keys: the names of inputs and labels where a batch is a dict.
        experiment_seed: makes the noise reproducible, and worthless as protection. The run config cannot set it; a
            node refuses it unless its policy says ``experiment = true``, and a server unless it expects an experiment.

    Returns:
        The arrays of the message again: distorted ones for all that is trainable, the others (buffers, frozen layers)
        as they came, whatever the model holds there.

    In a train function::

        arrays = protect(model, trainloader, msg, context)  # instead of ArrayRecord(model.state_dict())
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
    """
    return _arrays(core.protect, model, data, msg, context, loss=loss, keys=keys, seed=experiment_seed)


def protected_step(
    model: nn.Module,
    data: Any,
    msg: Message,
    context: Context,
    *,
    loss: Loss | None = None,
    keys: tuple[str, ...] = ("img", "label"),
    experiment_seed: int | None = None,
) -> ArrayRecord:
    """Train one local step from the received model, distort the result, and return the arrays that may be sent.

    Args and Returns are those of ``protect``, except that ``model`` only says what is computed: the step, of size
    ``equipoise.eta`` on the mini-batch, starts from the message's parameters. The only way to use ``laplace-dp`` and
    ``gaussian-dp``, with which an example that the model or the loss fails on counts as zero, and a batch that cannot
    be read as empty: noise alone is released. Pass a function as ``data``, so that whatever reads your examples is
    called in here.

    With ``gaussian-dp``, ``data`` is all that this node trains on: of a loader every batch is taken, and the mechanism
    draws its own sample. Where the policy's unit is a group, each batch has a third part, or key: a whole number for
    every record, the same for all records of one group, such as a person.

    In a train function::

        arrays = protected_step(Net(), trainloader, msg, context)
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=msg)
    """
    return _arrays(core.protected_step, model, data, msg, context, loss=loss, keys=keys, seed=experiment_seed)


def _arrays(
    release: Callable[..., core.Protected],
    model: nn.Module,
    data: Any,
    msg: Message,
    context: Context,
    *,
    loss: Loss | None,
    keys: tuple[str, ...],
    seed: int | None,
) -> ArrayRecord:
    admission = begin(msg, context)
    if seed is not None and not admission.policy.experiment:
        raise PolicyError(
            "The noise would be reproducible: whoever tries its seed can take it off again.",
            "Take experiment_seed out of the app. Only a policy that says experiment = true lets such noise leave.",
        )
    if seed is not None and admission.terms.mechanism.formal and admission.policy.ledger is not None:
        raise PolicyError(
            "The noise would be reproducible, and this node's ledger counts the release as one with a guarantee.",
            "Take experiment_seed out of the app, or try it under a policy without a ledger.",
        )
    mechanism, own = admission.terms.mechanism, {"least_relative": admission.bounds.get("least-relative", 0.0)}
    batch = _batch(data, keys, model, spare=mechanism.formal, whole=mechanism.whole_run)
    if mechanism.formal and release is core.protected_step:
        own = {"divisor": admission.settings.batch}
    if admission.reservation is not None and release is core.protected_step:
        own = {"divisor": admission.reservation.divisor, "groups": _groups(batch, admission.reservation.unit)}
    batch = None if batch is None else batch[:2]
    about: dict[str, Any] = {
        "settings": admission.settings, "client": admission.client, "round_number": admission.noise_round,
        "experiment_seed": seed,
    }  # fmt: skip
    received = _received(msg)
    try:
        if release is core.protect and not all(torch.isfinite(part).all() for part in model.parameters()):
            raise ReleaseError("What was trained is not finite.", "Use a smaller learning rate.")
        sent = release(model, received, batch, mechanism, admission.budget, loss=loss, **about, **own)
    except ReleaseError as error:
        if not mechanism.distorts:
            raise
        log.error("The update cannot be released, noise alone is sent: %s", error)  # a refusal would tell of the data
        sent = core.noise_alone(model, received, mechanism, admission.budget, **about)
    arrays, record = ArrayRecord(sent.parameters), {**sent.record, "round": admission.round_number}
    with counting(admission, context) as counted:
        counted.note(admission, record)  # before anything can leave
    let_pass(arrays, record, admission.terms)
    return arrays


def _groups(batch: tuple[Tensor, ...] | None, unit: str) -> Tensor | None:
    """Whose record each is, where the policy's unit is a group; that the app has none is no secret."""
    given = batch[2] if batch is not None and len(batch) > 2 else None
    if unit == "record" and given is not None:
        raise PolicyError(
            "The app clips records in groups; the unit of this node's policy is the record.",
            "Leave the groups out, or set the policy's unit to group.",
        )
    if unit == "group" and given is None and batch is not None:
        raise PolicyError(
            "The unit of this node's policy is the group, and the app says of no record whose it is.",
            "Give each batch a third part: a whole number for every record, the same for all of one group.",
        )
    return given


def _batch(
    data: Any, keys: tuple[str, ...], model: nn.Module, *, spare: bool, whole: bool
) -> tuple[Tensor, ...] | None:
    """The mini-batch, or with ``whole`` all there is, where the model is.

    With ``spare``, none where that fails: that it did is private.
    """
    try:
        given = data() if callable(data) else data
        parts = all_records(given, keys) if whole else first_batch(given, keys)
        like = next(model.parameters(), parts[0])
        return tuple(part.to(like.device) for part in parts)
    except Exception as error:
        if not spare:
            raise
        log.error("No example could be read, noise alone is sent: %s", place(error))
        return None


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


def _received(msg: Message) -> dict[str, Tensor]:
    records = list(msg.content.array_records.values())
    if len(records) != 1:
        raise ReleaseError(f"Expected one set of arrays in the message, got {len(records)}.", "Send one model.")
    return dict(records[0].to_torch_state_dict())
