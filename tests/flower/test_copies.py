"""The app holds copies: nothing that it does to its message or context shows in the reply, or in what Flower keeps."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from torch import Tensor, nn

from equipoise.flower import protect, protected_step
from equipoise.flower.client_guard import REFUSED
from equipoise.flower.copies import copy_message
from tests.flower.messages import RUN, WHOLE_RUN, answered, asking, content, context, honest, images, start
from tests.flower.policies import node

MARKER = "patient 4711"
LAPLACE = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 1.0}


def told(message: Message) -> dict[str, Any]:
    """All that leaves in the metadata of a reply, but for when."""
    return {name: value for name, value in vars(message.metadata).items() if name not in ("_created_at", "_ttl")}


# --- the message ---------------------------------------------------------------------------------------------------


def named(msg: Message) -> None:
    msg.metadata.group_id = MARKER


def numbered(msg: Message) -> None:
    vars(msg.metadata)["_message_id"] = MARKER
    msg.metadata.src_task_id = msg.metadata.dst_node_id = 4711


def of_another_type(msg: Message) -> None:
    msg.metadata.message_type = "train.patient_4711"


def of_no_type(msg: Message) -> None:
    vars(msg.metadata)["_message_type"] = MARKER


def of_another_time(msg: Message) -> None:
    msg.metadata.created_at, msg.metadata.ttl = 0.0, 4711.0


def replaced(msg: Message) -> None:
    vars(msg)["_metadata"] = copy.copy(msg.metadata)
    named(msg)


@pytest.mark.parametrize("write", [named, numbered, of_another_type, of_no_type, of_another_time, replaced])
@pytest.mark.parametrize("fails", [False, True], ids=["good reply", "error"])
def test_nothing_that_an_app_writes_into_the_metadata_leaves(write: Callable[[Message], None], fails: bool) -> None:
    """``group_id`` is free text, and Flower takes it, and whom a reply is for, from the message."""

    def train(msg: Message, context: Context) -> Message:
        reply = None if fails else honest(msg, context)
        write(msg)
        assert reply is not None
        return reply

    def plain(msg: Message, context: Context) -> Message:
        assert not fails
        return honest(msg, context)

    expected, reply = answered(plain, asking()), answered(train, asking())
    assert reply.has_error() == expected.has_error() == fails
    assert told(reply) == told(expected)
    assert reply.metadata.ttl == pytest.approx(expected.metadata.ttl, abs=60)
    assert "4711" not in repr(reply.metadata)
    if fails:
        assert reply.error.reason == REFUSED


class Normalised(nn.Sequential):
    """Running statistics, in eval mode."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.BatchNorm1d(4), nn.Linear(4, 3))
        self.eval()


def fitted() -> Normalised:
    """A model whose statistics are those of private data."""
    model = Normalised()
    assert isinstance(model[1].running_mean, Tensor)
    model[1].running_mean.fill_(4711.0)
    return model


def other_arrays(msg: Message) -> Message:
    msg.content["arrays"] = ArrayRecord(fitted().state_dict())
    return msg


def one_array(msg: Message) -> Message:
    msg.content["arrays"]["1.running_mean"] = Array(torch.full((4,), 4711.0).numpy())
    return msg


def other_bytes(msg: Message) -> Message:
    msg.content["arrays"]["1.running_mean"].data = Array(torch.full((4,), 4711.0).numpy()).data
    return msg


def other_content(msg: Message) -> Message:
    msg.content = RecordDict({"a": ArrayRecord(fitted().state_dict()), "config": ConfigRecord({"server-round": 4711})})
    return msg


def other_message(msg: Message) -> Message:
    return asking(round_number=4711, tensors=dict(fitted().state_dict()))


@pytest.mark.parametrize("swap", [other_arrays, one_array, other_bytes, other_content, other_message])
@pytest.mark.parametrize("run", [LAPLACE, WHOLE_RUN, RUN], ids=["laplace-dp", "gaussian-dp", "pl-identical"])
def test_what_is_sent_back_as_received_is_what_came(
    swap: Callable[[Message], Message], run: dict[str, Any], tmp_path: Path
) -> None:
    """An app that writes its own statistics into the message would get them back, and send them without noise."""

    def train(msg: Message, context: Context) -> Message:
        return Message(content(protected_step(Normalised(), images(), swap(msg), context)), reply_to=msg)

    came = {name: tensor.clone() for name, tensor in Normalised().state_dict().items()}
    reply = answered(train, asking(tensors=came), context(run, node(tmp_path / "p.toml", weight=1)))
    sent = reply.content["arrays"].to_torch_state_dict()
    for name in ("1.running_mean", "1.running_var", "1.num_batches_tracked"):
        assert torch.equal(sent[name], came[name])
    assert reply.content["equipoise"]["round"] == 1, "and for the round that was asked for"


def test_names_of_arrays_are_those_that_came() -> None:
    def train(msg: Message, context: Context) -> Message:
        own = nn.Sequential(nn.Flatten())
        own.add_module(MARKER, nn.Linear(4, 3))
        msg.content["arrays"] = ArrayRecord({f"{MARKER}.{key[2:]}": value for key, value in start().items()})
        return Message(content(protect(own, images(), msg, context)), reply_to=msg)

    reply = answered(train)
    assert (reply.has_error(), reply.error.reason) == (True, REFUSED)


def test_a_copy_has_all_that_the_message_has() -> None:
    msg = asking()
    msg.content["m"] = MetricRecord({"a": 1.0})
    made = copy_message(msg)
    assert made.metadata == msg.metadata
    assert made.content == msg.content
    made.content["config"]["server-round"] = made.content["m"]["a"] = 9
    made.content["arrays"]["1.bias"].data = b""
    assert (msg.content["config"]["server-round"], msg.content["m"]["a"]) == (1, 1.0)
    assert msg.content["arrays"].to_torch_state_dict()["1.bias"].shape == (3,)


# --- the context ---------------------------------------------------------------------------------------------------


def emptied(context: Context) -> None:
    context.state = RecordDict()


def cleared(context: Context) -> None:
    context.state.clear()


def recounted(context: Context) -> None:
    context.state["equipoise"] = ConfigRecord({"releases": 0, "epsilon": 0.0})


def rewound(context: Context) -> None:
    context.state["equipoise"]["releases"] = 0


@pytest.mark.parametrize("reset", [emptied, cleared, recounted, rewound])
@pytest.mark.parametrize("early", [False, True], ids=["after the release", "before"])
def test_an_app_cannot_reset_the_count_of_a_node_without_a_ledger(
    reset: Callable[[Context], None], early: bool, tmp_path: Path
) -> None:
    def train(msg: Message, context: Context) -> Message:
        if early:
            reset(context)
        reply = honest(msg, context)
        reset(context)
        return reply

    about = context(node=node(tmp_path / "p.toml", most_releases=2))
    answers = [answered(train, asking(round_number=number), about).has_error() for number in (1, 2, 3, 4)]
    assert answers == [False, False, True, True]


def test_nor_by_a_context_of_its_own_in_a_simulation_without_a_run_config(tmp_path: Path) -> None:
    def train(msg: Message, context: Context) -> Message:
        other = Context(context.run_id, context.node_id, {}, RecordDict(), RUN)
        return honest(msg, other)

    about = context({"lr": 0.1}, node(tmp_path / "p.toml", most_releases=1))
    assert not answered(train, about=about).has_error()
    assert answered(train, asking(round_number=2), about).has_error()


def test_a_policy_that_the_app_names_is_not_that_of_the_next_message(tmp_path: Path) -> None:
    """Flower keeps the context, and with it the node config, from one message to the next."""
    strict, loose = node(tmp_path / "strict.toml", most_releases=1), node(tmp_path / "loose.toml")
    about = context(node=strict)

    def train(msg: Message, context: Context) -> Message:
        reply = honest(msg, context)
        context.node_config.update(loose)
        context.run_config["equipoise.budget"] = 0.5
        context.node_config, context.run_id = loose, 4711
        return reply

    assert not answered(train, about=about).has_error()
    assert (about.node_config, about.run_id, about.run_config) == (strict, 1, RUN)
    assert answered(train, asking(round_number=2), about).has_error()


@pytest.mark.parametrize("fails", [False, True])
def test_what_else_an_app_keeps_in_its_state_is_kept(fails: bool) -> None:
    def train(msg: Message, context: Context) -> Message:
        seen = int(context.state["mine"]["rounds"]) if "mine" in context.state else 0
        context.state["mine"] = ConfigRecord({"rounds": seen + 1})
        reply = honest(msg, context)
        assert not fails
        return reply

    about = context()
    for number in (1, 2):
        answered(train, asking(round_number=number), about)
    assert about.state["mine"]["rounds"] == 2
    assert about.state["equipoise"]["releases"] == 2


def test_a_state_that_is_none_is_refused_and_the_nodes_own_stays() -> None:
    def train(msg: Message, context: Context) -> Message:
        reply = honest(msg, context)
        context.state = None  # type: ignore[assignment]
        return reply

    about = context()
    assert answered(train, about=about).has_error()
    assert about.state["equipoise"]["releases"] == 1


def test_an_evaluation_leaves_no_count_that_it_made_up() -> None:
    def evaluate(msg: Message, context: Context) -> Message:
        recounted(context)
        return Message(RecordDict({"m": MetricRecord({"num-examples": 60, "accuracy": 0.5})}), reply_to=msg)

    about = context()
    assert not answered(evaluate, asking(kind="evaluate"), about).has_error()
    assert "equipoise" not in about.state
