"""A mod around a client app that fails closed: nothing leaves the client unless ``protect`` made it.

The guard has no state of its own, and learns of a release through a context variable that holds for one message: in
Ray workers and in SuperNodes alike, arrays leave the client only if ``protect`` made exactly these arrays for exactly
this message, the only ones. Every reply is a new one, all of whose names are the guard's or the policy's.

The app gets copies of the message and of the context. The model that is distorted, the round, the policy, the count of
releases and whom the reply is for are read from what came, which the app never holds.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode

from ..errors import ConfigError, EquipoiseError, PolicyError, ReleaseError, is_finite, place
from ..mechanism.registry import Mechanism
from .admission import NUMBERS, RECORD, Admission, admitted, counting
from .copies import copy_arrays, copy_context, copy_message, state_with
from .policy import Evaluation, Policy, policy_of
from .run_config import PREFIX, WEIGHT, Terms

log = logging.getLogger("flwr.equipoise")  # below Flower's own logger, so that its handlers serve

REFUSED = "The node refused or failed."
"""All that a server learns of what went wrong on a node."""
MOST_EXAMPLES = 2**31
"""More than a node has, and no room for a text."""


@dataclass(frozen=True)
class _Made:
    """One result of ``protect``. The arrays are the guard's own: what the app does to its copy changes nothing."""

    digest: str
    arrays: ArrayRecord
    record: dict[str, Any]
    terms: Terms


@dataclass
class _Passage:
    """One message and its context as they came, the message that the app got in its place, and what it did with it."""

    message: Message
    context: Context
    handed: Message | None = None
    policy: Policy | None = None
    admission: Admission | None = None
    begun: bool = False
    made: _Made | None = None


@dataclass(frozen=True)
class Begun:
    """A release that is admitted and charged, with the message and the context that it is for."""

    admission: Admission
    message: Message
    context: Context


_passage: ContextVar[_Passage | None] = ContextVar("equipoise_passage", default=None)


def begin(msg: Message, context: Context) -> Begun:
    """Whoever makes a release for the present message says so first: there is one, or the app could choose.

    Returns what the guard around the message got, admitted and charged, whatever message and context the app passes on.
    """
    passage = _passage.get()
    if passage is None:
        return Begun(_charged(msg, context, None), msg, context)
    if passage.begun:
        raise ReleaseError(
            "protect was called a second time for one message: of several releases the app could send the one it "
            "likes, and their mean would have less noise.",
            "Call it once.",
        )
    passage.begun = True
    if passage.admission is None:  # a simulation without a run config: the app tells one, and nothing else
        told = copy_context(passage.context, passage.context.state, context.run_config)
        passage.admission = _charged(passage.message, told, passage.policy)
    return Begun(passage.admission, passage.message, passage.context)


def _charged(msg: Message, context: Context, policy: Policy | None) -> Admission:
    admission = admitted(msg, context, policy)
    with counting(admission, context) as counted:
        return counted.charge(admission)


def let_pass(arrays: ArrayRecord, record: dict[str, Any], terms: Terms) -> None:
    """Tell the guard around the present message, if there is one, what ``protect`` made for it."""
    passage = _passage.get()
    if passage is not None:
        passage.made = _Made(digest(arrays), copy_arrays(arrays), record, terms)


def guard(msg: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A mod for ``ClientApp(mods=[guard])``: nothing is sent unless ``protect`` made it, for this message.

    It must be the first of several mods: those before it see the reply after the guard and can change it.

    What the node's policy does not allow is refused before the app is called. Of a train reply the guard lets through
    the arrays, the weight, the metrics that run config and policy name, and the record of the release; of an evaluation
    the metrics that the policy names. Of an error the server learns that there was one; this client's log has its
    place, and with the policy's ``verbose-errors`` its words.
    """
    outer = _passage.get()
    if outer is not None and outer.handed is msg:
        return call_next(msg, context)  # the guard around this one will look
    passage, loud = _Passage(msg, context), False
    token = _passage.set(passage)
    try:
        policy = passage.policy = policy_of(context.node_config)
        loud = policy.verbose_errors
        training = _permit(passage, policy)
        reply = _called(call_next, passage)
        if reply.has_error():
            raise ReleaseError("The client app reported an error.", "See what it logged.")
        content = _trained(reply.content, passage.made, policy) if training else _evaluated(reply.content, policy)
        return Message(content, reply_to=msg)
    except BaseException as error:  # of whatever kind: its words, its class or its exit code could be anything
        if type(error) is KeyboardInterrupt:
            raise KeyboardInterrupt from None  # Ctrl-C, without any words
        _log_refusal(error, loud)
        return Message(Error(code=ErrorCode.MOD_FAILED_PRECONDITION, reason=REFUSED), reply_to=msg)
    finally:
        _passage.reset(token)


def _called(call_next: ClientAppCallable, passage: _Passage) -> Message:
    """The app's reply to a copy of the message, in a copy of the context.

    Flower keeps the context from one message to the next, with the name of the policy in it. Of what the app did to its
    copy only the state goes back, and not the count in it.
    """
    came = passage.context
    theirs = copy_context(came, state_with(came.state, RECORD, _count(came)), came.run_config)
    passage.handed = copy_message(passage.message)
    try:
        return call_next(passage.handed, theirs)
    finally:
        came.state = state_with(theirs.state, RECORD, _count(came))


def _count(context: Context) -> ConfigRecord | None:
    """What the node has counted in this run."""
    return context.state.config_records.get(RECORD)


def _permit(passage: _Passage, policy: Policy) -> bool:
    """Raise unless the policy allows what the message asks for; whether that is training."""
    kind = passage.message.metadata.message_type.split(".")[0]
    if kind == "train":
        if any(key.startswith(PREFIX) for key in passage.context.run_config):  # Flower's run_simulation has none
            passage.admission = _charged(passage.message, passage.context, policy)
        return True
    if kind != "evaluate" or policy.evaluation is None:
        raise PolicyError(
            f"The policy of this node lets no reply to a message of type {kind!r} leave.",
            "For evaluations, give the policy a table [evaluation].",
        )
    return False


def _trained(content: RecordDict, made: _Made | None, policy: Policy) -> RecordDict:
    """What may leave of a train reply, in records of the guard's own."""
    if made is None:
        raise ReleaseError(
            "The train function returned without protecting its update.",
            "Send what protect or protected_step of equipoise.flower returns, not ArrayRecord(model.state_dict()).",
        )
    if [digest(arrays) for arrays in content.array_records.values()] != [made.digest]:
        raise ReleaseError(
            "The reply does not hold the arrays that protect returned for this message, and no others.",
            "Send its result unchanged, and nothing else.",
        )
    metrics = _metrics(content)
    kept = {WEIGHT: _weight(_examples(metrics), policy), **_single(metrics, made.terms.metrics)}
    held = [*(set(metrics) - set(kept)), *(f"config {name!r}" for name in content.config_records)]
    if held:
        log.warning("Held back, because equipoise.metrics does not name it: %s", ", ".join(sorted(held)))
    kept |= {f"{RECORD}.{name}": value for name, value in told(made.record, made.terms.mechanism).items()}
    about = {
        "mechanism": made.record["mechanism"],
        "budget": json.dumps(made.terms.budget),
        "round": made.record["round"],
        "experiment": made.record["experiment"] or "",
    }
    return RecordDict({"arrays": made.arrays, "metrics": MetricRecord(kept), RECORD: ConfigRecord(about)})


def _metrics(content: RecordDict) -> dict[str, Any]:
    return {key: value for part in content.metric_records.values() for key, value in part.items()}


def _examples(metrics: Mapping[str, Any]) -> int | None:
    """How many examples a reply says that it is of; None where that is no whole number, which could hold anything."""
    value = metrics.get(WEIGHT)
    return int(value) if is_finite(value) and value == int(value) and 1 <= value <= MOST_EXAMPLES else None


def _weight(examples: int | None, policy: Policy) -> float | int:
    """The policy's own, or the number of examples."""
    if policy.weight is not None:
        return policy.weight
    if examples is None:
        raise ReleaseError(
            f"The metric {WEIGHT!r} is not a whole number of examples.", "Send the number of examples trained on."
        )
    return examples


def _single(metrics: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """The metrics of these names, as plain floats: a list, or a whole number of any length, could hold anything."""
    missing = [name for name in names if name not in metrics]
    if missing:
        raise ConfigError(f"The reply has no metric {missing[0]!r}.", "Send it, or take it out of equipoise.metrics.")
    odd = [name for name in names if not is_finite(metrics[name])]
    if odd:
        raise ReleaseError(f"The metric {odd[0]!r} is no finite number.", "Send single numbers.")
    return {name: float(metrics[name]) for name in names}


def _evaluated(content: RecordDict, policy: Policy) -> RecordDict:
    """What may leave of an evaluation: the policy's metrics, from enough examples."""
    allowed = policy.evaluation
    assert isinstance(allowed, Evaluation)
    if content.array_records:
        raise ReleaseError("The reply to an evaluate message holds arrays.", "Send metrics alone.")
    metrics = _metrics(content)
    examples = _examples(metrics)
    if examples is None or examples < allowed.least_examples:
        raise ReleaseError(
            f"The evaluation is of fewer examples than the policy's {allowed.least_examples}, or does not say of how "
            f"many ({WEIGHT!r}).",
            "Evaluate on more.",
        )
    names = tuple(name for name in allowed.metrics if name in metrics)
    return RecordDict({"metrics": MetricRecord({**_single(metrics, names), WEIGHT: _weight(examples, policy)})})


def _log_refusal(error: BaseException, loud: bool) -> None:
    """Say on this node why nothing is sent. An error that cannot be told, whose words fail say, is no way out."""
    words = "an error that cannot be told"
    with suppress(BaseException):
        words = _words(error) if loud else _place(error)
    with suppress(BaseException):
        log.error("Nothing is sent: %s", words)


def _place(error: BaseException) -> str:
    """Our own errors quote no data; of others, what and where."""
    if isinstance(error, EquipoiseError):
        return str(error)
    return f"{place(error)} (verbose-errors in the policy says more)"


def _words(error: BaseException) -> str:
    """All that is said, by the app's own error too where ours stands for it."""
    behind = error.__cause__ or error.__context__
    return str(error) if behind is None else f"{error} [{type(behind).__name__}: {behind}]"


def told(record: Mapping[str, Any], mechanism: Mechanism) -> dict[str, float]:
    """The numbers of a release that the server may know.

    The exact norm of a noise is as good as the noise to someone who guesses at the batch: a guess is right if and only
    if what remains of the release has that norm. So what a draw decided is told to two digits, which says no more than
    how such norms spread anyway, and nothing at all where a guarantee of differential privacy would be lost by it, or
    where the update itself is shaped: what becomes of it is a function of the batch, with little noise or none.
    Exact numbers are in the client's own record and ledger.

    >>> from equipoise.mechanism.registry import get_mechanism
    >>> told({"lower": 7.99975, "upper": 15.9995, "intensity": 9.87654}, get_mechanism("pl-learn"))
    {'lower': 7.99975, 'upper': 15.9995, 'intensity': 9.9}
    >>> sizes = {"lower": 1664.2, "upper": 1664.2, "intensity": 1664.2}
    >>> [told(sizes, get_mechanism(name)) for name in ("laplace-dp", "pruning")]
    [{}, {}]
    """
    if mechanism.formal or mechanism.shaping is not None:
        return {}
    fixed = ("lower", "upper") if mechanism.on_sphere else ()  # these follow from the budget
    return {name: float(record[name] if name in fixed else f"{record[name]:.2g}") for name in NUMBERS}


def digest(arrays: ArrayRecord) -> str:
    """Identifies arrays by name, form and content."""
    result = hashlib.sha256()
    for name, array in arrays.items():
        result.update(repr((name, array.dtype, array.shape, array.stype, len(array.data))).encode())
        result.update(array.data)
    return result.hexdigest()
