"""The folder of a deployed server: what is written in which order, and from what a later server goes on."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import torch
from flwr.app import ArrayRecord, Message, MetricRecord
from flwr.serverapp.strategy import FedAvg
from safetensors.torch import load_file

from equipoise.errors import CheckpointError, LedgerError, LimitError, StorageError
from equipoise.flower import Validated
from equipoise.flower.run_config import read_terms
from equipoise.flower.server_folder import ServerFolder
from equipoise.ledger.ledger import Ledger, verify
from equipoise.ledger.lines import NO_REPLY
from equipoise.runs.checkpoint import read_notes, write_notes
from equipoise.runs.config import resolve
from equipoise.runs.folder import RunFolder
from equipoise.runs.run import Run
from equipoise.runs.snapshot import snapshot_path
from tests.flower.messages import RUN, LocalGrid, nodes, reply, start
from tests.flower.servers import Interrupted, equal, interrupt, rows, validated, weights_of
from tests.helpers import contents


def opened(path: Path | None, **changed: Any) -> ServerFolder:
    """The folder of a deployment, taken."""
    folder = ServerFolder(path, read_terms({**RUN, **changed}), seeded=False, strategy="FedAvg")
    assert folder.open() is None
    return folder


def a_round(folder: ServerFolder, round_number: int) -> None:
    """Two clients are asked, one answers."""
    folder.asked(["101", "102"], round_number)
    silent = {"client": "102", "accepted": False, "reason": NO_REPLY}
    folder.answered([{"client": "101", "intensity": 8.0, "accepted": True}, silent], round_number)
    folder.metrics({"round": round_number, "accepted": 1, "refused": {"102": NO_REPLY}, "loss": math.nan})
    folder.checkpoint({"model/w": torch.full((2,), float(round_number))}, round_number, changed=True)


# --- what is written ----------------------------------------------------------------------------------------


def test_a_folder_holds_what_the_next_server_needs(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    a_round(folder, 1)
    a_round(folder, 2)
    folder.close()
    later = ServerFolder(tmp_path, folder.terms, seeded=False, strategy="FedAvg")
    result = later.open()
    assert result is not None
    tensors, notes = result
    assert (tensors["model/w"].tolist(), notes["round"]) == ([2.0, 2.0], 2)
    assert notes["ledger"] == {"head": verify(tmp_path / "ledger.jsonl").head, "entries": 5}
    assert later.refusals() == {1: {"102": "no reply"}, 2: {"102": "no reply"}}
    assert rows(tmp_path / "metrics.jsonl")[1] == {
        "experiment": None, "round": 2, "accepted": 1, "refused": {"102": "no reply"}, "loss": None,
    }  # fmt: skip
    later.close()


def test_checkpoints_behind_a_link_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "checkpoint").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="checkpoint in the folder run is a link"):
        opened(tmp_path / "run")
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_the_lines_of_the_ledger_say_who_and_when(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    a_round(folder, 1)
    _, asked, answered = rows(tmp_path / "ledger.jsonl")
    about = {"federation": 0, "round": 1, "mechanism": "pl-identical", "budget": 0.98, "norm": "l2"}
    for line in (asked, answered):
        assert {name: line[name] for name in about} == about
        assert datetime.fromisoformat(line["at"]).tzinfo == UTC
    assert asked["clients"] == ["101", "102"]
    assert [row["accepted"] for row in answered["releases"]] == [True, False]
    folder.close()


def test_the_result_names_the_head_of_the_ledger_and_claims_no_epsilon(tmp_path: Path) -> None:
    folder = opened(tmp_path)
    a_round(folder, 1)
    folder.result({"w": torch.ones(2)}, {"rounds": 1, "stopped": None})
    folder.close()
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["engine"], result["experiment"]) == ("flower", None)
    assert result["ledger"] == {"head": verify(tmp_path / "ledger.jsonl").head, "entries": 3}
    assert result["federations"] == [
        {"dataset": None, "mechanism": "pl-identical", "budget": 0.98, "seed": None, "rounds": 1, "stopped": None}
    ]
    assert "No (epsilon, delta) is claimed" in result["claim"]
    assert load_file(tmp_path / "model.safetensors")["w"].tolist() == [1.0, 1.0]


def test_without_a_path_releases_are_counted_and_nothing_is_kept() -> None:
    folder = opened(None, **{"equipoise.release-limit": 2})
    folder.permit([], 1)
    folder.asked(["101", "102"], 1)
    folder.asked(["101"], 2)
    folder.permit(["102"], 3)
    with pytest.raises(LimitError, match="Client 101 was asked for 2 release") as stopped:
        folder.permit(["102", "101"], 3)
    assert stopped.value.cause.endswith("round 3 would pass the limit of 2.")
    a_round(folder, 3)
    folder.result({}, {"rounds": 3})
    assert folder.refusals() == {}


@pytest.mark.parametrize("line", ["[1, 2]", '{"refused": {"102": "late"}}', '{"round": "two", "refused": {}}'])
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: str) -> None:
    folder = opened(tmp_path)
    a_round(folder, 1)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(f"{line}\n")
    with pytest.raises(CheckpointError, match=r"Line 2 of metrics\.jsonl"):
        folder.refusals()
    folder.close()


# --- what a later server goes on from -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "change",
    [
        {"metrics_bytes": 10_000},
        {"metrics_bytes": -1},
        {"metrics_bytes": True},
        {"metrics_bytes": None},
        {"round": True},
        {"round": -1},
        {"ledger": None},
        {"ledger": "head"},
    ],
    ids=str,
)
def test_a_checkpoint_that_does_not_fit_its_files_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    folder = opened(tmp_path)
    a_round(folder, 1)
    folder.close()
    (path,) = (tmp_path / "checkpoint").glob("*.json")
    notes = read_notes(path)
    write_notes(path, {}, {**notes, **change})
    before = (tmp_path / "metrics.jsonl").read_bytes()
    later = ServerFolder(tmp_path, folder.terms, seeded=False, strategy="FedAvg")
    words = r"metrics\.jsonl is shorter" if change.get("metrics_bytes") == 10_000 else "other notes than a server's"
    with pytest.raises(CheckpointError, match=words):
        later.open()
    later.close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_metrics_after_the_checkpoint_are_cut_back_and_a_torn_ledger_line_is_dropped(tmp_path: Path) -> None:
    interrupt(validated(tmp_path), 3)
    kept = (tmp_path / "metrics.jsonl").read_bytes()
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 3, "half a li')
    with (tmp_path / "ledger.jsonl").open("ab") as file:
        file.write(b'{"n":6,"kind":"answ')
    validated(tmp_path).start(nodes(), ArrayRecord(start()), 3)
    result = (tmp_path / "metrics.jsonl").read_bytes()
    assert result.startswith(kept)
    assert [row["round"] for row in rows(tmp_path / "metrics.jsonl")] == [1, 2, 3]
    assert verify(tmp_path / "ledger.jsonl").torn == 0


OTHER_TERMS: dict[str, Any] = {
    "budget": 0.97,
    "mechanism": "pl-learn",
    "eta": 0.5,
    "clip": 7.0,
    "sensitivity": 2.0,
    "steps": 3,
    "leakage.D": 28.0,
}


@pytest.mark.parametrize("key", OTHER_TERMS)
def test_a_run_with_other_terms_is_not_continued(key: str, tmp_path: Path) -> None:
    interrupt(validated(tmp_path), 2)
    changed = {f"equipoise.{key}": OTHER_TERMS[key]}
    grid = nodes({**RUN, **changed})
    with pytest.raises(CheckpointError, match=rf"other terms: {key.split('.')[0]}\. "):
        validated(tmp_path, **changed).start(grid, ArrayRecord(start()), 3)
    assert grid.sent == []


def test_a_run_is_not_continued_with_another_strategy(tmp_path: Path) -> None:
    interrupt(validated(tmp_path, "FedAdam"), 2)
    grid = nodes()
    with pytest.raises(CheckpointError, match=r"other terms: strategy\. "):
        validated(tmp_path, "FedYogi").start(grid, ArrayRecord(start()), 3)
    assert grid.sent == []


def evaluated(checked: Validated, grid: LocalGrid, last: int) -> None:
    checked.start(
        grid, ArrayRecord(start()), last, evaluate_fn=lambda round_number, arrays: MetricRecord({"accuracy": 0.5})
    )


def test_without_a_checkpoint_the_metrics_begin_again(tmp_path: Path) -> None:
    """The server was killed in its first round: its row of round 0 is written once, and half a line does no harm."""

    def dying(message: Message) -> Iterable[Message]:
        raise Interrupted

    with pytest.raises(Interrupted):
        evaluated(validated(tmp_path), LocalGrid(dying), 2)
    assert [row["round"] for row in rows(tmp_path / "metrics.jsonl")] == [0]
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"round": 1, "half a li')
    evaluated(validated(tmp_path), nodes(), 2)
    assert [row["round"] for row in rows(tmp_path / "metrics.jsonl")] == [0, 1, 1, 2, 2]


def test_a_torn_first_line_of_the_metrics_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"round": 0, "evalu')
    evaluated(validated(tmp_path), nodes(), 1)
    assert [row["round"] for row in rows(tmp_path / "metrics.jsonl")] == [0, 1, 1]


# --- the ledger of a deployment -----------------------------------------------------------------------------


def deployment(folder: Path) -> Validated:
    return Validated(FedAvg(fraction_evaluate=0.0), RUN, folder=folder)


def honest() -> LocalGrid:
    """Nodes with noise of their own, as in a deployment."""
    return LocalGrid(lambda m: [reply(m.metadata.dst_node_id, round_number=m.content["config"]["server-round"])])


def deleted(path: Path) -> None:
    path.unlink()


def cut(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def cut_and_replaced(path: Path) -> None:
    """As many lines as before, and each follows from the one before it."""
    last = json.loads(path.read_text().splitlines()[-1])
    cut(path)
    entry = {key: value for key, value in last.items() if key not in ("n", "hash")}
    Ledger.open(path, None).append([{**entry, "releases": []}])


def written_anew(path: Path) -> None:
    """A whole chain of its own, one release of every client shorter."""
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    path.unlink()
    own = Ledger.open(path, None)
    kept = [{key: value for key, value in entry.items() if key not in ("n", "hash")} for entry in entries[1:]]
    own.append([entry for entry in kept if entry["round"] != 1])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize(
    ("damage", "chained"),
    [(deleted, False), (emptied, False), (cut, True), (cut_and_replaced, True), (written_anew, True)],
)
def test_a_deployment_does_not_go_on_without_its_ledger(
    damage: Callable[[Path], None], chained: bool, tmp_path: Path
) -> None:
    """Fewer releases counted than were made would let the limit be passed."""
    deployment(tmp_path).start(honest(), ArrayRecord(start()), 2)
    damage(tmp_path / "ledger.jsonl")
    if chained:
        verify(tmp_path / "ledger.jsonl")  # nothing is wrong with it by itself
    grid = honest()
    with pytest.raises(LedgerError):
        deployment(tmp_path).start(grid, ArrayRecord(start()), 3)
    assert grid.sent == []


def test_a_deployment_goes_on_after_a_round_that_was_asked_and_not_answered(tmp_path: Path) -> None:
    deployment(tmp_path).start(honest(), ArrayRecord(start()), 2)
    path = tmp_path / "ledger.jsonl"
    last = json.loads(path.read_text().splitlines()[-2])
    assert last["kind"] == "asked"
    entry = {key: value for key, value in last.items() if key not in ("n", "hash")}
    Ledger.open(path, None).append([{**entry, "round": 3}])
    grid = honest()
    deployment(tmp_path).start(grid, ArrayRecord(start()), 3)
    assert grid.rounds() == [3]
    assert [line["kind"] for line in rows(path)] == ["ledger", *["asked", "answered"] * 2, "asked", "asked", "answered"]
    count = verify(path).counts[0, "101"]
    assert (count.asked, count.received) == (4, 3), "what may have been seen is counted"


def test_an_experiment_and_a_deployment_do_not_share_a_folder(tmp_path: Path) -> None:
    interrupt(validated(tmp_path), 2)
    with pytest.raises(LedgerError, match="experiment"):
        Validated(FedAvg(), RUN, folder=tmp_path).start(nodes(), ArrayRecord(start()), 3)


@pytest.mark.parametrize("file", ["state-*.safetensors", "checkpoint-*.json"])
def test_a_flipped_byte_in_the_checkpoint_is_detected(file: str, tmp_path: Path) -> None:
    interrupt(validated(tmp_path), 2)
    (path,) = (tmp_path / "checkpoint").glob(file)
    content = path.read_bytes()
    for place in (len(content) // 3, len(content) // 2, len(content) - 3):
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        grid = nodes()
        with pytest.raises(CheckpointError):
            validated(tmp_path).start(grid, ArrayRecord(start()), 3)
        assert grid.sent == []
    path.write_bytes(content)
    validated(tmp_path).start(nodes(), ArrayRecord(start()), 2)


def test_a_changed_ledger_is_detected(tmp_path: Path) -> None:
    interrupt(validated(tmp_path), 3)
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"accepted":true', b'"accepted":null', 1))
    with pytest.raises(LedgerError):
        validated(tmp_path).start(nodes(), ArrayRecord(start()), 3)


def test_one_server_at_a_time_uses_a_folder(tmp_path: Path) -> None:
    grid, answer = nodes(), nodes().answer

    def second(message: Message) -> Iterable[Message]:
        with pytest.raises(CheckpointError, match="Another process"):
            validated(tmp_path).start(nodes(), ArrayRecord(start()), 1)
        return answer(message)

    grid.answer = second
    validated(tmp_path).start(grid, ArrayRecord(start()), 1)
    assert len(grid.sent) == 4


def test_without_a_folder_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    validated(None).start(nodes(), ArrayRecord(start()), 1)
    assert list(tmp_path.iterdir()) == []


def test_the_run_config_can_name_the_folder(tmp_path: Path) -> None:
    validated(None, **{"equipoise.out": str(tmp_path / "run")}).start(nodes(), ArrayRecord(start()), 1)
    assert (tmp_path / "run" / "result.json").exists()


# --- for an audit -------------------------------------------------------------------------------------------


def kept(folder: Path) -> dict[int, dict[str, Any]]:
    """The global weights of every snapshot."""
    run = RunFolder(folder)
    return {number: run.state(number) for number in run.snapshots()}


def test_the_weights_before_the_first_round_of_chosen_rounds_and_of_the_last_are_kept(tmp_path: Path) -> None:
    asked: dict[int, dict[str, Any]] = {}
    grid, answer = nodes(), nodes().answer

    def seen(message: Message) -> Iterable[Message]:
        sent = dict(message.content["arrays"].to_torch_state_dict())
        asked[message.content["config"]["server-round"] - 1] = sent
        return answer(message)

    grid.answer = seen
    done = validated(tmp_path, **{"equipoise.audit.snapshots": "[0, 2]"}).start(grid, ArrayRecord(start()), 4)
    result = kept(tmp_path)
    assert list(result) == [0, 2, 4]
    for number, expected in ((0, start()), (2, asked[2]), (4, weights_of(done))):
        assert equal(result[number], expected), f"the model that round {number} ended with, and nothing else"


def test_the_configuration_says_what_was_asked(tmp_path: Path) -> None:
    run = {"equipoise.eta": 0.05, "equipoise.audit.batch": 6, "equipoise.audit.model": "task:Net"}
    validated(tmp_path, **run).start(nodes(), ArrayRecord(start()), 2)
    config = RunFolder(tmp_path).config
    assert config == read_terms({**RUN, **run}).config(2, "float32")
    assert config.deployment is not None
    assert config.deployment.model == "task:Net"
    validated(tmp_path, **run).start(nodes(), ArrayRecord(start()), 3)
    assert RunFolder(tmp_path).config.settings.training.rounds == 3
    double = {name: tensor.double() for name, tensor in start().items()}
    folder = ServerFolder(tmp_path / "other", read_terms(RUN), seeded=False, strategy="FedAvg")
    folder.begin(double, 0, 1)
    assert RunFolder(tmp_path / "other").config.settings.run.dtype == "float64"


def test_a_server_that_goes_on_keeps_the_snapshots_of_the_first(tmp_path: Path) -> None:
    settings = {"equipoise.audit.snapshots": "[0, 1, 3]"}
    interrupt(validated(tmp_path, **settings), 3)
    before = kept(tmp_path)
    assert list(before) == [0, 1], "what was finished is there after a crash"
    other = {name: tensor + 1 for name, tensor in start().items()}  # a new server draws other initial weights
    validated(tmp_path, **settings).start(nodes(), ArrayRecord(other), 3)
    after = kept(tmp_path)
    assert list(after) == [0, 1, 3]
    assert equal(after[0], start())
    assert equal(after[1], before[1])


def test_snapshots_of_rounds_that_are_asked_again_are_dropped(tmp_path: Path) -> None:
    """The server died between a snapshot and its checkpoint: the round is trained again, with other noise."""
    interrupt(validated(tmp_path), 3)
    stale = snapshot_path(tmp_path, 3)
    stale.write_bytes(snapshot_path(tmp_path, 1).read_bytes())
    interrupt(validated(tmp_path), 4)
    assert not stale.exists()


def test_without_a_checkpoint_the_snapshots_begin_again(tmp_path: Path) -> None:
    interrupt(validated(tmp_path), 1)
    assert equal(kept(tmp_path)[0], start())
    other = {name: tensor + 1 for name, tensor in start().items()}
    validated(tmp_path).start(nodes(), ArrayRecord(other), 1)
    assert equal(kept(tmp_path)[0], other)


def test_a_run_of_the_engine_is_not_overwritten(tmp_path: Path) -> None:
    Run(tmp_path, resolve(overrides={"rounds": 1, "ledger": False}, sweep={"mechanisms": ["none"]})).execute()
    before = contents(tmp_path)
    with pytest.raises(CheckpointError, match="another run than a deployment's"):
        validated(tmp_path).start(nodes(), ArrayRecord(start()), 1)
    assert contents(tmp_path) == before


def test_nothing_of_a_client_is_in_what_an_audit_reads(tmp_path: Path) -> None:
    validated(tmp_path).start(nodes(), ArrayRecord(start()), 2)
    for state in kept(tmp_path).values():
        assert state.keys() == start().keys(), "the global model, and no update"
    text = (tmp_path / "config.toml").read_text()
    assert not any(node in text for node in ("101", "102", "103", "104"))
