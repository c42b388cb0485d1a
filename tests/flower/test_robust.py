"""Robust strategies inside ``Validated``: near the honest replies beside a poison, and void where they cannot be."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum, Strategy
from torch import Tensor

from equipoise.flower import Validated
from equipoise.flower.robust import least_replies
from tests.flower.messages import RUN, LocalGrid, bad, distance, reply, start
from tests.flower.servers import equal, one_round, rows

ROBUST: dict[str, tuple[Callable[[], Strategy], int]] = {
    "FedMedian": (FedMedian, 3),
    "FedTrimmedAvg": (lambda: FedTrimmedAvg(beta=0.25), 4),
    "Krum": (lambda: Krum(num_malicious_nodes=1), 5),
}
"""Each, and the fewest replies with which it can leave one out."""
POISON = 600.0
"""Far from the model (norm 1.5), and within the automatic bound of an update, about 1,050."""


def honest(node: int, round_number: int = 1) -> dict[str, Tensor]:
    """A little to one side of the model, each node a little differently."""
    return {name: tensor + 0.01 * torch.sin(tensor * 50 + node) + 0.02 for name, tensor in start().items()}


def poison(direction: float = 1.0) -> dict[str, Tensor]:
    return {name: torch.full_like(tensor, direction * POISON / math.sqrt(15)) for name, tensor in start().items()}


def spread(asked: list[int]) -> float:
    """How far an honest reply may be from another."""
    return max(distance(honest(a), honest(b)) for a in asked for b in asked)


CASES = [(name, n) for name, (_, least) in ROBUST.items() for n in (4, 5, 6) if n >= least]


@pytest.mark.parametrize("direction", [1.0, -1.0])
@pytest.mark.parametrize(("name", "count"), CASES)
def test_a_poison_within_the_bounds_moves_nothing(name: str, count: int, direction: float) -> None:
    asked = list(range(101, 101 + count))
    for place in (0, count - 1):
        good = [n for n in asked if n != asked[place]]
        replies = [reply(n, poison(direction) if n == asked[place] else honest(n)) for n in asked]
        checked, result, _ = one_round(replies, ROBUST[name][0](), asked=asked)
        assert checked.refused == {}, "the bounds let it pass"
        assert result is not None
        assert max(distance(result, honest(n)) for n in good) <= 1.01 * spread(good) + 1e-4

        _, plain, _ = one_round([reply(n, poison(direction) if n == asked[place] else honest(n)) for n in asked],
                                FedAvg(), asked=asked)  # fmt: skip
        assert plain is not None
        assert distance(plain, honest(good[0])) > 50, "the mean follows it"


@pytest.mark.parametrize("name", ROBUST)
def test_a_refused_reply_beside_a_poison(name: str) -> None:
    """Of one more than it needs, one is refused; with two refused the round is void."""
    make, least = ROBUST[name]
    asked = list(range(101, 101 + least + 1))
    replies: list[Any] = [reply(n, honest(n)) for n in asked]
    replies[0], replies[1] = reply(101, poison()), bad("nan", 102)
    checked, result, _ = one_round(replies, make(), asked=asked)
    assert list(checked.refused[1]) == ["102"]
    assert result is not None
    assert max(distance(result, honest(n)) for n in asked[2:]) <= 1.01 * spread(asked[2:]) + 1e-4
    replies = [reply(n, honest(n)) for n in asked]
    replies[0], replies[1] = bad("weight zero", 101), bad("nan", 102)
    checked, result, _ = one_round(replies, make(), asked=asked)
    assert result is None
    assert equal(checked._tensors, start())


@pytest.mark.parametrize("name", ROBUST)
def test_too_few_replies_to_leave_one_out_make_the_round_void_and_the_next_goes_on(
    name: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Flower takes the mean of two, trims nothing, or takes the first: with a poison among them that is no defence."""
    make, least = ROBUST[name]
    asked = list(range(101, 101 + least))
    checked = Validated(make(), RUN, folder=tmp_path)
    checked.folder.open()
    for round_number in (1, 2):
        checked.configure_train(round_number, ArrayRecord(checked._tensors or start()), ConfigRecord(),
                                LocalGrid(nodes=asked))  # fmt: skip
        silent = asked[-1:] if round_number == 1 else []
        arrays, _ = checked.aggregate_train(
            round_number, [reply(n, honest(n), round_number=round_number) for n in asked if n not in silent]
        )
        assert (arrays is None) == (round_number == 1)
    checked.folder.close()
    assert (
        f"Round 1 is void: {least - 1} good replies, and {name} needs {least} to leave out a wrong one" in caplog.text
    )
    assert [(row["void"], row["accepted"]) for row in rows(tmp_path / "metrics.jsonl")] == [
        (True, least - 1),
        (False, least),
    ]


@pytest.mark.parametrize(
    ("strategy", "least"),
    [
        (FedAvg(), 1),
        (FedMedian(), 3),
        (Krum(), 3),
        (Krum(num_malicious_nodes=2), 7),
        (MultiKrum(num_malicious_nodes=1, num_nodes_to_select=2), 5),
        (Bulyan(num_malicious_nodes=1), 7),
        (FedTrimmedAvg(beta=0.0), 1),
        (FedTrimmedAvg(), 5),
        (FedTrimmedAvg(beta=0.1), 10),
        (FedTrimmedAvg(beta=0.49), 3),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Strategy) else str(value),
)
def test_the_fewest_replies_of_every_strategy(strategy: Strategy, least: int) -> None:
    assert least_replies(strategy) == least


@pytest.mark.parametrize("beta", [0.01, 0.03, 0.1, 0.2, 1 / 3, 0.3, 0.29, 0.49, 1e-6])
def test_a_trimmed_mean_trims_from_there_on_and_not_before(beta: float) -> None:
    least = least_replies(FedTrimmedAvg(beta=beta))
    assert int(beta * least) == 1
    assert int(beta * (least - 1)) == 0


def test_the_summary_says_how_many_replies_are_needed(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", "flwr"):
        Validated(Krum(num_malicious_nodes=1), RUN, min_clients=2).summary()
    assert "At least 5 good replies" in caplog.text
