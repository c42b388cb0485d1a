"""Snapshots: plain safetensors with a hash in the header, and no weight believed that does not fit it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from equipoise.errors import CheckpointError, EquipoiseError, ModelError
from equipoise.models.batched import Batched
from equipoise.runs.snapshot import save_snapshot, snapshot_rounds, snapshot_weights, tensors_digest
from tests.helpers import contents


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


@pytest.fixture
def linear() -> Batched:
    return Batched(nn.Linear(3, 2))


def named(batched: Batched, *rows: Tensor) -> dict[str, Tensor]:
    """The tensors of so many federations, as a run names them."""
    return {
        f"federation-{place}/{name}": tensor.contiguous()
        for place, row in enumerate(rows)
        for name, tensor in batched.layout.unflatten(row).items()
    }


def test_the_weights_of_all_federations_come_in_their_order(linear: Batched, tmp_path: Path) -> None:
    rows = [torch.arange(8.0) + 100 * place for place in range(11)]  # federation-10 must not be taken for federation-1
    save_snapshot(tmp_path / "s", named(linear, *rows), {"round": "1"})
    assert torch.equal(snapshot_weights(tmp_path / "s", linear.layout, 11), torch.stack(rows))
    assert torch.equal(snapshot_weights(tmp_path / "s", linear.layout, 2), torch.stack(rows[:2]))


def test_a_snapshot_of_another_program_needs_no_hash(linear: Batched, tmp_path: Path) -> None:
    save_file(named(linear, torch.arange(8.0)), tmp_path / "s")
    assert snapshot_weights(tmp_path / "s", linear.layout, 1).tolist() == [list(range(8))]


def test_the_hash_covers_names_forms_and_numbers() -> None:
    one = {"a": torch.arange(4.0), "b": torch.zeros(2)}
    assert tensors_digest(one) == tensors_digest(dict(reversed(one.items()))), "in any order"
    others = [
        {"a": torch.arange(4.0).view(2, 2), "b": torch.zeros(2)},
        {"a": torch.arange(4.0).double(), "b": torch.zeros(2)},
        {"c": torch.arange(4.0), "b": torch.zeros(2)},
        {"a": torch.arange(4.0), "b": torch.tensor([0.0, -0.0])},
        {"a": torch.arange(4.0)},
    ]
    assert len({tensors_digest(tensors) for tensors in [one, *others]}) == 6


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "cannot be read"),
        (b"not safetensors at all", "cannot be read"),
        ((2**63).to_bytes(8, "little") + b"{}", "cannot be read"),
        (None, "cannot be read"),
    ],
    ids=["empty", "text", "a header of 8 EiB", "missing"],
)
def test_what_is_no_snapshot_is_refused_by_name(
    linear: Batched, tmp_path: Path, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / "round-000001.safetensors").write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        snapshot_weights(tmp_path / "round-000001.safetensors", linear.layout, 1)
    assert "round-000001.safetensors" in caught.value.cause
    assert "\n" not in caught.value.cause


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (torch.full((8,), torch.nan), CheckpointError, "not finite"),
        (torch.full((8,), torch.inf), CheckpointError, "not finite"),
        (torch.zeros(8, dtype=torch.int64), CheckpointError, r"weights of type torch\.int64"),
        (torch.zeros(8, dtype=torch.float16), CheckpointError, r"weights of type torch\.float16"),
    ],
)
def test_weights_that_are_no_numbers_of_a_model_are_refused(
    linear: Batched, tmp_path: Path, value: Tensor, error: type[Exception], words: str
) -> None:
    save_snapshot(tmp_path / "s", named(linear, value), {})
    with pytest.raises(error, match=words):
        snapshot_weights(tmp_path / "s", linear.layout, 1)


def test_a_federation_that_is_missing_is_an_error(linear: Batched, tmp_path: Path) -> None:
    save_snapshot(tmp_path / "s", named(linear, torch.zeros(8)), {})
    with pytest.raises(ModelError, match="Missing tensors"):
        snapshot_weights(tmp_path / "s", linear.layout, 2)


@pytest.mark.parametrize("notes", ["[]", "3", '{"sha256": 5}', '{"sha256": ""}'])
def test_notes_of_any_form_are_no_hash_or_a_wrong_one(linear: Batched, tmp_path: Path, notes: str) -> None:
    save_file(named(linear, torch.zeros(8)), tmp_path / "s", metadata={"equipoise": notes})
    if "sha256" in notes:
        with pytest.raises(CheckpointError, match="SHA-256 differs"):
            snapshot_weights(tmp_path / "s", linear.layout, 1)
    else:
        assert snapshot_weights(tmp_path / "s", linear.layout, 1).shape == (1, 8)


def test_rounds_are_those_of_files_that_the_run_wrote(tmp_path: Path) -> None:
    (tmp_path / "snapshots").mkdir()
    for name in ("round-000005.safetensors", "round-7.safetensors", "round-x.safetensors"):
        (tmp_path / "snapshots" / name).touch()
    assert snapshot_rounds(tmp_path) == [5]
    linked = tmp_path / "linked"
    linked.mkdir()
    (linked / "snapshots").symlink_to(tmp_path / "snapshots")
    with pytest.raises(EquipoiseError):
        snapshot_rounds(linked)


@pytest.mark.parametrize("kind", ["pipe", "device", "hole", "folder"])
def test_what_is_no_plain_file_of_a_sane_size_is_refused(tmp_path: Path, linear: Batched, kind: str) -> None:
    """A folder of somebody else's: nobody waits for its pipes, and none fills the memory."""
    path = tmp_path / "s.safetensors"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "hole":
        path.touch()
        os.truncate(path, 2**40)
    else:
        path.mkdir()
    with pytest.raises(CheckpointError, match="snapshot") as caught:
        snapshot_weights(path, linear.layout, 1)
    assert caught.value.remedy


def test_a_header_without_notes_has_no_digest(tmp_path: Path, linear: Batched) -> None:
    path = tmp_path / "s.safetensors"
    save_file({f"federation-0/{name}": t for name, t in linear.layout.unflatten(torch.arange(8.0)).items()}, path)
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    head = json.dumps({**json.loads(content[8 : 8 + size]), "__metadata__": None}).encode()
    path.write_bytes(len(head).to_bytes(8, "little") + head + content[8 + size :])
    assert snapshot_weights(path, linear.layout, 1).tolist() == [list(range(8))]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e4m3fn, torch.complex64])
def test_a_type_that_numpy_lacks_has_a_digest_and_is_named(tmp_path: Path, linear: Batched, dtype: torch.dtype) -> None:
    weights = linear.layout.unflatten(torch.arange(8.0))
    save_snapshot(tmp_path / "s", {f"federation-0/{name}": t.to(dtype) for name, t in weights.items()}, {"round": "1"})
    with pytest.raises(CheckpointError, match="has weights of type torch"):
        snapshot_weights(tmp_path / "s", linear.layout, 1)
