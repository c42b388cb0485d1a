"""Files that are never half-written, JSON that is read back or refused, and a lock that dies with its holder."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from equipoise import files
from equipoise.errors import CheckpointError, ConfigError, StorageError
from equipoise.files import (
    DONE,
    changing,
    finished,
    locked,
    plain,
    read_json,
    storage_errors,
    write_bytes,
    write_json,
    write_text,
)
from tests.helpers import contents

# --- atomic writes --------------------------------------------------------------------------------------------


def test_a_write_makes_its_folders_and_leaves_nothing_else(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a" / "b" / "file", b"one")
    write_bytes(tmp_path / "a" / "b" / "file", b"two")
    assert contents(tmp_path) == {"a/b/file": b"two"}


def _no_space(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("place", ["fsync", "replace", "write"])
def test_a_full_disk_leaves_the_old_content_and_no_partial_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    path = tmp_path / "result.json"
    write_bytes(path, b"old")
    _break(monkeypatch, place, _no_space)
    with pytest.raises(StorageError, match=r"Cannot write result\.json: No space left on device\.") as caught:
        write_bytes(path, b"new")
    assert "goes on" in caught.value.remedy
    monkeypatch.undo()
    assert contents(tmp_path) == {"result.json": b"old"}


@pytest.mark.parametrize("place", ["fsync", "replace", "write"])
def test_an_interruption_leaves_the_old_content_and_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    path = tmp_path / "result.json"
    write_bytes(path, b"old")
    _break(monkeypatch, place, _interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_bytes(path, b"new")
    monkeypatch.undo()
    assert contents(tmp_path) == {"result.json": b"old"}


class _Broken(io.BytesIO):
    def __init__(self, fail: Callable[..., None]):
        super().__init__()
        self.write = fail  # type: ignore[method-assign, assignment]


def _break(monkeypatch: pytest.MonkeyPatch, place: str, fail: Callable[..., None]) -> None:
    if place == "fsync":
        monkeypatch.setattr(os, "fsync", fail)
    elif place == "replace":
        monkeypatch.setattr(Path, "replace", fail)
    else:

        def open_(*given: Any, **named: Any) -> Any:
            open(*given, **named).close()  # the file exists, empty
            return _Broken(fail)

        monkeypatch.setattr(files, "open", open_, raising=False)


def test_the_content_is_flushed_before_the_name_and_the_name_before_the_return(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    fsync, replace = os.fsync, Path.replace

    def watch_fsync(handle: int) -> None:
        seen.append("fsync folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "fsync file")
        fsync(handle)

    def watch_replace(path: Path, target: Path) -> Path:
        seen.append("rename")
        return replace(path, target)

    monkeypatch.setattr(os, "fsync", watch_fsync)
    monkeypatch.setattr(Path, "replace", watch_replace)
    write_bytes(tmp_path / "file", b"content")
    assert seen == ["fsync file", "rename", "fsync folder"]


def test_a_path_under_a_file_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(StorageError, match=r"Cannot write inner: file is a file, not a folder\.") as caught:
        write_bytes(tmp_path / "file" / "inner", b"y")
    assert "space" not in caught.value.remedy
    with pytest.raises(StorageError, match="Cannot write run: file is a file"), locked(tmp_path / "file" / "run"):
        pass
    with pytest.raises(StorageError, match="Cannot write file: file is a file"), locked(tmp_path / "file"):
        pass


def test_nothing_is_written_through_a_link_that_a_folder_holds(tmp_path: Path) -> None:
    precious, run = tmp_path / "precious", tmp_path / "run"
    precious.write_text("precious")
    run.mkdir()
    (run / ".audit.json.partial").symlink_to(precious)
    (run / "audit.json").symlink_to(precious)
    write_json(run / "audit.json", {"x": 1})
    assert not (run / "audit.json").is_symlink()
    assert read_json(run / "audit.json", "audit") == {"x": 1}
    (run / ".lock").symlink_to(precious)
    with pytest.raises(StorageError, match=r"\.lock in the folder run is a link") as caught, locked(run):
        pass
    assert "Remove the link" in caught.value.remedy
    (run / ".lock").unlink()
    os.link(precious, run / ".lock")
    with locked(run):
        pass
    assert precious.read_text() == "precious", "a lock needs no content, and leaves what there is"


def test_a_write_says_who_reads_it_from_the_first_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def later(*_: object) -> None:
        raise AssertionError("until then others could open it")

    for name in ("fchmod", "chmod"):
        monkeypatch.setattr(os, name, later)
    before = os.umask(0o022)
    try:
        write_bytes(tmp_path / "key", b"secret", mode=0o600)
        write_bytes(tmp_path / "result.json", b"{}")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "result.json").stat().st_mode) == 0o644, "as the umask has it"


def test_a_temporary_file_that_others_can_read_lends_nothing_to_the_new_one(tmp_path: Path) -> None:
    (tmp_path / ".key.partial").write_text("of a process that was killed")
    (tmp_path / ".key.partial").chmod(0o666)
    write_bytes(tmp_path / "key", b"secret", mode=0o600)
    assert stat.S_IMODE((tmp_path / "key").stat().st_mode) == 0o600
    assert contents(tmp_path) == {"key": b"secret"}


@pytest.mark.parametrize("plant", [os.symlink, os.link])
def test_a_link_planted_after_the_look_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, plant: Callable[[Path, Path], None]
) -> None:
    """Between the removal of the old temporary file and the new one somebody is faster."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    precious.chmod(0o640)
    genuine = Path.unlink

    def unlink(path: Path, missing_ok: bool = False) -> None:
        genuine(path, missing_ok=missing_ok)
        if path.name.endswith(".partial") and not (tmp_path / "planted").exists():
            (tmp_path / "planted").touch()
            plant(precious, path)

    monkeypatch.setattr(Path, "unlink", unlink)
    with pytest.raises(StorageError):
        write_bytes(tmp_path / "key", b"secret", mode=0o600)
    assert precious.read_text() == "precious"
    assert stat.S_IMODE(precious.stat().st_mode) == 0o640
    assert not (tmp_path / "key").exists()


# --- files that grow ------------------------------------------------------------------------------------------


def test_a_file_is_changed_in_place_and_made_only_when_asked(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="Cannot write log"), changing(tmp_path / "log"):
        pass
    with changing(tmp_path / "log", create=True) as file:
        file.write(b"one two")
    with changing(tmp_path / "log") as file:
        file.truncate(3)
    assert contents(tmp_path) == {"log": b"one"}


@pytest.mark.parametrize("create", [False, True])
def test_nothing_is_changed_through_a_link_and_no_pipe_is_waited_for(tmp_path: Path, create: bool) -> None:
    precious, link = tmp_path / "precious", tmp_path / "log"
    precious.write_text("precious")
    link.symlink_to(precious)
    with pytest.raises(StorageError, match=r"log in the folder .* is a link") as caught, changing(link, create) as file:
        file.truncate(0)
    assert "Remove the link" in caught.value.remedy
    link.unlink()
    link.symlink_to(tmp_path / "nowhere")
    with pytest.raises(StorageError, match="is a link"), changing(link, create) as file:
        file.write(b"x")
    link.unlink()
    os.mkfifo(link)
    with pytest.raises(StorageError, match=r"log is no plain file\.") as caught, changing(link, create):
        pass
    assert caught.value.remedy == "Move it away."
    assert precious.read_text() == "precious"
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "result.json").mkdir()
    with pytest.raises(StorageError, match=r"Cannot write result\.json: result\.json is a folder, not a file\."):
        write_bytes(tmp_path / "result.json", b"y")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="writes below /proc, which Linux has")
def test_a_file_system_without_new_files_says_nothing_of_space() -> None:
    with pytest.raises(StorageError) as caught, locked(Path("/proc/equipoise-run")):
        pass
    assert "space" not in caught.value.remedy


def test_a_file_system_that_is_read_only_asks_for_another(tmp_path: Path) -> None:
    command = ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", str(tmp_path)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("only root can mount a read-only disk; the error is made up below")
    try:
        with pytest.raises(StorageError) as caught, locked(tmp_path / "run"):
            pass
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)
    assert str(caught.value) == (
        "Cannot write run: Read-only file system. Choose a folder on a file system that can be written to."
    )


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EDQUOT, "Free some space"),
        (errno.EROFS, "Choose a folder on a file system that can be written to."),
        (errno.EACCES, "Choose a folder that you may write to"),
        (errno.EPERM, "Choose a folder that you may write to"),
        (errno.ENOENT, "its file system takes no new files"),
        (errno.ENAMETOOLONG, "Choose a shorter name."),
        (errno.EMFILE, "limit on open files"),
        (errno.EFBIG, "limit on the size of files"),
        (errno.EIO, "Check the disk"),
        (errno.ELOOP, "Choose another folder."),
    ],
    ids=lambda value: errno.errorcode.get(value, "") if isinstance(value, int) else "",
)
def test_each_cause_has_its_own_remedy(number: int, words: str) -> None:
    error = OSError(number, os.strerror(number))
    with pytest.raises(StorageError) as caught, storage_errors(Path("folder") / "a"):
        raise error
    assert caught.value.cause == f"Cannot write folder/a: {os.strerror(number)}."
    assert words in caught.value.remedy
    assert ("space" in caught.value.remedy) == (number in (errno.ENOSPC, errno.EDQUOT))
    assert caught.value.__cause__ is error


def test_an_error_without_a_number_is_told_as_it_is() -> None:
    with pytest.raises(StorageError) as caught, storage_errors(Path("folder") / "a"):
        raise OSError("cable unplugged")
    assert str(caught.value) == "Cannot write folder/a: cable unplugged. Choose another folder."


def test_other_errors_pass_through() -> None:
    with pytest.raises(ZeroDivisionError), storage_errors(Path("a")):
        1 / 0  # noqa: B018


def test_text_is_written_as_utf_8(tmp_path: Path) -> None:
    write_text(tmp_path / "a.txt", "χ = 0.98\n")
    assert (tmp_path / "a.txt").read_bytes() == "χ = 0.98\n".encode()


# --- JSON -----------------------------------------------------------------------------------------------------


def test_json_is_written_whole_and_read_back(tmp_path: Path) -> None:
    value = {"a": [1, 2.5, None, "é"]}
    write_json(tmp_path / "x.json", value)
    assert read_json(tmp_path / "x.json", "thing") == value
    assert (tmp_path / "x.json").read_bytes().endswith(b"\n")


def test_numbers_that_json_does_not_know_become_null(tmp_path: Path) -> None:
    value = {"a": [float("nan"), 1.5, {"b": float("-inf")}], "c": (float("inf"), "NaN", True, None, 3)}
    assert plain(value) == {"a": [None, 1.5, {"b": None}], "c": [None, "NaN", True, None, 3]}
    write_json(tmp_path / "x.json", value)
    assert "Infinity" not in (tmp_path / "x.json").read_text()
    assert read_json(tmp_path / "x.json", "thing") == plain(value)


def test_json_that_is_missing_or_broken_is_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no thing at x\.json"):
        read_json(tmp_path / "x.json", "thing")
    (tmp_path / "x.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"thing x\.json cannot be read"):
        read_json(tmp_path / "x.json", "thing")


@pytest.mark.parametrize("content", [b"\xff", b"[" * 100_000, b"9" * 5000, b""], ids=["UTF-8", "deep", "long", "empty"])
def test_json_of_any_kind_of_damage_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=r"thing x\.json cannot be read") as caught:
        read_json(tmp_path / "x.json", "thing")
    assert "--fresh" in caught.value.remedy


# --- the lock -------------------------------------------------------------------------------------------------


HOLD = """
import sys, time
from pathlib import Path
from equipoise.files import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_the_lock_excludes_another_process_and_goes_with_it(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            refusal = f"Another process is using the run folder {tmp_path.name}"
            with pytest.raises(CheckpointError, match=refusal), locked(tmp_path):
                pass
        finally:
            holder.kill()
    with locked(tmp_path):
        pass


class _Clock:
    """Time that passes only while someone waits; at ``until`` something happens."""

    def __init__(self, until: float, happens: Callable[[], None]):
        self.now, self.until, self.happens = 100.0, 100.0 + until, happens

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self.now >= self.until:
            self.happens()


def test_the_lock_waits_for_a_holder_that_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = contextlib.ExitStack()
    holder.enter_context(locked(tmp_path))
    clock = _Clock(7.0, holder.close)
    monkeypatch.setattr(files, "time", clock)
    with locked(tmp_path, wait=10.0):
        assert clock.now == pytest.approx(107.0, abs=0.2), "no longer than needed"
        with pytest.raises(CheckpointError, match="Another process"), locked(tmp_path):
            pass


def test_the_lock_gives_up_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as holder:
        holder.enter_context(locked(tmp_path))
        clock = _Clock(11.0, holder.close)
        monkeypatch.setattr(files, "time", clock)
        with pytest.raises(CheckpointError, match="Another process"), locked(tmp_path, wait=10.0):
            pass
        assert clock.now == pytest.approx(110.0, abs=0.2)


def test_the_lock_is_released_by_an_error_inside(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        1 / 0  # noqa: B018
    with locked(tmp_path), pytest.raises(CheckpointError), locked(tmp_path):
        pass


def test_a_holder_that_is_gone_leaves_its_file_and_no_lock(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").write_text("left by a process that was killed")
    with locked(tmp_path / "run"):
        pass


def test_a_process_that_was_forked_meanwhile_does_not_keep_the_lock(tmp_path: Path) -> None:
    """Workers of a data loader are forked, have all handles of their parent, and may live on."""
    read, write = os.pipe()
    with locked(tmp_path):
        child = os.fork()
        if child == 0:
            os.close(write)
            os.read(read, 1)  # until the parent lets it go
            os._exit(0)
    try:
        with locked(tmp_path):
            pass
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)


def test_a_file_system_without_locks_is_told_apart_from_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def flock(handle: int, kind: int) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(files.fcntl, "flock", flock)
    with pytest.raises(StorageError, match=r"Cannot lock \.lock: No locks available\."), locked(tmp_path, wait=9.0):
        pass


@pytest.mark.parametrize("kind", ["pipe", "link to nowhere"])
def test_what_lies_in_the_place_of_the_lock_is_refused(tmp_path: Path, kind: str) -> None:
    lock, precious = tmp_path / ".lock", tmp_path / "precious"
    if kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to(precious)
    with pytest.raises(StorageError, match=r"\.lock") as caught, locked(tmp_path):
        pass
    assert caught.value.remedy in ("Move it away.", "Remove the link, or put what it leads to in its place.")
    assert not precious.exists(), "nor made where it leads"


WITHOUT_FCNTL = """
import sys
sys.modules["fcntl"] = None
from equipoise import protect, scale_clip
from equipoise.cli.app import main
sys.argv = ["equipoise", "train", "--mechanism", "none", "--rounds", "1", "--out", "run"]
main()
"""


def test_a_system_without_fcntl_is_told_so(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_FCNTL], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == StorageError.exit_code
    assert done.stderr.startswith("error: This system has no fcntl, which locks run folders. Use Linux or macOS")
    assert len(done.stderr.splitlines()) == 1


# --- finished parts -------------------------------------------------------------------------------------------


def test_a_part_is_finished_when_its_last_file_says_of_what(tmp_path: Path) -> None:
    part = {"settings": {"sizes": (1, 2)}, "weight": float("nan")}
    assert not finished(tmp_path / "nowhere", part)
    for content in ("", "{", "[]", "{}", '"spec"'):
        (tmp_path / DONE).write_text(content)
        assert not finished(tmp_path, part)
    write_json(tmp_path / DONE, {"spec": part})
    assert finished(tmp_path, part), "as JSON has it"
    with pytest.raises(ConfigError, match=f"part '{tmp_path.name}' was computed from another SPEC"):
        finished(tmp_path, {**part, "weight": 1.0})
