"""The user's key: made once, for nobody else to read, and never one of somebody else's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from equipoise.auditing import key
from equipoise.auditing.key import NAME, SIZE, cache_folder, user_key
from equipoise.errors import StorageError


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "equipoise"


def test_it_is_made_once_and_only_its_user_reads_it(own: Path) -> None:
    made = user_key()
    assert len(made) == SIZE
    assert user_key() == made == (own / NAME).read_bytes()
    assert (own / NAME).stat().st_mode & 0o777 == 0o600
    (own / NAME).unlink()
    assert user_key() != made


def test_of_two_that_begin_at_once_both_get_the_first_ones(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one makes its key while this one waits for the lock."""
    genuine, theirs = key.locked, bytes(range(SIZE))

    def waited(folder: Path, wait: float) -> object:
        held = genuine(folder, wait)
        key.write_bytes(own / NAME, theirs, mode=0o600)
        return held

    monkeypatch.setattr(key, "locked", waited)
    assert user_key() == theirs


def readable(path: Path) -> None:
    path.chmod(0o644)


def short(path: Path) -> None:
    path.write_bytes(b"short")


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("change", [readable, short, folder, link, pipe])
def test_what_others_can_read_or_put_there_is_no_key(own: Path, change: object) -> None:
    user_key()
    change(own / NAME)  # type: ignore[operator]
    with pytest.raises(StorageError, match=r"audit\.key"):
        user_key()


def test_it_lies_in_the_home_folder_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for given in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", given)
        assert cache_folder() == tmp_path / ".cache" / "equipoise"
    monkeypatch.setenv("HOME", "relative")
    with pytest.raises(StorageError, match="no home folder"):
        cache_folder()


def test_a_user_without_a_home_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(StorageError, match="no home folder"):
        user_key()


def test_a_cache_that_cannot_be_written_to_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(StorageError, match="file is a file, not a folder"):
        user_key()
