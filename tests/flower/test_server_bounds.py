"""Replies that are finite, well formed and monstrous: refused by name, and the run goes on as without them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM
from torch import Tensor

from equipoise.errors import FleetError
from equipoise.flower import Validated
from equipoise.ledger.ledger import verify
from tests.flower.messages import NODES, RUN, LocalGrid, bad, distance, failure, nodes, reply, start, update
from tests.flower.servers import equal, one_round, rows, validated, weights_of

Answer = Callable[[int, int], Iterable[Message]]


def grid(odd: Answer) -> LocalGrid:
    """Three honest nodes, and 104."""

    def answer(message: Message) -> Iterable[Message]:
        node, round_number = message.metadata.dst_node_id, message.content["config"]["server-round"]
        return odd(node, round_number) if node == 104 else [reply(node, round_number=round_number)]

    return LocalGrid(answer)


def whole_run(odd: Answer, folder: Path | None = None, **options: Any) -> tuple[Validated, dict[str, Tensor]]:
    checked = Validated(FedAvg(fraction_evaluate=0.0), RUN, folder=folder, **options)
    return checked, weights_of(checked.start(grid(odd), ArrayRecord(start()), 3))


def silent(node: int, round_number: int) -> list[Message]:
    return []


def filled(value: float) -> dict[str, Tensor]:
    return {name: torch.full_like(tensor, value) for name, tensor in start().items()}


def refusals(folder: Path, client: str = "104") -> list[list[str]]:
    """Of one client, by round: in the metrics, in the result, in the ledger."""
    metrics = [row["refused"].get(client) for row in rows(folder / "metrics.jsonl")]
    (federation,) = json.loads((folder / "result.json").read_text())["federations"]
    result = [federation["refused"].get(str(n), {}).get(client) for n in (1, 2, 3)]
    answered = [line["releases"] for line in rows(folder / "ledger.jsonl") if line["kind"] == "answered"]
    ledger = [next(row.get("reason") for row in releases if row["client"] == client) for releases in answered]
    return [metrics, result, ledger]


# --- the norm of an update ----------------------------------------------------------------------------------


def test_the_bound_does_not_grow_with_what_clients_send() -> None:
    """A node that goes to the bound in every round would else make the next one larger, until no noise is left."""
    sizes: list[float] = []

    def greedy(message: Message) -> list[Message]:
        node, n = message.metadata.dst_node_id, message.content["config"]["server-round"]
        before = dict(message.content["arrays"].to_torch_state_dict())
        sizes.append(distance(before, filled(0.0)))
        sent = {name: tensor + 100.0 for name, tensor in before.items()} if node == 104 else before
        return [reply(node, sent, 100 if node == 104 else 10, round_number=n)]

    checked = Validated(FedAvg(fraction_evaluate=0.0), RUN)
    checked.start(LocalGrid(greedy), ArrayRecord(start()), 6)
    assert not checked.refused
    steps = np.diff(sizes[::4])
    assert max(steps) < 1.2 * min(steps[1:]), "it grows by the same in every round"
    bound = checked.limits.norm(start(), checked._distortion(1))
    assert bound < 0.5 * checked.limits.norm(checked._tensors, checked._distortion(1))


def test_counters_and_indices_come_back_as_they_were_sent() -> None:
    """Honest nodes send back what they received: one that was changed would stay so, and void every later round."""
    model = {**start(), "ids": torch.arange(4)}
    good = [reply(node, {**update(node), "ids": torch.arange(4)}) for node in (101, 102, 103)]
    odd = reply(104, {**update(104), "ids": torch.arange(4) + 10**6})
    checked, result, _ = one_round([*good, odd], model=model)
    assert checked.refused[1] == {"104": "tensor 'ids' is not as it was sent"}
    assert result is not None
    assert torch.equal(result["ids"], torch.arange(4))


@pytest.mark.parametrize("value", [3e38, -3e38, 1e19, 1e6])
def test_a_finite_monster_changes_nothing(value: float, tmp_path: Path) -> None:
    """It was averaged in, and every later round was void: the model had become too large to add to."""
    monster = lambda node, n: [reply(node, filled(value) if n == 1 else None, round_number=n)]  # noqa: E731
    checked, result = whole_run(monster, tmp_path)
    _, expected = whole_run(lambda node, n: silent(node, n) if n == 1 else [reply(node, round_number=n)])
    assert equal(result, expected)
    assert list(checked.refused) == [1]
    for reasons in refusals(tmp_path):
        assert reasons[0].startswith(f"has an update of L2 norm {math.sqrt(15) * abs(value):.3g}"[:27])
        assert reasons[1:] == [None, None]
    assert [row["void"] for row in rows(tmp_path / "metrics.jsonl")] == [False, False, False]
    assert verify(tmp_path / "ledger.jsonl").counts[0, "104"].refused == 1


def test_the_automatic_bound_is_100_times_the_model_and_its_noise() -> None:
    """RUN asks for a distortion of 8 (pl-identical at 0.98)."""
    size, direction = distance(start(), filled(0.0)), filled(1 / math.sqrt(15))
    bound = 100 * (size + 7.99975 + 1)
    for factor, accepted in ((0.999, True), (1.001, False)):
        moved = {name: tensor + factor * bound * direction[name] for name, tensor in start().items()}
        checked, _, _ = one_round([reply(101, moved), *(reply(n) for n in NODES[1:])])
        assert (1 not in checked.refused) == accepted
    assert checked.refused[1]["101"].endswith(f"expected at most {bound:.6g}")


@pytest.mark.parametrize("budget", [0.0, 0.5])
def test_noise_that_was_asked_for_is_no_monster(budget: float) -> None:
    """A distortion of 400 or 200 on a model of norm 1."""
    run = {**RUN, "equipoise.budget": budget}
    checked = validated(None, **{"equipoise.budget": budget})
    checked.start(nodes(run), ArrayRecord({name: tensor / 10 for name, tensor in start().items()}), 2)
    assert checked.refused == {}


def test_the_bound_on_the_norm_can_be_set_and_turned_off() -> None:
    replies = lambda: [reply(101, filled(1e9)), *(reply(n) for n in NODES[1:])]  # noqa: E731
    far = max(distance(update(n), start()) for n in NODES)
    checked, result, _ = one_round(replies(), max_norm=math.inf)
    assert checked.refused == {}
    assert result is not None
    assert float(result["1.bias"].mean()) > 1e8
    checked, _, _ = one_round(replies(), max_norm=1.001 * far)
    assert list(checked.refused[1]) == ["101"]
    checked, result, _ = one_round(replies(), max_norm=0.999 * far)
    assert len(checked.refused[1]) == 2
    assert "expected at most" in checked.refused[1]["101"]


# --- the weight of a reply ----------------------------------------------------------------------------------


def test_a_weight_of_ten_million_does_not_take_over_the_mean(tmp_path: Path) -> None:
    """The others have 10 each: their part was one in a million."""
    heavy = lambda node, n: [reply(node, weight=10**7 if n == 2 else 10, round_number=n)]  # noqa: E731
    checked, result = whole_run(heavy, tmp_path)
    _, expected = whole_run(lambda node, n: silent(node, n) if n == 2 else [reply(node, round_number=n)])
    assert equal(result, expected)
    assert list(checked.refused) == [2]
    reason = "has weight 1e+07, more than 10 times the median of this round, 10"
    assert refusals(tmp_path) == [[None, reason, None]] * 3
    assert rows(tmp_path / "metrics.jsonl")[1]["accepted"] == 3
    count = verify(tmp_path / "ledger.jsonl").counts[0, "104"]
    assert (count.asked, count.received, count.accepted, count.refused) == (3, 3, 2, 1)


@pytest.mark.parametrize(("weight", "ratio", "accepted"), [(100, 10.0, 4), (101, 10.0, 3), (101, 11.0, 4)])
def test_the_ratio_is_to_the_median_and_can_be_set(weight: int, ratio: float, accepted: int, tmp_path: Path) -> None:
    checked, _ = whole_run(
        lambda node, n: [reply(node, weight=weight, round_number=n)], tmp_path, max_weight_ratio=ratio
    )
    assert {row["accepted"] for row in rows(tmp_path / "metrics.jsonl")} == {accepted}
    assert bool(checked.refused) == (accepted == 3)


def test_any_ratio_can_be_allowed_and_the_absolute_bound_stays() -> None:
    replies = [reply(101, weight=10**7), reply(102, weight=1), reply(103, weight=10**7 + 1), reply(104, weight=1)]
    checked, _, _ = one_round(replies, max_weight_ratio=math.inf)
    assert checked.refused == {1: {"103": "has weight 10000001, expected a number > 0 and <= 1e+07"}}


def test_a_round_can_become_void_for_its_weights() -> None:
    checked, result, _ = one_round([reply(101, weight=1), reply(102, weight=10**6)], asked=[101, 102], min_clients=2)
    assert result is None
    assert equal(checked._tensors, start())


# --- the server's own step ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "strategy",
    [lambda: FedAvgM(server_learning_rate=1e6), lambda: FedAdam(eta=1e6), lambda: FedAvgM(1.0, server_momentum=1e9)],
    ids=["FedAvgM", "FedAdam", "momentum"],
)
def test_an_absurd_step_of_the_strategy_makes_the_round_void(
    strategy: Callable[[], FedAvg], caplog: pytest.LogCaptureFixture
) -> None:
    inner = strategy()
    checked = Validated(inner, RUN)
    memory: list[Any] = []
    for round_number in (1, 2, 3):
        checked.configure_train(round_number, ArrayRecord(start()), ConfigRecord(), LocalGrid())
        memory.append({name: getattr(inner, name, None) for name in ("m_t", "v_t", "momentum_vector")})
        arrays, _ = checked.aggregate_train(round_number, [reply(n, round_number=round_number) for n in NODES])
    assert arrays is None
    assert f"the result of {type(inner).__name__} has an update of L2 norm" in caplog.text
    assert equal(checked._tensors, start())
    for name, kept in memory[-1].items():
        assert np.array_equal(str(getattr(inner, name, None)), str(kept)), "a void round is not remembered"
    free, result, _ = one_round([reply(n) for n in NODES], strategy(), max_norm=math.inf)
    assert result is not None
    assert free.refused == {}


# --- repaired replies ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", ["nan", "weight zero", "finite monster", "error"])
def test_a_reply_that_was_refused_and_then_repaired_counts_once(
    first: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def twice(node: int, n: int) -> list[Message]:
        return [failure(node, "no") if first == "error" else bad(first, node), reply(node, round_number=n)]

    checked, result = whole_run(twice, tmp_path)
    _, expected = whole_run(lambda node, n: [reply(node, round_number=n)])
    assert equal(result, expected)
    assert checked.refused == {}
    assert refusals(tmp_path) == [[None] * 3] * 3
    assert "Round 1: 1 refused replies were then repaired." in caplog.text
    count = verify(tmp_path / "ledger.jsonl").counts[0, "104"]
    assert (count.asked, count.received, count.accepted, count.refused) == (3, 3, 3, 0)


def test_a_repeated_good_reply_stays_refused_as_the_second(tmp_path: Path) -> None:
    checked, result = whole_run(lambda node, n: [reply(node, round_number=n)] * 2, tmp_path)
    _, expected = whole_run(lambda node, n: [reply(node, round_number=n)])
    assert equal(result, expected)
    assert checked.refused[1] == {"104": "sent a second release in this round; the first counts"}
    assert verify(tmp_path / "ledger.jsonl").counts[0, "104"].accepted == 3


# --- runs that came to nothing ------------------------------------------------------------------------------


def refusing(message: Message) -> list[Message]:
    return [failure(message.metadata.dst_node_id, "refused")] if message.metadata.dst_node_id != 104 else []


def test_a_run_of_void_rounds_ends_with_an_error_after_its_result(tmp_path: Path) -> None:
    """Every node refused in every round, and the run ended as if it had worked."""
    checked = Validated(FedAvg(fraction_evaluate=0.0), RUN, folder=tmp_path)
    with pytest.raises(FleetError) as failed:
        checked.start(LocalGrid(refusing), ArrayRecord(start()), 3)
    assert failed.value.cause == (
        "No round was accepted, of 3 that were asked for: the model is as it was. Reasons: failed: refused (9x); "
        "no reply (3x); 0 of at least 1 good replies (3x)."
    )
    assert failed.value.remedy.startswith("Look at the logs of the nodes")
    (federation,) = json.loads((tmp_path / "result.json").read_text())["federations"]
    assert federation["failed"] == failed.value.cause
    assert (federation["rounds"], list(federation["refused"])) == (3, ["1", "2", "3"])
    assert [row["void"] for row in rows(tmp_path / "metrics.jsonl")] == [True] * 3
    assert verify(tmp_path / "ledger.jsonl").counts[0, "101"].refused == 3

    later = Validated(FedAvg(fraction_evaluate=0.0), RUN, folder=tmp_path)
    later.start(LocalGrid(refusing), ArrayRecord(start()), 3)  # nothing is left to ask for
    with pytest.raises(FleetError, match="of 1 that were asked for"):
        later.start(LocalGrid(refusing), ArrayRecord(start()), 4)


def test_one_good_round_is_enough(tmp_path: Path) -> None:
    answer = lambda m: [reply(m.metadata.dst_node_id, round_number=1)]  # noqa: E731  # stale ones from then on
    Validated(FedAvg(fraction_evaluate=0.0), RUN, folder=tmp_path).start(LocalGrid(answer), ArrayRecord(start()), 3)
    assert [row["void"] for row in rows(tmp_path / "metrics.jsonl")] == [False, True, True]
    (federation,) = json.loads((tmp_path / "result.json").read_text())["federations"]
    assert federation["failed"] is None


def test_a_limit_that_stops_a_run_before_its_first_round_is_not_that_error(tmp_path: Path) -> None:
    limited = {"equipoise.release-limit": 1}
    validated(tmp_path, **limited).start(nodes(), ArrayRecord(start()), 1)
    again = validated(tmp_path, **limited)
    again.start(nodes(), ArrayRecord(start()), 3)
    assert "would pass the limit of 1" in str(again.stopped)
