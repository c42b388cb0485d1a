"""``metrics.jsonl``: lines are whole or not there, and none is believed unchecked."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from equipoise.errors import CheckpointError, StorageError
from equipoise.runs.metrics_file import METRICS, append_rows, cut, read_rows, size_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    append_rows(tmp_path / METRICS, [{"round": 1, "loss": 0.5}, {"round": 2, "loss": math.nan}], "seeded")
    return tmp_path / METRICS


def test_rows_come_back_as_they_were_written(path: Path) -> None:
    append_rows(path, [{"round": 3}], None)
    assert read_rows(path) == [
        {"experiment": "seeded", "round": 1, "loss": 0.5},
        {"experiment": "seeded", "round": 2, "loss": None},
        {"experiment": None, "round": 3},
    ]


def test_rows_are_on_the_disk_before_the_call_returns(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match=r"Cannot write metrics\.jsonl: No space left on device"):
        append_rows(path, [{"round": 3}], None)


@pytest.mark.parametrize("act", [lambda path: append_rows(path, [{"round": 1}], None), lambda path: cut(path, 0)])
def test_what_a_link_leads_to_is_neither_cut_nor_written(tmp_path: Path, act: Callable[[Path], None]) -> None:
    """A folder may come from somebody else, with a link where the metrics should be."""
    (tmp_path / "precious").write_text("precious")
    (tmp_path / METRICS).symlink_to(tmp_path / "precious")
    with pytest.raises(StorageError, match=r"metrics\.jsonl in the folder .* is a link"):
        act(tmp_path / METRICS)
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_file_that_is_not_there_has_no_rows_and_no_bytes(tmp_path: Path) -> None:
    assert (read_rows(tmp_path / METRICS), size_of(tmp_path / METRICS)) == ([], 0)
    cut(tmp_path / METRICS, 0)
    assert not (tmp_path / METRICS).exists()


def test_what_came_after_a_checkpoint_is_cut_off(path: Path) -> None:
    before, size = path.read_bytes(), size_of(path)
    append_rows(path, [{"round": 3}], "seeded")
    cut(path, size)
    assert path.read_bytes() == before
    with pytest.raises(CheckpointError, match=r"metrics\.jsonl is shorter than the checkpoint says"):
        cut(path, size + 1)
    assert path.read_bytes() == before


@pytest.mark.parametrize("torn", [b'{"round": 6, "accur', b"[1, 2]", b'{"round": 6}', b"\xff"])
def test_a_last_line_without_its_end_is_left_for_later(path: Path, torn: bytes) -> None:
    before = read_rows(path)
    path.write_bytes(path.read_bytes() + torn)
    assert read_rows(path) == before


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"[1, 2]\n", "Line 3 of metrics.jsonl is not a JSON object."),
        (b'"text"\n', "Line 3 of metrics.jsonl is not a JSON object."),
        (b"null\n", "Line 3 of metrics.jsonl is not a JSON object."),
        (b"{not JSON}\n", "Line 3 of metrics.jsonl is damaged"),
        (b"\n", "Line 3 of metrics.jsonl is damaged"),
        (b"\xff\n", "Line 3 of metrics.jsonl is damaged"),
        (b"[" * 100_000 + b"\n", "Line 3 of metrics.jsonl is damaged"),
        (b"9" * 5000 + b"\n", "Line 3 of metrics.jsonl is damaged"),
    ],
    ids=["a list", "a text", "null", "no JSON", "empty", "no UTF-8", "too deep", "too long"],
)
def test_a_line_that_is_no_record_is_named(path: Path, line: bytes, words: str) -> None:
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(CheckpointError) as caught:
        read_rows(path)
    assert words in caught.value.cause
    assert caught.value.remedy


def test_rows_must_have_the_keys_and_the_numbers_that_are_needed(path: Path) -> None:
    assert len(read_rows(path, ["round"], ["loss"])) == 2
    with pytest.raises(CheckpointError, match=r"Line 2 of metrics\.jsonl has no valid 'loss'"):
        read_rows(path, ["loss"])
    with pytest.raises(CheckpointError, match=r"Line 1 of metrics\.jsonl has no valid 'mechanism'"):
        read_rows(path, [], ["mechanism"])


def test_a_folder_in_its_place_is_no_file(tmp_path: Path) -> None:
    (tmp_path / METRICS).mkdir()
    assert read_rows(tmp_path / METRICS) == []
