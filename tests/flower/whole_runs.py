"""Whole runs of ``gaussian-dp`` on a node with a ledger, message by message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flwr.app import Context, Message

from equipoise.flower import protected_step
from equipoise.flower.client_guard import REFUSED
from equipoise.ledger.ledger import Summary, verify
from tests.flower.messages import WHOLE_RUN, Train, answered, asking, content, context, images, network
from tests.flower.policies import easy

NODE = {"experiment": None, "account": "a1b2", "ledger": "l.jsonl", "weight": 1}
"""What the policy of such a node says, beside the bounds."""


def bounds(**change: Any) -> dict[str, Any]:
    """Of all mechanisms, and of ``gaussian-dp`` with these changes."""
    own = {key.replace("_", "-"): value for key, value in change.items()}
    return {**easy(), "gaussian-dp": {**easy()["gaussian-dp"], "divisor": 500, **own}}


def ledger(own: dict[str, Any]) -> Summary:
    return verify(Path(own["equipoise.policy"]).parent / "l.jsonl")


class App:
    """A train function; it knows for which runs it was called."""

    def __init__(self, number: int = 0):
        self.number, self.runs = number, list[int]()

    def __call__(self, msg: Message, context: Context) -> Message:
        self.runs.append(context.run_id)
        return Message(content(protected_step(network(), images(self.number), msg, context)), reply_to=msg)


def reply_of(
    own: dict[str, Any], run_id: int = 1, round_number: int = 1, app: Train | None = None, **change: Any
) -> Message:
    """To one message, by a node that was just started: nothing of it is in memory, or in Flower's state of the run."""
    run = {**WHOLE_RUN, **{f"equipoise.{key.replace('_', '-')}": value for key, value in change.items()}}
    return answered(app or App(), asking(round_number=round_number), context(run, own, run_id))


def accepted(reply: Message) -> bool:
    """Whether a node answered; that it did not is all that a server learns."""
    assert not reply.has_error() or reply.error.reason == REFUSED
    return not reply.has_error()


def ask(own: dict[str, Any], run_id: int = 1, round_number: int = 1, app: Train | None = None, **change: Any) -> bool:
    """Whether a node that was just started answers a message."""
    return accepted(reply_of(own, run_id, round_number, app, **change))
