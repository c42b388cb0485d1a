"""Files that are never half-written, checkpoints that are never half-believed, and a lock that dies with its holder."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import json
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor, nn

from equipoise.errors import CheckpointError, StorageError
from equipoise.files import locked, plain, read_json, write_bytes, write_json
from equipoise.models.batched import Batched
from equipoise.runs import checkpoint as storage
from equipoise.runs.checkpoint import load_checkpoint, notes_digest, save_checkpoint
from equipoise.runs.snapshot import save_snapshot, snapshot_weights
from tests.helpers import contents

TENSORS = {
    "params": torch.arange(6, dtype=torch.float32).view(2, 3),
    "sums": torch.tensor([1e-300, -0.0, 3.0], dtype=torch.float64),
    "round": torch.tensor([7], dtype=torch.int64),
}
NOTES = {"round": 7, "digest": "d", "metrics_bytes": 12}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A folder with a valid checkpoint of round 7."""
    save_checkpoint(tmp_path / "checkpoint", TENSORS, NOTES)
    return tmp_path / "checkpoint"


def plant(folder: Path, content: bytes, **change: Any) -> None:
    """Put ``content`` in the place of the checkpoint's tensors, with the right hash."""
    notes = json.loads((folder / "latest.json").read_text())
    (folder / notes["file"]).write_bytes(content)
    notes |= {"sha256": hashlib.sha256(content).hexdigest(), **change}
    del notes["notes_sha256"]
    (folder / "latest.json").write_text(json.dumps({**notes, "notes_sha256": notes_digest(notes)}))


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
    assert "resumes" in caught.value.remedy
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
        genuine = Path.open

        def open_(path: Path, mode: str = "r", *more: Any, **named: Any) -> Any:
            genuine(path, mode, *more, **named).close()  # the file exists, empty
            return _Broken(fail)

        monkeypatch.setattr(Path, "open", open_)


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
    with pytest.raises(StorageError, match="Cannot write inner"):
        write_bytes(tmp_path / "file" / "inner", b"y")
    with pytest.raises(StorageError, match="Cannot write run"), locked(tmp_path / "file" / "run"):
        pass


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


def test_a_snapshot_is_plain_safetensors_with_its_notes(tmp_path: Path) -> None:
    turned = torch.arange(6.0).view(2, 3).t()  # not contiguous, as unflattened layers are
    save_snapshot(tmp_path / "s.safetensors", {"w": turned.requires_grad_()}, {"round": "3"})
    assert torch.equal(load_file(tmp_path / "s.safetensors")["w"], turned)
    with safe_open(tmp_path / "s.safetensors", "pt") as file:
        assert json.loads(file.metadata()["equipoise"])["round"] == "3"


def test_the_same_snapshot_has_the_same_bytes(tmp_path: Path) -> None:
    """safetensors itself would write several notes in an order that changes from call to call."""
    notes = {name: name for name in ("round", "model", "a", "b", "c")}
    for i in range(8):
        save_snapshot(tmp_path / str(i), {"x": torch.zeros(3), "w": torch.ones(2, 2)}, notes)
    assert len(set(contents(tmp_path).values())) == 1
    assert torch.equal(load_file(tmp_path / "0")["w"], torch.ones(2, 2))
    with safe_open(tmp_path / "0", "pt") as file:
        assert json.loads(file.metadata()["equipoise"]).items() > notes.items()


# --- checkpoints ----------------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_bit_for_bit(saved: Path) -> None:
    found = load_checkpoint(saved)
    assert found is not None
    tensors, notes = found
    assert set(tensors) == set(TENSORS)
    for name, tensor in TENSORS.items():
        assert tensors[name].dtype == tensor.dtype
        assert tensors[name].numpy().tobytes() == tensor.numpy().tobytes()  # -0.0 too
    assert {key: notes[key] for key in NOTES} == NOTES


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path) is None
    assert load_checkpoint(tmp_path / "absent") is None


def test_a_new_checkpoint_replaces_the_old_one(saved: Path) -> None:
    save_checkpoint(saved, {"params": torch.zeros(1)}, {**NOTES, "round": 8})
    assert set(contents(saved)) == {"latest.json", "state-00000008.safetensors"}
    found = load_checkpoint(saved)
    assert found is not None
    assert found[1]["round"] == 8


@pytest.mark.parametrize("survives", range(3))
def test_until_the_last_moment_the_previous_checkpoint_is_valid(
    saved: Path, monkeypatch: pytest.MonkeyPatch, survives: int
) -> None:
    """The rename of the tensors fails, or that of latest.json, or neither."""
    replace, count = Path.replace, 0

    def failing(path: Path, target: Path) -> Path:
        nonlocal count
        count += 1
        if count > survives:
            _no_space()
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", failing)
    later = {**NOTES, "round": 8}
    if survives < 2:
        with pytest.raises(StorageError):
            save_checkpoint(saved, TENSORS, later)
    else:
        save_checkpoint(saved, TENSORS, later)
    monkeypatch.undo()
    found = load_checkpoint(saved)
    assert found is not None
    assert found[1]["round"] == (8 if survives == 2 else 7)
    assert torch.equal(found[0]["params"], TENSORS["params"])


def test_every_flipped_byte_is_noticed(saved: Path) -> None:
    (state,) = saved.glob("state-*")
    for path, words in ((state, "damaged"), (saved / "latest.json", "checkpoint")):
        whole = path.read_bytes()
        for place in range(len(whole)):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
            with pytest.raises(CheckpointError, match=words):
                load_checkpoint(saved)
        path.write_bytes(whole)


def test_a_header_with_types_or_sizes_that_torch_lacks_is_refused(saved: Path) -> None:
    for entry in (
        {"dtype": "F8_E8M0", "shape": [1], "data_offsets": [0, 1]},
        {"dtype": "F32", "shape": [0, 2**63], "data_offsets": [0, 0]},
    ):
        header = json.dumps({"params": entry}).encode()
        plant(saved, len(header).to_bytes(8, "little") + header + bytes(entry["data_offsets"][1]))
        with pytest.raises(CheckpointError, match="not safetensors") as caught:
            load_checkpoint(saved)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kept", [0, 1, 8, 100])
def test_a_truncated_checkpoint_is_noticed(saved: Path, kept: int) -> None:
    (state,) = saved.glob("state-*")
    state.write_bytes(state.read_bytes()[:kept])
    with pytest.raises(CheckpointError, match=r"state-00000007\.safetensors'? is damaged"):
        load_checkpoint(saved)


def test_a_missing_file_is_named(saved: Path) -> None:
    (state,) = saved.glob("state-*")
    state.unlink()
    with pytest.raises(CheckpointError, match=r"state-00000007\.safetensors'? cannot be read"):
        load_checkpoint(saved)


@pytest.mark.parametrize("schema", [0, 2, "1", None, [1]])
def test_an_unknown_schema_is_refused(saved: Path, schema: Any) -> None:
    notes = json.loads((saved / "latest.json").read_text())
    (saved / "latest.json").write_text(json.dumps({**notes, "schema": schema}))
    with pytest.raises(CheckpointError, match="unknown form"):
        load_checkpoint(saved)


@pytest.mark.parametrize("key", ["schema", "file", "sha256"])
def test_a_missing_key_is_refused(saved: Path, key: str) -> None:
    notes = json.loads((saved / "latest.json").read_text())
    del notes[key]
    (saved / "latest.json").write_text(json.dumps(notes))
    with pytest.raises(CheckpointError):
        load_checkpoint(saved)


def test_a_file_name_cannot_lead_out_of_the_folder(saved: Path, tmp_path: Path) -> None:
    (state,) = saved.glob("state-*")
    outside = tmp_path / "outside.safetensors"
    state.rename(outside)
    notes = json.loads((saved / "latest.json").read_text())
    for name in ("../outside.safetensors", str(outside), "x/../../outside.safetensors", "..", ".", "", "/"):
        (saved / "latest.json").write_text(json.dumps({**notes, "file": name}))
        with pytest.raises(CheckpointError):
            load_checkpoint(saved)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0" * 8, b"\xff" * 64, b"8" * 100, (2**63).to_bytes(8, "little") + b"{}"],
    ids=["empty", "zeros", "ones", "digits", "a header of 8 EiB"],
)
def test_bytes_that_are_no_safetensors_are_refused_even_with_the_right_hash(saved: Path, content: bytes) -> None:
    plant(saved, content)
    with pytest.raises(CheckpointError):
        load_checkpoint(saved)


class _Bomb:
    """Unpickled, it creates a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return Path.touch, (self.path,)


def _torch_saved(bomb: _Bomb) -> bytes:
    buffer = io.BytesIO()
    torch.save({"params": bomb}, buffer)
    return buffer.getvalue()


@pytest.mark.parametrize("make", [pickle.dumps, _torch_saved])
def test_a_pickle_is_refused_and_never_executed(saved: Path, tmp_path: Path, make: Callable[[_Bomb], bytes]) -> None:
    sign = tmp_path / "exploded"
    content = make(_Bomb(sign))
    pickle.loads(pickle.dumps(_Bomb(sign)))
    assert sign.exists(), "the bomb itself must work"
    sign.unlink()

    plant(saved, content)
    with pytest.raises(CheckpointError):
        load_checkpoint(saved)
    (saved / "latest.json").write_bytes(content)
    with pytest.raises(CheckpointError):
        load_checkpoint(saved)
    assert not sign.exists()


# --- anything at all in the folder: a checkpoint or an error of ours, nothing else --------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def believed(folder: Path) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
    """What is loaded; a CheckpointError becomes None, and anything else is a failure of the test."""
    try:
        return load_checkpoint(folder)
    except CheckpointError:
        return None


@pytest.fixture(scope="module")
def fuzzed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for hundreds of checkpoints, without waiting for the disk each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda handle: None)
        yield tmp_path_factory.mktemp("fuzzed")


@given(content=st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
@example(content=b"[" * 100_000)  # deeper than the parser can follow
@example(content=b'{"schema": ' + b"9" * 5000 + b"}")
def test_any_latest_json_is_refused_with_a_typed_error(fuzzed: Path, content: bytes) -> None:
    (fuzzed / "latest.json").write_bytes(content)
    assert believed(fuzzed) is None


@given(key=st.sampled_from(["schema", "file", "sha256", "round"]), value=JSON)
@example(key="file", value="state\0.safetensors")
@example(key="file", value="\ud800")
@example(key="file", value="x" * 300)
def test_any_value_of_a_key_is_believed_only_if_the_tensors_are(fuzzed: Path, key: str, value: Any) -> None:
    save_checkpoint(fuzzed, TENSORS, NOTES)
    notes = json.loads((fuzzed / "latest.json").read_text())
    (fuzzed / "latest.json").write_text(json.dumps({**notes, key: value}))
    found = believed(fuzzed)
    assert found is None or torch.equal(found[0]["params"], TENSORS["params"])


@given(
    place=st.integers(0, 10_000),
    byte=st.integers(0, 255),
    kept=st.integers(0, 10_000),
    more=st.binary(max_size=8),
    hashed=st.booleans(),
)
def test_any_damage_to_the_tensors_is_believed_only_if_they_parse(
    fuzzed: Path, place: int, byte: int, kept: int, more: bytes, hashed: bool
) -> None:
    save_checkpoint(fuzzed, TENSORS, NOTES)
    (state,) = fuzzed.glob("state-*")
    whole = bytearray(state.read_bytes())
    whole[place % len(whole)] = byte
    damaged = bytes(whole[: max(1, kept % (2 * len(whole)))]) + more
    if hashed:
        plant(fuzzed, damaged)
    else:
        state.write_bytes(damaged)
    unchanged = hashlib.sha256(damaged).hexdigest() == hashlib.sha256(storage.save_tensors(TENSORS)).hexdigest()
    found = believed(fuzzed)
    assert hashed or (found is not None) == unchanged


@given(content=st.binary(max_size=200))
def test_any_bytes_as_tensors_with_the_right_hash(fuzzed: Path, content: bytes) -> None:
    save_checkpoint(fuzzed, TENSORS, NOTES)
    plant(fuzzed, content)
    found = believed(fuzzed)
    assert found is None or isinstance(found[0], dict)


# --- the lock -------------------------------------------------------------------------------------------------

HOLD = """
import sys, time
from pathlib import Path
from equipoise.storage import locked
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
    monkeypatch.setattr(storage, "time", clock)
    with locked(tmp_path, wait=10.0):
        assert clock.now == pytest.approx(107.0, abs=0.2), "no longer than needed"
        with pytest.raises(CheckpointError, match="Another process"), locked(tmp_path):
            pass


def test_the_lock_gives_up_when_its_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as holder:
        holder.enter_context(locked(tmp_path))
        clock = _Clock(11.0, holder.close)
        monkeypatch.setattr(storage, "time", clock)
        with pytest.raises(CheckpointError, match="Another process"), locked(tmp_path, wait=10.0):
            pass
        assert clock.now == pytest.approx(110.0, abs=0.2)


def test_the_lock_is_released_by_an_error_inside(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path):
        1 / 0  # noqa: B018
    with locked(tmp_path), pytest.raises(CheckpointError), locked(tmp_path):
        pass


def test_a_flipped_bit_of_a_snapshot_is_noticed(tmp_path: Path) -> None:
    layout = Batched(nn.Linear(3, 2)).layout
    weights = layout.unflatten(torch.arange(8.0))
    save_snapshot(
        tmp_path / "s.safetensors", {f"federation-0/{name}": t for name, t in weights.items()}, {"round": "1"}
    )
    whole = (tmp_path / "s.safetensors").read_bytes()
    assert snapshot_weights(tmp_path / "s.safetensors", layout, 1).tolist() == [list(range(8))]
    for place in range(len(whole) - 32, len(whole)):  # every byte of the numbers
        damaged = bytearray(whole)
        damaged[place] ^= 1
        (tmp_path / "s.safetensors").write_bytes(bytes(damaged))
        with pytest.raises(CheckpointError, match="SHA-256 differs"):
            snapshot_weights(tmp_path / "s.safetensors", layout, 1)
