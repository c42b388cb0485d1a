"""The checkpoints of a deployed server: what a void round leaves alone, and what one that is damaged costs."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import pytest
from flwr.app import ArrayRecord, Message
from flwr.serverapp.strategy import FedAvg
from torch import Tensor

from equipoise.errors import CheckpointError, LedgerError
from equipoise.flower import Validated
from equipoise.ledger.ledger import verify
from equipoise.runs.folder import RunFolder
from tests.flower.messages import RUN, LocalGrid, reply, start, update
from tests.flower.servers import equal, rows, weights_of
from tests.helpers import contents
from tests.runs.mortal import Death, Mortal

SNAPSHOTS = {"equipoise.audit.snapshots": "[0, 1, 2, 3, 4, 5]"}


def grid(*void: int) -> LocalGrid:
    """Honest nodes whose updates are told apart by the round; in some rounds their replies are stale."""

    def answer(message: Message) -> Iterable[Message]:
        node, number = message.metadata.dst_node_id, message.content["config"]["server-round"]
        return [reply(node, update(node + number), round_number=0 if number in void else number)]

    return LocalGrid(answer)


def server(folder: Path | None) -> Validated:
    return Validated(FedAvg(fraction_evaluate=0.0), {**RUN, **SNAPSHOTS}, folder=folder)


def run(folder: Path | None, rounds: int, *void: int) -> tuple[LocalGrid, dict[str, Tensor]]:
    nodes = grid(*void)
    return nodes, weights_of(server(folder).start(nodes, ArrayRecord(start()), rounds))


def states(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in (folder / "checkpoint").glob("state-*")}


def damage(folder: Path, *rounds: int, file: str = "state-{:08d}.safetensors") -> None:
    for number in rounds:
        path = folder / "checkpoint" / file.format(number)
        path.write_bytes(path.read_bytes()[:-7])


def test_a_void_round_writes_no_good_state_again(tmp_path: Path) -> None:
    run(tmp_path, 2)
    before = states(tmp_path)
    nodes = grid(3, 4)
    with pytest.raises(Exception, match="No round was accepted, of 2"):
        server(tmp_path).start(nodes, ArrayRecord(start()), 4)
    assert nodes.rounds() == [3, 4]
    assert states(tmp_path) == before
    again = grid()
    assert weights_of(server(tmp_path).start(again, ArrayRecord(start()), 5)).keys() == start().keys()
    assert again.rounds() == [5], "a void round was asked for all the same, and is not asked for twice"


@pytest.mark.parametrize("file", ["state-{:08d}.safetensors", "checkpoint-{:08d}.json"])
@pytest.mark.parametrize("damaged", [(5,), (4, 5)])
def test_a_damaged_checkpoint_costs_its_rounds_and_no_more(
    damaged: tuple[int, ...], file: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, whole = run(tmp_path, 5)
    metrics, ledger = ((tmp_path / name).read_bytes() for name in ("metrics.jsonl", "ledger.jsonl"))
    damage(tmp_path, *damaged, file=file)
    nodes, result = run(tmp_path, 5)
    assert nodes.rounds() == list(damaged)
    assert equal(result, whole)
    for number in damaged:
        assert f"checkpoint-{number:08d}.json is damaged: " in caplog.text
    assert "Going on from the checkpoint before it." in caplog.text
    assert (tmp_path / "metrics.jsonl").read_bytes() == metrics, "cut back, and written again"
    grown = (tmp_path / "ledger.jsonl").read_bytes()
    assert grown.startswith(ledger), "what was seen was seen"
    assert verify(tmp_path / "ledger.jsonl").counts[0, "101"].asked == 5 + len(damaged)
    assert RunFolder(tmp_path).snapshots() == [0, 1, 2, 3, 4, 5]
    nodes, _ = run(tmp_path, 5)
    assert nodes.rounds() == [], "the same once more, and nothing is damaged"


def test_metrics_and_snapshots_of_a_lost_checkpoint_are_cut_back_before_anything_is_asked(tmp_path: Path) -> None:
    run(tmp_path, 4)
    damage(tmp_path, 4)
    seen: list[tuple[list[int], list[int]]] = []
    nodes = grid()
    answer = nodes.answer

    def looking(message: Message) -> Iterable[Message]:
        lines = [row["round"] for row in rows(tmp_path / "metrics.jsonl")]
        seen.append((lines, RunFolder(tmp_path).snapshots()))
        return answer(message)

    nodes.answer = looking
    server(tmp_path).start(nodes, ArrayRecord(start()), 4)
    assert seen[0] == ([1, 2, 3], [0, 1, 2, 3])


@pytest.mark.parametrize("file", ["state-{:08d}.safetensors", "checkpoint-{:08d}.json"])
def test_if_all_are_damaged_nothing_is_asked_and_nothing_changed(file: str, tmp_path: Path) -> None:
    run(tmp_path, 5)
    damage(tmp_path, 3, 4, 5, file=file)
    before, nodes = contents(tmp_path), grid()
    with pytest.raises(CheckpointError, match="All 3 checkpoints are damaged") as all_:
        server(tmp_path).start(nodes, ArrayRecord(start()), 6)
    assert "from a copy" in all_.value.remedy
    assert nodes.sent == []
    assert contents(tmp_path) == before


def test_a_ledger_that_was_cut_is_noticed_beside_a_damaged_checkpoint(tmp_path: Path) -> None:
    """The tensors of round 3 are lost, but its notes still say how far the ledger went."""
    run(tmp_path, 3)
    ledger = tmp_path / "ledger.jsonl"
    ledger.write_bytes(b"".join(ledger.read_bytes().splitlines(keepends=True)[:-2]))
    damage(tmp_path, 3)
    nodes = grid()
    with pytest.raises(LedgerError):
        server(tmp_path).start(nodes, ArrayRecord(start()), 4)
    assert nodes.sent == []


EVERY = [pytest.param(9, id="some"), pytest.param(1, id="all", marks=pytest.mark.slow)]
"""How many of the steps are tried: every so manieth."""


@pytest.mark.slow
@pytest.mark.parametrize("every", EVERY)
def test_a_server_that_is_killed_at_any_step_goes_on_to_the_same_model(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Five rounds, of which the third is void: whatever was on the disk, the next server ends where the first would."""
    with monkeypatch.context() as patch:
        counted = Mortal(patch)
        _, whole = run(tmp_path / "whole", 5, 3)
    assert counted.count > 60
    for point in range(0, counted.count, every):
        folder = tmp_path / str(point)
        with monkeypatch.context() as patch:
            Mortal(patch, point)
            with pytest.raises(Death) as death:
                run(folder, 5, 3)
        _, result = run(folder, 5, 3)
        where = f"killed at operation {point} of {counted.count}, {death.value}"
        assert equal(result, whole), where
        assert [row["void"] for row in rows(folder / "metrics.jsonl")] == [False, False, True, False, False], where
        assert RunFolder(folder).snapshots() == [0, 1, 2, 3, 4, 5], where
        assert 5 <= verify(folder / "ledger.jsonl").counts[0, "101"].asked <= 6, where


@pytest.mark.parametrize("every", EVERY)
def test_a_server_that_is_killed_while_it_goes_back_to_an_earlier_checkpoint(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, whole = run(tmp_path / "whole", 4)
    damage(tmp_path / "whole", 3, 4)
    left = tmp_path / "left"
    shutil.copytree(tmp_path / "whole", left)
    with monkeypatch.context() as patch:
        counted = Mortal(patch)
        run(tmp_path / "whole", 4)
    for point in range(0, counted.count, every):
        folder = tmp_path / str(point)
        shutil.copytree(left, folder)
        with monkeypatch.context() as patch:
            Mortal(patch, point)
            with pytest.raises(Death):
                run(folder, 4)
        _, result = run(folder, 4)
        assert equal(result, whole), point
        assert [row["round"] for row in rows(folder / "metrics.jsonl")] == [1, 2, 3, 4], point
        assert RunFolder(folder).snapshots() == [0, 1, 2, 3, 4], point
