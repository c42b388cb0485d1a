"""The validating strategy: bad replies refused by name around any strategy; limits, ledger, resuming."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp.strategy import (
    FedAvg,
    FedAvgM,
    QFedAvg,
)
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from equipoise.errors import CheckpointError, ConfigError, FleetError, ReleaseError
from equipoise.flower import Validated
from equipoise.ledger.ledger import verify
from tests.flower.messages import (
    BAD,
    LOWER,
    NODES,
    RUN,
    LocalGrid,
    asking,
    bad,
    bomb,
    failure,
    nodes,
    reply,
    start,
    update,
)
from tests.flower.servers import STRATEGIES, Interrupted, equal, interrupt, one_round, rows, validated, weights_of

# --- hostile replies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_reply_is_refused_by_name_and_has_no_influence(kind: str) -> None:
    """Bitwise: the same round without it gives the same model and metrics."""
    good = [101, 102, 104]
    _, without, plain = one_round([reply(n) for n in good], asked=good)
    checked, result, metrics = one_round([reply(101), reply(102), bad(kind, 103), reply(104)])
    assert list(checked.refused) == [1]
    assert list(checked.refused[1]) == ["103"]
    assert BAD[kind][1] in checked.refused[1]["103"]
    assert equal(result, without)
    assert metrics == plain


@pytest.mark.parametrize("name", STRATEGIES)
def test_every_strategy_gets_the_good_replies_and_no_others(name: str) -> None:
    """All bad replies at once; what is left is what the strategy alone makes of the good ones."""
    crowd = {1000 + place: kind for place, kind in enumerate(BAD)}
    replies = [*(bad(kind, node) for node, kind in crowd.items()), *(reply(n, weight=n) for n in NODES)]
    checked, actual, _ = one_round(replies, STRATEGIES[name](), asked=[*crowd, *NODES])
    assert list(checked.refused[1]) == [str(node) for node in crowd]
    for node, kind in crowd.items():
        assert BAD[kind][1] in checked.refused[1][str(node)]

    alone = STRATEGIES[name]()
    alone.configure_train(1, ArrayRecord(start()), ConfigRecord(), LocalGrid())
    arrays, _ = alone.aggregate_train(1, [reply(n, weight=n) for n in NODES])
    expected = {name: tensor.float() for name, tensor in arrays.to_torch_state_dict().items()}
    assert equal(actual, expected)
    assert not equal(actual, start())


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_model_keeps_its_type(name: str) -> None:
    _, result, _ = one_round([reply(n) for n in NODES], STRATEGIES[name]())
    assert result is not None
    assert {tensor.dtype for tensor in result.values()} == {torch.float32}
    assert list(result) == list(start())


values = st.floats(-1, 1, width=32)


@given(st.lists(st.tuples(st.lists(values, min_size=3, max_size=3), st.floats(1e-3, 1e7)), min_size=2, max_size=8))
def test_the_mean_is_that_of_numpy_in_double_precision(cohort: list[tuple[list[float], float]]) -> None:
    asked = range(1, len(cohort) + 2)
    updates = {n: {**start(), "1.bias": torch.tensor(bias)} for n, (bias, _) in zip(asked, cohort, strict=False)}
    replies = [reply(n, updates[n], weight) for n, (_, weight) in zip(asked, cohort, strict=False)]
    options = {"max_weight_ratio": math.inf}
    _, actual, _ = one_round([*replies, bad("nan", len(cohort) + 1)], asked=asked, **options)
    assert actual is not None
    stacked = np.array([bias for bias, _ in cohort], np.float64)
    expected = np.average(stacked, axis=0, weights=[weight for _, weight in cohort])
    assert actual["1.bias"].double().numpy() == pytest.approx(expected, abs=1e-6)
    assert actual["1.weight"].double().numpy() == pytest.approx(start()["1.weight"].double().numpy(), abs=1e-6)


@pytest.mark.parametrize("name", ["FedAvg", "FedAvgM", "Krum", "FedMedian"])
def test_the_order_of_the_tensors_is_the_servers(name: str) -> None:
    """Krum and FedAvgM go by place: a reply with its tensors in another order would be taken for another model."""
    turned = [reply(n, dict(reversed(update(n).items()))) for n in NODES]
    _, actual, _ = one_round(turned, STRATEGIES[name]())
    _, expected, _ = one_round([reply(n) for n in NODES], STRATEGIES[name]())
    assert equal(actual, expected)
    assert actual is not None
    assert list(actual) == list(start())


def test_a_pickle_in_a_reply_leaves_no_trace(tmp_path: Path) -> None:
    checked, result, _ = one_round([reply(101), reply(102, bomb(tmp_path / "made")), reply(103), reply(104)])
    assert result is not None
    assert list(checked.refused[1]) == ["102"]
    assert list(tmp_path.iterdir()) == []


def test_errors_silence_strangers_and_second_replies() -> None:
    replies = [reply(101), reply(101, weight=1000), failure(102, "out of memory"), reply(999), reply(104)]
    checked, actual, metrics = one_round(replies)
    assert checked.refused == {
        1: {
            "101": "sent a second release in this round; the first counts",
            "102": "failed: out of memory",
            "999": "was not asked in this round",
            "103": "no reply",
        }
    }
    _, expected, plain = one_round([reply(101), reply(104)], asked=[101, 104])
    assert equal(actual, expected)
    assert metrics == plain


def test_an_error_of_the_superlink_means_that_a_node_was_lost() -> None:
    lost = failure(SUPERLINK_NODE_ID, "Reply not available")
    checked, result, _ = one_round([reply(101), reply(102), lost, reply(104)])
    assert checked.refused == {1: {"103": "no reply"}}
    assert result is not None


def test_nobody_passes_for_the_superlink() -> None:
    checked, _, _ = one_round([reply(101), reply(SUPERLINK_NODE_ID), reply(102), reply(103), reply(104)])
    assert checked.refused == {1: {str(SUPERLINK_NODE_ID): "was not asked in this round"}}


def test_a_late_reply_of_an_earlier_round_is_stale() -> None:
    checked = Validated(FedAvg(), RUN)
    for round_number in (1, 2):
        checked.configure_train(round_number, ArrayRecord(start()), ConfigRecord(), LocalGrid())
        replies = [reply(n, round_number=round_number) for n in NODES[:3]] + (
            [reply(104, round_number=1)] if round_number == 2 else []
        )
        checked.aggregate_train(round_number, replies)
    assert checked.refused == {1: {"104": "no reply"}, 2: {"104": "is for round 1, a stale one; round 2 is open"}}


def test_a_metric_that_one_reply_lacks_is_averaged_over_the_others() -> None:
    _, _, metrics = one_round([reply(101), reply(102, without=("loss",)), reply(103), reply(104)])
    assert dict(metrics or {}) == pytest.approx(
        {"loss": 0.5, "equipoise.lower": LOWER, "equipoise.upper": 2 * LOWER, "equipoise.intensity": LOWER}
    )


def test_whole_numbers_such_as_the_counter_of_a_batch_norm_stay_whole() -> None:
    model = {**start(), "count": torch.tensor(1)}
    replies = [reply(n, {**update(n), "count": torch.tensor(1)}, w) for n, w in zip(NODES[:3], (1, 4, 1), strict=True)]
    _, result, _ = one_round(replies, model=model)
    assert result is not None
    assert torch.equal(result["count"], torch.tensor(1))


def test_refusals_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "flwr.equipoise"):
        one_round([reply(101), bad("weight zero", 102)])
    assert "Round 1: refused client 102: has weight 0, expected a number > 0" in caplog.text
    assert "Round 1: refused client 103: no reply" in caplog.text


# --- void rounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.parametrize("good", [0, 1, 2])
def test_too_few_good_replies_leave_model_and_strategy_as_they_were(name: str, good: int) -> None:
    strategy = STRATEGIES[name]()
    replies = [reply(n) for n in NODES[:good]] + [bad("nan", n) for n in NODES[good:]]
    checked, result, metrics = one_round(replies, strategy, min_clients=3)
    assert result is None
    assert metrics is None
    assert equal(checked._tensors, start())
    assert not any(getattr(strategy, memory, None) for memory in ("m_t", "v_t", "momentum_vector"))
    _, result, _ = one_round([reply(n) for n in NODES[:3]], STRATEGIES[name](), min_clients=3)
    assert result is not None


class Broken(FedAvg):
    """Returns what it is told to."""

    def __init__(self, result: dict[str, Tensor]):
        super().__init__()
        self.result = result

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord, MetricRecord]:
        return ArrayRecord(self.result), MetricRecord({"fine": 1.0})


@pytest.mark.parametrize(
    "result", [{"1.bias": torch.ones(3)}, {**start(), "1.bias": torch.tensor([1.0, 2.0, math.inf])}, {}]
)
def test_a_result_that_is_no_model_makes_the_round_void(result: dict[str, Tensor]) -> None:
    checked, outcome, metrics = one_round([reply(n) for n in NODES], Broken(result))
    assert outcome is None
    assert metrics is None
    assert equal(checked._tensors, start())


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
def test_a_void_result_leaves_no_trace_in_the_strategy() -> None:
    """Where any norm is allowed, a reply can be so large that the step overflows; the next round must not suffer."""
    huge = {name: torch.full_like(tensor, 3e38) for name, tensor in start().items()}
    strategy = FedAvgM(server_learning_rate=2.0, server_momentum=0.9)
    replies = [reply(101, huge, 1e7), *(reply(n, weight=1) for n in NODES[1:])]
    checked, actual, _ = one_round(replies, strategy, max_norm=math.inf, max_weight_ratio=math.inf)
    assert actual is None
    checked.configure_train(2, ArrayRecord(start()), ConfigRecord(), LocalGrid())
    arrays, _ = checked.aggregate_train(2, [reply(n, round_number=2) for n in NODES])
    assert arrays is not None
    _, expected, _ = one_round([reply(n) for n in NODES], FedAvgM(server_learning_rate=2.0, server_momentum=0.9))
    assert equal(dict(arrays.to_torch_state_dict()), expected)


@pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
@pytest.mark.parametrize("name", ["FedAdam", "FedYogi", "FedAdagrad"])
def test_a_number_whose_square_overflows_does_not_stay_in_a_strategys_memory(name: str) -> None:
    """The model would be finite, the second moment not: every later step would be zero in that place."""
    strategy = STRATEGIES[name]()
    checked, model, _ = one_round([reply(n) for n in NODES], strategy, max_norm=math.inf)
    assert model is not None
    before = {part: {n: a.copy() for n, a in getattr(strategy, part).items()} for part in ("m_t", "v_t")}
    large = {**update(101), "1.bias": torch.tensor([1.0, 1e25, 1.0])}
    checked.configure_train(2, ArrayRecord(model), ConfigRecord(), LocalGrid())
    arrays, metrics = checked.aggregate_train(
        2, [reply(101, large, round_number=2), *(reply(n, round_number=2) for n in NODES[1:])]
    )
    assert arrays is None
    assert metrics is None
    assert equal(checked._tensors, model)
    for part, kept in before.items():
        assert kept.keys() == getattr(strategy, part).keys()
        for key, array in getattr(strategy, part).items():
            assert np.array_equal(array, kept[key]), part
    checked.configure_train(3, ArrayRecord(model), ConfigRecord(), LocalGrid())
    arrays, _ = checked.aggregate_train(3, [reply(n, round_number=3) for n in NODES])
    assert arrays is not None


class Raising(FedAvg):
    """Gives up in one round, in training or in evaluation."""

    def __init__(self, where: str):
        super().__init__()
        self.where = where

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        if (self.where, server_round) == ("train", 2):
            raise ZeroDivisionError("no")
        return super().aggregate_train(server_round, replies)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        if (self.where, server_round) == ("evaluate", 2):
            raise ZeroDivisionError("no")
        return super().aggregate_evaluate(server_round, replies)


def test_a_strategy_that_raises_makes_its_round_void_and_the_run_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    checked = Validated(Raising("train"), RUN, seeded=True)
    grid = nodes()
    result = checked.start(grid, ArrayRecord(start()), 3)
    assert grid.rounds() == [1, 2, 3]
    assert list(result.train_metrics_clientapp) == [1, 3]
    assert list(result.evaluate_metrics_clientapp) == [1, 2, 3]
    assert "Round 2 is void: Raising has no result: ZeroDivisionError: no." in caplog.text


def test_a_strategy_that_raises_over_evaluations_loses_those_alone(caplog: pytest.LogCaptureFixture) -> None:
    result = Validated(Raising("evaluate"), RUN, seeded=True).start(nodes(), ArrayRecord(start()), 3)
    assert list(result.train_metrics_clientapp) == [1, 2, 3]
    assert list(result.evaluate_metrics_clientapp) == [1, 3]
    assert "Round 2: the strategy could not average the evaluations: no" in caplog.text


@pytest.mark.slow
def test_a_strategy_that_lacks_a_metric_makes_void_rounds_and_no_crash(tmp_path: Path) -> None:
    """QFedAvg raises where a reply has no ``train_loss``; with the name of one that is sent it trains."""
    checked = Validated(QFedAvg(client_learning_rate=0.1), RUN, folder=tmp_path, seeded=True)
    with pytest.raises(FleetError, match=r"QFedAvg has no result: AggregationError: Missing or invalid .* \(2x\)"):
        checked.start(nodes(), ArrayRecord(start()), 2)
    assert equal(dict(load_file(tmp_path / "model.safetensors")), start())
    assert [row["void"] for row in rows(tmp_path / "metrics.jsonl")] == [True, True]
    assert verify(tmp_path / "ledger.jsonl").counts[0, "101"].accepted == 2, "seen is seen"
    good = Validated(QFedAvg(client_learning_rate=0.1, train_loss_key="loss"), RUN, seeded=True)
    assert not equal(weights_of(good.start(nodes(), ArrayRecord(start()), 2)), start())


# --- whole runs ---------------------------------------------------------------------------------------------


def test_a_run_numbers_its_rounds_and_reports_its_metrics(tmp_path: Path) -> None:
    grid = nodes()

    def evaluate(round_number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": round_number / 10})

    checked = Validated(FedAvg(), RUN, folder=tmp_path, seeded=True)
    result = checked.start(grid, ArrayRecord(start()), 2, evaluate_fn=evaluate)
    assert grid.rounds() == [1, 2]
    assert not checked.refused
    assert result.train_metrics_clientapp[2]["equipoise.lower"] == pytest.approx(LOWER)
    assert "private" not in result.train_metrics_clientapp[2]
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == 0.5
    noted = [(row["round"], row.get("accepted"), row.get("evaluation")) for row in rows(tmp_path / "metrics.jsonl")]
    assert noted == [
        (0, None, {"accuracy": 0.0}),
        (1, 4, None),
        (1, None, {"accuracy": 0.1}),
        (2, 4, None),
        (2, None, {"accuracy": 0.2}),
    ]
    about = json.loads((tmp_path / "result.json").read_text())
    (federation,) = about["federations"]
    assert (federation["rounds"], federation["accuracy"], federation["stopped"]) == (2, 0.2, None)
    assert about["experiment"] == "seeded"
    assert "No (epsilon, delta) is claimed" in about["claim"]


def test_the_ledger_says_who_was_asked_before_anything_is_sent(tmp_path: Path) -> None:
    grid, seen = nodes(), []
    answer = grid.answer

    def watched(message: Message) -> Iterable[Message]:
        seen.append(rows(tmp_path / "ledger.jsonl")[-1])
        return [] if message.metadata.dst_node_id == 104 else answer(message)

    grid.answer = watched
    result = validated(tmp_path).start(grid, ArrayRecord(start()), 2)
    assert [(line["kind"], line["round"]) for line in seen] == [("asked", 1)] * 4 + [("asked", 2)] * 4
    assert sorted(seen[0]["clients"]) == [str(n) for n in NODES]
    lines = rows(tmp_path / "ledger.jsonl")
    assert [line["kind"] for line in lines] == ["ledger", "asked", "answered", "asked", "answered"]
    row = next(row for row in lines[2]["releases"] if row["client"] == "101")
    assert (row["accepted"], row["lower"]) == (True, pytest.approx(LOWER))
    assert {"client": "104", "accepted": False, "reason": "no reply"} in lines[2]["releases"]
    counts = verify(tmp_path / "ledger.jsonl").counts
    assert {c: (n.asked, n.received, n.accepted, n.refused) for (_, c), n in counts.items()} == {
        "101": (2, 2, 2, 0),
        "102": (2, 2, 2, 0),
        "103": (2, 2, 2, 0),
        "104": (2, 0, 0, 0),
    }
    assert not equal(weights_of(result), start())


def test_refused_replies_are_counted_as_refused(tmp_path: Path) -> None:
    grid = LocalGrid(lambda m: [bad("nan", 101) if m.metadata.dst_node_id == 101 else reply(m.metadata.dst_node_id)])
    Validated(FedAvg(fraction_evaluate=0.0), RUN, folder=tmp_path).start(grid, ArrayRecord(start()), 1)
    count = verify(tmp_path / "ledger.jsonl").counts[0, "101"]
    assert (count.asked, count.received, count.accepted, count.refused) == (1, 1, 0, 1)
    row = next(r for r in rows(tmp_path / "ledger.jsonl")[-1]["releases"] if r["client"] == "101")
    assert "not finite" in row["reason"]


# --- limits -------------------------------------------------------------------------------------------------


def test_the_limit_on_releases_stops_before_the_round(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = nodes()
    checked = validated(tmp_path, **{"equipoise.release-limit": 2})
    result = checked.start(grid, ArrayRecord(start()), 5)
    assert grid.rounds() == [1, 2]
    assert "round 3 would pass the limit of 2" in str(checked.stopped)
    assert "round 3 would pass the limit of 2" in caplog.text
    assert verify(tmp_path / "ledger.jsonl").counts[0, "101"].asked == 2
    (federation,) = json.loads((tmp_path / "result.json").read_text())["federations"]
    assert federation["stopped"] == checked.stopped
    assert federation["rounds"] == 2, "those that were trained"

    two = validated(None).start(nodes(), ArrayRecord(start()), 2)
    assert equal(weights_of(result), weights_of(two)), "what was trained before the limit is kept"


def test_nothing_at_all_is_sent_after_the_limit(tmp_path: Path) -> None:
    grid = nodes()
    checked = Validated(FedAvg(), {**RUN, "equipoise.release-limit": 1}, folder=tmp_path, seeded=True)
    checked.start(grid, ArrayRecord(start()), 4)
    assert grid.sent == [("train", 1)] * 4 + [("evaluate", 1)] * 4


def test_the_limit_holds_without_a_folder() -> None:
    grid = nodes()
    checked = validated(None, **{"equipoise.release-limit": 2})
    checked.start(grid, ArrayRecord(start()), 4)
    assert grid.rounds() == [1, 2]
    assert checked.stopped


def test_a_higher_limit_goes_on_where_the_lower_one_stopped(tmp_path: Path) -> None:
    validated(tmp_path, **{"equipoise.release-limit": 2}).start(nodes(), ArrayRecord(start()), 5)
    grid = nodes()
    checked = validated(tmp_path, **{"equipoise.release-limit": 4})
    result = checked.start(grid, ArrayRecord(start()), 4)
    assert grid.rounds() == [3, 4]
    assert checked.stopped is None
    assert equal(weights_of(result), weights_of(validated(None).start(nodes(), ArrayRecord(start()), 4)))


# --- going on -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("round_number", [1, 3, 5])
@pytest.mark.parametrize("name", ["FedAvg", "FedAdam", "FedAvgM"])
def test_an_interrupted_run_goes_on_and_ends_with_the_same_weights(
    name: str, round_number: int, tmp_path: Path
) -> None:
    whole = validated(tmp_path / "whole", name).start(nodes(), ArrayRecord(start()), 5)
    interrupt(validated(tmp_path / "run", name), round_number)
    grid = nodes()
    other = {key: tensor + 1 for key, tensor in start().items()}  # the checkpoint counts, not what one starts with
    result = validated(tmp_path / "run", name).start(grid, ArrayRecord(start() if round_number == 1 else other), 5)
    assert grid.rounds() == list(range(round_number, 6))
    assert equal(weights_of(result), weights_of(whole))
    assert list(result.train_metrics_clientapp) == list(range(round_number, 6))
    counts = verify(tmp_path / "run" / "ledger.jsonl").counts[0, "101"]
    assert (counts.asked, counts.received) == (6, 5), "the round that was cut off is counted: it may have been seen"
    rounds = [row["round"] for row in rows(tmp_path / "run" / "metrics.jsonl")]
    assert rounds == [1, 2, 3, 4, 5]
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()


def test_evaluations_and_refusals_of_both_parts_are_kept(tmp_path: Path) -> None:
    def evaluate(round_number: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"accuracy": round_number / 10})

    def answer(message: Message) -> Iterable[Message]:
        node, round_number = message.metadata.dst_node_id, message.content["config"]["server-round"]
        if round_number == 3 and not grids[1:]:
            raise Interrupted
        return (
            [reply(node, round_number=round_number)]
            if node != 101
            else [bad("weight zero", node)]
            if round_number != 4
            else []
        )

    grids: list[LocalGrid] = []
    for last in (5, 4):
        grids.append(LocalGrid(answer))
        checked = Validated(FedAvg(fraction_evaluate=0.0), RUN, folder=tmp_path)
        with contextlib.suppress(Interrupted):
            checked.start(grids[-1], ArrayRecord(start()), last, evaluate_fn=evaluate)
    assert [grid.rounds() for grid in grids] == [[1, 2, 3], [3, 4]]
    evaluated = [row["round"] for row in rows(tmp_path / "metrics.jsonl") if "evaluation" in row]
    assert evaluated == [0, 1, 2, 3, 4], "each once"
    assert [row["round"] for row in rows(tmp_path / "metrics.jsonl") if "void" in row] == [1, 2, 3, 4]
    (federation,) = json.loads((tmp_path / "result.json").read_text())["federations"]
    assert list(federation["refused"]) == ["1", "2", "3", "4"]
    assert federation["refused"]["4"] == {"101": "no reply"}
    assert "has weight 0" in federation["refused"]["1"]["101"]


def test_a_finished_run_is_not_run_again(tmp_path: Path) -> None:
    done = validated(tmp_path).start(nodes(), ArrayRecord(start()), 2)
    grid = nodes()
    again = validated(tmp_path).start(grid, ArrayRecord(start()), 2)
    assert grid.sent == []
    assert equal(weights_of(again), weights_of(done))


@pytest.mark.parametrize(
    "model",
    [{"other": torch.zeros(2)}, {**start(), "more": torch.zeros(1)}, {**start(), "1.bias": torch.zeros(4)}],
    ids=["names", "more", "shape"],
)
def test_another_model_is_not_continued(model: dict[str, Tensor], tmp_path: Path) -> None:
    interrupt(validated(tmp_path), 2)
    grid = nodes()
    with pytest.raises(CheckpointError, match="another model"):
        validated(tmp_path).start(grid, ArrayRecord(model), 3)
    assert grid.sent == []


# --- settings and the rest ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [{"min_clients": 0}, {"max_weight": 0}, {"max_weight": math.nan}, {"max_norm": 0}, {"max_weight_ratio": 0.5}],
    ids=str,
)
def test_impossible_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"Expected {next(iter(options))}="):
        Validated(FedAvg(), RUN, **options)


def test_only_a_strategy_can_be_validated() -> None:
    with pytest.raises(ConfigError, match="Expected a Flower strategy, got ABCMeta"):
        Validated(FedAvg, RUN)  # type: ignore[arg-type]


def test_a_broken_model_is_an_error_before_anything_is_sent() -> None:
    grid = nodes()
    model = {**start(), "1.bias": torch.tensor([1.0, math.nan, 1.0])}
    with pytest.raises(ReleaseError, match="finite tensors"):
        validated(None).start(grid, ArrayRecord(model), 1)
    assert grid.sent == []


def test_a_strategy_that_weighs_by_another_metric_is_an_error() -> None:
    with pytest.raises(ConfigError, match="weighs by 'seen', and replies name their weight 'num-examples'"):
        Validated(FedAvg(weighted_by_key="seen"), RUN)


HOSTILE_EVALUATIONS: dict[str, dict[str, Any]] = {
    "no weight": {"accuracy": 1.0},
    "other metrics": {"num-examples": 1, "accuracy": 1.0, "more": 1.0},
    "list as weight": {"num-examples": [1.0], "accuracy": 1.0},
    "zero weight": {"num-examples": 0, "accuracy": 1.0},
    "negative weight": {"num-examples": -20, "accuracy": 1.0},
    "huge weight": {"num-examples": 1e12, "accuracy": 1.0},
    "weight out of all proportion": {"num-examples": 51, "accuracy": 1.0},
    "nan": {"num-examples": 5, "accuracy": math.nan},
    "list": {"num-examples": 5, "accuracy": [1.0]},
}


@pytest.mark.parametrize("kind", HOSTILE_EVALUATIONS)
def test_a_hostile_evaluation_ends_no_run_and_counts_for_nothing(kind: str) -> None:
    def answer(message: Message) -> Iterable[Message]:
        node = message.metadata.dst_node_id
        if message.metadata.message_type == "train":
            return [reply(node)]
        numbers = HOSTILE_EVALUATIONS[kind] if node == 101 else {"num-examples": 5, "accuracy": 0.5}
        return [Message(RecordDict({"metrics": MetricRecord(numbers)}), reply_to=message)]

    result = Validated(FedAvg(), RUN).start(LocalGrid(answer), ArrayRecord(start()), 1)
    assert result.evaluate_metrics_clientapp[1]["accuracy"] == pytest.approx(0.5)


class Noting(FedAvg):
    """Keeps what it was given to average."""

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        self.given = list(replies)
        return super().aggregate_evaluate(server_round, self.given)


def evaluation(node: int, accuracy: Any, name: str = "metrics", **others: Any) -> Message:
    content = RecordDict({name: MetricRecord({"num-examples": 5, "accuracy": accuracy, **others})})
    return Message(content, reply_to=asking(node, kind="evaluate"))


def test_evaluations_are_checked_one_by_one_and_rebuilt(caplog: pytest.LogCaptureFixture) -> None:
    """Six nodes are asked: three answer well, one of them under another name, twice, and beside a set of arrays."""
    asked = [101, 102, 103, 104, 105, 106]
    beside = evaluation(103, 0.75)
    beside.content["arrays"] = ArrayRecord(start())
    two = evaluation(106, 1.0)
    two.content["more"] = MetricRecord({"accuracy": 1.0})
    given = {
        101: [evaluation(101, 0.25, name="m"), evaluation(101, 1.0)],
        102: [evaluation(102, 0.5), evaluation(999, 1.0), failure(SUPERLINK_NODE_ID, "Reply not available")],
        103: [beside],
        104: [evaluation(104, math.nan)],
        105: [evaluation(105, 1.0, odd=1.0)],
        106: [two],
    }

    def answer(message: Message) -> Iterable[Message]:
        node = message.metadata.dst_node_id
        return [reply(node)] if message.metadata.message_type == "train" else given[node]

    strategy = Noting()
    result = Validated(strategy, RUN).start(LocalGrid(answer, asked), ArrayRecord(start()), 1)
    assert [message.metadata.src_node_id for message in strategy.given] == [101, 102, 103]
    for message, accuracy in zip(strategy.given, (0.25, 0.5, 0.75), strict=True):
        assert list(message.content) == ["metrics"]
        assert dict(message.content["metrics"]) == {"num-examples": 5, "accuracy": accuracy}
    assert dict(result.evaluate_metrics_clientapp[1]) == pytest.approx({"accuracy": 0.5})
    for client, reason in {
        101: "answered twice",
        999: "was not asked",
        104: "has a metric that is no finite number: 'accuracy'",
        105: "has other metrics than most",
        106: "has 2 records of metrics, expected one",
    }.items():
        assert f"Round 1: refused the evaluation of client {client}: {reason}" in caplog.text


def test_an_evaluation_without_any_good_reply_is_none() -> None:
    def answer(message: Message) -> Iterable[Message]:
        node = message.metadata.dst_node_id
        training = message.metadata.message_type == "train"
        return [reply(node) if training else evaluation(node, math.inf)]

    strategy = Noting()
    result = Validated(strategy, RUN).start(LocalGrid(answer), ArrayRecord(start()), 1)
    assert not hasattr(strategy, "given"), "the strategy is not asked to average nothing"
    assert not result.evaluate_metrics_clientapp


def test_the_summary_says_what_is_asked_and_claims_nothing_more(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "flwr"):
        Validated(FedAvg(), {**RUN, "equipoise.release-limit": 7}, min_clients=2).summary()
    for part in ("pl-identical, budget 0.98", f"{LOWER:.6g}", "At least 2 good", "at most 7", "does not compose"):
        assert part in caplog.text
    assert "Aggregation: FedAvg" in caplog.text
    assert "No (epsilon, delta) is claimed" in caplog.text


def test_the_summary_says_that_epsilons_add_up(caplog: pytest.LogCaptureFixture) -> None:
    terms = {"equipoise.mechanism": "laplace-dp", "equipoise.budget": 200.0, "equipoise.metrics": ""}
    with caplog.at_level(logging.INFO, "flwr"):
        Validated(FedAvg(), {**RUN, **terms}).summary()
    assert "The budget of laplace-dp is the epsilon of one release" in caplog.text
    assert "does not compose" not in caplog.text
    assert "No (epsilon, delta)" not in caplog.text


def test_the_strategy_alone_works_with_protected_clients() -> None:
    """Guard and protect need no Validated; their records are metrics."""
    result = FedAvg(fraction_evaluate=0.0).start(nodes(), ArrayRecord(start()), 2)
    checked = validated(None).start(nodes(), ArrayRecord(start()), 2)
    assert result.train_metrics_clientapp[2]["equipoise.lower"] == pytest.approx(LOWER)
    torch.testing.assert_close(weights_of(result), weights_of(checked))


def test_messages_are_those_of_the_strategy() -> None:
    checked = Validated(FedAvg(fraction_train=0.5), RUN)
    sent = list(checked.configure_train(1, ArrayRecord(start()), ConfigRecord({"lr": 0.1}), LocalGrid()))
    assert len(sent) == 2
    assert dict(sent[0].content["config"]) == {"lr": 0.1, "server-round": 1}
    assert sent[0].metadata.message_type == asking().metadata.message_type == "train"
