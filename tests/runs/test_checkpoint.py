"""Checkpoints that are never half-believed: bit for bit, or a typed error; nothing is executed."""

from __future__ import annotations

import errno
import hashlib
import io
import json
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

from equipoise.errors import CheckpointError, StorageError
from equipoise.runs.checkpoint import load_checkpoint, notes_digest, save_checkpoint, save_tensors, tidy
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


# --- checkpoints ----------------------------------------------------------------------------------------------


def test_a_checkpoint_comes_back_bit_for_bit(saved: Path) -> None:
    result = load_checkpoint(saved)
    assert result is not None
    tensors, notes = result
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
    result = load_checkpoint(saved)
    assert result is not None
    assert result[1]["round"] == 8


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
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", failing)
    later = {**NOTES, "round": 8}
    if survives < 2:
        with pytest.raises(StorageError):
            save_checkpoint(saved, TENSORS, later)
    else:
        save_checkpoint(saved, TENSORS, later)
    monkeypatch.undo()
    result = load_checkpoint(saved)
    assert result is not None
    assert result[1]["round"] == (8 if survives == 2 else 7)
    assert torch.equal(result[0]["params"], TENSORS["params"])


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
    result = believed(fuzzed)
    assert result is None or torch.equal(result[0]["params"], TENSORS["params"])


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
    unchanged = hashlib.sha256(damaged).hexdigest() == hashlib.sha256(save_tensors(TENSORS)).hexdigest()
    result = believed(fuzzed)
    assert hashed or (result is not None) == unchanged


@given(content=st.binary(max_size=200))
def test_any_bytes_as_tensors_with_the_right_hash(fuzzed: Path, content: bytes) -> None:
    save_checkpoint(fuzzed, TENSORS, NOTES)
    plant(fuzzed, content)
    result = believed(fuzzed)
    assert result is None or isinstance(result[0], dict)


def test_tidying_removes_what_was_superseded_and_what_was_half_written(saved: Path) -> None:
    for name in ("state-00000003.safetensors", ".latest.json.partial", ".state-00000009.safetensors.partial"):
        (saved / name).write_bytes(b"old")
    (saved / "mine.txt").write_bytes(b"mine")
    tidy(saved, ["state-00000007.safetensors"])
    assert set(contents(saved)) == {"latest.json", "state-00000007.safetensors", "mine.txt"}
