"""The guard lets nothing out that ``protect`` did not make for the same message, and fails closed."""

from __future__ import annotations

import copy
import logging
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.common.constant import ErrorCode
from torch import Tensor, nn

from equipoise.errors import ReleaseError
from equipoise.flower import client_guard as module
from equipoise.flower import guard, protect, protected_step
from equipoise.ledger.account import Account
from tests.flower.messages import (
    LOWER,
    RUN,
    Train,
    answered,
    asking,
    content,
    context,
    honest,
    images,
    network,
    start,
)
from tests.flower.policies import easy, node

MARKER = "patient 4711"
ODD = "does not hold the arrays that protect returned for this message, and no others"


def unprotected(msg: Message, context: Context) -> Message:
    return Message(content(ArrayRecord(network().state_dict())), reply_to=msg)


def tensors(reply: Message) -> dict[str, Tensor]:
    return dict(reply.content["arrays"].to_torch_state_dict())


class Heard(logging.Handler):
    """What the node's own log says."""

    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


def refused(train: Train, words: str, **options: Any) -> str:
    """Nothing leaves but that it was refused; why is in the node's own log, which is returned."""
    heard, log = Heard(), logging.getLogger("flwr.equipoise")
    log.addHandler(heard)
    try:
        reply = answered(train, **options)
    finally:
        log.removeHandler(heard)
    assert reply.has_error()
    assert (reply.error.code, reply.error.reason) == (ErrorCode.MOD_FAILED_PRECONDITION, module.REFUSED)
    said = "\n".join(heard.said)
    assert words in said
    return said


def test_what_protect_made_passes_with_its_record() -> None:
    result = answered(honest)
    assert set(result.content) == {"arrays", "metrics", "equipoise"}
    assert dict(result.content["equipoise"]) == {
        "mechanism": "pl-identical", "budget": "0.98", "round": 1, "experiment": "",
    }  # fmt: skip
    metrics = result.content["metrics"]
    assert set(metrics) == {"num-examples", "loss", "equipoise.lower", "equipoise.upper", "equipoise.intensity"}
    assert metrics["equipoise.lower"] == pytest.approx(LOWER)
    assert metrics["equipoise.intensity"] == 8.0, "what the draw decided is told to two digits"
    assert not torch.equal(tensors(result)["1.weight"], start()["1.weight"])


def test_an_unprotected_update_is_not_sent() -> None:
    refused(unprotected, "returned without protecting its update")


def test_a_train_function_of_another_name_is_guarded_too() -> None:
    special = asking(kind="train.special")
    refused(unprotected, "returned without protecting its update", msg=special)
    assert "arrays" in answered(honest, asking(kind="train.special")).content


def test_protecting_and_then_sending_something_else_is_not_enough() -> None:
    def raw(msg: Message, context: Context) -> Message:
        protect(network(), images(), msg, context)
        return unprotected(msg, context)

    refused(raw, ODD)


def changed(arrays: ArrayRecord) -> Iterator[ArrayRecord]:
    """Arrays that are nearly what ``protect`` made."""
    last = arrays["1.bias"].numpy().copy()
    last[0] = np.nextafter(last[0], np.float32(np.inf))
    yield ArrayRecord({**arrays, "1.bias": Array(last)})
    yield ArrayRecord({**arrays, "more": Array(last)})
    yield ArrayRecord({"1.bias": arrays["1.bias"]})
    yield ArrayRecord({"1.bias": arrays["1.weight"], "1.weight": arrays["1.bias"]})
    yield ArrayRecord({"other": arrays["1.weight"], "1.bias": arrays["1.bias"]})
    yield ArrayRecord({**arrays, "1.bias": Array("float32", (3,), "x", arrays["1.bias"].data)})
    yield ArrayRecord({})


@pytest.mark.parametrize("kind", range(7))
def test_a_result_that_was_changed_afterwards_is_not_sent(kind: int) -> None:
    def touched(msg: Message, context: Context) -> Message:
        arrays = protect(network(), images(), msg, context)
        return Message(content(list(changed(arrays))[kind]), reply_to=msg)

    refused(touched, ODD)


def test_a_result_that_was_changed_in_place_is_not_sent() -> None:
    def touched(msg: Message, context: Context) -> Message:
        arrays = protect(network(), images(), msg, context)
        arrays["1.weight"] = Array(network().state_dict()["1.weight"].numpy())
        return Message(content(arrays), reply_to=msg)

    refused(touched, ODD)


def test_other_arrays_beside_the_protected_ones_are_not_sent() -> None:
    def more(msg: Message, context: Context) -> Message:
        arrays = protect(network(), images(), msg, context)
        return Message(content(arrays, gradients=ArrayRecord(start())), reply_to=msg)

    refused(more, ODD)


def evaluating(metrics: dict[str, Any], **records: Any) -> Train:
    def evaluate(msg: Message, context: Context) -> Message:
        return Message(RecordDict({"m": MetricRecord(metrics), **records}), reply_to=msg)

    return evaluate


def test_arrays_are_not_sent_in_an_evaluation() -> None:
    for train in (unprotected, honest):
        refused(train, "The reply to an evaluate message holds arrays", msg=asking(kind="evaluate"))


def test_an_evaluation_holds_the_metrics_of_the_policy_and_no_other_name() -> None:
    given = {"num-examples": 60, "accuracy": 0.5, MARKER: 1.0, "pixels": [0.125, 0.25]}
    reply = answered(evaluating(given, notes=ConfigRecord({"name": MARKER})), asking(kind="evaluate"))
    assert {name: dict(part) for name, part in reply.content.items()} == {
        "metrics": {"num-examples": 60, "accuracy": 0.5}
    }


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num-examples": 99, "accuracy": 0.5}, "fewer examples than the policy's 100"),
        ({"accuracy": 0.5}, "fewer examples than the policy's 100"),
        ({"num-examples": 100.5, "accuracy": 0.5}, "fewer examples than the policy's 100"),
        ({"num-examples": 100, "accuracy": [0.5, 0.25]}, "The metric 'accuracy' is no finite number"),
        ({"num-examples": 100, "accuracy": float("nan")}, "The metric 'accuracy' is no finite number"),
    ],
)
def test_an_evaluation_needs_enough_examples_and_single_numbers(
    given: dict[str, Any], words: str, tmp_path: Path
) -> None:
    about = context(node=node(tmp_path / "p.toml", evaluation={"metrics": ["accuracy"], "least-examples": 100}))
    refused(evaluating(given), words, msg=asking(kind="evaluate"), about=about)
    fine = answered(evaluating({"num-examples": 100, "accuracy": 0.5}), asking(kind="evaluate"), about)
    assert not fine.has_error()


def test_evaluations_are_off_unless_the_policy_has_them_and_with_a_formal_guarantee(tmp_path: Path) -> None:
    given = evaluating({"num-examples": 60, "accuracy": 0.5})
    closed = context(node=node(tmp_path / "p.toml", evaluation=None))
    refused(given, "lets no reply to a message of type 'evaluate' leave", msg=asking(kind="evaluate"), about=closed)
    for run in (
        {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 1.0},
        {"equipoise.mechanism": "none"},
        {"lr": 0.1},
    ):
        formal = node(tmp_path / "f.toml", mechanisms=easy("laplace-dp"), weight=1)
        refused(given, "of type 'evaluate'", msg=asking(kind="evaluate"), about=context(run, formal))
        both = node(tmp_path / "b.toml", mechanisms=easy("laplace-dp"), evaluation={"metrics": [], "least-examples": 1})
        refused(given, "its guarantee does not cover them", msg=asking(kind="evaluate"), about=context(run, both))


def test_replies_to_queries_do_not_leave() -> None:
    refused(evaluating({"num-examples": 60}), "a message of type 'query'", msg=asking(kind="query"))


def test_protection_of_an_earlier_message_does_not_count() -> None:
    kept: list[ArrayRecord] = []

    def once(msg: Message, context: Context) -> Message:
        if not kept:
            kept.append(protect(network(), images(), msg, context))
        return Message(content(kept[0]), reply_to=msg)

    assert "arrays" in answered(once).content
    refused(once, "returned without protecting its update", msg=asking(round_number=2))


def test_an_earlier_result_is_not_sent_again_even_after_protecting() -> None:
    """A server that gets the same noise on two updates learns their difference."""
    kept: list[ArrayRecord] = []

    def stale(msg: Message, context: Context) -> Message:
        kept.append(protect(network(), images(), msg, context))
        return Message(content(kept[0]), reply_to=msg)

    assert "arrays" in answered(stale).content
    refused(stale, ODD, msg=asking(round_number=2))


def test_a_train_function_cannot_choose_among_releases() -> None:
    """Of five releases the app could send the one that it likes, or their mean, which has less noise."""
    counts: list[int] = []

    def choosing(msg: Message, context: Context) -> Message:
        kept = [protect(network(), images(), msg, context)]
        with pytest.raises(ReleaseError, match="a second time for one message"):
            protect(network(), images(), msg, context)
        with pytest.raises(ReleaseError, match="a second time for one message"):
            protected_step(network(), images(), msg, context)
        counts.append(context.state["equipoise"]["releases"])
        return Message(content(kept[0]), reply_to=msg)

    assert "arrays" in answered(choosing).content
    assert counts == [1], "nor is the second one counted"


def test_what_failed_is_not_tried_again_with_other_arguments() -> None:
    def retrying(msg: Message, context: Context) -> Message:
        try:
            protected_step(network(), 3, msg, context)
        except Exception:
            return Message(content(protect(network(), images(), msg, context)), reply_to=msg)
        raise AssertionError

    refused(retrying, "a second time for one message")


def test_a_message_that_is_delivered_again_is_charged_again() -> None:
    msg, about = asking(), context()
    first, second = answered(honest, msg, about), answered(honest, msg, about)
    assert not torch.equal(tensors(first)["1.weight"], tensors(second)["1.weight"])
    assert about.state["equipoise"]["releases"] == 2


def test_a_message_inside_a_message_has_a_passage_of_its_own() -> None:
    def outer(msg: Message, context: Context) -> Message:
        inner = answered(honest, asking(round_number=2))
        return Message(content(inner.content["arrays"]), reply_to=msg)

    refused(outer, "returned without protecting its update")


def test_a_message_inside_a_message_does_not_end_the_outer_passage() -> None:
    def outer(msg: Message, context: Context) -> Message:
        arrays = protect(network(), images(), msg, context)
        answered(honest, asking(round_number=2))
        assert answered(unprotected, asking(round_number=3)).has_error()
        return Message(content(arrays), reply_to=msg)

    assert "arrays" in answered(outer).content
    assert module._passage.get() is None


def test_two_guards_are_no_less_than_one() -> None:
    refused(unprotected, "returned without protecting its update", mods=[guard, guard])
    assert "arrays" in answered(honest, mods=[guard, guard]).content


def test_threads_do_not_share_a_passage() -> None:
    """Two messages at once: the protection of one is none of the other's."""
    both = threading.Barrier(2)

    def waiting(train: Train) -> Train:
        def together(msg: Message, context: Context) -> Message:
            both.wait(10)
            reply = train(msg, context)
            both.wait(10)
            return reply

        return together

    result: dict[str, Any] = {}

    def run(name: str, train: Train) -> None:
        result[name] = answered(waiting(train))

    threads = [threading.Thread(target=run, args=pair) for pair in (("good", honest), ("bad", unprotected))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert "arrays" in result["good"].content
    assert result["bad"].has_error()


def test_protecting_in_another_thread_fails_closed() -> None:
    def elsewhere(msg: Message, context: Context) -> Message:
        made: list[ArrayRecord] = []
        thread = threading.Thread(target=lambda: made.append(protect(network(), images(), msg, context)))
        thread.start()
        thread.join(20)
        return Message(content(made[0]), reply_to=msg)

    refused(elsewhere, "returned without protecting its update")


def test_only_named_metrics_are_sent(caplog: pytest.LogCaptureFixture) -> None:
    def chatty(msg: Message, context: Context) -> Message:
        arrays = protect(network(), images(), msg, context)
        metrics = MetricRecord({"num-examples": 6, "loss": 0.25, "train-loss": 0.1234, "pixels": [0.1, 0.2]})
        notes = ConfigRecord({"name": MARKER})
        return Message(RecordDict({"a": arrays, "m": metrics, "notes": notes}), reply_to=msg)

    with caplog.at_level(logging.WARNING, "flwr.equipoise"):
        result = answered(chatty)
    assert set(result.content) == {"arrays", "metrics", "equipoise"}, "names are the guard's own"
    assert {key for key in result.content["metrics"] if not key.startswith("equipoise.")} == {"num-examples", "loss"}
    assert "Held back, because equipoise.metrics does not name it: config 'notes', pixels, train-loss" in caplog.text
    assert MARKER not in caplog.text
    assert "0.1234" not in caplog.text


def test_a_forged_record_is_replaced_by_the_true_one() -> None:
    def lying(msg: Message, context: Context) -> Message:
        arrays = protect(network(), images(), msg, context, experiment_seed=3)
        metrics = MetricRecord({"num-examples": 6, "loss": 0.5, "equipoise.lower": 99.0})
        claim = ConfigRecord({"mechanism": "none", "experiment": ""})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics, "equipoise": claim}), reply_to=msg)

    result = answered(lying)
    assert result.content["metrics"]["equipoise.lower"] == pytest.approx(LOWER)
    assert result.content["equipoise"]["mechanism"] == "pl-identical"
    assert result.content["equipoise"]["experiment"] == "seeded"


def test_utility_loss_and_clipping_stay_with_the_client() -> None:
    result = answered(honest, about=context({**RUN, "equipoise.mechanism": "ls-static", "equipoise.budget": 200.0}))
    told = {key for key in result.content["metrics"] if key.startswith("equipoise.")}
    assert told == {"equipoise.lower", "equipoise.upper", "equipoise.intensity"}
    for key in told:
        value = result.content["metrics"][key]
        assert value == float(f"{value:.2g}"), "two digits of what a draw decided"


def test_the_noise_beside_the_update_is_told_to_this_nodes_log_alone(caplog: pytest.LogCaptureFixture) -> None:
    def train(msg: Message, context: Context) -> Message:
        model = network()
        with torch.no_grad():
            next(model.parameters()).add_(1.0)
        return Message(content(protect(model, images(), msg, context)), reply_to=msg)

    with caplog.at_level("INFO", logger="equipoise"):
        reply = answered(train)
    assert "times its update" in caplog.text
    assert "noise_to_update" not in str({name: dict(part) for name, part in reply.content.items()})


@pytest.mark.parametrize(("name", "budget"), [("pruning", 0.1), ("outpost", 1.25)])
def test_what_becomes_of_a_shaped_update_is_not_told(name: str, budget: float) -> None:
    """Sizes of it are a function of the batch; the server knows the mechanism and the budget."""
    result = answered(honest, about=context({**RUN, "equipoise.mechanism": name, "equipoise.budget": budget}))
    assert set(result.content["metrics"]) == {"num-examples", "loss"}
    assert result.content["equipoise"]["mechanism"] == name


def test_a_formal_guarantee_tells_nothing_of_its_noise(tmp_path: Path) -> None:
    def exact(msg: Message, context: Context) -> Message:
        return Message(content(protected_step(network(), images(), msg, context)), reply_to=msg)

    run = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 200.0}
    reply = answered(exact, about=context(run, node(tmp_path / "p.toml", weight=2.5)))
    assert dict(reply.content["metrics"]) == {"num-examples": 2.5}, "the policy's weight, not the number of examples"


def with_metrics(metrics: dict[str, Any]) -> Train:
    """A train function that protects and sends these metrics."""

    def train(msg: Message, context: Context) -> Message:
        arrays = protect(network(), images(), msg, context)
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=msg)

    return train


def test_a_reply_without_a_metric_asked_for_is_not_sent() -> None:
    refused(with_metrics({"num-examples": 6}), "The reply has no metric 'loss'")


@pytest.mark.parametrize("value", [[0.25, 0.5], float("nan"), float("inf")])
def test_only_single_finite_numbers_are_sent_as_metrics(value: Any) -> None:
    """A list could hold the model, or a batch."""
    refused(with_metrics({"num-examples": 6, "loss": value}), "The metric 'loss' is no finite number")


class Talkative(float):
    """A number with a text."""


@pytest.mark.parametrize("value", [Talkative(0.5), int.from_bytes(MARKER.encode(), "big")])
def test_a_metric_is_a_float_and_nothing_more(value: float) -> None:
    """In a simulation, whatever Python object it is would arrive; a whole number can be as long as a text."""
    sent = answered(with_metrics({"num-examples": 6, "loss": value})).content["metrics"]["loss"]
    assert (type(sent), sent) == (float, pytest.approx(float(value)))


@pytest.mark.parametrize("value", [0.6931, 0, -3, float("nan"), float("inf"), 2**31 + 1, 10**30, 1e300, [6], None])
def test_a_weight_is_a_whole_number_of_examples(value: Any) -> None:
    """A loss in its place would tell the loss."""
    given = {"loss": 0.5} if value is None else {"num-examples": value, "loss": 0.5}
    refused(with_metrics(given), "is not a whole number of examples")


def test_a_weight_that_the_policy_fixes_tells_nothing(tmp_path: Path) -> None:
    about = context(node=node(tmp_path / "p.toml", weight=1))
    for given in (6, 0.6931):
        reply = answered(with_metrics({"num-examples": given, "loss": 0.5}), about=about)
        assert reply.content["metrics"]["num-examples"] == 1.0


def test_nor_where_the_policy_names_it_among_the_metrics_of_an_evaluation(tmp_path: Path) -> None:
    table = {"metrics": ["num-examples"], "least-examples": 1}
    about = context(node=node(tmp_path / "p.toml", weight=1, evaluation=table, mechanisms=easy("pl-identical")))
    reply = answered(evaluating({"num-examples": 6}), asking(kind="evaluate"), about)
    assert dict(reply.content["metrics"]) == {"num-examples": 1.0}


def test_seeded_noise_does_not_leave_a_node(tmp_path: Path) -> None:
    """A seed left in an app: the server tries small integers and takes the noise off again."""

    def seeded(msg: Message, context: Context) -> Message:
        return Message(content(protect(network(), images(), msg, context, experiment_seed=42)), reply_to=msg)

    Account.create(tmp_path / "l.jsonl", "a1b2")
    strict = {"experiment": None, "account": "a1b2", "ledger": "l.jsonl"}
    about = context(node=node(tmp_path / "p.toml", **strict))
    refused(seeded, "The noise would be reproducible", about=about)
    assert not answered(honest, about=about).has_error()
    assert not answered(seeded).has_error(), "a policy that says experiment lets it"


def test_an_app_that_passes_on_another_context_is_held_to_the_nodes_policy(tmp_path: Path) -> None:
    strict = node(tmp_path / "strict.toml", mechanisms=easy("none"))
    loose = node(tmp_path / "loose.toml")

    def elsewhere(msg: Message, context: Context) -> Message:
        other = copy.copy(context)
        other.node_config, other.run_config = loose, RUN
        return Message(content(protect(network(), images(), msg, other)), reply_to=msg)

    run = {"equipoise.mechanism": "none"}
    reply = answered(elsewhere, about=context(run, strict))
    assert reply.content["equipoise"]["mechanism"] == "none", "what the guard admitted"
    refused(elsewhere, "does not allow the mechanism 'pl-identical'", about=context({"lr": 0.1}, strict))


def test_a_simulation_without_a_run_config_is_judged_when_the_app_tells_one(tmp_path: Path) -> None:
    def telling(msg: Message, context: Context) -> Message:
        other = copy.copy(context)
        other.run_config = RUN
        return Message(content(protect(network(), images(), msg, other)), reply_to=msg)

    assert not answered(telling, about=context({"lr": 0.1})).has_error()
    strict = node(tmp_path / "strict.toml", mechanisms=easy("none"))
    refused(telling, "does not allow the mechanism 'pl-identical'", about=context({"lr": 0.1}, strict))


def test_a_metrics_record_of_our_own_name_loses_nothing() -> None:
    def named(msg: Message, context: Context) -> Message:
        arrays = protect(network(), images(), msg, context)
        metrics = MetricRecord({"num-examples": 6, "loss": 0.25})
        return Message(RecordDict({"equipoise": metrics, "arrays": arrays}), reply_to=msg)

    reply = answered(named)
    assert reply.content["metrics"]["loss"] == 0.25
    assert reply.content["equipoise"]["mechanism"] == "pl-identical"


def test_what_the_app_does_to_its_arrays_after_the_guard_looked_changes_nothing() -> None:
    """The reply has the guard's own copy: of the record, and of the arrays in it."""
    raw = network().state_dict()["1.weight"].numpy()
    kept: list[ArrayRecord] = []

    def keeping(msg: Message, context: Context) -> Message:
        kept.append(protect(network(), images(), msg, context))
        return Message(content(kept[0]), reply_to=msg)

    def outside(msg: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(msg, context)
        kept[0]["1.bias"].data = Array(raw[:, 0].copy()).data
        kept[0]["1.weight"] = Array(raw)
        return reply

    made: dict[str, bytes] = {}

    def inside(msg: Message, context: Context, call_next: Any) -> Message:
        reply: Message = call_next(msg, context)
        made.update({name: array.data for name, array in reply.content["arrays"].items()})
        return reply

    result = answered(keeping, mods=[outside, guard, inside]).content["arrays"]
    assert {name: array.data for name, array in result.items()} == made
    assert kept[0]["1.weight"].data != made["1.weight"], "the app's own record did change"
    assert kept[0]["1.bias"].data != made["1.bias"]


def test_names_of_records_and_metrics_are_fixed() -> None:
    """Names could hold anything: a reply has those of the guard and of the policy."""

    def talkative(msg: Message, context: Context) -> Message:
        arrays = protect(network(), images(), msg, context)
        many = {f"{MARKER} {i}": MetricRecord({MARKER: 1.0}) for i in range(40)}
        metrics = MetricRecord({"num-examples": 6, "loss": 0.5})
        return Message(RecordDict({MARKER: arrays, "x" * 200: metrics, **many}), reply_to=msg)

    reply = answered(talkative)
    assert set(reply.content) == {"arrays", "metrics", "equipoise"}
    names = {name for part in reply.content.values() for name in part}
    assert MARKER not in "".join(names)


def broken(msg: Message, context: Context) -> Message:
    raise type(f"Error{MARKER}", (ValueError,), {})(f"cannot read the record of {MARKER}")


def reporting(msg: Message, context: Context) -> Message:
    return Message(Error(code=4711, reason=f"cannot read the record of {MARKER}"), reply_to=msg)


def leaving(msg: Message, context: Context) -> Message:
    raise SystemExit(4711)


def panicking(msg: Message, context: Context) -> Message:
    raise type("PanicException", (BaseException,), {})(f"row of {MARKER}")


def interrupting(msg: Message, context: Context) -> Message:
    raise type(f"Error{MARKER}", (KeyboardInterrupt,), {})(f"row of {MARKER}")


class Speechless(ReleaseError):
    """Its words are an error with words of its own."""

    def __init__(self) -> None:
        super().__init__("Nothing to send.", "Wait.")

    def __str__(self) -> str:
        raise ValueError(MARKER)


def speechless(msg: Message, context: Context) -> Message:
    raise Speechless


@pytest.mark.parametrize("train", [broken, reporting, leaving, panicking, interrupting, speechless])
def test_of_an_error_the_server_learns_that_there_was_one(train: Train) -> None:
    """Neither its words nor its class, its code or the reason that the app gives: each could be anything."""
    refused(train, "Nothing is sent")


def test_an_error_of_the_app_is_logged_by_its_place_and_only_on_demand_by_its_words(tmp_path: Path) -> None:
    def raising(msg: Message, context: Context) -> Message:
        raise ValueError(f"cannot read the record of {MARKER}")

    said = refused(raising, "ValueError at test_client_guard.py:")
    assert MARKER not in said
    refused(raising, MARKER, about=context(node=node(tmp_path / "p.toml", verbose_errors=True)))


@pytest.mark.parametrize("own", [False, True], ids=["cross-entropy", "own loss"])
def test_no_label_is_quoted_by_an_error(own: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Ours do not quote it; torch's own say "Target 4711 is out of bounds", and are told by their place alone."""

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        raise IndexError("Target 4711 is out of bounds.")

    def train(msg: Message, context: Context) -> Message:
        labels = torch.tensor([0, 1, 2, 0, 1, 4711])
        result = protected_step(network(), (images()[0], labels), msg, context, loss=loss if own else None)
        return Message(content(result), reply_to=msg)

    caplog.set_level(logging.DEBUG)
    refused(train, "Nothing is sent", about=context({**RUN, "equipoise.mechanism": "pl-learn"}))
    assert "4711" not in caplog.text


class Careless(nn.Sequential):
    """Quotes private data in its own error."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(4, 3))

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(f"cannot use {MARKER}")


def in_forward(msg: Message, context: Context) -> Any:
    return protect(Careless(), images(), msg, context)


def in_loss(msg: Message, context: Context) -> Any:
    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        raise ValueError(f"cannot use {MARKER}")

    return protected_step(network(), images(), msg, context, loss=loss)


def in_loader(msg: Message, context: Context) -> Any:
    return protect(network(), (int(word) for word in [MARKER]), msg, context)


def behind_ours(msg: Message, context: Context) -> Any:
    try:
        int(MARKER)
    except ValueError as error:
        raise ReleaseError("Nothing to send.", "Wait.") from error


def while_ours(msg: Message, context: Context) -> Any:
    try:
        int(MARKER)
    except ValueError:
        raise ReleaseError("Nothing to send.", "Wait.")  # noqa: B904


@pytest.mark.parametrize("train", [in_forward, in_loss, in_loader, behind_ours, while_ours])
def test_private_data_in_an_error_reaches_no_log_unless_the_node_asks_for_it(
    train: Train, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    run = {**RUN, "equipoise.mechanism": "pl-learn"}
    caplog.set_level(logging.DEBUG)
    refused(train, "Nothing is sent: ", about=context(run))
    assert MARKER not in caplog.text
    refused(train, MARKER, about=context(run, node(tmp_path / "p.toml", verbose_errors=True)))


def test_ctrl_c_is_not_turned_into_something_else() -> None:
    def stopped(msg: Message, context: Context) -> Message:
        raise KeyboardInterrupt(MARKER)

    with pytest.raises(KeyboardInterrupt) as caught:
        answered(stopped)
    assert MARKER not in "".join(traceback.format_exception(caught.value)).replace("KeyboardInterrupt(MARKER)", "")
    assert module._passage.get() is None
