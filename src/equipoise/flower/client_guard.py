"""A mod around a client app that fails closed: nothing leaves the client unless ``protect`` made it.

The guard has no state of its own, and learns of a release through a context variable that holds for one message: in
Ray workers and in SuperNodes alike, arrays leave the client only if ``protect`` made exactly these arrays for exactly
this message.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable

from ..errors import ConfigError, EquipoiseError, ReleaseError, place
from ..mechanism.registry import Mechanism
from .run_config import PREFIX, Terms

log = logging.getLogger("flwr.equipoise")  # below Flower's own logger, so that its handlers serve

RECORD = "equipoise"
"""Key of the config record that says how a reply was protected; also the prefix of its metrics."""

NUMBERS = ("lower", "upper", "intensity")
"""What a reply says of its release (``told``). Utility loss and clipping stay with the client."""

MOST_METRICS = 32
"""Metrics of a reply to an evaluate or query message: enough for any report, too few for a model."""

LONGEST_NAME = 100


@dataclass(frozen=True)
class _Made:
    """One result of ``protect``. The arrays are the guard's own: what the app does to its copy changes nothing."""

    arrays: ArrayRecord
    record: dict[str, Any]
    terms: Terms


@dataclass
class _Passage:
    """What ``protect`` did during one message."""

    message: Message
    made: dict[str, _Made] = field(default_factory=dict)  # by digest: what may leave


_passage: ContextVar[_Passage | None] = ContextVar("equipoise_passage", default=None)


def let_pass(arrays: ArrayRecord, record: dict[str, Any], terms: Terms) -> None:
    """Tell the guard around the present message, if there is one, what ``protect`` made for it."""
    passage = _passage.get()
    if passage is not None:
        passage.made[digest(arrays)] = _Made(_copy(arrays), record, terms)


def guard(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod for ``ClientApp(mods=[guard])``: nothing is sent unless ``protect`` made it, for this message.

    It must be the first of several mods: those before it see the reply after the guard and can change it.

    Of a train reply it lets through: the arrays, the weight, the metrics that the run config names, and the record of
    the release; of any other reply the metrics. Errors are sent by their type alone, because what they say may quote
    private data; this client's log has the place of an error, and with ``equipoise.verbose-errors`` its words.
    """
    outer = _passage.get()
    if outer is not None and outer.message is msg:
        return call_next(msg, context)  # the guard around this one will look
    passage = _Passage(msg)
    token = _passage.set(passage)
    try:
        reply = call_next(msg, context)
        if reply.has_error():  # what it says may quote private data too
            return Message(Error(code=reply.error.code, reason="The client app reported an error."), reply_to=msg)
        return _checked(msg, reply, passage)
    except Exception as error:
        loud = context.node_config.get(f"{PREFIX}verbose-errors") is True
        log.error("Nothing is sent: %s", _words(error) if loud else _place(error))
        shown = error if loud else _alone(error)  # Flower logs the whole chain
        raise ReleaseError(f"The client refused or failed: {type(error).__name__}.", "Its own log says why.") from shown
    finally:
        _passage.reset(token)


def _checked(msg: Message, reply: Message, passage: _Passage) -> Message:
    content, training = reply.content, msg.metadata.message_type.split(".")[0] == "train"
    if training and not passage.made:
        raise ReleaseError(
            "The train function returned without protecting its update.",
            "Send what protect or protected_step of equipoise.flower returns, not ArrayRecord(model.state_dict()).",
        )
    sent = [passage.made.get(digest(arrays)) for arrays in content.array_records.values()]
    if None in sent:
        raise ReleaseError(
            "The reply holds arrays that are not what protect returned for this message.",
            "Send its result unchanged, and nothing else.",
        )
    if len(sent) != (1 if training else 0):
        raise ReleaseError(
            f"The reply holds {len(sent)} sets of arrays, expected {1 if training else 0}. Only a train reply may hold "
            "one, and two distortions of one model would have less noise in their mean.",
            "Send one result of protect.",
        )
    names = [*content, *(key for part in content.metric_records.values() for key in part)]
    if len(content) > MOST_METRICS or any(len(name) > LONGEST_NAME for name in names):
        raise ReleaseError(
            "The reply has too many records, or too long a name: these could hold anything.",
            "Send one record of arrays and one of metrics.",
        )
    made = sent[0] if sent else None
    reply.content = _evaluation(content) if made is None else _allowed_content(content, made)
    return reply


def _place(error: Exception) -> str:
    """Our own errors quote no data; of others, what and where."""
    if isinstance(error, EquipoiseError):
        return str(error)
    return f"{place(error)} (equipoise.verbose-errors says more)"


def _words(error: Exception) -> str:
    """All that is said, by the app's own error too where ours stands for it."""
    behind = error.__cause__ or error.__context__
    return str(error) if behind is None else f"{error} [{type(behind).__name__}: {behind}]"


def _alone(error: Exception) -> Exception | None:
    """Our own error, without what lies behind it: that may be the app's, and quote private data."""
    if not isinstance(error, EquipoiseError):
        return None
    error.__cause__ = error.__context__ = None
    return error


def _evaluation(content: RecordDict) -> RecordDict:
    """Single numbers, and not many: lists of them could hold anything."""
    records = content.metric_records
    kept: dict[str, dict[str, Any]] = {
        name: {key: value for key, value in part.items() if not isinstance(value, list)}
        for name, part in records.items()
    }
    if sum(map(len, kept.values())) > MOST_METRICS:
        raise ReleaseError(f"The reply has more than {MOST_METRICS} metrics.", "Send fewer.")
    if content.config_records or any(len(kept[name]) < len(records[name]) for name in kept):
        log.warning("Held back: config records and lists of numbers")
    return RecordDict({name: MetricRecord(part) for name, part in kept.items()})


def _allowed_content(content: RecordDict, made: _Made) -> RecordDict:
    terms, record = made.terms, made.record
    metrics = {key: value for part in content.metric_records.values() for key, value in part.items()}
    missing = [key for key in (terms.weight, *terms.metrics) if key not in metrics]
    if missing:
        raise ConfigError(f"The reply has no metric {missing[0]!r}.", "Set equipoise.weight and equipoise.metrics.")
    kept = {key: metrics[key] for key in (terms.weight, *terms.metrics)}
    lists = [key for key, value in kept.items() if isinstance(value, list)]
    if lists:
        raise ReleaseError(f"The metric {lists[0]!r} is a list, which could hold anything.", "Send single numbers.")
    held = [*(set(metrics) - set(kept)), *(f"config {name!r}" for name in content.config_records)]
    if held:
        log.warning("Held back, because equipoise.metrics does not name it: %s", ", ".join(sorted(held)))
    kept |= {f"{RECORD}.{name}": value for name, value in told(record, terms.mechanism).items()}
    about = {
        "mechanism": record["mechanism"],
        "budget": json.dumps(terms.budget),
        "round": record["round"],
        "experiment": record["experiment"] or "",
    }
    name = next(iter(content.metric_records))
    arrays = next(iter(content.array_records))
    return RecordDict({arrays: made.arrays, name: MetricRecord(kept), RECORD: ConfigRecord(about)})


def told(record: Mapping[str, Any], mechanism: Mechanism) -> dict[str, float]:
    """The numbers of a release that the server may know.

    The exact norm of a noise is as good as the noise to someone who guesses at the batch: a guess is right if and only
    if what remains of the release has that norm. So what a draw decided is told to two digits, which says no more than
    how such norms spread anyway, and nothing at all where a guarantee of differential privacy would be lost by it.
    Exact numbers are in the client's own record and ledger.

    >>> from equipoise.mechanism.registry import get_mechanism
    >>> told({"lower": 7.99975, "upper": 15.9995, "intensity": 9.87654}, get_mechanism("pl-learn"))
    {'lower': 7.99975, 'upper': 15.9995, 'intensity': 9.9}
    >>> told({"lower": 1664.2, "upper": 1664.2, "intensity": 1664.2}, get_mechanism("laplace-dp"))
    {}
    """
    if mechanism.formal:
        return {}
    fixed = ("lower", "upper") if mechanism.on_sphere else ()  # these follow from the budget
    return {name: float(record[name] if name in fixed else f"{record[name]:.2g}") for name in NUMBERS}


def _copy(arrays: ArrayRecord) -> ArrayRecord:
    """Other objects around the same bytes."""
    return ArrayRecord({name: Array(a.dtype, tuple(a.shape), a.stype, a.data) for name, a in arrays.items()})


def digest(arrays: ArrayRecord) -> str:
    """Identifies arrays by name, form and content."""
    result = hashlib.sha256()
    for name, array in arrays.items():
        result.update(repr((name, array.dtype, array.shape, array.stype, len(array.data))).encode())
        result.update(array.data)
    return result.hexdigest()
