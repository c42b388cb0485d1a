"""The guard lets nothing out that ``protect`` did not make for the same message, and fails closed."""

from __future__ import annotations

import logging
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from equipoise.errors import ReleaseError
from equipoise.flower import client_guard as module
from equipoise.flower import guard, protect, protected_step
from tests.flower.messages import (
    LOWER,
    RUN,
    Train,
    answered,
    asking,
    content,
    context,
    distance,
    honest,
    images,
    network,
    start,
)

MARKER = "patient 4711"


def unprotected(msg: Message, context: Context) -> Message:
    return Message(content(ArrayRecord(network().state_dict())), reply_to=msg)


def tensors(reply: Message) -> dict[str, Tensor]:
    return dict(reply.content["arrays"].to_torch_state_dict())


def refused(train: Train, words: str, **options: Any) -> None:
    """Nothing leaves: the guard raises; what went wrong is the cause, and is not told."""
    with pytest.raises(ReleaseError, match="The client refused or failed") as caught:
        answered(train, **options)
    log = "".join(traceback.format_exception(caught.value))
    assert words in log


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

    refused(raw, "The reply holds arrays that are not what protect returned for this message")


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

    refused(touched, "are not what protect returned")


def test_a_result_that_was_changed_in_place_is_not_sent() -> None:
    def touched(msg: Message, context: Context) -> Message:
        arrays = protect(network(), images(), msg, context)
        arrays["1.weight"] = Array(network().state_dict()["1.weight"].numpy())
        return Message(content(arrays), reply_to=msg)

    refused(touched, "are not what protect returned")


def test_other_arrays_beside_the_protected_ones_are_not_sent() -> None:
    def more(msg: Message, context: Context) -> Message:
        arrays = protect(network(), images(), msg, context)
        return Message(content(arrays, gradients=ArrayRecord(start())), reply_to=msg)

    refused(more, "arrays that are not what protect returned")


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_arrays_are_not_sent_in_other_replies_either(kind: str) -> None:
    refused(unprotected, "are not what protect returned", msg=asking(kind=kind))


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_other_replies_may_hold_metrics_alone(kind: str) -> None:
    def evaluate(msg: Message, context: Context) -> Message:
        return Message(content(None, notes=ConfigRecord({"a": 1})), reply_to=msg)

    result = answered(evaluate, asking(kind=kind))
    assert dict(result.content["metrics"]) == {"num-examples": 6, "loss": 0.5}
    assert "notes" not in result.content


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
    refused(stale, "are not what protect returned", msg=asking(round_number=2))


def test_the_record_is_that_of_the_arrays_that_are_sent() -> None:
    run = {**RUN, "equipoise.mechanism": "pl-learn"}
    sizes: list[float] = []

    def twice(msg: Message, context: Context) -> Message:
        model, rough = network(), network()
        first = protect(model, images(), msg, context)
        local = {name: tensor.double() for name, tensor in model.state_dict().items()}
        sizes.append(distance(dict(first.to_torch_state_dict()), local))
        context.run_config = {**run, "equipoise.budget": 0.99}
        protect(rough, images(), msg, context)
        return Message(content(first), reply_to=msg)

    result = answered(twice, about=context(run))
    assert result.content["metrics"]["equipoise.lower"] == pytest.approx(LOWER)
    assert result.content["metrics"]["equipoise.intensity"] == pytest.approx(sizes[0], rel=0.06)
    assert result.content["equipoise"]["budget"] == "0.98"


def test_a_message_inside_a_message_has_a_passage_of_its_own() -> None:
    def outer(msg: Message, context: Context) -> Message:
        inner = answered(honest, asking(round_number=2))
        return Message(content(inner.content["arrays"]), reply_to=msg)

    refused(outer, "returned without protecting its update")


def test_a_message_inside_a_message_does_not_end_the_outer_passage() -> None:
    def outer(msg: Message, context: Context) -> Message:
        arrays = protect(network(), images(), msg, context)
        answered(honest, asking(round_number=2))
        with pytest.raises(ReleaseError):
            answered(unprotected, asking(round_number=3))
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
        try:
            result[name] = answered(waiting(train))
        except ReleaseError as error:
            result[name] = error

    threads = [threading.Thread(target=run, args=pair) for pair in (("good", honest), ("bad", unprotected))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert "arrays" in result["good"].content
    assert isinstance(result["bad"], ReleaseError)


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
    assert set(result.content) == {"a", "m", "equipoise"}
    assert {key for key in result.content["m"] if not key.startswith("equipoise.")} == {"num-examples", "loss"}
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


def test_a_formal_guarantee_tells_nothing_of_its_noise() -> None:
    def exact(msg: Message, context: Context) -> Message:
        return Message(content(protected_step(network(), images(), msg, context)), reply_to=msg)

    run = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 200.0}
    assert set(answered(exact, about=context(run)).content["metrics"]) == {"num-examples"}


def with_metrics(metrics: dict[str, Any]) -> Train:
    """A train function that protects and sends these metrics."""

    def train(msg: Message, context: Context) -> Message:
        arrays = protect(network(), images(), msg, context)
        return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord(metrics)}), reply_to=msg)

    return train


@pytest.mark.parametrize("name", ["num-examples", "loss"])
def test_a_reply_without_its_weight_or_a_metric_asked_for_is_not_sent(name: str) -> None:
    metrics = {"num-examples": 6, "loss": 1.0}
    del metrics[name]
    refused(with_metrics(metrics), f"The reply has no metric '{name}'")


@pytest.mark.parametrize("name", ["num-examples", "loss"])
def test_a_list_of_numbers_is_not_sent_as_a_metric(name: str) -> None:
    """A list could hold the model, or a batch."""
    metrics: dict[str, Any] = {"num-examples": 6, "loss": 1.0, name: [0.25, 0.5]}
    refused(with_metrics(metrics), f"The metric '{name}' is a list")


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_lists_and_notes_of_other_replies_are_held_back(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    def evaluate(msg: Message, context: Context) -> Message:
        metrics = MetricRecord({"accuracy": 0.5, "pixels": [0.125, 0.25]})
        return Message(RecordDict({"m": metrics, "notes": ConfigRecord({"name": MARKER})}), reply_to=msg)

    with caplog.at_level(logging.WARNING, "flwr.equipoise"):
        result = answered(evaluate, asking(kind=kind))
    assert {name: dict(part) for name, part in result.content.items()} == {"m": {"accuracy": 0.5}}
    assert "Held back: config records and lists of numbers" in caplog.text
    assert MARKER not in caplog.text


@pytest.mark.parametrize("kind", ["evaluate", "query"])
@pytest.mark.parametrize("records", [1, 2])
def test_too_many_metrics_are_not_sent(kind: str, records: int) -> None:
    """A thousand single numbers are a model too; dividing them among records does not help."""

    def evaluate(msg: Message, context: Context) -> Message:
        names = [str(place) for place in range(many)]
        parts = [MetricRecord(dict.fromkeys(names[start::records], 0.5)) for start in range(records)]
        return Message(RecordDict({f"m{place}": part for place, part in enumerate(parts)}), reply_to=msg)

    many = module.MOST_METRICS
    assert sum(map(len, answered(evaluate, asking(kind=kind)).content.values())) == 32
    many += 1
    refused(evaluate, "more than 32 metrics", msg=asking(kind=kind))


def test_two_distortions_of_one_model_are_not_sent() -> None:
    def twice(msg: Message, context: Context) -> Message:
        second = protect(network(), images(), msg, context)
        return Message(content(protect(network(), images(), msg, context), second=second), reply_to=msg)

    refused(twice, "The reply holds 2 sets of arrays, expected 1")


@pytest.mark.parametrize("kind", ["evaluate", "query"])
def test_protected_arrays_belong_in_a_train_reply_alone(kind: str) -> None:
    refused(honest, "The reply holds 1 sets of arrays, expected 0", msg=asking(kind=kind))


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


@pytest.mark.parametrize(
    "records",
    [
        {"x" * 101: MetricRecord({"loss": 1.0})},
        {"metrics": MetricRecord({"x" * 101: 1.0})},
        {f"part {i}": MetricRecord() for i in range(40)},
    ],
    ids=["record", "metric", "many"],
)
@pytest.mark.parametrize("kind", ["train", "evaluate", "query"])
def test_names_cannot_hold_a_model(kind: str, records: dict[str, MetricRecord]) -> None:
    def talkative(msg: Message, context: Context) -> Message:
        own = {"arrays": protect(network(), images(), msg, context)} if kind == "train" else {}
        return Message(RecordDict({**own, **records}), reply_to=msg)

    refused(talkative, "too many records, or too long a name", msg=asking(kind=kind))


def test_an_error_is_told_by_its_type_alone() -> None:
    def broken(msg: Message, context: Context) -> Message:
        raise ValueError(f"cannot read the record of {MARKER}")

    with pytest.raises(ReleaseError) as caught:
        answered(broken)
    assert str(caught.value) == "The client refused or failed: ValueError. Its own log says why."
    reason = f"{type(caught.value)}:<'{caught.value}'>"  # as Flower tells the server
    assert MARKER not in reason


def test_an_error_of_the_app_is_logged_by_its_place_and_only_on_demand_by_its_words(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(msg: Message, context: Context) -> Message:
        raise ValueError(f"cannot read the record of {MARKER}")

    with pytest.raises(ReleaseError) as caught:
        answered(broken)
    shown = caplog.text + "".join(traceback.format_exception(caught.value))  # Flower logs the exception with its chain
    assert MARKER not in shown
    assert "ValueError at test_client_guard.py:" in caplog.text
    loud = context()
    loud.node_config["equipoise.verbose-errors"] = True
    with pytest.raises(ReleaseError):
        answered(broken, about=loud)
    assert MARKER in caplog.text


def test_an_error_that_the_app_reports_itself_is_told_by_its_code_alone() -> None:
    def reporting(msg: Message, context: Context) -> Message:
        return Message(Error(code=7, reason=f"cannot read the record of {MARKER}"), reply_to=msg)

    result = answered(reporting)
    assert result.error.code == 7
    assert MARKER not in str(result.error.reason)


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
    with pytest.raises(ReleaseError, match="ModelError" if own else "DataError") as caught:
        answered(train, about=context({**RUN, "equipoise.mechanism": "pl-learn"}))
    shown = caplog.text + "".join(traceback.format_exception(caught.value))
    assert "4711" not in shown
    assert "Nothing is sent" in caplog.text


class Careless(nn.Module):
    """Quotes private data in its own error."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        raise ValueError(f"cannot use {MARKER}")


def in_forward(msg: Message, context: Context) -> Any:
    received = {name: tensor.clone() for name, tensor in Careless().state_dict().items()}
    msg.content["arrays"] = ArrayRecord(received)
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


@pytest.mark.parametrize("broken", [in_forward, in_loss, in_loader, behind_ours, while_ours])
def test_private_data_in_an_error_reaches_no_log_unless_the_node_asks_for_it(
    broken: Train, caplog: pytest.LogCaptureFixture
) -> None:
    run = {**RUN, "equipoise.mechanism": "pl-learn"}
    caplog.set_level(logging.DEBUG)
    with pytest.raises(ReleaseError) as caught:
        answered(broken, about=context(run))
    assert MARKER not in caplog.text + "".join(traceback.format_exception(caught.value))
    assert "Nothing is sent: " in caplog.text
    with pytest.raises(ReleaseError) as caught:
        answered(broken, about=context(run, {"equipoise.verbose-errors": True}))
    assert MARKER in caplog.text
    assert MARKER not in str(caught.value), "the server is told the type alone"


def test_ctrl_c_is_not_turned_into_something_else() -> None:
    def stopped(msg: Message, context: Context) -> Message:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answered(stopped)
    assert module._passage.get() is None
