"""The last checkpoints of a run: a damaged one costs a round, and no moment is without a whole one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from equipoise.errors import CheckpointError
from equipoise.runs.checkpoint import save_checkpoint
from equipoise.runs.checkpoint_series import KEPT, CheckpointSeries
from tests.helpers import contents
from tests.runs.mortal import Death, Mortal


def state(round_number: int) -> dict[str, Tensor]:
    return {"w": torch.full((3,), float(round_number))}


def saved(folder: Path, rounds: int, void: tuple[int, ...] = ()) -> CheckpointSeries:
    """The rounds 1 to ``rounds``, some of them without a change."""
    series, good = CheckpointSeries(folder), 0
    for number in range(1, rounds + 1):
        good = good if number in void else number
        series.save(state(good), {"round": number}, changed=number not in void)
    return series


def loaded(folder: Path) -> tuple[int, float]:
    """The round that is gone on from, and what its state holds."""
    result = CheckpointSeries(folder).load()
    assert result is not None
    return result[1]["round"], float(result[0]["w"][0])


def names(folder: Path) -> list[str]:
    return sorted(contents(folder))


def test_there_may_be_none(tmp_path: Path) -> None:
    assert CheckpointSeries(tmp_path / "absent").load() is None


def test_the_last_three_are_kept(tmp_path: Path) -> None:
    saved(tmp_path, 5)
    assert KEPT == 3
    assert names(tmp_path) == [f"checkpoint-0000000{n}.json" for n in (3, 4, 5)] + [
        f"state-0000000{n}.safetensors" for n in (3, 4, 5)
    ]
    assert loaded(tmp_path) == (5, 5.0)


def test_a_round_without_a_change_writes_no_state_again(tmp_path: Path) -> None:
    series = saved(tmp_path, 3)
    before = contents(tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("state-*")}
    for number in (4, 5, 6, 7):
        series.save({"w": torch.zeros(3)}, {"round": number}, changed=False)
    after = contents(tmp_path)
    assert {name: after[name] for name in before} == before, "good ones stay as they are, each with its own notes"
    assert set(after) - set(before) == {"checkpoint-00000007.json"}, "the newest notes alone"
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("state-*")} == times
    assert loaded(tmp_path) == (7, 3.0)


def test_void_rounds_do_not_push_good_states_out(tmp_path: Path) -> None:
    saved(tmp_path, 9, void=(3, 4, 6, 8, 9))
    assert names(tmp_path) == [
        *(f"checkpoint-0000000{n}.json" for n in (2, 4, 5, 6, 7, 9)),
        *(f"state-0000000{n}.safetensors" for n in (2, 5, 7)),
    ]
    for expected in ((9, 7.0), (7, 7.0), (6, 5.0), (5, 5.0), (4, 2.0), (2, 2.0)):
        assert loaded(tmp_path) == expected
        (tmp_path / f"checkpoint-{expected[0]:08d}.json").write_bytes(b"{")
    with pytest.raises(CheckpointError, match="All 6 checkpoints are damaged"):
        loaded(tmp_path)


def test_the_first_round_may_be_without_a_change(tmp_path: Path) -> None:
    saved(tmp_path, 2, void=(1, 2))
    assert loaded(tmp_path) == (2, 0.0)


DAMAGE: dict[str, Any] = {
    "flipped": lambda content: content[:-1] + bytes([content[-1] ^ 1]),
    "cut": lambda content: content[: len(content) // 2],
    "emptied": lambda content: b"",
    "gone": None,
}


@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("file", ["state-{:08d}.safetensors", "checkpoint-{:08d}.json"])
def test_the_one_before_a_damaged_one_counts(file: str, kind: str, tmp_path: Path) -> None:
    saved(tmp_path, 5)
    for number in (5, 4, 3):
        path = tmp_path / file.format(number)
        path.write_bytes(DAMAGE[kind](path.read_bytes())) if DAMAGE[kind] else path.unlink()
        if number > 3:
            assert loaded(tmp_path) == (number - 1, number - 1)
    if kind == "gone" and file.startswith("checkpoint"):
        assert CheckpointSeries(tmp_path).load() is None, "as if there never was one"
        return
    with pytest.raises(CheckpointError, match="All 3 checkpoints are damaged; the newest, checkpoint-00000005") as all_:
        loaded(tmp_path)
    assert "from a copy" in all_.value.remedy


def test_what_is_damaged_is_named_and_set_aside(tmp_path: Path) -> None:
    saved(tmp_path, 4)
    whole = (tmp_path / "state-00000004.safetensors").read_bytes()
    (tmp_path / "state-00000004.safetensors").write_bytes(b"x")
    series = CheckpointSeries(tmp_path)
    series.load()
    (one,) = series.damaged
    assert (one.path.name, one.notes is not None) == ("checkpoint-00000004.json", True)
    assert "state-00000004.safetensors is damaged" in one.reason
    assert loaded(tmp_path) == (3, 3.0), "looking changes nothing"
    series.set_aside()
    (tmp_path / "state-00000004.safetensors").write_bytes(whole)  # a disk that comes back
    assert loaded(tmp_path) == (3, 3.0)
    series.save({"w": torch.full((3,), 40.0)}, {"round": 4}, changed=True)
    assert loaded(tmp_path) == (4, 40.0)


def test_notes_that_are_damaged_have_none(tmp_path: Path) -> None:
    saved(tmp_path, 2)
    (tmp_path / "checkpoint-00000002.json").write_bytes(b"{}")
    series = CheckpointSeries(tmp_path)
    series.load()
    assert [one.notes for one in series.damaged] == [None]


def test_an_older_one_that_is_damaged_is_dropped_in_time(tmp_path: Path) -> None:
    series = saved(tmp_path, 3)
    (tmp_path / "checkpoint-00000002.json").write_bytes(b"{")
    series.save(state(4), {"round": 4}, changed=True)
    assert names(tmp_path) == [f"checkpoint-0000000{n}.json" for n in (1, 3, 4)] + [
        f"state-0000000{n}.safetensors" for n in (1, 3, 4)
    ]


def test_the_single_checkpoint_of_an_earlier_version_is_gone_on_from(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, state(7), {"round": 7})
    series = CheckpointSeries(tmp_path)
    assert loaded(tmp_path) == (7, 7.0)
    series.load()
    series.save(state(0), {"round": 8}, changed=False)
    assert loaded(tmp_path) == (8, 7.0)
    for number in (9, 10, 11):
        series.save(state(number), {"round": number}, changed=True)
    assert "latest.json" not in contents(tmp_path)
    assert loaded(tmp_path) == (11, 11.0)


def test_a_process_that_is_killed_at_any_step_leaves_the_old_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounds 4 (good) and 5 (void) after three good ones; and again, from what was left."""

    def go_on(folder: Path) -> None:
        series = CheckpointSeries(folder)
        last = (series.load() or ({}, {"round": 0}))[1]["round"]
        series.set_aside()
        for number in range(last + 1, 6):
            series.save(state(number), {"round": number}, changed=number != 5)

    saved(tmp_path / "whole", 3)
    with monkeypatch.context() as patch:
        counted = Mortal(patch)
        go_on(tmp_path / "whole")
    assert counted.count > 12
    for point in range(counted.count):
        folder = tmp_path / str(point)
        saved(folder, 3)
        with monkeypatch.context() as patch:
            Mortal(patch, point)
            with pytest.raises(Death):
                go_on(folder)
        left = loaded(folder)
        assert left in [(3, 3.0), (4, 4.0), (5, 4.0)]
        go_on(folder)
        assert loaded(folder) == (5, 4.0)
        if left[0] < 5:  # otherwise nothing was saved any more, and what was superseded waits for the next round
            assert contents(folder) == contents(tmp_path / "whole")


def test_notes_are_json_that_names_its_state(tmp_path: Path) -> None:
    saved(tmp_path, 2, void=(2,))
    notes = json.loads((tmp_path / "checkpoint-00000002.json").read_text())
    assert (notes["round"], notes["file"]) == (2, "state-00000001.safetensors")
    assert len(notes["sha256"]) == len(notes["notes_sha256"]) == 64
