"""``protect`` and ``protected_step`` in a train function: the library's own, as a Flower message and context say."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from torch import Tensor, nn

from ..errors import ConfigError, DataError, EquipoiseError, ReleaseError, is_count, place
from ..files import locked
from ..ledger.ledger import Ledger
from ..mechanism import protect as core
from ..mechanism.registry import Mechanism
from ..models.batched import Loss
from .client_guard import NUMBERS, RECORD, let_pass
from .node_config import NodeLimits, read_limits
from .run_config import read_terms


def protect(
    model: nn.Module,
    data: Any,
    msg: Message,
    context: Context,
    *,
    loss: Loss | None = None,
    keys: tuple[str, str] = ("img", "label"),
    experiment_seed: int | None = None,
) -> ArrayRecord:
    """Distort what your train function trained, as the run config asks, and return the arrays that it may send.

    Args:
        model: holds the parameters that your training reached. It is left as it is.
        data: the mini-batch that a learned distortion is learned on: a pair ``(x, y)``, a dict with ``keys``, or a
            loader, of which the first batch is taken.
        msg: the message of this round, with the global model and the number of the round.
        context: has the run config (mechanism, budget, settings) and the node config (limits, ledger).
        loss: ``loss(outputs, labels)``, the mean over the batch; cross-entropy unless given.
        keys: the names of inputs and labels where a batch is a dict.
        experiment_seed: makes the noise reproducible, and worthless as protection. The run config cannot set it, and
            the server refuses such replies unless it was told to expect an experiment.

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
    keys: tuple[str, str] = ("img", "label"),
    experiment_seed: int | None = None,
) -> ArrayRecord:
    """Train one local step from the received model, distort the result, and return the arrays that may be sent.

    Args and Returns are those of ``protect``, except that ``model`` only says what is computed: the step, of size
    ``equipoise.eta`` on the mini-batch, starts from the message's parameters. The only way to use ``laplace-dp``.

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
    keys: tuple[str, str],
    seed: int | None,
) -> ArrayRecord:
    terms, limits = read_terms(context.run_config), read_limits(context.node_config)
    client, round_number = _whole(context.node_config.get("partition-id", 0)), _round(msg)
    budget = terms.budget_of(round_number, client)
    with _own_ledger(limits, seed) as ledger:
        ever = 0 if ledger is None else sum(count.asked for count in ledger.counts.values())
        limits.permit(terms, budget, _released(context), ever)
        x, y = first_batch(data, keys)
        like = next(model.parameters(), x)
        sent = release(
            model, _received(msg), (x.to(like.device), y.to(like.device)), terms.mechanism, terms.budget, loss=loss,
            settings=terms.settings, client=client, round_number=round_number, experiment_seed=seed,
        )  # fmt: skip
        arrays = ArrayRecord(sent.parameters)
        _count(context, ledger, sent.record, terms.mechanism, budget)  # before anything can leave
    let_pass(arrays, sent.record, terms)
    return arrays


def first_batch(data: Any, keys: tuple[str, str]) -> tuple[Tensor, Tensor]:
    """The mini-batch that ``data`` is or begins with."""
    if not isinstance(data, Mapping | tuple | list):
        if not isinstance(data, Iterable):
            raise DataError(f"Expected a mini-batch or a loader, got {type(data).__name__}.", "Pass your trainloader.")
        data = _first(data)
        if data is None:
            raise DataError("The loader is empty.", "Give this client data, or leave it out.")
    if isinstance(data, Mapping):
        missing = [key for key in keys if key not in data]
        if missing:
            raise DataError(f"The batch has no {missing[0]!r}; it has {', '.join(map(str, data))}.", "Pass keys=.")
        data = tuple(data[key] for key in keys)
    if not isinstance(data, tuple | list) or len(data) != 2 or not all(isinstance(part, Tensor) for part in data):
        raise DataError("Expected a mini-batch of two tensors, inputs and labels.", "Pass (x, y), or a dict and keys=.")
    return data[0], data[1]


def _first(loader: Iterable[Any]) -> Any:
    try:
        return next(iter(loader), None)
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


def _round(msg: Message) -> int:
    for record in msg.content.config_records.values():
        if "server-round" in record:
            return _whole(record["server-round"])
    raise ConfigError("The message names no round.", "Send it as 'server-round' in a config record, as FedAvg does.")


def _whole(value: Any) -> int:
    if not is_count(value):
        raise ConfigError(f"Expected a whole number >= 0 for client or round, got {value!r}.", "Check the node config.")
    return value


@contextmanager
def _own_ledger(limits: NodeLimits, seed: int | None) -> Iterator[Ledger | None]:
    """The node's own count of its releases, if its operator wants one."""
    if limits.ledger is None:
        yield None
        return
    with locked(limits.ledger.parent, wait=60.0):  # two runs may be under way on one node
        yield Ledger.open(limits.ledger, None if seed is None else "seeded")


def _released(context: Context) -> int:
    """Releases of this client in this run so far."""
    state = context.state.config_records.get(RECORD)
    return 0 if state is None else _whole(state["releases"])


def _count(
    context: Context, ledger: Ledger | None, record: Mapping[str, Any], mechanism: Mechanism, budget: float | None
) -> None:
    context.state[RECORD] = ConfigRecord({"releases": _released(context) + 1})
    if ledger is not None:
        numbers = {name: None if mechanism.formal else record[name] for name in NUMBERS}  # a guarantee covers no norm
        release = {"client": str(record["client"]), **numbers, "accepted": True}
        about = {name: record[name] for name in ("round", "mechanism", "norm")}
        ledger.append([{"kind": "round", "federation": 0, **about, "budget": budget, "releases": [release]}])
