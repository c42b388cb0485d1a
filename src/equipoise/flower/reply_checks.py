"""What a server believes of a reply: nothing that it has not checked.

Arrays are decoded here rather than by Flower, from the bytes and against the agreed form, so that no header can ask
for memory, and nothing is unpickled, broadcast or cast. The claims of a reply about its own protection are compared
with what was asked; a client that lies consistently cannot be told from one that does not.
"""

from __future__ import annotations

import io
import json
import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from torch import Tensor

from ..errors import is_finite
from ..server.intake import Form, Intake, short, wrong_form, wrong_weight
from ..server.limits import Limits
from .admission import NUMBERS, RECORD
from .run_config import WEIGHT, Terms

HEADER = 256
"""Bytes that an array may have beside its numbers."""

SLACK = 0.06
"""Intensities are told to two digits."""


@dataclass(frozen=True)
class Reply:
    """One reply after the checks; ``reason`` is None for those that count."""

    message: Message
    client: str
    reason: str | None
    tensors: dict[str, Tensor]
    metrics: dict[str, float]

    def entry(self) -> dict[str, Any]:
        """Its line in the ledger."""
        numbers = {name: self.metrics.get(f"{RECORD}.{name}") for name in NUMBERS}
        about = {"client": self.client, **{name: value for name, value in numbers.items() if value is not None}}
        return (
            {**about, "accepted": True} if self.reason is None else {**about, "accepted": False, "reason": self.reason}
        )


def checked_reply(message: Message, intake: Intake, terms: Terms, seeded: bool) -> Reply:
    """Check a reply to a train message and count it in, or say why not."""
    client, content = str(message.metadata.src_node_id), message.content if message.has_content() else RecordDict()
    metrics = dict(next(iter(content.metric_records.values()), {}))
    claim = dict(content.config_records.get(RECORD, {}))
    reason = (
        intake.wrong_client(client)
        or _wrong_records(message)
        or wrong_claim(claim, metrics, intake.round_number, terms, seeded)
    )
    tensors = reason or decoded(next(iter(content.array_records.values())), intake.previous, intake.bytes)
    if isinstance(tensors, str):
        intake.refused[client] = tensors
        return Reply(message, client, tensors, {}, _scalars(metrics))
    reason = intake.offer(client, tensors, metrics.get(WEIGHT), claim.get("round"))
    return Reply(message, client, reason, tensors, _scalars(metrics))


def settled(replies: list[Reply], intake: Intake) -> list[Reply]:
    """The replies of a round when all are there: too heavy ones are refused, and a repaired one counts once.

    Of a client whose reply was refused and which then sent a good one, the good one alone is left.
    """
    heavy = intake.settle()
    final = [replace(r, reason=heavy.get(r.client)) if r.reason is None else r for r in replies]
    good = {reply.client: place for place, reply in enumerate(final) if reply.reason is None}
    return [reply for place, reply in enumerate(final) if place >= good.get(reply.client, 0)]


def _wrong_records(message: Message) -> str | None:
    if message.has_error():
        return _failure(message)
    arrays, metrics = len(message.content.array_records), len(message.content.metric_records)
    if arrays == metrics == 1:
        return None
    return f"has {arrays} and {metrics} records of arrays and metrics, expected one of each"


def _failure(message: Message) -> str:
    """The beginning and the end of what is said: Ray tells a whole traceback, whose last line matters."""
    text = short(message.error.reason, quote=False, most=100_000)
    return f"failed: {text if len(text) <= 200 else f'{text[:70]}...{text[-127:]}'}"


def _scalars(metrics: Mapping[str, Any]) -> dict[str, float]:
    return {key: value for key, value in metrics.items() if is_finite(value)}


def wrong_claim(
    claim: Mapping[str, Any], metrics: Mapping[str, Any], round_number: int, terms: Terms, seeded: bool
) -> str | None:
    """What a reply says of its own protection, against what was asked."""
    if not claim:
        return "shows no record of protection"
    if claim.get("mechanism") != terms.mechanism.name or claim.get("budget") != json.dumps(terms.budget):
        asked = f"{terms.mechanism.name} at {json.dumps(terms.budget)}"
        return f"was protected by {short(claim.get('mechanism'))} at {short(claim.get('budget'))}, asked: {asked}"
    if claim.get("experiment") and not seeded:
        return "has reproducible noise, which protects nothing"
    known = {WEIGHT, *terms.metrics, *(f"{RECORD}.{name}" for name in NUMBERS)}
    extra, missing = sorted(set(metrics) - known), sorted(set(terms.metrics) - set(metrics))
    if extra:
        return f"has a metric that was not asked for: {short(extra[0])}"
    if missing:
        return f"lacks the metric {missing[0]!r}"
    for name, value in metrics.items():
        if name != WEIGHT and not is_finite(value):
            return f"has a metric that is no finite number: {name!r}"
    return _wrong_intensity(metrics, round_number, terms)


def sound_evaluations(
    messages: Iterable[Message], clients: Collection[str], limits: Limits
) -> tuple[list[Message], dict[str, str]]:
    """Replies to evaluate messages that can be averaged, rebuilt from what was checked; why the others cannot."""
    given, good, refused, seen = list(messages), dict[str, Message](), dict[str, str](), set[str]()
    first = {str(m.metadata.src_node_id): m for m in reversed(given) if m.has_content()}
    names = Counter(
        frozenset(next(iter(m.content.metric_records.values()), ())) for c, m in first.items() if c in clients
    )
    usual = names.most_common(1)[0][0] if names else frozenset()
    for message in given:
        client = str(message.metadata.src_node_id)
        reason = "was not asked" if client not in clients else "answered twice" if client in seen else None
        reason = reason or _wrong_evaluation(message, usual, limits.max_weight)
        seen.add(client)
        if reason is not None:
            refused[client] = reason
            continue
        message.content = RecordDict(
            {"metrics": MetricRecord(dict(next(iter(message.content.metric_records.values()))))}
        )
        good[client] = message
    weights = {client: message.content.metric_records["metrics"][WEIGHT] for client, message in good.items()}
    heavy = limits.heavy(cast(dict[str, float], weights))
    return [message for client, message in good.items() if client not in heavy], {**refused, **heavy}


def _wrong_evaluation(message: Message, usual: frozenset[str], most: float) -> str | None:
    if message.has_error():
        return _failure(message)
    records = message.content.metric_records
    if len(records) != 1:
        return f"has {len(records)} records of metrics, expected one"
    metrics = dict(next(iter(records.values())))
    if set(metrics) != usual:
        return "has other metrics than most"
    odd = [name for name, value in metrics.items() if not is_finite(value)]
    if odd:
        return f"has a metric that is no finite number: {short(odd[0])}"
    return wrong_weight(metrics.get(WEIGHT), most)


def _wrong_intensity(metrics: Mapping[str, Any], round_number: int, terms: Terms) -> str | None:
    mechanism, given = terms.mechanism, [name for name in NUMBERS if f"{RECORD}.{name}" in metrics]
    if mechanism.formal:
        return "tells the size of its noise, which would undo the guarantee" if given else None
    if mechanism.shaping is not None:
        return "tells the size of what was withheld, which is a function of the batch" if given else None
    if len(given) < len(NUMBERS):
        return "does not say its intensity and its bounds"
    lower, upper, size = (float(metrics[f"{RECORD}.{name}"]) for name in NUMBERS)
    most = upper if mechanism.learns else lower  # static noise stays as it was drawn
    if not lower * (1 - SLACK) <= size <= most * (1 + SLACK):
        return f"says that its intensity {size:.6g} is outside its bounds, {lower:.6g} to {most:.6g}"
    measure = terms.settings.measure(mechanism)
    if measure is not None and not lower > 0:
        return "says that it was not distorted"
    if measure is not None and not math.isclose(upper, lower * measure.factor, rel_tol=SLACK):
        return f"says that its bounds are {lower:.6g} and {upper:.6g}, which do not belong together"
    if measure is not None and mechanism.on_sphere:
        asked = [measure.lower(budget) for budget in terms.budgets(round_number)]
        if not any(math.isclose(lower, bound, rel_tol=1e-4) for bound in asked):
            return f"says that its lower bound is {lower:.6g}, asked: {', '.join(f'{bound:.6g}' for bound in asked)}"
    return None


def decoded(record: ArrayRecord, like: Mapping[str, Tensor], agreed: int) -> dict[str, Tensor] | str:
    """The tensors of a reply, or what is wrong with their form."""
    forms = {name: Form(tuple(a.shape), a.dtype, max(0, len(a.data) - HEADER)) for name, a in record.items()}
    reason = wrong_form(forms, like, agreed)
    if reason is not None:
        return reason
    result = {}
    for name, array in record.items():
        numbers = _numbers(array)
        if isinstance(numbers, str):
            return f"tensor {name!r} {numbers}"
        result[name] = numbers
    return result


def _numbers(array: Array) -> Tensor | str:
    """The numbers of an array in numpy's file format, without letting its header decide anything."""
    if array.stype != "numpy.ndarray":
        return f"is serialised as {short(array.stype)}, not as a numpy array"
    stream = io.BytesIO(array.data)
    try:
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, dtype = read(stream)
    except Exception as error:  # whatever a parser of foreign bytes may raise
        return f"has a header that cannot be read ({type(error).__name__})"
    body = memoryview(array.data)[stream.tell() :]
    if shape != tuple(array.shape) or dtype != np.dtype(array.dtype) or dtype.hasobject:
        return "has a header that contradicts its description"
    if len(body) != math.prod(shape) * dtype.itemsize:
        return f"has {len(body)} bytes for {math.prod(shape)} numbers"
    flat = np.frombuffer(body, dtype=dtype)
    return torch.from_numpy(flat.reshape(shape, order="F" if fortran else "C").copy())
