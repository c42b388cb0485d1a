"""``protect`` in a client's train function: the library's own, with what a Flower message and context say."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from torch import Tensor, nn

from ..errors import ConfigError, DataError, ReleaseError, is_count
from ..files import locked
from ..ledger.ledger import Ledger
from ..mechanism import protect as protection
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
    train: bool = False,
    loss: Loss | None = None,
    keys: tuple[str, str] = ("img", "label"),
    experiment_seed: int | None = None,
) -> ArrayRecord:
    """The arrays that a train function may send: the parameters of ``model``, distorted as the run config asks.

    ``data`` is the mini-batch that a learned distortion is learned on: a pair ``(x, y)``, a dict with ``keys``, or a
    loader, of which the first batch is taken. ``model`` holds the parameters that your training reached; with
    ``train=True`` it is not looked at, and one local step is made from the received ones instead, as in the paper.
    What the message holds beside trainable parameters (buffers, frozen layers) is sent back as it came.

    Noise is from the operating system. ``experiment_seed`` makes it reproducible, and worthless as protection: the
    run config cannot set it, and the server refuses such replies unless it was told to expect an experiment.
    """
    terms, limits = read_terms(context.run_config), read_limits(context.node_config)
    client, round_number = _whole(context.node_config.get("partition-id", 0)), _round(msg)
    budget = terms.budget_of(round_number, client)
    with _own_ledger(limits, experiment_seed) as ledger:
        ever = 0 if ledger is None else sum(count.asked for count in ledger.counts.values())
        limits.permit(terms, budget, _released(context), ever)
        received, device = _received(msg), next(model.parameters()).device
        x, y = first_batch(data, keys)
        sent = protection.protect(
            model, received, (x.to(device), y.to(device)), terms.mechanism, terms.budget,
            loss=loss, local=None if train else model.state_dict(), settings=terms.settings,
            client=client, round=round_number, experiment_seed=experiment_seed,
        )  # fmt: skip
        arrays = ArrayRecord({name: _kept(sent.parameters.get(name, old), old) for name, old in received.items()})
        _count(context, ledger, sent.record, terms.mechanism, budget)  # before anything can leave
    let_pass(arrays, sent.record, terms)
    return arrays


def first_batch(data: Any, keys: tuple[str, str]) -> tuple[Tensor, Tensor]:
    """The mini-batch that ``data`` is or begins with."""
    if not isinstance(data, Mapping | tuple | list):
        if not isinstance(data, Iterable):
            raise DataError(f"Expected a mini-batch or a loader, got {type(data).__name__}.", "Pass your trainloader.")
        data = next(iter(data), None)
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


def _received(msg: Message) -> dict[str, Tensor]:
    records = list(msg.content.array_records.values())
    if len(records) != 1:
        raise ReleaseError(f"Expected one set of arrays in the message, got {len(records)}.", "Send one model.")
    return dict(records[0].to_torch_state_dict())


def _kept(new: Tensor, old: Tensor) -> Tensor:
    return new.detach().cpu().to(old.dtype)


def _round(msg: Message) -> int:
    for record in msg.content.config_records.values():
        if "server-round" in record:
            return _whole(record["server-round"])
    raise ConfigError("The message names no round.", "FedAvg and its kin send 'server-round'; do so too.")


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
