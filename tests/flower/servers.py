"""Runs of a validated strategy in this process, whole and interrupted, and what they leave."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedTrimmedAvg,
    FedYogi,
    Krum,
    Result,
    Strategy,
)
from torch import Tensor

from equipoise.flower import Validated
from tests.flower.messages import NODES, RUN, LocalGrid, nodes, start

STRATEGIES: dict[str, Any] = {
    "FedAvg": FedAvg,
    "FedAdam": FedAdam,
    "FedAdagrad": FedAdagrad,
    "FedYogi": FedYogi,
    "FedAvgM": lambda: FedAvgM(server_learning_rate=0.5, server_momentum=0.9),
    "FedMedian": FedMedian,
    "FedTrimmedAvg": lambda: FedTrimmedAvg(beta=0.34),
    "Krum": Krum,
}
"""Each works with three replies; with fewer the robust ones could leave none out (``flower/robust.py``)."""


def validated(folder: Path | None, name: str = "FedAvg", **changed: Any) -> Validated:
    """Around a strategy, for the nodes of ``nodes()``."""
    strategy = STRATEGIES[name]()
    strategy.fraction_evaluate = 0.0
    return Validated(strategy, {**RUN, **changed}, folder=folder, seeded=True)


def one_round(
    replies: list[Message],
    strategy: Strategy | None = None,
    model: dict[str, Tensor] | None = None,
    asked: Iterable[int] = NODES,
    **options: Any,
) -> tuple[Validated, dict[str, Tensor] | None, MetricRecord | None]:
    """What a strategy makes of the replies to its first round."""
    checked = Validated(strategy or FedAvg(), RUN, **options)
    checked.configure_train(1, ArrayRecord(model or start()), ConfigRecord(), LocalGrid(nodes=asked))
    arrays, metrics = checked.aggregate_train(1, replies)
    return checked, None if arrays is None else dict(arrays.to_torch_state_dict()), metrics


class Interrupted(RuntimeError):
    pass


def interrupt(checked: Validated, round_number: int, node: int = 103) -> None:
    """Run until the power goes in this round, with some replies on their way."""
    grid = nodes()
    answer = grid.answer

    def until(message: Message) -> Iterable[Message]:
        if message.content["config"]["server-round"] == round_number and message.metadata.dst_node_id == node:
            raise Interrupted
        return answer(message)

    grid.answer = until
    with pytest.raises(Interrupted):
        checked.start(grid, ArrayRecord(start()), 5)


def equal(one: dict[str, Tensor] | None, two: dict[str, Tensor] | None) -> bool:
    """Names, types and every bit."""
    assert one is not None
    assert two is not None
    return one.keys() == two.keys() and all(torch.equal(t, two[n]) and t.dtype == two[n].dtype for n, t in one.items())


def weights_of(result: Result) -> dict[str, Tensor]:
    return dict(result.arrays.to_torch_state_dict())


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
