"""``protect`` and ``protected_step`` in a train function: the library's own, as a Flower message and context say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message
from torch import Tensor, nn

from ..errors import PolicyError, ReleaseError
from ..mechanism import protect as core
from ..models.objective import Loss
from .admission import Admission, counting
from .batches import read_batch, spared
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
            loader, of which the first batch is taken; or a function that returns one of these. Static mechanisms look
            at none: it may be None.
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
    begun = begin(msg, context)
    admission = begun.admission
    _check_seed(seed, admission)
    mechanism, own = admission.terms.mechanism, {"least_relative": admission.bounds.get("least-relative", 0.0)}
    static = release is core.protect and not (mechanism.learns or mechanism.per_example)  # looks at no batch
    batch = None if static else read_batch(data, keys, model, spare=mechanism.formal, whole=mechanism.whole_run)
    whole_run = admission.reservation if release is core.protected_step else None
    if mechanism.formal and release is core.protected_step:
        own = {"divisor": admission.settings.batch}
    if whole_run is not None:
        _check_groups(batch, whole_run.unit)
        own = {"divisor": whole_run.divisor}
    about: dict[str, Any] = {
        "settings": admission.settings, "client": admission.client, "round_number": admission.noise_round,
        "experiment_seed": seed,
    }  # fmt: skip
    received = _received(begun.message)

    def make(parts: tuple[Tensor, ...] | None) -> core.Protected:
        pair, others = (None, ()) if parts is None else (parts[:2], parts[2:])
        whose = {} if whole_run is None else {"groups": next(iter(others), None)}
        return release(model, received, pair, mechanism, admission.budget, loss=loss, **about, **own, **whose)

    try:
        if release is core.protect and not all(torch.isfinite(part).all() for part in model.parameters()):
            raise ReleaseError("What was trained is not finite.", "Use a smaller learning rate.")
        sent = spared(make, batch) if mechanism.formal else make(batch)
    except ReleaseError as error:
        if not mechanism.distorts:
            raise
        log.error("The update cannot be released, noise alone is sent: %s", error)  # a refusal would tell of the data
        sent = core.noise_alone(model, received, mechanism, admission.budget, **about)
    arrays, record = ArrayRecord(sent.parameters), {**sent.record, "round": admission.round_number}
    if record.get("noise_to_update") is not None:  # for this node's own log
        log.info("The noise of round %d is %.3g times its update.", admission.round_number, record["noise_to_update"])
    with counting(admission, begun.context) as counted:
        counted.note(admission, record)  # before anything can leave
    let_pass(arrays, record, admission.terms)
    return arrays


def _check_seed(seed: int | None, admission: Admission) -> None:
    """Raise where reproducible noise must not leave."""
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


def _check_groups(batch: tuple[Tensor, ...] | None, unit: str) -> None:
    """Whether the app says whose each record is just where the policy's unit is a group; that is no secret."""
    given = batch is not None and len(batch) > 2
    if unit == "record" and given:
        raise PolicyError(
            "The app clips records in groups; the unit of this node's policy is the record.",
            "Leave the groups out, or set the policy's unit to group.",
        )
    if unit == "group" and batch is not None and not given:
        raise PolicyError(
            "The unit of this node's policy is the group, and the app says of no record whose it is.",
            "Give each batch a third part: a whole number for every record, the same for all of one group.",
        )


def _received(msg: Message) -> dict[str, Tensor]:
    records = list(msg.content.array_records.values())
    if len(records) != 1:
        raise ReleaseError(f"Expected one set of arrays in the message, got {len(records)}.", "Send one model.")
    return dict(records[0].to_torch_state_dict())
