"""What docs/compare.md says of the pinned Flower was tried out once; here it is tried again."""

from __future__ import annotations

import math
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAvg

from equipoise.privacy.gaussian import epsilon_of

PAGE = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
PLAIN = " ".join(PAGE.split())


@pytest.fixture
def page() -> dict[str, Any]:
    """The names that the page's code defines."""
    names: dict[str, Any] = {}
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(code, "compare.md", "exec"), names)
    return names


def ask(kind: str, update: list[float], **mods: Any) -> Message:
    """What leaves a client whose training adds `update` to three zeros, and whose evaluation sends a number."""
    app = ClientApp(mods=mods.get("app"))

    @app.train(mods=mods.get("train"))
    def train(message: Message, context: Context) -> Message:
        metrics = MetricRecord({"train_loss": 1.25})
        arrays = ArrayRecord([np.array(update, np.float32)])
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"loss": 0.5})}), reply_to=message)

    content = RecordDict({"arrays": ArrayRecord([np.zeros(3, np.float32)])})
    message = Message(content, dst_node_id=1, message_type=kind)
    return app(message, Context(1, 1, {}, RecordDict(), {}))


def test_the_page_is_about_the_flower_that_is_pinned() -> None:
    assert f"(flwr) {version('flwr')}," in PLAIN


def test_the_wrapper_counts_for_the_server_and_wants_fedavg(page: dict[str, Any]) -> None:
    assert page["strategy"].privacy_spent().epsilon == 0

    class Weighted(FedAvg):
        def aggregate_train(self, *args: Any) -> Any: ...

    with pytest.raises(ValueError, match="requires a strategy using"):
        type(page["strategy"])(Weighted(), 1.0, 0.5, 100, accountant=page["accountant"])


def test_metrics_leave_as_they_are(page: dict[str, Any]) -> None:
    reply = ask("train", [0.1, 0.2, 0.3], train=[page["mod"]])
    assert reply.content["metrics"]["train_loss"] == 1.25
    assert "Metrics leave as they are" in PLAIN


def test_a_nan_switches_the_clip_off(page: dict[str, Any]) -> None:
    clipped, not_clipped = (
        ask("train", [first, 1e6, 0.0], train=[page["mod"]]).content["arrays"].to_numpy_ndarrays()[0]
        for first in (0.0, math.nan)
    )
    assert abs(clipped[1]) < 100 < 1e5 < abs(not_clipped[1])
    assert np.isnan(not_clipped[0])
    assert "a NaN switches its clip off" in PLAIN


def test_an_update_of_exactly_zero_is_an_error(page: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        ask("train", [0.0, 0.0, 0.0], train=[page["mod"]])
    assert "an update of exactly zero raises `ZeroDivisionError`" in PLAIN


def test_a_mod_of_the_whole_app_stops_evaluation(page: dict[str, Any]) -> None:
    (told,) = re.findall(r'error reply \("([^"]+)"\)', PLAIN)
    refused = ask("evaluate", [0.0], app=[page["mod"]])
    assert refused.has_error()
    assert told in refused.error.reason
    assert not ask("evaluate", [0.0], train=[page["mod"]]).has_error()


def test_what_the_page_says_of_fifty_rounds() -> None:
    (told,) = re.findall(r'50 rounds of "epsilon 2" are (\d+) \(add/remove\)', PLAIN)
    assert int(told) == round(epsilon_of(math.sqrt(2 * math.log(1.25 / 1e-5)) / 2, 1e-5, 50))
