"""What formats share: options, limits, and words."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from equipoise.data.contents import Reading, bytes_of, inside, outside, pyarrow, several
from equipoise.data.loading import load
from equipoise.errors import ConfigError, DataError
from tests.data.folders import write_pictures


def test_options_that_differ_from_their_defaults_are_given() -> None:
    assert Reading().given() == []
    assert Reading(target="y", categories="codes", text_length=64).given() == ["target", "categories"]


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read: Is a directory"):
        bytes_of(tmp_path)
    with pytest.raises(DataError, match="absent cannot be read: No such file"):
        bytes_of(tmp_path / "absent")


def test_a_link_that_leads_out_is_noticed(tmp_path: Path) -> None:
    inner = tmp_path / "data"
    inner.mkdir()
    (tmp_path / "secret").write_text("x")
    (inner / "own").write_text("x")
    (inner / "out").symlink_to(tmp_path / "secret")
    (inner / "in").symlink_to(inner / "own")
    assert [outside(inner / name, inner) for name in ("own", "in", "out")] == [False, False, True]
    assert inside(inner / "in", inner) == inner / "in"
    with pytest.raises(DataError, match="out is a link that leads out of the folder"):
        inside(inner / "out", inner)


@pytest.mark.timeout(20)
def test_a_pipe_and_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train.npz")
    (tmp_path / "test.npz").touch()
    for name in ("", "train.npz"):
        with pytest.raises(DataError, match=r"train\.npz is .*no.* plain file"):
            load(tmp_path / name)
    os.mkfifo(tmp_path / "a.parquet")
    with pytest.raises(DataError, match="neither a folder nor a plain file"):
        load(tmp_path / "a.parquet")
    folder = write_pictures(tmp_path / "pets", {"": {"cat": 6, "dog": 6}})
    (folder / "cat" / "loop.png").symlink_to(folder / "cat" / "loop.png")
    with pytest.raises(DataError, match=r"loop\.png is (a link that leads out of|not a PNG)"):
        load(folder)


def test_a_missing_package_is_an_error_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ConfigError, match=r"Reading Parquet files needs the extra 'data'.*\[data\]"):
        pyarrow("Parquet files")


def test_long_lists_are_cut() -> None:
    assert several(("a", "b")) == "'a', 'b'"
    assert several(["a", "b", "c", "d", "e", "f"]) == "'a', 'b', 'c', 'd' and 2 more"
